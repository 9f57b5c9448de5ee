"""The error of cos and sin at a position, for each precision policy and for the methods of other
engines, in Python's own numbers.

Every method is computed by its definition: which values it rounds, and to how many bits. The
reference uses the spec's own frequencies (with "exact" those with 40 digits, otherwise the exact
ones rounded to float32). It rounds them and 2 pi down to multiples of 2^-192, held as integers, and
from there reduces position * frequency modulo 2 pi without rounding; the angle is then rounded to
float64. It shares no step after the frequencies with the methods it is compared to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from struct import pack, unpack

from ropewalk.analysis.ladder import require_one_series, series
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.phase import cos_sin, phase_steps
from ropewalk.spec import RopeSpec

# fractional bits of the fixed-point integers below: even times a position of 63 bits, an error of
# 2^-192 is far below the rounding error of a float64 near 1
_BITS = 192
# 2 pi times 2^192, rounded down to an integer
_TWO_PI = 0x6_487ED511_0B4611A6_2633145C_06E0E689_48127044_533E63A0
#: the largest rounding error of a bfloat16 value just below 1
BFLOAT16_ROUNDING = 2.0**-9

#: a function of a position, which returns (cos, sin) of every pair
CosSinAt = Callable[[int], list[tuple[float, float]]]


def true_angles(radians: Sequence[float | Decimal], positions: Iterable[int]) -> list[list[float]]:
    """Return position * radians modulo 2 pi as floats, [positions][pairs].

    The frequencies and 2 pi are first rounded down to multiples of 2^-192, held as integers.
    Products and remainders of these are exact; only the result is rounded again, to float64.
    """
    steps = [_fixed_point(value) for value in series("radians", radians)]
    return [
        [(position * step % _TWO_PI) / (1 << _BITS) for step in steps]
        for position in _integers(positions, low=-(2**62))  # at most 2^62 on either side of 0
    ]


def _integers(positions: Iterable[int], low: int) -> list[int]:
    """Return positions as integers of Python, at least `low`; raise an error for anything else."""
    if isinstance(positions, str) or not isinstance(positions, Iterable):
        raise RopeError("positions", "must be a list of integers", positions)
    return [integer("positions", position, low=low) for position in positions]


def _fixed_point(value: float | Decimal) -> int:
    """Return a number times 2^192, rounded down to an integer; raise an error if it is not
    finite.
    """
    # a finite Decimal keeps all digits; `number` makes a float of the others, or refuses them
    is_decimal = isinstance(value, Decimal) and value.is_finite()
    exact = value if is_decimal else number("radians", value)
    numerator, denominator = exact.as_integer_ratio()
    return (numerator << _BITS) // denominator


def float32(value: float) -> float:
    """Return a number rounded to float32."""
    return unpack("f", pack("f", value))[0]


def float16(value: float) -> float:
    """Return a number rounded to float16."""
    return unpack("e", pack("e", value))[0]


def bfloat16(value: float) -> float:
    """Return a number rounded to bfloat16, the upper half of a float32; ties go to even."""
    bits = unpack("I", pack("f", value))[0]
    # half of the last kept bit, minus one if that bit is 0, so that a tie carries only if it is 1
    bits += 0x7FFF + (bits >> 16 & 1)
    return unpack("f", pack("I", bits & 0xFFFF0000))[0]


def _by_phase(spec: RopeSpec, length: int | None, precision: str) -> CosSinAt:
    """Return a function of a position: (cos, sin) of each pair, computed in float64 and rounded to
    float32. The frequencies are those of `precision` at the sequence length `length`, rounded to
    multiples of 2^-64 turn (phase steps), so that whole turns are dropped without an error.
    """
    found = spec.with_(precision=precision).ladder_frequencies(length)
    # `digits` are the frequencies with 40 digits, `radians` the same as floats
    steps = phase_steps(found.digits if precision == "exact" else found.radians)
    return lambda position: [
        (float32(cos), float32(sin)) for cos, sin in (cos_sin(position, step) for step in steps)
    ]


def _by_float32_angle(
    spec: RopeSpec,
    length: int | None,
    position_as: Callable[[float], float] = float32,
    kept_as: Callable[[float], float] = float32,
) -> CosSinAt:
    """Return a function of a position: (cos, sin) of each pair, whose angle is a float32 product.

    length       of the sequence, for frequencies that depend on it
    position_as  how a position is rounded before the product
    kept_as      how cos and sin are rounded after it
    """
    radians = spec.with_(precision="hf").ladder_frequencies(length).radians

    def cos_sin_at(position: int) -> list[tuple[float, float]]:
        """Return (cos, sin) of each pair at a position."""
        rounded = position_as(float(position))
        angles = [float32(rounded * value) for value in radians]
        cos_sins = [(float32(math.cos(angle)), float32(math.sin(angle))) for angle in angles]
        return [(kept_as(cos), kept_as(sin)) for cos, sin in cos_sins]

    return cos_sin_at


#: methods to compute cos and sin: our precision policies and other engines'; "hf" is the float32
#: angle of most engines
COS_SIN_METHODS: dict[str, Callable[[RopeSpec, int | None], CosSinAt]] = {
    "exact": partial(_by_phase, precision="exact"),
    "hf_frequencies": partial(_by_phase, precision="hf_frequencies"),
    "hf": _by_float32_angle,
    "float16 table": partial(_by_float32_angle, kept_as=float16),
    "bfloat16 table": partial(_by_float32_angle, kept_as=bfloat16),
    "bfloat16 positions": partial(_by_float32_angle, position_as=bfloat16),
}

#: which libraries compute cos and sin by each method
USED_BY: dict[str, str] = {
    "exact": "ropewalk, frequencies with 40 digits",
    "hf_frequencies": "ropewalk, the float32 frequencies of a checkpoint",
    "hf": "float32 angle and table: SGLang, torchtune, MiniMind",
    "float16 table": (
        "float32 angle, table in the model's dtype: transformers, vLLM, flash-attn in float16"
    ),
    "bfloat16 table": (
        "float32 angle, table in the model's dtype: transformers, vLLM, flash-attn in bfloat16"
    ),
    "bfloat16 positions": "positions in the tensor's dtype: rotary-embedding-torch in bfloat16",
}


def error_curves(
    spec: RopeSpec,
    positions: Iterable[int],
    methods: Iterable[str] = tuple(COS_SIN_METHODS),
    *,
    length: int | None = None,
    width: int = 5,
) -> dict[str, list[float]]:
    """Return, by method, a value for each p of `positions`: the largest error of cos and sin over
    all pairs at the `width` consecutive positions that end at p, or at 0 ... p if these are fewer.

    The error varies from position to position, so a curve shows the largest of several neighbours.
    The reference uses the spec's own frequencies at the sequence length `length`; magnitudes are
    left out.
    """
    require_one_series(spec)
    ends = _integers(positions, low=0)
    integer("width", width, low=1)
    methods = [choice("methods", name, COS_SIN_METHODS) for name in methods]
    windows = [[max(0, end - back) for back in range(width)] for end in ends]
    found = spec.ladder_frequencies(length)
    frequencies = found.digits if spec.precision == "exact" else found.radians
    seen = sorted({position for window in windows for position in window})
    angles = true_angles(frequencies, seen)
    truth = {
        position: [(math.cos(angle), math.sin(angle)) for angle in row]
        for position, row in zip(seen, angles, strict=True)
    }
    curves = {}
    for name in methods:
        cos_sin_at = COS_SIN_METHODS[name](spec, length)
        error_at = {position: _largest(cos_sin_at(position), truth[position]) for position in seen}
        curves[name] = [max(error_at[position] for position in window) for window in windows]
    return curves


def _largest(found: list[tuple[float, float]], truth: list[tuple[float, float]]) -> float:
    """Return the largest difference between `found` and `truth`, each with (cos, sin) of every
    pair.
    """
    pairs = zip(found, truth, strict=True)
    return max(max(abs(c - tc), abs(s - ts)) for (c, s), (tc, ts) in pairs)
