"""The self-check measures precision, laws, and the error and speed of every backend that can run;
each of these errors has a bound.

The expected values share no code with the package, except for `own_error`, which takes the
package's frequencies: frequencies and angles are decimals of 60 digits, reduced modulo 2 pi before
cos and sin, and pairs are complex numbers in NumPy.

Words of this module:
  policy       how angles are computed, a name of PRECISIONS: "exact"; "hf", in float32 as
               transformers does; "hf_frequencies", with transformers' float32 frequencies and
               otherwise exactly
  ladder       the frequencies of all pairs of a spec
  half layout  dimensions i and i + d/2 form a pair; in the interleaved layout neighbours do
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ropewalk.kernels import BACKENDS, available
from ropewalk.rope import Rope
from ropewalk.rotation import rotate_half
from ropewalk.spec import LAYOUTS, PRECISIONS, RopeSpec
from ropewalk.tensor_frequencies import ladder

#: the head and the positions at which errors are measured
HEAD_DIM = 128
POSITIONS = (1_000, 131_072, 10_000_000, 2**40)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
#: half a unit in the last place of a float32 cos or sin below 1, and a margin for the float64 steps
#: before it
ROUNDING = 2.0**-25 + 1e-9
#: the error that kernels may add, since they evaluate short float32 polynomials
KERNEL_ERROR = 1.0e-6

#: digits of the decimal arithmetic that results are compared with, and pi to more of them
_DIGITS = 60
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def definition(pairs: int, theta: float = 10_000.0) -> list[Decimal]:
    """Return the frequencies theta^(-2i/d), d = 2 * pairs, to 60 digits."""
    with localcontext(prec=_DIGITS):
        return [Decimal(theta) ** (Decimal(-i) / pairs) for i in range(pairs)]


def true_angles(radians: Sequence[Decimal], positions: Sequence[int]) -> np.ndarray:
    """Return position * radians modulo 2 pi, computed in 60 digits, rounded to float64 [positions,
    pairs].
    """
    with localcontext(prec=_DIGITS):
        return np.array(
            [[float(position * r % (2 * _PI)) for r in radians] for position in positions]
        )


def table_error(spec: RopeSpec, radians: Sequence[Decimal], positions: Sequence[int]) -> float:
    """Return the largest error of the spec's float32 cos and sin, against cos and sin of the exact
    frequencies `radians`.
    """
    cos, sin = Rope(spec).cos_sin(torch.tensor(positions))
    angles = true_angles(radians, positions)
    return float(
        max(np.abs(cos.numpy() - np.cos(angles)).max(), np.abs(sin.numpy() - np.sin(angles)).max())
    )


@dataclass(frozen=True)
class Precision:
    """Largest absolute errors of cos and sin near one position with one precision policy.

    error      against cos and sin of the exact frequencies theta^(-2i/d)
    own_error  against those of the policy's own frequencies: float32 ones, or with "exact" those
               with 40 digits
    """

    policy: str
    position: int
    error: float
    own_error: float

    @property
    def bound(self) -> float:
        """The limit of `error`: ROUNDING + position x u, at most 2, which no error exceeds.

        u is half of 2^-64 turns with "exact", 2^-23 radians with "hf_frequencies", and 2^-22 with
        "hf", which also rounds the angle.
        """
        unit = {"exact": np.pi * 2.0**-64, "hf_frequencies": 2.0**-23, "hf": 2.0**-22}[self.policy]
        return min(2.0, ROUNDING + self.position * unit)

    @property
    def own_bound(self) -> float:
        """The limit of `own_error`: ROUNDING + position x half of 2^-64 turns. "hf" rounds angles as
        transformers does, so its limit is 2, which no error exceeds.
        """
        return 2.0 if self.policy == "hf" else ROUNDING + self.position * np.pi * 2.0**-64

    @property
    def ok(self) -> bool:
        """Whether both errors are within their bounds."""
        return self.error <= self.bound and self.own_error <= self.own_bound


def precision(policy: str, position: int, width: int = 64) -> Precision:
    """Measure the largest errors of cos and sin with one precision policy over `width` positions
    around `position`.
    """
    spec = RopeSpec(HEAD_DIM, precision=policy)
    window = range(max(0, position - width // 2), position + width // 2)
    exact = policy == "exact"
    # the frequencies as the policy rounds them: to 40 digits, or to float32
    own = spec.ladder_frequencies().digits if exact else ladder(spec).radians.tolist()
    error = table_error(spec, definition(spec.pairs, spec.theta), window)
    own_error = table_error(spec, list(map(Decimal, own)), window)
    return Precision(policy, position, error, own_error)


@dataclass(frozen=True)
class Law:
    """A property that our rotation must have, or attention without one, and how far it deviates."""

    name: str
    error: float
    bound: float

    @property
    def ok(self) -> bool:
        """Whether the deviation is within its bound."""
        return self.error <= self.bound


def laws() -> list[Law]:
    """Return each law with our deviation from it: no order without positions, norm, relative
    distance, inverse, and equality with transformers' float32 arithmetic.
    """
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 3, 7, HEAD_DIM, generator=generator) for _ in range(2))
    rope = Rope(RopeSpec(HEAD_DIM))
    rotated, scores = rope(q), _scores(rope, q, k, offset=0)
    shifted_scores = _scores(rope, q, k, offset=10_000_000)
    return [
        Law(
            'without positions, "mouse chases cat" is "cat chases mouse" reordered',
            order_difference(None),
            1e-12,
        ),
        Law(
            "a rotation keeps the norm",
            _largest(rotated.norm(dim=-1) / q.norm(dim=-1) - 1),
            KERNEL_ERROR,
        ),
        Law(
            "scores depend on the distance only: 10,000,000 tokens later",
            _largest(shifted_scores - scores),
            1e-11,
        ),
        Law(
            "unrotate restores the vector",
            _largest(rope.unrotate(rotated) - q) / _largest(q),
            KERNEL_ERROR,
        ),
        Law(
            "precision 'hf' equals float32 arithmetic bit for bit", _largest(_hf_difference()), 0.0
        ),
    ]


def order_difference(rope: Rope | None) -> float:
    """Return the largest difference of a word's attention output between "cat chases mouse" and
    "mouse chases cat", with words rotated by `rope`; None: not rotated.
    """
    words = torch.randn(
        3, HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    outputs = []
    for sentence in (words, words.flip(0)):
        rotated = sentence if rope is None else rope.rotate(sentence)
        outputs.append(torch.softmax(rotated @ rotated.mT / HEAD_DIM**0.5, dim=-1) @ sentence)
    return _largest(outputs[0] - outputs[1].flip(0))


def _scores(rope: Rope, q: Tensor, k: Tensor, offset: int) -> Tensor:
    """Return <q, k> / HEAD_DIM in float64, with q and k rotated at offset, offset + 1, ..."""
    q, k = rope(q.double(), k.double(), offset=offset)
    return q @ k.mT / HEAD_DIM


def _largest(x: Tensor) -> float:
    """Return the largest magnitude in a tensor."""
    return x.abs().max().item()


def _hf_difference() -> Tensor:
    """Return our `precision="hf"` table minus a table computed by transformers' float32 operations
    in the same order.
    """
    positions = torch.arange(131_000, 131_072)
    inv_freq = 1.0 / (
        10_000.0 ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.int64).float() / HEAD_DIM)
    )
    angles = positions.float()[:, None] * inv_freq
    cos, sin = Rope(RopeSpec(HEAD_DIM, precision="hf")).cos_sin(positions)
    return torch.stack([cos - angles.cos(), sin - angles.sin()])


@dataclass(frozen=True)
class Speed:
    """Error and time of one implementation.

    error         largest error of a component of a rotated pair, divided by the norm of the pair;
                  None if not measured
    bound         the limit of `error`; None if there is none
    milliseconds  time to rotate one q and one k
    reason        why it was not measured, or None
    """

    name: str
    dtype: str
    error: float | None = None
    bound: float | None = None
    milliseconds: float | None = None
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the error is within its bound, or has none; the time is not judged."""
        return self.bound is None or (self.error is not None and self.error <= self.bound)


