"""The encodings side by side: every number is counted or measured on the classes themselves, none is written by hand.

`python docs/tables.py` puts the table into docs/encodings.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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

#: how far beyond the trained length extrapolation is measured
STRETCH = 4
#: a change of weights below this is rounding
EXACT = 1e-9


@dataclass(frozen=True)
class Comparison:
    """One encoding, measured in float64 as it is before training.

    door          where it acts: "input", "qk", "scores", or several of them
    drift         largest change of a causal attention weight when all positions move together; 0 means relative
    causal_only   declared: meaningful only where a query sees no later key
    linear        its scores have rank head_dim at most, so the n x n of them need not be formed
    bounded       it refuses positions beyond `length`
    parameters    trained numbers
    flops         floating-point operations of its matrix products at `length` tokens
    formed        bytes of the largest tensor it forms at `length` tokens, one row, in float32
    order         the power of the length that `formed` grows with
    excess        by how much scores at up to 4 x `length` leave the range seen within `length`, in widths of that range
    spread        how many times more keys share the attention at 4 x `length` than at `length`, all tokens alike
    """

    name: str
    door: str
    drift: float
    causal_only: bool
    linear: bool
    bounded: bool
    parameters: int
    flops: int
    formed: int
    order: float
    excess: float | None
    spread: float | None

    @property
    def relative(self) -> bool:
        """Whether weights depend on positions through their differences alone."""
        return self.drift < EXACT


def compare(names: Iterable[str] = ENCODINGS, num_heads: int = 4, head_dim: int = 32, length: int = 128) -> list[Comparison]:
    """One row for each of `names`, all in attention of these sizes; `length` is what each would be trained on."""
    integer("length", length, low=8)
    with torch.random.fork_rng(devices=[]):
        return [_measure(choice("names", name, ENCODINGS), num_heads, head_dim, length) for name in names]


def _measure(name: str, num_heads: int, head_dim: int, length: int) -> Comparison:
    torch.manual_seed(0)
    layer = Attention(num_heads * head_dim, num_heads, encoding=name, length=length, backend="math")
    encoding = layer.encoding
    (flops, formed), (_, twice) = (_cost(encoding, seq) for seq in (length, 2 * length))
    layer.double()
    bounded = _refused(lambda: _unit_scores(encoding, torch.tensor([length])))
    return Comparison(
        name=name,
        door=" + ".join(_doors(encoding)) or "none",
        drift=_drift(layer, length),
        causal_only=encoding.causal_only,
        linear=_rank(encoding, bounded) <= head_dim,
        bounded=bounded,
        parameters=sum(p.numel() for p in encoding.parameters()),
        flops=flops,
        formed=formed,
        order=math.log2(twice / formed) if formed else 0.0,
        excess=None if bounded else _excess(encoding, length),
        spread=None if bounded else _spread(layer, length),
    )


def _placed(encoding: Encoding, positions: Tensor) -> Tensor:
    """Positions [S] for every axis the encoding listens to."""
    axes = encoding.rope.spec.num_axes if isinstance(encoding, Rotary) else 1
    return positions if axes == 1 else positions.expand(axes, 1, -1)


def _refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except RopeError:
        return True
    return False


def _doors(encoding: Encoding) -> list[str]:
    """The doors that change what passes through them."""
    sizes, at = encoding.sizes, torch.arange(3)
    where = _placed(encoding, at)
    x = torch.ones(1, 3, sizes.model_dim, dtype=torch.float64)
    q = torch.ones(1, sizes.num_heads, 3, sizes.head_dim, dtype=torch.float64)
    used = {
        "input": not torch.equal(encoding.embed(x, where), x),
        "qk": not torch.equal(encoding.turn(q, where, key=False), q),
        "scores": encoding.bias(q, at, at) is not None,
    }
    return [door for door, is_used in used.items() if is_used]


@torch.no_grad()
def _weights(layer: Attention, x: Tensor, at: Tensor) -> Tensor:
    weights = layer(x, _placed(layer.encoding, at), return_weights=True).weights
    assert weights is not None  # asked for
    return weights


def _drift(layer: Attention, length: int) -> float:
    """Move all tokens by half of the length and look at the weights."""
    seq = length // 2
    x = torch.randn(1, seq, layer.encoding.sizes.model_dim, dtype=torch.float64)
    here, there = (_weights(layer, x, torch.arange(seq) + shift) for shift in (0, length - seq))
    return (here - there).abs().max().item()


def _keys_in_use(layer: Attention, token: Tensor, seq: int) -> float:
    """exp(entropy) of the last query's weights over `seq` equal tokens, averaged over the heads."""
    weights = _weights(layer, token.expand(1, seq, -1), torch.arange(seq))[0, :, -1]
    return torch.special.entr(weights).sum(dim=-1).exp().mean().item()


