"""The measured reason for each entry of `analysis.GUIDE`, from runs of studies such as those in
results/lab.

Words of this module:
  use       what an entry of GUIDE is for, such as "short text"
  run       the result of a study, in a folder such as h200_base
  row       one measurement of a run: a dict with a metric, the values, and fields such as `model`
            and `length`, by which rows are chosen. `base` is theta; `tuned` the number of
            fine-tuning steps, 0 for none; `factor` how many times longer the length becomes
  score     the values [seeds, windows] of the chosen rows; the error of its mean is the noise
  pass key  five digits that a text states once and the model must repeat at its end; rows with the
            metric "found" have the share of them that it got right

An argument that holds rows has the name of their study, such as `extend`, or of what it measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ropewalk.errors import RopeError
from ropewalk_lab.recommendations import StudyResult
from ropewalk_lab.scores import Score, compare
from ropewalk_lab.studies.findings import difference, seed_noise
from ropewalk_lab.studies.norms import largest_change
from ropewalk_lab.studies.precision import WIDTH
from ropewalk_lab.studies.rows import Row, distinct, score, select

#: methods that `_fine_tuned` compares with YaRN, with their names in the sentence
OTHER_METHODS = (("none", "no scaling"), ("linear", "interpolation"))


def evidence(results: Mapping[str, StudyResult]) -> dict[str, str]:
    """Return {use of an entry of GUIDE: a sentence with what the runs measured}; `results` are runs
    by their folder's name.
    """
    missing = sorted({run for runs, _ in EVIDENCE.values() for run in runs} - results.keys())
    if missing:
        raise RopeError(
            "results",
            "must have the runs that the guide cites (in results/lab of the repository)",
            missing,
        )
    return {
        use: sentence_of(*(results[run].rows for run in runs))
        for use, (runs, sentence_of) in EVIDENCE.items()
    }


def _score(rows: list[Row], metric: str = "loss", **fields: Any) -> Score:
    """Return the score of a metric over the rows with these fields; raise an error if there are no
    such rows.
    """
    values = score(rows, metric, **fields)
    if values is None:
        raise RopeError("results", f"must have rows of the metric {metric}", fields)
    return values


def _loss(rows: list[Row], **fields: Any) -> str:
    """Return the mean loss of the rows with these fields, as text."""
    return f"{_score(rows, **fields).mean:.3f}"


def _difference(a: Score, b: Score) -> str:
    """Return the paired difference a - b of two trainings as text, with the noise between
    trainings.
    """
    return difference(compare(a, b, floor=seed_noise([a, b])))


def _short_text(base: list[Row]) -> str:
    """Return a sentence from the rows of the study `base`: the loss at the trained length, 256
    tokens, by base.
    """
    losses = {theta: _score(base, base=theta, length=256) for theta in (100.0, 10_000.0, 100_000.0)}
    others = (
        f"base {theta:,.0f} is {_difference(losses[theta], losses[10_000.0])}"
        for theta in (100.0, 100_000.0)
    )
    return f"loss at the trained length {losses[10_000.0].mean:.3f}; {', '.join(others)}"


def _new_model(base: list[Row], trained_at_512: list[Row]) -> str:
    """Return a sentence: the loss at 512 tokens of models trained at 256, and of one trained at
    512.
    """
    beyond = (
        f"base {theta:,.0f} {_loss(base, base=theta, length=512)}"
        for theta in (10_000.0, 100_000.0)
    )
    return (
        f"loss at 512, trained at 256: {', '.join(beyond)}; trained at 512: "
        f"{_loss(trained_at_512, model='rope', length=512)}"
    )


def _zero_shot(extend: list[Row], real_passkey: list[Row]) -> str:
    """Return a sentence from the rows of two studies: the loss and the pass keys found with several
    methods, without training.
    """
    # models with the factor 4 on a text of 4 x 256 tokens, and with the factor 16 on a short one;
    # `tuned=0`: without fine-tuning
    long = {
        method: _loss(extend, method=method, tuned=0, factor=4, length=1024)
        for method in ("dynamic_yarn", "none", "linear")
    }
    short = {
        method: _loss(extend, method=method, tuned=0, factor=16, length=256)
        for method in ("dynamic_yarn", "yarn")
    }
    return (
        f"loss at 4x {long['dynamic_yarn']} (no scaling {long['none']}, interpolation "
        f"{long['linear']}); on short text {short['dynamic_yarn']}, as without scaling (YaRN with "
        f"factor 16: {short['yarn']}); SmolLM2 at 4x, pass keys found within and beyond the "
        f"trained length: {_passkeys_found(real_passkey, ('dynamic_yarn', 'dynamic', 'yarn', 'rerope'))}"
    )


def _passkeys_found(real_passkey: list[Row], names: Iterable[str]) -> str:
    """Return as text, for each method of `names`, the shares of pass keys that a pretrained model
    found within and beyond its trained length.
    """
    shares = []
    for name in names:
        of_method = select(real_passkey, "found", method=name)
        within = [row["mean"] for row in of_method if row["length"] <= row["trained"]]
        beyond = [row["mean"] for row in of_method if row["length"] > row["trained"]]
        shares.append(f"{name} {sum(within) / len(within):.0%} and {sum(beyond) / len(beyond):.0%}")
    return ", ".join(shares)


def _fine_tuned(extend: list[Row]) -> str:
    """Return a sentence: the loss of scalings at four times the trained length, after fine-tuning
    at that length.
    """
    tuned = [row for row in extend if row.get("tuned")]
    losses = {
        method: _score(tuned, method=method, factor=4, length=1024)
        for method in ("yarn", "none", "linear")
    }
    others = (
        f"{name} {_difference(losses[method], losses['yarn'])}" for method, name in OTHER_METHODS
    )
    return (
        f"loss at 4x after {tuned[0]['tuned']} steps at that length {losses['yarn'].mean:.3f}; "
        f"{', '.join(others)}"
    )


def _retrieval(passkey: list[Row], precision: list[Row], real: list[Row], kinds: list[Row]) -> str:
    """Return a sentence from the rows of four studies: pass keys found by base, errors of cos and
    sin by precision, the KL of a pretrained model by precision (`real`), and the loss of linear
    frequencies on code (`kinds`: kinds of frequencies).
    """
    found_by_base = []
    for base in distinct(passkey, "found", "base"):
        # at the trained length and at twice that
        rows_by_length = [
            select(passkey, "found", base=base, method="none", length=length)
            for length in (256, 512)
        ]
        trained, twice = (sum(row["mean"] for row in rows) / len(rows) for rows in rows_by_length)
        found_by_base.append(f"base {base:,.0f} {trained:.1%} and {twice:.1%}")
    errors = [_score(precision, "error", way=way, position=131_072).mean for way in ("exact", "hf")]
    # the fields of the rows: 8,192 tokens at positions from 0
    case = {"dtype": "bfloat16", "length": 8192, "offset": 0}
    kl = [
        _score(real, "kl", rotation=rotation, **case).mean
        for rotation in ("ropewalk", "transformers")
    ]
    return (
        f"pass keys found at the trained length and at twice that: {', '.join(found_by_base)}; "
        f"largest error of cos and sin over the {WIDTH} positions up to 131,072: exact "
        f"{errors[0]:.1e}, float32 angles {errors[1]:.1e}; KL of SmolLM2 in bfloat16 to itself in "
        f"float32 at 8,192 tokens: exact {kl[0]:.2e}, as transformers rotates {kl[1]:.2e}; "
        f"{_linear_frequencies(kinds)}"
    )


def _linear_frequencies(kinds: list[Row]) -> str:
    """Return how far the loss of linear frequencies on code is from that of the geometric series,
    at the shortest and the longest length.
    """
    lengths = distinct(kinds, "loss", "length")
    differences = []
    for length in (lengths[0], lengths[-1]):
        linear, geometric = (
            _score(kinds, frequencies=name, text="stdlib", length=length)
            for name in ("linear", "geometric")
        )
        differences.append(f"{_difference(linear, geometric)} at {length}")
    return (
        f"linear frequencies on code, trained at {lengths[0]}, differ in loss by "
        f"{' and '.join(differences)}"
    )


def _images(multimodal: list[Row]) -> str:
    """Return a sentence: the share of right answers on images larger than those of the training;
    `side` is the number of patches per side.
    """
    right = {
        name: 1 - _score(multimodal, "wrong", model=name, side=16).mean
        for name in ("rope_2d", "rope")
    }
    return (
        f"trained on 8 x 8 patches, right on 16 x 16: two axes {right['rope_2d']:.1%}, one "
        f"{right['rope']:.1%}"
    )


def _window(encodings: list[Row]) -> str:
    """Return a sentence: the loss far beyond the trained length, with a sliding window and without."""
    window, no_window = (
        _loss(encodings, model=name, length=4096) for name in ("rope, sliding window", "rope")
    )
    at_trained_length = _loss(encodings, model="rope", length=256)
    return (
        f"trained at 256, loss at 4096: {window}; without the window {no_window}; at the trained "
        f"length {at_trained_length}"
    )


def _norms(norms: list[Row]) -> str:
    """Return a sentence: with a LayerNorm of q and k before and after the rotation, how a shift of
    all positions changes the logits, and the loss.
    """
    changes = {
        name: largest_change(norms, name) for name in ("LayerNorm before", "LayerNorm after")
    }
    losses = {
        name: _loss(norms, norm=name, length=512)
        for name in ("LayerNorm before", "LayerNorm after", "none")
    }
    return (
        f"a shift of all positions changes logits by {changes['LayerNorm before']:.0e} of their "
        f"deviation with LayerNorm before the rotation, by {changes['LayerNorm after']:.1f} with "
        f"it after the rotation; loss at twice the trained length: before "
        f"{losses['LayerNorm before']}, after {losses['LayerNorm after']}, no norm {losses['none']}"
    )


#: use -> (folders of runs, a function of their rows that says what was measured)
EVIDENCE: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "short text": (("h200_base",), _short_text),
    "long documents, new model": (("h200_base", "h200_encodings_512"), _new_model),
    "long documents, trained model, no fine-tuning": (
        ("h200_extend", "h200_real_passkey"),
        _zero_shot,
    ),
    "long documents, trained model, fine-tuning": (("h200_extend",), _fine_tuned),
    "code and retrieval": (
        ("h200_passkey", "cpu_precision", "h200_real_precision", "h200_frequencies"),
        _retrieval,
    ),
    "images and other grids": (("h200_multimodal",), _images),
    "any length, with attention limited to a window": (("h200_encodings",), _window),
    "a norm of q and k": (("h200_norms",), _norms),
}
