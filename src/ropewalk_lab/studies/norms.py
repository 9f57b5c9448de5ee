"""Study `norms`: a norm of q and k (LayerNorm, RMSNorm) before the rotation, after it, or none, and
a rotation that changes the length of the vectors q and k.

Measured are the loss, and whether scores depend on distance alone.

Words of this module:
  row    one measurement: a metric ("loss", "accuracy"; "moved", how far a shift of all positions
         changes the logits), a value for each window, and the fields `norm`, the name of the model,
         `seed`, and `length` or for "moved" `shift`
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  score  the values [seeds, windows] of the rows with given fields
  facts  what a report says of the run beside its rows: settings, seeds, texts
  ours   our values beside a published table, by the name of that table
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ropewalk.encodings import Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import choice
from ropewalk.spec import RopeSpec
from ropewalk_lab.studies import training
from ropewalk_lab.studies.findings import (
    Claim,
    Findings,
    Ours,
    Table,
    by_length,
    cell,
    claim_order,
    claim_threshold,
    line_figure,
    percent,
)
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, row, score
from ropewalk_lab.studies.study import Study

#: the models without a norm of q and k: plain RoPE, and `MixedLayouts`, which changes the length of
#: q and k, so that scores depend on positions and not on distance alone
NONE, MIXED_LAYOUTS = "none", "norm not kept"
#: name -> (the norm, whether it follows the rotation); plain RoPE has none
NORMS: dict[str, tuple[type[nn.Module], bool]] = {
    "LayerNorm before": (nn.LayerNorm, False),
    "LayerNorm after": (nn.LayerNorm, True),
    "RMSNorm before": (nn.RMSNorm, False),
    "RMSNorm after": (nn.RMSNorm, True),
}
#: names in the published table "norm-ablation" -> ours
PUBLISHED_NAMES = {
    "no norm": MIXED_LAYOUTS,
    "LayerNorm after the rotation": "LayerNorm after",
    "plain RoPE": NONE,
}
#: the title of the column with `largest_change`
SHIFTED = "largest change of a logit by a shift"
#: scores depend on distance alone if a shift of all positions changes logits by less than this
#: share of their deviation
UNCHANGED = 1e-3
_ALL = [NONE, MIXED_LAYOUTS, *NORMS]

PRESETS = presets_of("norms")


class LearnedHeadNorm(nn.Module):
    """A norm over the dimensions of a head, with learned weights, computed in float32."""

    def __init__(self, norm: type[nn.Module], head_dim: int) -> None:
        super().__init__()
        self.norm = norm(head_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.float()).to(x.dtype)


class NormedRotary(Rotary):
    """RoPE, then a norm of the rotated q and k.

    Scores then depend on absolute positions: the norm's mean and weights belong to fixed
    dimensions, which RoPE mixes.
    """

    relative: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, spec: RopeSpec, norm: type[nn.Module]) -> None:
        """Make the rotation of a spec, and two norms of the class `norm`: of queries and of keys."""
        super().__init__(sizes, spec)
        self.q_norm = LearnedHeadNorm(norm, sizes.head_dim)
        self.k_norm = LearnedHeadNorm(norm, sizes.head_dim)

    def rotate(
        self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None
    ) -> Tensor:
        """Return x rotated, then normed: by the norm of keys if `key` is True, else of queries."""
        rotated = super().rotate(x, positions, key=key, length=length)
        return (self.k_norm if key else self.q_norm)(rotated)


class MixedLayouts(Rotary):
    """RoPE with a common mistake: cos and sin of the half layout on interleaved pairs. It changes
    the length of the vectors q and k.
    """

    relative: ClassVar[bool] = False

    def rotate(
        self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None
    ) -> Tensor:
        """Return x with cos and sin of the half layout applied to interleaved pairs: a mistake, so
        this is no rotation. `key` and `length` have no influence.
        """
        # with an axis for the heads; dimensions i and i + d/2 have the same entry
        cos, sin = (table.unsqueeze(-3) for table in self.rope.cos_sin_hf(positions))
        partners = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return (x * cos + partners * sin).to(x.dtype)


def change_attention(model: nn.Module, name: str) -> nn.Module:
    """Give every layer of a RoPE decoder the norms of an entry of NORMS, or mixed layouts, or
    change nothing (NONE), and return the model.
    """
    if name == NONE:
        return model
    for layer in model.layers:  # type: ignore[union-attr]
        attention = layer.self_attn
        norm, after = NORMS.get(name, (None, True))
        if norm is None:
            # MIXED_LAYOUTS, which has no entry in NORMS
            attention.encoding = MixedLayouts(
                attention.encoding.sizes, attention.encoding.rope.spec
            )
        elif after:
            attention.encoding = NormedRotary(
                attention.encoding.sizes, attention.encoding.rope.spec, norm
            )
        else:
            # the decoder's own attention applies these norms before the rotation
            attention.q_norm = LearnedHeadNorm(norm, attention.head_dim)
            attention.k_norm = LearnedHeadNorm(norm, attention.head_dim)
    return model


def run(runner: JobRunner) -> dict[str, Any]:
    """Train one model for each norm and seed; return the facts for the report."""
    settings = runner.settings
    shared = runner.pick("preset", "changes", "multiples", "windows", "shift")
    for name in settings["norms"]:
        choice("norms", name, _ALL)
    runner.run_each(
        measure, "norm", settings["norms"], lambda name: name.replace(" ", "-"), **shared
    )
    return training.preset_facts(settings["preset"], settings["changes"])


def measure(
    workspace: Workspace,
    *,
    norm: str,
    seed: int,
    preset: str,
    changes: list[str],
    multiples: list[int],
    windows: int,
    shift: int,
) -> list[Row]:
    """Train one model; return its loss at every length, and how its logits change if all positions
    are shifted, as rows.

    norm             an entry of NORMS, MIXED_LAYOUTS for mixed layouts, or NONE
    preset, changes  the training preset, and changes of its settings
    multiples        the lengths, as multiples of the trained length
    windows          the number of held-out windows
    shift            the number of positions by which all tokens are shifted
    """
    full_preset = training.make_preset(preset, changes, seed, encoding="rope")
    # plain RoPE is the model of the study `encodings`, which may be trained already
    name, origin = (
        (f"rope-{seed}", "") if norm == NONE else (f"{norm.replace(' ', '-')}-{seed}", norm)
    )
    change = partial(change_attention, name=norm)
    trainer = training.train_or_load(workspace, name, full_preset, change=change, origin=origin)
    length = training.trained_length(full_preset)
    lengths = [length * multiple for multiple in multiples]
    text = training.held_out_windows(full_preset, windows, lengths[-1])
    rows = training.loss_rows(trainer.model, text, lengths, length, norm=norm, seed=seed)
    tokens = torch.from_numpy(text[:, -length:].astype(np.int64)).to(workspace.device)
    return [
        *rows,
        row(
            "moved",
            change_by_shift(trainer.model, tokens, shift),
            norm=norm,
            seed=seed,
            shift=shift,
        ),
    ]


@torch.no_grad()
def change_by_shift(model: nn.Module, tokens: Tensor, shift: int) -> np.ndarray:
    """Return [N]: the largest change of a logit of each row of tokens [N, S] if all positions are
    shifted by `shift`, divided by the standard deviation of the logits, which is that of the 16
    rows that are read at once.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    changes = []
    for part in tokens.split(16):
        unshifted = model(part, positions).double()
        shifted = model(part, positions + shift).double()
        changes.append((shifted - unshifted).abs().amax((1, 2)) / unshifted.std())
    return np.array(torch.cat(changes).tolist())


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return a table, a figure and claims: the loss by norm of q and k and by length, and how a
    shift of all positions changes the logits.
    """
    norms, lengths = distinct(rows, "loss", "norm"), distinct(rows, "loss", "length")
    (shift,) = distinct(rows, "moved", "shift")
    cells = []
    for name in norms:
        losses = (cell(score(rows, "loss", norm=name, length=length)) for length in lengths)
        cells.append((name, *losses, f"{largest_change(rows, name):.1e}"))
    note = (
        "Nats per byte, on the same last tokens of held-out windows. The last column is the "
        "largest change of a logit, relative to the standard deviation of all, if all positions "
        f"are shifted by {shift:,}."
    )
    table = Table(
        "Loss by norm and context length",
        ("norm of q and k", *map(str, lengths), SHIFTED),
        cells,
        note,
    )
    series = {name: by_length(rows, lengths, norm=name) for name in norms}
    figure = line_figure(
        series, title="Loss by norm of q and k", x="tokens of context", y="loss, nats per byte"
    )
    return Findings(
        [table],
        {"norms": figure},
        claims(rows, lengths[0]),
        {"norm-ablation": _ours(rows, lengths[0])},
    )


def _ours(rows: list[Row], length: int) -> Ours:
    """Return our loss and accuracy at `length`, and `largest_change`, for each line of the
    published table "norm-ablation"; PUBLISHED_NAMES has our name of its model.
    """
    columns = (f"loss at {length}", f"accuracy of the next byte at {length}", SHIFTED)
    cells = {}
    for published, name in PUBLISHED_NAMES.items():
        loss, accuracy = (
            score(rows, metric, norm=name, length=length) for metric in ("loss", "accuracy")
        )
        cells[published] = (cell(loss), percent(accuracy), f"{largest_change(rows, name):.1e}")
    return Ours(columns, cells)


def largest_change(rows: list[Row], name: str) -> float:
    """Return the largest change of a logit when all positions are shifted, in standard deviations
    of the logits, over all seeds and windows of the model with the norm `name`; NaN if it was not
    measured.
    """
    changes = score(rows, "moved", norm=name)
    return float("nan") if changes is None else float(changes.values.max())


def claims(rows: list[Row], length: int) -> list[Claim]:
    """Return the claims of articles about RoPE: a norm after the rotation, or a rotation that
    changes the length of q and k, makes scores depend on absolute positions, and nothing else here
    does; LayerNorm after the rotation raises the loss, and so does such a rotation.
    """
    losses = {name: score(rows, "loss", norm=name, length=length) for name in _ALL}
    result = []
    for name in _ALL:
        is_absolute = name == MIXED_LAYOUTS or name.endswith("after")
        text = (
            f"A shift of all positions {'changes' if is_absolute else 'does not change'} the "
            f"logits ({name})"
        )
        result.append(
            claim_threshold(text, largest_change(rows, name), UNCHANGED, above=is_absolute)
        )
    for better, worse in (
        (NONE, "LayerNorm after"),
        ("LayerNorm before", "LayerNorm after"),
        (NONE, MIXED_LAYOUTS),
    ):
        result.append(
            claim_order(
                f"At {length}, {better!r} has a lower loss than {worse!r}", losses, [better, worse]
            )
        )
    return result


STUDY = Study(
    "norms",
    ABOUT["norms"],
    PRESETS,
    run,
    findings,
    ("norm-ablation",),
)
