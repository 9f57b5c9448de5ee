"""Attention over a whole sequence, written out densely in float64: what caches, shards, chunks,
documents and padding must equal.

Tensors are [B, H, S, D]. Nothing here is taken from the package.
"""

import random

import torch
from torch.nn.functional import elu, relu

FEATURES = {"elu": lambda x: elu(x) + 1, "relu": relu}


def rotated(x, positions):
    """Return x rotated by RoPE with base 10,000 and the pairs (i, i + D/2), as a complex product;
    positions are [B, S].
    """
    half = x.shape[-1] // 2
    radians = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions[:, None, :, None] * radians
    rotated_x = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((rotated_x.real, rotated_x.imag), dim=-1)


def counted(padding, documents=None):
    """Return the default positions: the number of real tokens before each token in its row, or in
    its document.
    """
    found = torch.zeros(padding.shape, dtype=torch.int64)
    for b, row in enumerate(padding.tolist()):
        before = {}
        for i, real in enumerate(row):
            document = None if documents is None else int(documents[b, i])
            found[b, i] = before.get(document, 0)
            before[document] = before.get(document, 0) + real
    return found


def visible(indices, *, causal=True, window=None, padding=None, documents=None):
    """Return [B, 1, S, S]: whether token i attends to token j; `indices` [S] is the place of each
    token in the text.
    """
    j_minus_i = indices[None, :] - indices[:, None]
    allowed = j_minus_i <= 0 if causal else torch.ones_like(j_minus_i, dtype=torch.bool)
    if window is not None:
        allowed = allowed & (j_minus_i.abs() < window)
    allowed = allowed[None, None]
    if padding is not None:
        allowed = allowed & padding[:, None, None, :]
    if documents is not None:
        allowed = allowed & (documents[:, None, :, None] == documents[:, None, None, :])
    return allowed


def softmax(q, k, v, allowed, scale):
    """Return softmax attention with all weights in one piece; a query without keys gives 0."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = (q @ k.mT) * scale
    largest = scores.masked_fill(~allowed, -torch.inf).amax(dim=-1, keepdim=True).detach()
    shares = (scores - largest.masked_fill(largest == -torch.inf, 0.0)).exp() * allowed
    total = shares.sum(dim=-1, keepdim=True)
    return (shares / torch.where(total > 0, total, 1.0)) @ v


def linear(q, k, v, positions, allowed, *, form="numerator", phi="elu", scale=1.0):
    """Return linear attention with all weights in one piece; a query without keys gives 0."""
    if form == "numerator":
        q, k = FEATURES[phi](q), FEATURES[phi](k)
        top, bottom = rotated(q, positions) @ rotated(k, positions).mT, q @ k.mT
    else:
        q, k = (rotated(t / t.norm(dim=-1, keepdim=True), positions) for t in (q, k))
        top = bottom = 1 + scale * (q @ k.mT)
    total = (bottom * allowed).sum(dim=-1, keepdim=True)
    defined = total.abs() > 1e-6
    return torch.where(defined, ((top * allowed) @ v) / torch.where(defined, total, 1.0), 0.0)


def random_padding(draw: random.Random, batch, seq):
    """Return [B, S], True for real tokens, or None: padding left, right, in the middle or anywhere,
    row by row.
    """

    def row():
        """Return which tokens of one row are real."""
        kind, a, b = (
            draw.choice(["left", "right", "middle", "anywhere", "none", "all"]),
            *sorted(draw.choices(range(seq + 1), k=2)),
        )
        spans = {
            "left": range(a, seq),
            "right": range(a),
            "middle": [*range(a), *range(b, seq)],
            "none": range(seq),
            "all": (),
        }
        real = [i for i in range(seq) if draw.random() < 0.6] if kind == "anywhere" else spans[kind]
        return [i in real for i in range(seq)]

    return (
        None
        if draw.random() < 0.25
        else torch.tensor([row() for _ in range(batch)]).reshape(batch, seq)
    )


def random_documents(draw: random.Random, batch, seq):
    """Return [B, S] document numbers, or None: runs with growing numbers, runs that repeat numbers,
    or any number anywhere.
    """

    def row():
        """Return the document number of each token of one row."""
        kind = draw.choice(["grow", "again", "anywhere"])
        numbers, number = [], draw.randint(-2, 3)
        for _ in range(seq):
            if kind == "anywhere" or draw.random() < 0.3:
                number = number + draw.randint(1, 3) if kind == "grow" else draw.randint(-1, 2)
            numbers.append(number)
        return numbers

    return (
        None
        if draw.random() < 0.25
        else torch.tensor([row() for _ in range(batch)]).reshape(batch, seq)
    )
