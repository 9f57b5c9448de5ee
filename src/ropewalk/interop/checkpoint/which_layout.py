"""Detect which pair layout a checkpoint's weights are in, with every piece of evidence and its
strength.

Strong evidence is the layout that a folder written by `convert_checkpoint` states; the code of the
model family, if transformers loads the folder; and the names in Meta's and Mistral's own folders.
The norms of the weights are weak evidence. `layout.probe_layout` tests the model itself.

Paired rows are the two rows of a q or k projection that make one pair: the rows i and i + d/2 of a
head in the half layout, 2i and 2i+1 in the interleaved one. The rule of a tensor of q or k, a
TensorRule, says how its rows are divided into heads and which rows of a head rotate.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ropewalk.config import file as config_file
from ropewalk.config.families import families
from ropewalk.errors import RopeError
from ropewalk.interop.checkpoint.layout_record import RECORD_FILE, stated_layout
from ropewalk.interop.checkpoint.shards import Folder, open_folder
from ropewalk.interop.checkpoint.tensor_rules import TensorRule, find_rules, read_config

#: the most q and k projections, both together, that are read, spread over the layers
SAMPLED = 8
#: the norms of paired rows agree if the mean agreement of the heads exceeds the first number, and
#: the second number times its standard error
MIN_AGREEMENT, MIN_STANDARD_ERRORS = 0.2, 4.0
#: the norms of fewer heads are not compared
FEWEST_HEADS = 3


@dataclass(frozen=True)
class LayoutObservation:
    """One observation, the layout it indicates (None: neither), and its strength: "strong" or
    "weak".

    Strong evidence always indicates a layout.
    """

    observation: str
    layout: str | None
    strength: str


@dataclass(frozen=True)
class LayoutEvidence:
    """The detected layout, the confidence in it, and the evidence.

    confidence   "likely": strong evidence, none against it. "disputed": strong evidence, and weak
                 evidence against it. "weak": only the weights indicate it. "undecided": no evidence
                 for either layout, or strong evidence for both; `layout` is None
    """

    layout: str | None
    confidence: str
    evidence: tuple[LayoutObservation, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON."""
        return {
            "layout": self.layout,
            "confidence": self.confidence,
            "evidence": [vars(each) for each in self.evidence],
        }

    def __str__(self) -> str:
        lines = [
            f"  {each.layout or 'neither':<12} {each.strength:<7} {each.observation}"
            for each in self.evidence
        ]
        return "\n".join([f"{self.layout or 'no layout'} ({self.confidence})", *lines])


def which_layout(path: str | os.PathLike[str], *, config: Any = None) -> LayoutEvidence:
    """Detect which layout the q and k projections in a checkpoint folder are in, and return the
    evidence.

    config  the config with the model's sizes, in place of the folder's config.json

    Reads the headers and at most 8 projections.
    """
    folder = open_folder(path)
    config = read_config(folder, config)
    evidence = (*_from_names(folder), _from_code(config_file.text_part(config), folder))
    stated = stated_layout(folder)
    if stated is not None and stated.source == RECORD_FILE:
        # names and code tell only the layout before the conversion, so they are no evidence for the
        # layout after it
        before = (
            LayoutObservation(f"before the conversion: {each.observation}", None, "weak")
            for each in evidence
        )
        evidence = (
            LayoutObservation(
                f"{RECORD_FILE}, written by the conversion, states it", stated.layout, "strong"
            ),
            *before,
        )
    evidence = (*evidence, _from_weights(folder, config))
    strong = {each.layout for each in evidence if each.strength == "strong"}
    weak = {each.layout for each in evidence if each.layout and each.strength == "weak"}
    if len(strong) == 1:
        layout = strong.pop()
        return LayoutEvidence(layout, "likely" if weak <= {layout} else "disputed", evidence)
    if not strong and len(weak) == 1:
        return LayoutEvidence(weak.pop(), "weak", evidence)
    return LayoutEvidence(None, "undecided", evidence)


def _meta_names(folder: Folder) -> list[str]:
    """Return the names of tensors of q and k as Meta's and Mistral's own code has them."""
    return [
        name
        for name in folder.names
        if name.endswith((".attention.wq.weight", ".attention.wk.weight"))
    ]


def _from_names(folder: Folder) -> list[LayoutObservation]:
    """Return strong evidence for interleaved pairs if names of tensors or files are those of Meta's
    and Mistral's own code, else [].
    """
    evidence = []
    if names := _meta_names(folder):
        evidence.append(
            f"{names[0]} is a name in Meta's and Mistral's own files, whose code pairs (2i, 2i+1)"
        )
    if (folder.path / "params.json").is_file():
        evidence.append("params.json is part of Meta's and Mistral's own folders")
    return [LayoutObservation(each, "interleaved", "strong") for each in evidence]


