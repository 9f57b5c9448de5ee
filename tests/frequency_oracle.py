"""Every scaling once more, in 50-digit arithmetic and one pair at a time, straight from the
published formulas.

Shares nothing with the package: no tensors, no helper, no field defaults. A scaling without an
entry here fails the tests.
"""

import mpmath
import numpy as np
from mpmath import mpf

mpmath.mp.dps = 50


def omega(d, theta):
    """Return the plain frequencies theta^(-2i/d)."""
    return [mpf(theta) ** (-mpf(2 * i) / d) for i in range(d // 2)]


def _default(d, theta, length, f):
    return omega(d, theta), mpf(1)


def _linear(d, theta, length, f):
    return [w / mpf(f["factor"]) for w in omega(d, theta)], mpf(1)


def _ntk(d, theta, length, f):
    return omega(d, _ntk_base(d, theta, mpf(f["factor"]))), mpf(1)


def _ntk_base(d, theta, stretch):
    """Return the base of NTK scaling for a context `stretch` times longer."""
    return mpf(theta) if d == 2 else mpf(theta) * stretch ** (mpf(d) / (d - 2))


def _dynamic(d, theta, length, f):
    """Dynamic NTK: the base grows with the length beyond the trained one."""
    trained = f["original_length"]
    reached = max(trained if length is None else length, trained)
    s = mpf(f["factor"])
    return omega(d, _ntk_base(d, theta, s * reached / trained - (s - 1))), mpf(1)


def _ramp(d, theta, trained, fast, slow, truncate):
    """Return gamma of each pair: 0 keeps its frequency, 1 interpolates it whole."""
    pair_of = lambda turns: (
        d * mpmath.log(trained / (2 * mpmath.pi * mpf(turns))) / (2 * mpmath.log(theta))
    )
    low, high = pair_of(fast), pair_of(slow)
    if truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, mpf(0)), min(high, mpf(d - 1))
    if low == high:
        high += mpf("0.001")
    return [min(max((i - low) / (high - low), mpf(0)), mpf(1)) for i in range(d // 2)]


def _ntk_by_parts(d, theta, length, f):
    """NTK-by-parts: a mixture of linear, NTK and plain frequencies, by the turns of each pair."""
    to_linear = _ramp(d, theta, f["original_length"], *f["ntk_turns"], True)
    to_scaled = _ramp(d, theta, f["original_length"], *f["keep_turns"], True)
    ntk_share = [(1 - g) * mpf(f["ntk_weight"]) for g in to_linear]
    plain_share = [(1 - g) * mpf(f["keep_weight"]) for g in to_scaled]
    linear, ntk = _linear(d, theta, None, f)[0], _ntk(d, theta, None, f)[0]
    scaled = [
        a * (1 - share) + b * share for a, b, share in zip(linear, ntk, ntk_share, strict=True)
    ]
    mixed = [
        a * (1 - share) + w * share
        for a, w, share in zip(scaled, omega(d, theta), plain_share, strict=True)
    ]
    return mixed, mpf(1)


def yarn_magnitude(s, weight=1):
    return mpf(1) if s <= 1 else mpf(weight) * mpmath.log(s) / 10 + 1


def _yarn_at(s, d, theta, f):
    """YaRN with the factor s: frequencies and magnitude."""
    gamma = _ramp(d, theta, f["original_length"], f["beta_fast"], f["beta_slow"], f["truncate"])
    radians = [w * (1 - g) + w / s * g for w, g in zip(omega(d, theta), gamma, strict=True)]
    if f["attention_factor"] is not None:
        return radians, mpf(f["attention_factor"])
    if f["mscale"] and f["mscale_all_dim"]:
        return radians, yarn_magnitude(s, f["mscale"]) / yarn_magnitude(s, f["mscale_all_dim"])
    return radians, yarn_magnitude(s)


def _yarn(d, theta, length, f):
    return _yarn_at(mpf(f["factor"]), d, theta, f)


def _dynamic_yarn(d, theta, length, f):
    s = mpf(1) if length is None else max(mpf(length) / f["original_length"], mpf(1))
    return _yarn_at(s, d, theta, f)


def _longrope(d, theta, length, f):
    """LongRoPE: each pair's frequency is divided by a factor, of one list up to the trained length and
    of another beyond.
    """
    long = length is not None and length > f["original_length"]
    factors = f["long_factor"] if long else f["short_factor"]
    s = mpf(f["factor"])
    grown = mpf(1) if s <= 1 else mpmath.sqrt(1 + mpmath.log(s) / mpmath.log(f["original_length"]))
    magnitude = grown if f["attention_factor"] is None else mpf(f["attention_factor"])
    return [w / mpf(x) for w, x in zip(omega(d, theta), factors, strict=True)], magnitude


def _llama3(d, theta, length, f):
    """Llama 3.1: slow pairs are divided by the factor, fast ones stay, those between are blended."""
    low, high, trained, s = (
        mpf(f[k]) for k in ("low_freq_factor", "high_freq_factor", "original_length", "factor")
    )

    def scaled(w):
        wavelength = 2 * mpmath.pi / w
        if wavelength < trained / high:
            return w
        if wavelength > trained / low:
            return w / s
        t = (trained / wavelength - low) / (high - low)
        return (1 - t) * w / s + t * w

    return [scaled(w) for w in omega(d, theta)], mpf(1)


def _proportional(d, theta, length, f):
    rotating = int(f["fraction"] * d // 2)
    return [
        w / mpf(f["factor"]) if i < rotating else mpf(0) for i, w in enumerate(omega(d, theta))
    ], mpf(1)


def _linear_frequencies(d, theta, length, f):
    return [mpf(1) / (1 + 2 * i) for i in range(d // 2)], mpf(1)


def _riflex(d, theta, length, f):
    """RIFLEx: the pair whose wavelength is nearest to `repeat` is slowed."""
    radians = omega(d, theta)
    distances = [abs(2 * mpmath.pi / w - f["repeat"]) for w in radians]
    radians[distances.index(min(distances))] = mpf(f["share"]) * 2 * mpmath.pi / f["frames"]
    return radians, mpf(1)


def _given(d, theta, length, f):
    return [mpf(x) for x in f["radians"]], mpf(f["magnitude"])


def _learnable(d, theta, length, f):
    return oracle(f["start"], d, theta, length)


def _clipped(d, theta, length, f):
    """CoPE: the slowest pairs of another scaling taper off to 0."""
    radians, magnitude = oracle(f["inner"], d, theta, length)
    n, count = min(f["pairs"], d // 2), d // 2
    for m in range(n):
        if not f["soft"]:
            radians[count - n + m] = mpf(0)
        elif n > 1:
            radians[count - n + m] *= (
                (1 + mpmath.cos(mpmath.pi * m / (n - 1))) / 2 if m < n - 1 else 0
            )
    return radians, magnitude


def _learned(d, theta, length, f):
    radians, magnitude = oracle(f["inner"], d, theta, length)
    return [w * mpmath.exp(mpf(a)) for w, a in zip(radians, f["alpha"], strict=True)], magnitude


ORACLE = {
    "default": _default,
    "linear": _linear,
    "ntk": _ntk,
    "ntk_by_parts": _ntk_by_parts,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "dynamic_yarn": _dynamic_yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
    "linear_frequencies": _linear_frequencies,
    "riflex": _riflex,
    "xpos": _default,
    "given": _given,
    "learnable": _learnable,
    "clipped": _clipped,
    "learned": _learned,
}


def oracle(scaling, d, theta, length=None):
    """Return (radians of each pair, magnitude) as mpmath numbers."""
    return ORACLE[scaling.name](d, theta, length, vars(scaling))


def xpos_log_decay(d, scale_base):
    """Return ln(zeta_i) / scale_base, zeta_i = (2i + 0.4 d) / (1.4 d)."""
    return [
        mpmath.log((2 * i + mpf(4) * d / 10) / (mpf(14) * d / 10)) / mpf(scale_base)
        for i in range(d // 2)
    ]


def cos_sin(radians, position):
    """Return cos and sin of position * radians, with an exact angle; a float64 frequency is taken
    as exact.
    """
    angle = mpf(radians) * int(position)
    return mpmath.cos(angle), mpmath.sin(angle)


def rotations(radians, positions):
    """Return e^(i position radians) of mpmath frequencies, complex128 [positions, pairs]; angles
    are rounded to 2^-190 turns.
    """
    with mpmath.workdps(60):
        steps = [int(mpmath.nint(r / (2 * mpmath.pi) * 2**190)) for r in radians]
    turns = np.array(
        [[(int(position) * step % 2**190) / 2**190 for step in steps] for position in positions]
    )
    return np.exp(2j * np.pi * turns)