def backend_speed(
    name: str, dtype: str, tokens: int, device: str = "cpu", seconds: float = 0.4
) -> Speed:
    """Return the error of the backend `name` in `dtype`, over both layouts and small and large
    positions, and its time for one q and k of `tokens` tokens, timed for about `seconds`; or the
    reason why it cannot run.
    """
    if reason := available(device)[name]:
        return Speed(name, dtype, reason=reason)
    errors = [
        _rotation_error(partial(_by_backend, name, layout), layout, dtype, device)
        for layout in LAYOUTS
    ]
    rope, (q, k) = Rope(RopeSpec(HEAD_DIM), backend=name), _query_key(tokens, dtype, device)
    bound = torch.finfo(DTYPES[dtype]).eps / 2 + KERNEL_ERROR
    return Speed(name, dtype, max(errors), bound, clock(lambda: rope(q, k), device, seconds))


def _by_backend(name: str, layout: str, x: Tensor, positions: Tensor) -> Tensor:
    """Return x rotated at `positions` by the backend `name`."""
    return Rope(RopeSpec(HEAD_DIM, layout=layout), backend=name).rotate(x, positions)


def copy_speed(dtype: str, tokens: int, device: str = "cpu", seconds: float = 0.4) -> Speed:
    """Return the time of a plain copy of q and k of `tokens` tokens: it moves the same bytes as a
    rotation, which cannot be much faster.
    """
    q, k = _query_key(tokens, dtype, device)
    outs = torch.empty_like(q), torch.empty_like(k)
    return Speed(
        "copy_",
        dtype,
        milliseconds=clock(lambda: (outs[0].copy_(q), outs[1].copy_(k)), device, seconds),
    )


def hf_style_speed(dtype: str, tokens: int, device: str = "cpu", seconds: float = 0.4) -> Speed:
    """Return the error, for which there is no bound, and the time of q * cos + rotate_half(q) * sin
    in `dtype` with a precomputed table of `tokens` positions, as in transformers' models.
    """
    q, k = _query_key(tokens, dtype, device)
    cos, sin = _hf_table(torch.arange(tokens, device=device), q.dtype)
    error = _rotation_error(_hf_style, "half", dtype, device)
    run = lambda: (_hf_rotate(q, cos, sin), _hf_rotate(k, cos, sin))  # noqa: E731 - one line
    return Speed("rotate_half in plain torch", dtype, error, None, clock(run, device, seconds))


