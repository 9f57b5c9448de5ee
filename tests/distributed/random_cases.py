"""Random shards, documents and paddings against the dense definition on the whole sequence; run on
every rank.

All ranks draw the same whole tensors and compare their own tokens.
"""

import random
import traceback
from functools import partial

import torch
import torch.distributed as dist

import ropewalk as rw
from ropewalk.attention import Attention
from ropewalk.distributed import ring_attention, ring_forward, ring_linear_attention, unshard
from ropewalk.errors import RopeError
from whole_sequence import (
    FEATURES,
    counted,
    linear,
    random_documents,
    random_padding,
    rotated,
    softmax,
    visible,
)

HEADS, HEAD_DIM, VALUE_DIM = 2, 4, 3
ROPE = rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM))
DYNAMIC = rw.RopeSpec(
    head_dim=HEAD_DIM, scaling=rw.frequencies.Dynamic(factor=2.0, original_length=3)
)


def start(seed):
    torch.manual_seed(seed)
    return random.Random(seed)


def cut(draw, total, parts):
    """Return the sizes of `parts` parts of `total`, drawn at random: some may be empty, some one
    token.
    """
    ends = sorted(draw.randint(0, total) for _ in range(parts - 1))
    return [b - a for a, b in zip([0, *ends], [*ends, total], strict=True)]


def random_shards(draw, runs_only=False):
    """Return (number of tokens, the `order` argument, the indices of this rank's tokens)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    kind = draw.choice(
        ["contiguous", "head_tail", "runs", *([] if runs_only else ["striped", "shuffled"])]
    )
    if kind == "head_tail":
        chunks = torch.arange(2 * world * draw.randint(1, 2)).chunk(2 * world)
        mine = torch.cat((chunks[rank], chunks[2 * world - 1 - rank]))
        return sum(map(len, chunks)), kind, mine
    total = draw.randint(1, 13)
    if kind == "contiguous":
        return total, kind, torch.arange(total).split(cut(draw, total, world))[rank]
    if kind == "striped":
        return total, (mine := torch.arange(total)[rank::world]), mine
    if kind == "shuffled":
        order = torch.tensor(draw.sample(range(total), total))
        return total, (mine := order.split(cut(draw, total, world))[rank]), mine
    pieces = torch.arange(total).split(cut(draw, total, 2 * world))
    owners = [draw.randrange(world) for _ in pieces]
    held = [(piece, owner) for piece, owner in zip(pieces, owners, strict=True) if owner == rank]
    # a rank may hold its runs in any order
    draw_order = random.Random(total).sample(held, len(held))
    mine = torch.cat([torch.arange(0), *(piece for piece, _ in draw_order)])
    return total, mine, mine


def random_tokens(draw, batch, total):
    return {
        "padding": random_padding(draw, batch, total),
        "documents": random_documents(draw, batch, total),
    }


def at(mine, tokens):
    """Return the padding and the documents of this rank's tokens."""
    return {name: None if t is None else t[:, mine] for name, t in tokens.items()}


def largest(got, expected):
    return max(
        (
            float((a - b).detach().abs().max())
            for a, b in zip(got, expected, strict=True)
            if a.numel()
        ),
        default=0.0,
    )


def compare(mine, local, out, whole, expected, towards):
    """Return the largest error of this rank's outputs and of the gradients of its q, k and v."""
    out.backward(towards[:, :, mine])
    expected.backward(towards)
    return largest(
        [out, *(t.grad for t in local)],
        [expected[:, :, mine], *(t.grad[:, :, mine] for t in whole)],
    )


def softmax_draw(seed):
    """Return the largest error of ring_attention on random shards, padding and documents, compared
    with the definition.
    """
    draw = start(seed)
    total, order, mine = random_shards(draw)
    batch, kv_heads, causal, window = (
        draw.randint(1, 2),
        draw.choice([1, 2]),
        draw.random() < 0.7,
        draw.choice([None, 1, 3]),
    )
    sizes = ((HEADS, HEAD_DIM), (kv_heads, HEAD_DIM), (kv_heads, VALUE_DIM), (HEADS, VALUE_DIM))
    *whole, towards = (
        torch.randn(batch, heads, total, dim, dtype=torch.float64) for heads, dim in sizes
    )
    tokens, positions = random_tokens(draw, batch, total), torch.randint(0, 50, (batch, total))
    rotate = lambda q, k, v, at: (rotated(q, at), rotated(k, at), v)
    options = {"causal": causal, "window": window}
    local = [t[:, :, mine].clone().requires_grad_() for t in whole]
    whole = [t.clone().requires_grad_() for t in whole]
    sharded = {"order": order, "tile": draw.choice([2, 4, 64]), **at(mine, tokens)}
    out = ring_attention(*rotate(*local, positions[:, mine]), **options, **sharded)
    allowed = visible(torch.arange(total), **options, **tokens)
    expected = softmax(*rotate(*whole, positions), allowed, HEAD_DIM**-0.5)
    return compare(mine, local, out, whole, expected, towards)


