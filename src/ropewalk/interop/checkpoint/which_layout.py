"""Which pair layout a checkpoint's weights are in: every piece of evidence, what it says, and how far to trust it.

No config key says it. The family's code says it for folders that transformers loads; names of tensors tell folders
that it does not load; the weights themselves only whisper. Where it matters, ask the model: `layout.probe_layout`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ropewalk.errors import RopeError
from ropewalk.interop.checkpoint.convert import read_config
from ropewalk.interop.checkpoint.rules import Rule, find_rules
from ropewalk.interop.checkpoint.shards import Folder, open_folder
from ropewalk.interop.config import file as config_file
from ropewalk.interop.config.families import FAMILIES

#: how many q and k projections are read, spread over the layers
SAMPLED = 8
#: the agreement of partners' norms must reach this, and this many standard errors over the heads
ENOUGH, ERRORS = 0.2, 4.0


@dataclass(frozen=True)
class Evidence:
    """One observation: what was seen, the layout it speaks for (None: neither), and its strength, strong or weak."""

    seen: str
    layout: str | None
    strength: str


@dataclass(frozen=True)
class LayoutEvidence:
    """The verdict and what it rests on.

    sure   "likely": strong evidence, none against it. "disputed": strong evidence, and weak evidence against it.
           "weak": the weights alone. "undecided": `layout` is None
    """

    layout: str | None
    sure: str
    evidence: tuple[Evidence, ...]

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain data."""
        return {"layout": self.layout, "sure": self.sure, "evidence": [vars(each) for each in self.evidence]}

    def __str__(self) -> str:
        lines = [f"{self.layout or 'no layout'} ({self.sure})"]
        return "\n".join(
            [*lines, *(f"  {each.layout or 'neither':<12} {each.strength:<7} {each.seen}" for each in self.evidence)]
        )


def which_layout(path: str | os.PathLike[str], *, config: Any = None) -> LayoutEvidence:
    """Tell which layout the q and k projections in a checkpoint folder are in, with the evidence.

    Reads headers and at most 8 projections. `config` as in `convert_checkpoint`.
    """
    folder = open_folder(path)
    known = read_config(folder, config)
    evidence = [*_names(folder), *_code(config_file.text_part(known), folder), *_weights(folder, known)]
    strong = {each.layout for each in evidence if each.layout and each.strength == "strong"}
    weak = {each.layout for each in evidence if each.layout and each.strength == "weak"}
    if len(strong) == 1:
        layout = strong.pop()
        return LayoutEvidence(layout, "likely" if weak <= {layout} else "disputed", tuple(evidence))
    if not strong and len(weak) == 1:
        return LayoutEvidence(weak.pop(), "weak", tuple(evidence))
    return LayoutEvidence(None, "undecided", tuple(evidence))


def _meta_names(folder: Folder) -> list[str]:
    return [key for key in folder.keys if key.endswith((".attention.wq.weight", ".attention.wk.weight"))]


def _names(folder: Folder) -> list[Evidence]:
    found = []
    if names := _meta_names(folder):
        found.append(Evidence(f"{names[0]}: the names of Meta's and Mistral's own files, whose code pairs (2i, 2i+1)",
                              "interleaved", "strong"))  # fmt: skip
    if (folder.path / "params.json").is_file():
        found.append(Evidence("params.json: a folder in Meta's or Mistral's own form", "interleaved", "strong"))
    return found


def _code(config: Mapping[str, Any], folder: Folder) -> list[Evidence]:
    """What the family's code does with tensors under its own names."""
    model_type, flag = config.get("model_type"), config.get("rope_interleave")
    family = FAMILIES.get(str(model_type))
    if family is None:
        return [Evidence(f"model_type {model_type!r} is not a known family", None, "weak")]
    if family.refused is not None or _meta_names(folder):
        return [Evidence(f"model_type {model_type!r} says nothing of files under these names", None, "weak")]
    if family.has_interleave_flag and isinstance(flag, bool):
        return [Evidence(f"rope_interleave is {str(flag).lower()}", "interleaved" if flag else "half", "strong")]
    return [
        Evidence(f"the code of {model_type} in transformers pairs so, and the tensors have its names", family.layout, "strong")
    ]


def _weights(folder: Folder, config: Mapping[str, Any]) -> list[Evidence]:
    """Rotation treats the two rows of a pair alike, so training may leave them with like norms; it need not."""
    try:
        rules = find_rules(folder, config)
    except RopeError as error:
        return [Evidence(f"the weights were not read: {error}", None, "weak")]
    usable = [key for key, rule in rules.items() if rule.role in ("q", "k") and _readable(folder, key, rule)]
    chosen = usable[:: max(1, len(usable) // SAMPLED)][:SAMPLED]
    agreements = {"half": [], "interleaved": []}
    for key in chosen:
        for layout, found in _agreements(folder, key, rules[key]).items():
            agreements[layout] += found
    if len(agreements["half"]) < 3:
        return [Evidence("too few heads to compare the norms of partner rows", None, "weak")]
    half, other = (_mean(agreements[layout]) for layout in ("half", "interleaved"))
    seen = (
        f"norms of partner rows agree by {half[0]:.2f} ± {half[1]:.2f} as half, by {other[0]:.2f} ± {other[1]:.2f} as "
        f"interleaved (1: alike, 0: chance; {len(agreements['half'])} heads)"
    )
    return [Evidence(seen, _verdict(half, other), "weak")]


def _verdict(half: tuple[float, float], interleaved: tuple[float, float]) -> str | None:
    """The layout whose partners agree.

    In half-split weights the rows 2i and 2i+1 turn at neighbouring frequencies and may agree as well, while the rows
    i and i + d/2 of interleaved weights turn at far ones; so agreement as half is told first.
    """
    if half[0] > max(ENOUGH, ERRORS * half[1]):
        return "half"
    clear = interleaved[0] > max(ENOUGH, ERRORS * interleaved[1]) and interleaved[0] > 2 * half[0]
    return "interleaved" if clear else None


def _readable(folder: Folder, key: str, rule: Rule) -> bool:
    plain = len(folder.shape(key)) == 2 and folder.dtype(key).is_floating_point and folder.dtype(key).itemsize > 1
    return plain and rule.rotary_dim >= 8


def _agreements(folder: Folder, key: str, rule: Rule) -> dict[str, list[float]]:
    """Per head and layout, 1 - (mean squared difference of partners' log norms) / (twice their variance)."""
    squares = torch.cat([piece.to(torch.float64).square().sum(1) for piece in folder.pieces(key)])
    heads = squares.clamp(min=1e-300).log().unflatten(0, (-1, rule.head_dim))
    turning = heads.narrow(1, rule.rotary_start, rule.rotary_dim)  # [heads, rotary_dim]
    spread = turning.var(1)
    partners = {
        "half": turning.unflatten(1, (2, -1)).diff(dim=1).flatten(1),
        "interleaved": turning.unflatten(1, (-1, 2)).diff(dim=2).flatten(1),
    }
    alive = spread > 1e-12
    return {name: (1 - (gap.square().mean(1) / (2 * spread)))[alive].tolist() for name, gap in partners.items()}


def _mean(values: list[float]) -> tuple[float, float]:
    found = torch.tensor(values, dtype=torch.float64)
    return found.mean().item(), found.std().item() / math.sqrt(len(values))