def _from_code(config: Mapping[str, Any], folder: Folder) -> LayoutObservation:
    """Return evidence from the code of the model family: the layout by `rope_interleave`, if the
    code reads that key, or else its own; none (weak) if the tensors have other names than the code
    loads, or the code is not known.
    """
    model_type, interleave = config.get("model_type"), config.get("rope_interleave")
    family = families().get(str(model_type))
    if family is None:
        return LayoutObservation(f"model_type {model_type!r} is not a known family", None, "weak")
    if family.refused is not None:
        text = f"no spec describes the rotation of {model_type}: it {family.refused}"
        return LayoutObservation(text, None, "weak")
    if _meta_names(folder):
        text = f"the layout of {model_type} is unknown for tensors with these names"
        return LayoutObservation(text, None, "weak")
    if "rope_interleave" in family.reads and isinstance(interleave, bool):
        return LayoutObservation(
            f"rope_interleave is {str(interleave).lower()}",
            "interleaved" if interleave else "half",
            "strong",
        )
    observation = (
        f"the code of {model_type} in transformers uses this layout, and the tensors have the "
        "names it loads"
    )
    return LayoutObservation(observation, family.layout, "strong")


def _from_weights(folder: Folder, config: Mapping[str, Any]) -> LayoutObservation:
    """Return evidence from the norms of paired rows: a rotation treats both alike, so training may
    leave their norms similar.
    """
    try:
        rules = find_rules(folder, config)
    except RopeError as error:
        return LayoutObservation(f"the weights were not read: {error}", None, "weak")
    usable = {name: rule for name, rule in rules.items() if _is_comparable(folder, name, rule)}
    q, k = ([name for name, rule in usable.items() if rule.role == role] for role in ("q", "k"))
    sampled = [*_spread(q), *_spread(k)]
    if not sampled and any(rule.role == "qkv" for rule in rules.values()):
        text = "q and k are packed in one tensor; their norms are not compared"
        return LayoutObservation(text, None, "weak")
    agreements = {"half": [], "interleaved": []}  # a number for each head, see `_agreements`
    for name in sampled:
        for layout, values in _agreements(folder, name, rules[name]).items():
            agreements[layout] += values
    if len(agreements["half"]) < FEWEST_HEADS:
        return LayoutObservation("too few heads to compare the norms of paired rows", None, "weak")
    half, interleaved = (_mean_and_error(agreements[layout]) for layout in ("half", "interleaved"))
    observation = (
        f"agreement of the norms of paired rows: {half[0]:.2f} ± {half[1]:.2f} as half, "
        f"{interleaved[0]:.2f} ± {interleaved[1]:.2f} as interleaved (1: equal, 0: chance; "
        f"{len(agreements['half'])} heads)"
    )
    return LayoutObservation(observation, _layout_that_agrees(half, interleaved), "weak")


def _spread(names: list[str]) -> list[str]:
    """Return at most SAMPLED / 2 of the names, at equal distances; so those of q and those of k are
    of the same layers if all layers have both.
    """
    count = min(SAMPLED // 2, len(names))
    return [names[index * len(names) // count] for index in range(count)]


def _layout_that_agrees(half: tuple[float, float], interleaved: tuple[float, float]) -> str | None:
    """Return the layout whose paired rows agree, from (mean, standard error) of each; None if
    neither clearly does.

    Half is tested first: in half-layout weights the rows 2i and 2i+1 rotate at neighbouring
    frequencies and may agree too, but in interleaved weights the rows i and i + d/2 rotate at
    distant frequencies. Rows paired as interleaved must also agree more than twice as well as rows
    paired as half.
    """
    if half[0] > max(MIN_AGREEMENT, MIN_STANDARD_ERRORS * half[1]):
        return "half"
    agrees = interleaved[0] > max(MIN_AGREEMENT, MIN_STANDARD_ERRORS * interleaved[1])
    return "interleaved" if agrees and interleaved[0] > 2 * half[0] else None


def _is_comparable(folder: Folder, name: str, rule: TensorRule) -> bool:
    """Return whether a tensor is a matrix in a dtype precise enough for norms, whose heads have
    four pairs or more.
    """
    dtype = folder.dtype(name)
    return (
        len(folder.shape(name)) == 2
        and dtype.is_floating_point
        and dtype.itemsize > 1
        and rule.rotary_dim >= 8
    )


def _agreements(folder: Folder, name: str, rule: TensorRule) -> dict[str, list[float]]:
    """Return, per layout and head, how well the norms of paired rows agree: 1 if they are equal, 0
    if they are unrelated.

    This is 1 - (mean squared difference of paired rows' log norms) / (2 * variance of the log norms
    of the head's rotated rows). Heads whose rotated rows have equal norms are left out.
    """
    squares = torch.cat([piece.to(torch.float64).square().sum(1) for piece in folder.pieces(name)])
    # twice the log norm of each row; the factor cancels
    heads = squares.clamp(min=1e-300).log().unflatten(0, (-1, rule.head_dim))
    rotated = heads.narrow(1, rule.rotary_start, rule.rotary_dim)  # [heads, rotary_dim]
    variance = rotated.var(1)
    differences = {
        "half": rotated.unflatten(1, (2, -1)).diff(dim=1).flatten(1),
        "interleaved": rotated.unflatten(1, (-1, 2)).diff(dim=2).flatten(1),
    }
    # all norms of a head may be equal, as after initialisation with zeros
    varied = variance > 1e-12
    return {
        layout: (1 - (each.square().mean(1) / (2 * variance)))[varied].tolist()
        for layout, each in differences.items()
    }


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean of some values and its standard error."""
    samples = torch.tensor(values, dtype=torch.float64)
    return samples.mean().item(), samples.std().item() / math.sqrt(len(values))