def linear_draw(seed):
    """Return the largest error of ring_linear_attention and its state on random shards, compared
    with the definition.
    """
    draw = start(seed)
    total, order, mine = random_shards(draw, runs_only=True)
    batch, causal = draw.randint(1, 2), draw.random() < 0.7
    sizes = (HEAD_DIM, HEAD_DIM, VALUE_DIM, VALUE_DIM)
    *whole, towards = (torch.randn(batch, HEADS, total, dim, dtype=torch.float64) for dim in sizes)
    padding = random_padding(draw, batch, total)
    real = torch.ones(batch, total, dtype=torch.bool) if padding is None else padding
    options = draw.choice([{"phi": "elu"}, {"phi": "relu"}, {"form": "cosine", "scale": 0.7}])
    local = [t[:, :, mine].clone().requires_grad_() for t in whole]
    whole = [t.clone().requires_grad_() for t in whole]
    own_padding = None if padding is None else padding[:, mine]
    out, state = ring_linear_attention(
        *local,
        ROPE,
        causal=causal,
        order=order,
        padding=own_padding,
        chunk=draw.randint(1, 5),
        **options,
    )
    towards = towards * real[:, None, :, None]  # padded queries give any finite value
    expected = linear(
        *whole,
        counted(real),
        visible(torch.arange(total), causal=causal, padding=padding),
        **options,
    )
    error = compare(
        mine, local, out * own(real, mine), whole, expected * own(real, slice(None)), towards
    )
    # the state after the rank's last token; after all tokens if not causal or if the rank has none
    last = int(mine.max()) if causal and len(mine) else total - 1
    wanted = state_by_definition(
        *whole[1:], real & (torch.arange(total) <= last), counted(real), **options
    )
    return max(error, largest([t.double() for t in state], wanted))


def own(real, mine):
    return real[:, None, mine, None]


def state_by_definition(k, v, kept, positions, form="numerator", phi="elu", scale=None):
    """Return the sums over the kept keys, and their number."""
    if form == "numerator":
        plain = FEATURES[phi](k)
        features = rotated(plain, positions)
    else:
        features = plain = torch.cat(
            (torch.ones_like(k[..., :1]), rotated(k / k.norm(dim=-1, keepdim=True), positions)),
            dim=-1,
        )
    kept = kept[:, None, :, None]
    return (features * kept).mT @ v, (plain * kept).sum(dim=-2), kept.sum(dim=(1, 2, 3)).double()


def unshard_draw(seed):
    """Return the largest error of unshard and of its gradient, which is the sum of the gradients of
    all ranks.
    """
    draw, rank, world = start(seed), dist.get_rank(), dist.get_world_size()
    total, dim = draw.randint(1, 9), draw.randint(-3, 2)
    x = torch.randn([total if axis == dim % 3 else 2 for axis in range(3)], dtype=torch.float64)
    sizes = cut(draw, total, world)
    local = x.split(sizes, dim=dim)[rank].clone().requires_grad_()
    whole, weight = unshard(local, dim), torch.randn_like(x)
    (whole * weight * (rank + 1)).sum().backward()
    return largest(
        [whole, local.grad], [x, weight.split(sizes, dim=dim)[rank] * world * (world + 1) / 2]
    )


