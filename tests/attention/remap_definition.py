"""Attention with remapped distances in float64, pair by pair: q_i . R(-distance * omega) k_j, by
each method's rule.
"""

import math

import numpy as np


def rerope(i, j, window):
    """Return the distance of query i and key j under ReRoPE."""
    return min(i - j, window)


def leaky_rerope(i, j, window, slowdown):
    """Return the distance of query i and key j under leaky ReRoPE."""
    return i - j if i - j < window else window + (i - j - window) / slowdown


def self_extend(i, j, group, window):
    """Return the distance of query i and key j under SelfExtend."""
    return i - j if i - j < window else i // group + window - window // group - j // group


def dca(i, j, chunk, local):
    """Return the distance of query i and key j under dual chunk attention."""
    size = chunk - local
    between = i // size - j // size
    if between == 0:
        at = i % size
    else:
        at = min(i % size + size, chunk) if between == 1 else min(2 * size - 1, chunk)
    return at - j % size


RULES = {"rerope": rerope, "leaky_rerope": leaky_rerope, "self_extend": self_extend, "dca": dca}


def score(q, k, distance, theta=10_000.0):
    """Return q . R(-distance omega) k for pairs (c, c + d/2)."""
    half = len(q) // 2
    angle = distance * theta ** (-np.arange(half) / half)
    q, k = q[:half] + 1j * q[half:], k[:half] + 1j * k[half:]
    return float((q * np.exp(1j * angle) * k.conj()).real.sum())


def attend(q, k, v, scale, distance, sees, factor=lambda i: 1.0):
    """Return the output [H, S, D] of q [H, S, D], k and v [Hk, S, D]: softmax over the keys j with
    sees(i, j).
    """
    heads, seq, _ = q.shape
    out = np.zeros((heads, seq, v.shape[-1]))
    for h in range(heads):
        kv = h * len(k) // heads
        for i in range(seq):
            seen = [j for j in range(seq) if sees(i, j)]
            if not seen:
                continue
            scores = [factor(i) * score(q[h, i], k[kv, j], distance(i, j)) * scale for j in seen]
            weights = np.exp(np.array(scores) - max(scores))
            out[h, i] = weights @ v[kv, seen] / weights.sum()
    return out


def log_n(position, length):
    return max(1.0, math.log(position + 1) / math.log(length))
