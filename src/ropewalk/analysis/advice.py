"""Advice as data: each check says when it applies, what to do, why, and which figure of
`ropewalk_lab.plots` shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.analysis.exactness import BFLOAT16_ROUNDING
from ropewalk.analysis.facts import Facts
from ropewalk.frequencies import Default, Linear, XPos, Yarn

#: bytes; the advice "large_table" is given above it
LARGE_TABLE = 64 << 20


@dataclass(frozen=True)
class Check:
    """One check: `applies` decides whether the advice is given; `figure` names the figure.

    `advice` and `because` are format strings over the Facts, named `f`, and the values that
    `numbers` returns.
    """

    name: str
    figure: str
    applies: Callable[[Facts], bool]
    advice: str
    because: str
    numbers: Callable[[Facts], dict[str, object]] = lambda facts: {}


@dataclass(frozen=True)
class Advice:
    """A check that applies, with its numbers filled in."""

    name: str
    advice: str
    because: str
    figure: str


def _beta_limit(facts: Facts) -> float:
    """Return the largest beta_fast that a pair reaches: how many turns the fastest pair, which
    rotates by one radian per step, completes within YaRN's original length.
    """
    return facts.scaling.original_length / (2 * math.pi)  # type: ignore[attr-defined]  # a Yarn


def _is_new(facts: Facts) -> bool:
    """Return whether a spec is for a new model, whose theta and scaling can still be chosen.

    The spec of a checkpoint's config has another precision than "exact": its weights were trained
    with float32 frequencies.
    """
    return facts.spec.precision == "exact"


#: advice is given for every check that applies, in this order
CHECKS: tuple[Check, ...] = (
    Check(
        "in_range",
        "coverage",
        lambda f: f.served_distance <= f.trained_distance and isinstance(f.spec.scaling, Default),
        "Keep it: no scaling is needed at this length.",
        "every distance below {f.served_distance:,} occurred in training",
    ),
    Check(
        "unseen_angles",
        "beyond",
        lambda f: f.new_angles > 0 and isinstance(f.spec.scaling, Default),
        "Use Yarn(factor={f.factor}, original_length={f.trained}), or DynamicYarn to leave "
        "short text unchanged.",
        "{f.new_angles} of {f.spec.pairs} pairs reach angles beyond token {f.trained:,} that "
        "did not occur in training",
    ),
    Check(
        "stretched_too_little",
        "coverage",
        lambda f: f.new_angles > 0 and not isinstance(f.spec.scaling, Default),
        "This is correct if the model was trained further at {f.served:,} tokens; otherwise "
        "serve fewer tokens{or_factor}.",
        "with {f.spec.scaling.name}, {f.new_angles} of {f.spec.pairs} pairs reach angles that "
        "did not occur in training",
        lambda f: {
            "or_factor": f", or use factor {f.factor}"
            if _is_new(f) and hasattr(f.scaling, "factor")
            else ""
        },
    ),
    Check(
        "trained_unknown",
        "coverage",
        lambda f: (
            f.trained == f.served
            and not f.trained_given
            and getattr(f.scaling, "factor", 1) > 1
            and getattr(f.scaling, "original_length", None) is None
        ),
        "Give the length that the model was trained with before the extension, to see which angles "
        "training covers: ropewalk inspect --trained.",
        "a config with {f.spec.scaling.name} scaling has no trained length, so {f.trained:,} "
        "is used for both lengths",
    ),
    Check(
        "linear_blurs",
        "scalings",
        lambda f: _is_new(f) and isinstance(f.scaling, Linear) and f.scaling.factor > 1,
        "Without fine-tuning use Yarn or Ntk instead; Linear needs training to recover.",
        "all {f.spec.pairs} pairs are slowed, even the {fast} that completed a turn in "
        "training, so neighbours are more alike",
        lambda f: {"fast": sum(turns >= 1 for turns in f.coverage.trained)},
    ),
    Check(
        "always_on",
        "scalings",
        lambda f: (
            _is_new(f)
            and isinstance(f.scaling, Yarn)
            and f.scaling.factor > 1
            and f.served > f.trained
        ),
        "If most requests are short, serve with DynamicYarn(original_length={f.trained}).",
        "{slowed} of {f.spec.pairs} pairs are slowed at every length, also below token "
        "{f.trained:,}",
        lambda f: {"slowed": f.spec.pairs - f.bands.count("kept")},
    ),
    Check(
        "beta_too_fast",
        "coverage",
        lambda f: (
            _is_new(f) and isinstance(f.scaling, Yarn) and f.scaling.beta_fast > _beta_limit(f)
        ),
        "Lower beta_fast below {limit:.0f}.",
        "no pair completes {f.scaling.beta_fast:g} turns within {f.scaling.original_length:,} "
        "tokens, so only the fastest one keeps its frequency",
        lambda f: {"limit": _beta_limit(f)},
    ),
    Check(
        "follows_the_length",
        "scalings",
        lambda f: f.spec.needs_length,
        "Update cached keys with rope.rerotate when the length changes.",
        "the frequencies of {f.spec.scaling.name} depend on the length, and cached keys were "
        "rotated for an earlier length",
    ),
    Check(
        "float32_angles",
        "precision",
        lambda f: f.errors.get("hf", 0.0) > BFLOAT16_ROUNDING,
        'Do not compute angles in float32 at this length: use precision "{policy}".',
        "float32 angles are off by {f.errors[hf]:.1e} near token {f.served:,}, more than "
        "bfloat16's rounding of {bound:.1e}",
        lambda f: {
            "bound": BFLOAT16_ROUNDING,
            "policy": "exact" if f.spec.precision == "exact" else "hf_frequencies",
        },
    ),
    Check(
        "large_table",
        "precision",
        lambda f: f.all_rows_bytes > LARGE_TABLE,
        "Do not store a table of all positions; ropewalk stores {stored:.1f} MiB and computes "
        "the rest.",
        "cos and sin of {f.served:,} positions take {full:.0f} MiB",
        lambda f: {"full": f.all_rows_bytes / 2**20, "stored": f.memory["auto"] / 2**20},
    ),
    Check(
        "all_repeat",
        "spectrum",
        lambda f: _is_new(f) and f.window is None and f.aliasing.repeating == f.spec.pairs,
        "For long documents try a larger theta, and measure: the slowest pair should not "
        "repeat within the text.",
        "all {f.spec.pairs} pairs repeat within {f.served:,} tokens, the slowest after "
        "{f.aliasing.longest:,.0f}",
    ),
    Check(
        "random_keys_win",
        "base_bound",
        lambda f: _is_new(f) and f.first_negative is not None,
        "For retrieval over the whole length try a larger theta, and measure: this curve is "
        "jagged, not a threshold.",
        "from distance {f.first_negative:,} on, the sum of cosines is sometimes negative: a "
        "random key outscores a similar one",
    ),
    Check(
        "axes",
        "angles",
        lambda f: f.spec.num_axes > 1,
        "Give positions as [axes, batch, tokens]; rw.positions builds them for text, images "
        "and video.",
        "the pairs use {f.spec.num_axes} axes",
    ),
    Check(
        "causal_only",
        "decay",
        lambda f: isinstance(f.scaling, XPos),
        "Use it for causal attention only.",
        "xPos magnitudes grow without bound if a key comes after its query",
    ),
)


def advise(facts: Facts) -> list[Advice]:
    """Return the advice of every check that applies to these facts."""
    advice = []
    for check in CHECKS:
        if check.applies(facts):
            # the names that the format strings of a check may use
            values = {
                "f": facts,
                **check.numbers(facts),
            }
            advice.append(
                Advice(
                    check.name,
                    check.advice.format(**values),
                    check.because.format(**values),
                    check.figure,
                )
            )
    return advice


@dataclass(frozen=True)
class Use:
    """What to choose for a use, such as "short text"; why; and the name of the figure that shows
    it.
    """

    use: str
    choose: str
    because: str
    figure: str


#: a first choice for each use; ropewalk_lab.guide has the measured reason for every entry
GUIDE: tuple[Use, ...] = (
    Use(
        "short text",
        "Default(), theta 10,000",
        "all distances occurred in training, so no scaling is needed",
        "coverage",
    ),
    Use(
        "long documents, new model",
        "Default(), trained at the length to be served",
        "no base makes a model usable at distances that did not occur in training",
        "beyond",
    ),
    Use(
        "long documents, trained model, no fine-tuning",
        "DynamicYarn(original_length)",
        "fast pairs keep their frequency, slow pairs stay within the angles of training, short "
        "text is unchanged",
        "scalings",
    ),
    Use(
        "long documents, trained model, fine-tuning",
        "Yarn(factor, original_length)",
        "one fixed set of frequencies to tune and to export, which other engines can read",
        "scalings",
    ),
    Use(
        "code and retrieval",
        'Default(), theta 10,000, precision "exact" or the checkpoint\'s "hf_frequencies"',
        "fast pairs distinguish neighbouring tokens, and float32 angles lose accuracy in fast "
        "pairs first",
        "precision",
    ),
    Use(
        "images and other grids",
        "axes.axial: rows and columns on axes of their own",
        "the patch below has the same distance in an image of any width",
        "angles",
    ),
    Use(
        "any length, with attention limited to a window",
        "plain RoPE with a sliding window of the trained length",
        "no distance exceeds those of training",
        "similarity",
    ),
    Use(
        "a norm of q and k",
        "LayerNorm before the rotation",
        "with LayerNorm after the rotation, scores depend on absolute positions",
        "inner_products",
    ),
)