def _spread(layer: Attention, length: int) -> float:
    token = torch.randn(layer.encoding.sizes.model_dim, dtype=torch.float64)
    return _keys_in_use(layer, token, STRETCH * length) / _keys_in_use(layer, token, length)


@torch.no_grad()
def _scores(encoding: Encoding, queries: Tensor, keys: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """Scaled scores [B, H, Sq, Sk] of tokens [B, S, model_dim] by all three doors; the projections are the identity."""
    sizes = encoding.sizes
    rotated = []
    for x, at in ((queries, q_at), (keys, k_at)):
        where = _placed(encoding, at)
        heads = encoding.embed(x, where).unflatten(-1, (sizes.num_heads, sizes.head_dim)).transpose(1, 2)
        rotated.append(encoding.turn(heads, where, key=x is keys))
    q, k = rotated
    scores = q @ k.transpose(-1, -2) / math.sqrt(sizes.head_dim)
    bias = encoding.bias(q, q_at, k_at)
    return scores if bias is None else scores + bias


def _unit_scores(encoding: Encoding, distances: Tensor) -> Tensor:
    """What each unit query at each distance finds in each unit key at position 0: [head_dim, H, distances, head_dim].

    All that position can put between two tokens is a mixture of these.
    """
    size = encoding.sizes.head_dim
    unit = torch.eye(size, dtype=torch.float64).repeat(1, encoding.sizes.num_heads)  # the same vector for every head
    queries = unit[:, None].expand(-1, len(distances), -1)
    return _scores(encoding, queries, unit[None], distances, torch.zeros(size, dtype=torch.int64))


def _rank(encoding: Encoding, bounded: bool) -> int:
    """The rank of one head's scores among more tokens than it has dimensions."""
    at = torch.arange(encoding.sizes.head_dim + 5)
    at = at.clamp(max=encoding.sizes.length - 1) if bounded else at
    queries, keys = (torch.randn(1, len(at), encoding.sizes.model_dim, dtype=torch.float64) for _ in range(2))
    return int(torch.linalg.matrix_rank(_scores(encoding, queries, keys, at, at)[0, 0]))


def _excess(encoding: Encoding, length: int) -> float:
    """How far scores beyond the length leave the range that each had within it, over the widest such range."""
    scores = _unit_scores(encoding, torch.arange(STRETCH * length))
    seen, new = scores[:, :, :length], scores[:, :, length:]
    low, high = seen.amin(dim=2), seen.amax(dim=2)
    outside = torch.maximum(new.amax(dim=2) - high, low - new.amin(dim=2)).max().item()
    return outside / (high - low).max().item() if outside > EXACT else 0.0


class _Largest(TorchDispatchMode):
    """Remembers the bytes of the largest tensor formed inside; views form nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


@torch.no_grad()
def _cost(encoding: Encoding, seq: int) -> tuple[int, int]:
    """(operations of matrix products, bytes of the largest tensor formed) by the doors alone, at `seq` float32 tokens."""
    sizes = encoding.sizes
    at = torch.arange(seq) % sizes.length  # where tokens stand costs nothing, and a bounded encoding ends
    where = _placed(encoding, at)
    x = torch.ones(1, seq, sizes.model_dim)
    q = torch.ones(1, sizes.num_heads, seq, sizes.head_dim)
    weights = torch.ones(1, sizes.num_heads, seq, seq)
    with FlopCounterMode(display=False) as counted, _Largest() as largest:
        encoding.embed(x, where)
        encoding.turn(q, where, key=False)
        encoding.turn(q, where, key=True)
        encoding.bias(q, at, at)
        encoding.value_bias(weights, at, at)
    return counted.get_total_flops(), largest.bytes


COLUMNS = (
    "encoding", "door", "relative", "causal only", "linear", "bounded", "parameters", "largest tensor", "grows as",
    "matmul FLOPs", "excess", "spread",
)  # fmt: skip


def as_markdown(rows: Iterable[Comparison]) -> str:
    """The rows as a Markdown table; an encoding that is not relative shows its drift."""
    lines = [COLUMNS, ("---",) * 6 + ("---:",) * 6, *(_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cells(row: Comparison) -> tuple[str, ...]:
    return (
        f"`{row.name}`",
        row.door,
        "yes" if row.relative else f"no, {row.drift:.2g}",
        _yes(row.causal_only),
        _yes(row.linear),
        _yes(row.bounded),
        f"{row.parameters:,}",
        f"{row.formed / 1024:,.0f} KiB",
        f"n^{row.order:.0f}" if row.formed else "-",
        f"{row.flops:,}",
        "refused" if row.excess is None else f"{row.excess:.2g}",
        "refused" if row.spread is None else f"{row.spread:.2g}",
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