def _hf_style(x: Tensor, positions: Tensor) -> Tensor:
    """Return x rotated as transformers' models do, in the dtype of x."""
    return _hf_rotate(x, *_hf_table(positions, x.dtype))


def _hf_table(positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin [S, D] of float32 angles, each entry twice, rounded to `dtype`."""
    frequencies = ladder(RopeSpec(HEAD_DIM, precision="hf")).radians
    inv_freq = frequencies.to(positions.device, torch.float32)
    angles = (positions.float()[:, None] * inv_freq).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _hf_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x rotated by cos and sin that have an entry for each dimension, in the half layout."""
    return x * cos + rotate_half(x) * sin


def _query_key(tokens: int, dtype: str, device: str) -> tuple[Tensor, Tensor]:
    """Return a random q of 32 heads and k of 8 heads, [1, heads, tokens, D]."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, tokens, HEAD_DIM, generator=generator) for heads in (32, 8))
    return q.to(device, DTYPES[dtype]), k.to(device, DTYPES[dtype])


def _rotation_error(
    rotate: Callable[[Tensor, Tensor], Tensor], layout: str, dtype: str, device: str
) -> float:
    """Return the largest error of a component of `rotate(x, positions)`, divided by the norm of its
    pair, over small and large positions.
    """
    # p + 1, because a short float that holds p = 131,072 exactly does not hold 131,073; the last of
    # POSITIONS is left out: `precision` measures the angles there
    positions = [0, 1, 17, *(p + 1 for p in POSITIONS[:3])]
    x = torch.randn(1, 3, len(positions), HEAD_DIM, generator=torch.Generator().manual_seed(1)).to(
        device, DTYPES[dtype]
    )
    before, after = (
        _pairs(t, layout) for t in (x, rotate(x, torch.tensor(positions, device=device)))
    )
    expected = before * np.exp(1j * true_angles(definition(HEAD_DIM // 2), positions))
    difference = after - expected
    return float(
        (
            np.maximum(np.abs(np.real(difference)), np.abs(np.imag(difference))) / np.abs(before)
        ).max()
    )


def _pairs(x: Tensor, layout: str) -> np.ndarray:
    """Return the pairs of x as complex numbers, complex128 [..., pairs]."""
    values = x.double().cpu().numpy()
    half = values.shape[-1] // 2
    if layout == "half":
        return values[..., :half] + 1j * values[..., half:]
    return values[..., 0::2] + 1j * values[..., 1::2]


def clock(run: Callable[[], object], device: str = "cpu", seconds: float = 0.4) -> float:
    """Return the median time of a call in milliseconds, after one warm-up call; calls are timed for
    about `seconds`, at least three.
    """
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    run()
    wait()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < stop:
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


@dataclass(frozen=True)
class SelfCheckReport:
    """All results of the self-check."""

    precision: list[Precision]
    laws: list[Law]
    speed: list[Speed]

    @property
    def ok(self) -> bool:
        """Whether no error exceeds its bound; times are shown and not judged."""
        return all(row.ok for row in (*self.precision, *self.laws, *self.speed))


def steps(tokens: int, device: str = "cpu") -> Iterator[tuple[str, Callable[[], list]]]:
    """Yield the name of every measurement and the function that runs it and returns its rows, so
    that a caller can show progress. Speed is measured on q and k of `tokens` tokens.
    """
    for policy in PRECISIONS:
        yield f"precision {policy}", lambda policy=policy: [precision(policy, p) for p in POSITIONS]
    yield "laws", laws
    for dtype in DTYPES:
        yield f"copy {dtype}", lambda dtype=dtype: [copy_speed(dtype, tokens, device)]
        yield f"rotate_half {dtype}", lambda dtype=dtype: [hf_style_speed(dtype, tokens, device)]
        for name in BACKENDS:
            yield (
                f"{name} {dtype}",
                lambda name=name, dtype=dtype: [backend_speed(name, dtype, tokens, device)],
            )


def gather(rows: Sequence[Precision | Law | Speed]) -> SelfCheckReport:
    """Return a report of the rows that the functions of `steps` returned, sorted by their type."""
    return SelfCheckReport(
        [row for row in rows if isinstance(row, Precision)],
        [row for row in rows if isinstance(row, Law)],
        [row for row in rows if isinstance(row, Speed)],
    )


def precision_curves(points: int = 41, width: int = 6) -> dict[str, tuple[list[int], list[float]]]:
    """Return {policy: (positions, errors)}: `points` positions from 1,000 to 2^40, and the largest
    error of cos and sin at the `width` positions around each.
    """
    positions = [round(p) for p in np.geomspace(1_000, 2**40, points)]
    return {
        policy: (positions, [precision(policy, p, width).error for p in positions])
        for policy in PRECISIONS
    }
