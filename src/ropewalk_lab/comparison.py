"""A table that compares all encodings, with numbers counted or measured on the classes themselves.

`python docs/tables.py` writes the table into docs/encodings.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ropewalk.attention.softmax import Attention
from ropewalk.encodings import ENCODINGS, Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, integer

#: extrapolation is measured up to this multiple of the trained length
STRETCH = 4
#: smaller changes of attention weights, or of scores, count as rounding errors
EXACT = 1e-9


@dataclass(frozen=True)
class MeasuredEncoding:
    """One encoding, measured with its initial parameters: costs in float32, all else in float64.

    entry         where it adds positions: "input", "qk", "scores", several of them joined by " + ",
                  or "none"
    drift         largest change of a causal attention weight when all positions are shifted
                  together; 0 means relative
    causal_only   declared by the class, not measured: defined only if no query attends to a later
                  key
    linear        its class allows linear attention, and its scores have rank head_dim at most
    bounded       positions beyond `length` raise an error
    parameters    number of learned parameters
    flops         floating-point operations of the matrix products that the encoding adds, at
                  `length` tokens
    tensor_bytes  size of the largest tensor that the encoding creates, at `length` tokens, batch
                  size 1, float32
    order         exponent p if tensor_bytes grows as length^p
    excess        how far scores at distances up to 4 x `length` leave the range of those within
                  `length`, divided by the widest range; there is one range for each head, dimension
                  of q and dimension of k. None if bounded
    spread        effective number of keys (exp of the entropy of the weights) at 4 x `length`
                  tokens, divided by that at `length` tokens, for equal tokens; None if bounded
    """

    name: str
    entry: str
    drift: float
    causal_only: bool
    linear: bool
    bounded: bool
    parameters: int
    flops: int
    tensor_bytes: int
    order: float
    excess: float | None
    spread: float | None

    @property
    def relative(self) -> bool:
        """Whether weights depend only on differences of positions."""
        return self.drift < EXACT


def compare(
    names: Iterable[str] = ENCODINGS, num_heads: int = 4, head_dim: int = 32, length: int = 128
) -> list[MeasuredEncoding]:
    """Return one MeasuredEncoding for each encoding in `names`, in attention of these sizes;
    `length` is the trained length.
    """
    integer("length", length, low=8)  # the drift is measured on half as many tokens
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        return [
            _measure(choice("names", name, ENCODINGS), num_heads, head_dim, length)
            for name in names
        ]


def _measure(name: str, num_heads: int, head_dim: int, length: int) -> MeasuredEncoding:
    """Return the MeasuredEncoding of one encoding, measured in an attention layer with this
    encoding.
    """
    torch.manual_seed(0)
    # the backend "math" returns the weights, and computes in the dtype float64 of its input
    layer = Attention(num_heads * head_dim, num_heads, encoding=name, length=length, backend="math")
    encoding = layer.encoding
    # the cost is that of float32; everything after `layer.double()` is measured in float64
    flops, tensor_bytes = _cost(encoding, length)
    _, bytes_at_twice_the_length = _cost(encoding, 2 * length)
    layer.double()
    bounded = _is_bounded(encoding, length)
    return MeasuredEncoding(
        name=name,
        entry=" + ".join(_entries(encoding)) or "none",
        drift=_drift(layer, length),
        causal_only=encoding.causal_only,
        linear=encoding.why_not("linear") is None and _rank(encoding, bounded) <= head_dim,
        bounded=bounded,
        parameters=sum(p.numel() for p in encoding.parameters() if p.requires_grad),
        flops=flops,
        tensor_bytes=tensor_bytes,
        order=math.log2(bytes_at_twice_the_length / tensor_bytes) if tensor_bytes else 0.0,
        excess=None if bounded else _excess(encoding, length),
        spread=None if bounded else _spread(layer, length),
    )


def _on_all_axes(encoding: Encoding, positions: Tensor) -> Tensor:
    """Return positions [S], the same on every axis of the encoding: [S] for one axis, [axes, 1, S]
    for several.
    """
    axes = encoding.rope.spec.num_axes if isinstance(encoding, Rotary) else 1
    return positions if axes == 1 else positions.expand(axes, 1, -1)


def _is_bounded(encoding: Encoding, length: int) -> bool:
    """Return whether the encoding refuses the first position beyond its trained length."""
    try:
        _unit_scores(encoding, torch.tensor([length]))
    except RopeError:
        return True
    return False


def _entries(encoding: Encoding) -> list[str]:
    """Return at which of "input", "qk" and "scores" the encoding acts: where it changes three
    tokens of ones, or has a bias for their scores.
    """
    sizes, positions = encoding.sizes, torch.arange(3)
    coordinates = _on_all_axes(encoding, positions)
    x = torch.ones(1, 3, sizes.model_dim, dtype=torch.float64)
    q = torch.ones(1, sizes.num_heads, 3, sizes.head_dim, dtype=torch.float64)
    used = {
        "input": not torch.equal(encoding.embed(x, coordinates), x),
        "qk": not torch.equal(encoding.rotate(q, coordinates, key=False), q),
        "scores": encoding.bias(q, positions, positions) is not None,
    }
    return [entry for entry, is_used in used.items() if is_used]


@torch.no_grad()
def _weights(layer: Attention, x: Tensor, positions: Tensor) -> Tensor:
    """Return the attention weights [B, H, S, S] of tokens x [B, S, model_dim] at `positions` [S]."""
    weights = layer(x, _on_all_axes(layer.encoding, positions), return_weights=True).weights
    assert weights is not None  # requested
    return weights


def _drift(layer: Attention, length: int) -> float:
    """Return the largest change of an attention weight of `length` // 2 random tokens when they are
    shifted to the end of `length`.
    """
    seq = length // 2
    x = torch.randn(1, seq, layer.encoding.sizes.model_dim, dtype=torch.float64)
    before, after = (_weights(layer, x, torch.arange(seq) + shift) for shift in (0, length - seq))
    return (before - after).abs().max().item()


def _keys_in_use(layer: Attention, token: Tensor, seq: int) -> float:
    """Return to how many of `seq` equal tokens the last query attends: exp(entropy) of its weights,
    averaged over the heads.
    """
    weights = _weights(layer, token.expand(1, seq, -1), torch.arange(seq))[0, :, -1]
    return torch.special.entr(weights).sum(dim=-1).exp().mean().item()


def _spread(layer: Attention, length: int) -> float:
    """Return `_keys_in_use` of a random token at STRETCH times `length`, divided by that at
    `length`.
    """
    token = torch.randn(layer.encoding.sizes.model_dim, dtype=torch.float64)
    return _keys_in_use(layer, token, STRETCH * length) / _keys_in_use(layer, token, length)


@torch.no_grad()
def _scores(
    encoding: Encoding, queries: Tensor, keys: Tensor, q_at: Tensor, k_at: Tensor
) -> Tensor:
    """Return scaled scores [B, H, Sq, Sk] of the tokens `queries` [B, Sq, model_dim] at positions
    `q_at` [Sq] with `keys` [B, Sk, model_dim] at `k_at` [Sk]; these tokens are not projected.
    """
    sizes = encoding.sizes
    rotated = []
    for x, positions in ((queries, q_at), (keys, k_at)):
        coordinates = _on_all_axes(encoding, positions)
        heads = (
            encoding.embed(x, coordinates)
            .unflatten(-1, (sizes.num_heads, sizes.head_dim))
            .transpose(1, 2)
        )
        rotated.append(encoding.rotate(heads, coordinates, key=x is keys))
    q, k = rotated
    scores = q @ k.transpose(-1, -2) / math.sqrt(sizes.head_dim)
    bias = encoding.bias(q, q_at, k_at)
    return scores if bias is None else scores + bias


def _unit_scores(encoding: Encoding, distances: Tensor) -> Tensor:
    """Return scores of unit queries at each distance with unit keys at position 0: [dimension of
    the query, H, distances, dimension of the key].

    The score of any q and k is a linear combination of these.
    """
    size = encoding.sizes.head_dim
    # the same vector for every head
    unit = torch.eye(size, dtype=torch.float64).repeat(1, encoding.sizes.num_heads)
    queries = unit[:, None].expand(-1, len(distances), -1)
    return _scores(encoding, queries, unit[None], distances, torch.zeros(size, dtype=torch.int64))


def _rank(encoding: Encoding, bounded: bool) -> int:
    """Return the rank of the first head's score matrix of random tokens. There are 5 tokens more
    than a head has dimensions, so the rank may exceed head_dim.

    A product of q and k has rank head_dim at most; linear attention cannot compute scores of a
    higher rank.
    """
    positions = torch.arange(encoding.sizes.head_dim + 5)
    if bounded:  # the encoding refuses positions beyond its length
        positions = positions.clamp(max=encoding.sizes.length - 1)
    queries, keys = (
        torch.randn(1, len(positions), encoding.sizes.model_dim, dtype=torch.float64)
        for _ in range(2)
    )
    return int(
        torch.linalg.matrix_rank(_scores(encoding, queries, keys, positions, positions)[0, 0])
    )


def _excess(encoding: Encoding, length: int) -> float:
    """Return how far scores beyond `length` leave the range of the scores within it, divided by the
    widest range of any score; infinity if each score within `length` is the same at all distances.
    """
    scores = _unit_scores(encoding, torch.arange(STRETCH * length))
    within, beyond = scores[:, :, :length], scores[:, :, length:]
    # the range over all distances, for each query dimension, head and key dimension
    low, high = within.amin(dim=2), within.amax(dim=2)
    outside = torch.maximum(beyond.amax(dim=2) - high, low - beyond.amin(dim=2)).max().item()
    if outside <= EXACT:  # rounding errors
        return 0.0
    widest = (high - low).max().item()
    return outside / widest if widest > 0 else math.inf


class _LargestTensor(TorchDispatchMode):
    """Records the bytes of the largest tensor created while active; views are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one torch operation and record the bytes of its largest result; results in an
        argument's memory are not counted.
        """
        result = func(*args, **(kwargs or {}))
        input_pointers = {
            t.untyped_storage().data_ptr()
            for t in tree_leaves((args, kwargs))
            if isinstance(t, Tensor)
        }
        for t in tree_leaves(result):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in input_pointers:
                self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return result


@torch.no_grad()
def _cost(encoding: Encoding, seq: int) -> tuple[int, int]:
    """Return (FLOPs of matrix products, bytes of the largest tensor) that the encoding adds, at
    `seq` float32 tokens.
    """
    sizes = encoding.sizes
    # positions stay below `sizes.length`, which some encodings require; the cost does not depend on
    # them
    positions = torch.arange(seq) % sizes.length
    coordinates = _on_all_axes(encoding, positions)
    x = torch.ones(1, seq, sizes.model_dim)
    q = torch.ones(1, sizes.num_heads, seq, sizes.head_dim)
    weights = torch.ones(1, sizes.num_heads, seq, seq)
    with FlopCounterMode(display=False) as flop_counter, _LargestTensor() as largest:
        encoding.embed(x, coordinates)
        encoding.rotate(q, coordinates, key=False)
        encoding.rotate(q, coordinates, key=True)
        encoding.bias(q, positions, positions)
        encoding.value_bias(weights, positions, positions)
    return flop_counter.get_total_flops(), largest.bytes


COLUMNS = (
    "encoding",
    "entry",
    "relative",
    "causal only",
    "linear",
    "bounded",
    "parameters",
    "largest tensor",
    "grows as",
    "matmul FLOPs",
    "excess",
    "spread",
)


def as_markdown(rows: Iterable[MeasuredEncoding]) -> str:
    """Return the rows as a Markdown table, one line per encoding."""
    # six columns of words are aligned left, six columns of numbers right
    lines = [COLUMNS, ("---",) * 6 + ("---:",) * 6, *(_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cells(row: MeasuredEncoding) -> tuple[str, ...]:
    """Return a row of the Markdown table, one text per column. The column "relative" is "yes", or
    "no" and the drift. `excess` and `spread` are None if the encoding is bounded: it refuses the
    positions at which they are measured.
    """
    return (
        f"`{row.name}`",
        row.entry,
        "yes" if row.relative else f"no, {row.drift:.2g}",
        _yes(row.causal_only),
        _yes(row.linear),
        _yes(row.bounded),
        f"{row.parameters:,}",
        f"{row.tensor_bytes / 1024:,.0f} KiB",
        f"n^{row.order:.0f}" if row.tensor_bytes else "-",
        f"{row.flops:,}",
        "refused" if row.excess is None else f"{row.excess:.2g}",
        "refused" if row.spread is None else f"{row.spread:.2g}",
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
