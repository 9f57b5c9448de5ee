"""The tensor rope_freqs: one divisor for each frequency, and the Llama 3 scaling that most of these
tensors were made by.
"""

from __future__ import annotations

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.frequencies import Default, Llama3

#: relative tolerance: the tensor holds float32
SAME = 2e-6
#: the divisor of a pair that does not rotate, as llama.cpp's converter writes it
STANDS_STILL = 1e30


def divisors(field: str, values: np.ndarray, pairs: int) -> np.ndarray:
    """Return the divisors in float64 after a check: one for each pair, finite and positive."""
    if values.shape != (pairs,):
        raise RopeError(
            field, f"must hold one factor for each of the {pairs} pairs", list(values.shape)
        )
    if not (np.isfinite(values) & (values > 0)).all():
        raise RopeError(field, "must hold finite numbers > 0", values.tolist())
    return values.astype(np.float64)


def divisors_for(radians: np.ndarray, unscaled: np.ndarray) -> np.ndarray:
    """Return the divisors by which `unscaled` frequencies become `radians`."""
    if (radians < 0).any():
        raise RopeError(
            "scaling",
            "must not rotate backwards: rope_freqs holds positive factors",
            radians.tolist(),
        )
    with np.errstate(divide="ignore"):
        return np.where(radians == 0, STANDS_STILL, unscaled / radians)


def llama3(values: np.ndarray, theta: float) -> Llama3 | None:
    """Return the Llama 3 scaling that divides frequencies by these values; None if there is none.

    Its frequencies do not change if `original_length` and both frequency factors are multiplied by
    one number, so low_freq_factor is taken to be 1. The factor is the largest divisor. The other
    two fields follow from the blended pairs: the share of the unscaled frequency in them is
    (original_length * turns per step - 1) / (high_freq_factor - 1).
    """
    factor = float(values.max())
    if factor < 1:
        return None
    unscaled = np.array(Default().frequencies(2 * len(values), theta).radians)
    blended = (values > 1 + SAME) & (values < factor * (1 - SAME))
    candidates = [(8192, 4.0)]  # original_length and high_freq_factor of Llama 3.1
    if blended.sum() >= 2:
        shares = (1 / values[blended] - 1 / factor) / (1 - 1 / factor)
        # a line: its slope is original_length / (high_freq_factor - 1), its intercept -1 /
        # (high_freq_factor - 1)
        slope, intercept = np.polyfit(unscaled[blended] / (2 * np.pi), shares, 1)
        if slope > 0 and -1e6 < intercept < -1e-6:
            candidates.append((round(-slope / intercept), round(1 - 1 / intercept, 4)))
    for original_length, high_freq_factor in candidates:
        if not 1 <= original_length < 2**40 or factor > 1e6:
            continue
        scaling = Llama3(factor, 1.0, high_freq_factor, original_length)
        scaled = np.array(scaling.frequencies(2 * len(values), theta).radians)
        if np.allclose(unscaled / values, scaled, rtol=SAME, atol=0):
            return scaling
    return None