def layer_draw(seed):
    """Return the largest error of a whole layer whose frequencies depend on the length of the whole
    sequence.
    """
    draw = start(seed)
    total, order, mine = random_shards(draw)
    batch = draw.randint(1, 2)
    layer = Attention(6, HEADS, 1, HEAD_DIM, encoding=DYNAMIC).double()
    x, tokens = torch.randn(batch, total, 6, dtype=torch.float64), random_tokens(draw, batch, total)
    positions = torch.arange(total)
    out = ring_forward(layer, x[:, mine], positions[mine], order=order, **at(mine, tokens))
    q, k, v = (
        proj(x).view(batch, total, -1, HEAD_DIM).transpose(1, 2)
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    base = 10_000.0 * max(1.0, 2.0 * total / 3 - 1) ** (HEAD_DIM / (HEAD_DIM - 2))  # dynamic NTK
    q, k = (
        torch.cat(
            [rotated_x(t[..., i], t[..., i + 2], positions * base ** (-i / 2)) for i in (0, 1)],
            dim=-1,
        )
        for t in (q, k)
    )
    expected = softmax(q, k, v, visible(positions, **tokens), HEAD_DIM**-0.5)
    expected = (
        expected if tokens["padding"] is None else expected * own(tokens["padding"], slice(None))
    )
    return largest([out], [(expected.transpose(1, 2).flatten(-2) @ layer.o_proj.weight.T)[:, mine]])


def rotated_x(a, b, angle):
    """Return one pair of dimensions rotated, [.., 2]."""
    return torch.stack(
        (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1
    )


DRAWS = {
    "softmax": softmax_draw,
    "linear": linear_draw,
    "unshard": unshard_draw,
    "layer": layer_draw,
}


def everything(draws) -> dict:
    """Return {name of a case: {seed: error or traceback}}, with the draws alone that differ from the
    definition.
    """
    return {name: wrong_ones(name, case, draws) for name, case in DRAWS.items()}


def wrong_ones(name, case, draws):
    """Return {seed: error or traceback} of the draws of a case whose error exceeds the bound."""
    # the layer's frequencies depend on the length, so its angles have the accuracy of 64-bit phases
    found, bound = (
        {},
        1e-7 if name == "layer" else 1e-10,
    )
    for seed in range(draws if name in ("softmax", "linear") else draws // 10):
        try:
            error = case(seed)
        except Exception:
            error = traceback.format_exc()
        if isinstance(error, str) or not error <= bound:
            found[seed] = error
    return found


def refused(call):
    """Return the field that a call is refused for."""
    try:
        call()
    except RopeError as error:
        return error.field
    return "not refused"


def refusals() -> dict:
    """Return {case: the field} for calls in which the ranks do not agree; every rank must refuse
    them, and none may hang.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    x = lambda tokens=4, batch=1, dtype=torch.float32: torch.randn(
        batch, HEADS, tokens, HEAD_DIM, dtype=dtype
    )
    ring = lambda q, **options: ring_attention(q, q, q, **options)
    lin = lambda q, **options: ring_linear_attention(q, q, q, ROPE, **options)
    mask, first = torch.ones(1, 4, dtype=torch.bool), rank == 0
    cases = {
        "head_tail of other sizes": lambda run: run(x(2 + 2 * first), order="head_tail"),
        "head_tail of an odd size": lambda run: run(x(3), order="head_tail"),
        "an index twice": lambda run: run(x(), order=torch.arange(4)),
        "another batch": lambda run: run(x(batch=1 + first)),
        "another dtype": lambda run: run(x(dtype=torch.float64 if first else torch.float32)),
        "another order": lambda run: run(x(), order="head_tail" if first else "contiguous"),
        "another causality": lambda run: run(x(), causal=first),
    }
    runs = {"softmax": ring, "linear": lin}
    found = {
        f"{name}, {kind}": refused(partial(case, run))
        for name, case in cases.items()
        for kind, run in runs.items()
    }
    found["padding on one rank"] = refused(lambda: ring(x(), padding=mask if first else None))
    found["documents on one rank"] = refused(
        lambda: ring(x(), documents=mask.long() if first else None)
    )
    bias, at = lambda q, a, b: (a[..., :, None] - b[..., None, :]).float(), torch.arange(4)
    found["other positions"] = refused(
        lambda: ring(x(), q_positions=at if first else at[None, None], encoding=bias)
    )
    found["striped, linear"] = refused(
        lambda: lin(x(9), order=torch.arange(rank, 9 * world, world))
    )
    found["unshard of another width"] = refused(lambda: unshard(torch.zeros(3, 2 + first), 0))
    found["unshard of another dtype"] = refused(
        lambda: unshard(torch.zeros(3, 2).to(torch.int64 if first else torch.int32), 0)
    )
    found["unshard of head_tail shards"] = refused(
        lambda: unshard(torch.zeros(3 + first, 2), 0, kind="head_tail")
    )
    return found
