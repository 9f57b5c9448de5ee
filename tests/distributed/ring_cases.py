"""The ring against one process: every case makes whole tensors, runs on shards, and returns its
largest error.
"""

from functools import partial

import torch
import torch.distributed as dist
from ranks import each

import ropewalk as rw
from ropewalk import frequencies
from ropewalk.attention import Attention, linear_attention
from ropewalk.attention.choices import HeadNorm
from ropewalk.distributed.ring import ring_attention, ring_forward
from ropewalk.distributed.ring_linear import ring_linear_attention
from ropewalk.distributed.sharding import shard, unshard
from ropewalk.encodings import ENCODINGS

BATCH, SEQ, MODEL, HEADS, HEAD_DIM = 2, 16, 12, 4, 6
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 1 + [2] * 10, [7] * 9 + [8] * 7])
SHUFFLED = torch.tensor([5, 0, 9, 14, 3, 12, 7, 1, 15, 2, 10, 6, 4, 13, 8, 11])
DYNAMIC = rw.RopeSpec(head_dim=HEAD_DIM, scaling=frequencies.Dynamic(factor=2.0, original_length=8))
PADDING = torch.arange(SEQ) >= torch.tensor([[3], [0]])


def count_within(documents):
    return torch.stack(
        [
            torch.cat([torch.arange(n) for n in row.unique_consecutive(return_counts=True)[1]])
            for row in documents
        ]
    )


def positions_for(encoding, documents):
    """Return positions for an encoding: on its axes, within each document, or shifted from row to
    row.
    """
    if encoding in ("rope_2d", "rope_3d"):
        return torch.randint(0, 9, (int(encoding[5]), BATCH, SEQ))
    if documents is not None:
        return count_within(documents)
    return (torch.arange(SEQ) + torch.tensor([[0], [11]])) % 40


def cut(x, order, group, dim=-1):
    """Return this rank's tokens of x, whether the order has a name or is a list of all indices."""
    if isinstance(order, str):
        return shard(x, dim, group, order)
    return x.index_select(dim, order.chunk(dist.get_world_size(group))[dist.get_rank(group)])


def joined(x, order, group, dim):
    """Return the whole tensor from the parts of all ranks, in the original order."""
    if isinstance(order, str):
        return unshard(x, dim, group, order)
    return unshard(x, dim, group).index_select(dim, order.argsort())


def summed(x, group):
    x = torch.zeros(()) if x is None else x.clone()
    dist.all_reduce(x, group=group)
    return x


def error(got, expected):
    """Return the largest difference between two lists of tensors."""
    return max(
        float((a.double() - b.double()).abs().max()) for a, b in zip(got, expected, strict=True)
    )


def layer_by_definition(layer, x, positions, documents, padding):
    """Return the output of the layer on the whole sequence, with its n x n weights in one piece."""
    encoding, seq = layer.encoding, torch.arange(SEQ)
    x = encoding.embed(x, positions)
    q, k, v = (
        proj(x).view(BATCH, SEQ, -1, HEAD_DIM).transpose(1, 2)
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    q, k = (
        encoding.rotate(t, positions, key=key)
        for t, key in ((layer.q_norm(q), False), (layer.k_norm(k), True))
    )
    ahead = seq[None, :] - seq[:, None]
    allowed = (ahead <= 0 if layer.causal else ahead == ahead) & (
        ahead.abs() < (layer.window or SEQ)
    ).expand(BATCH, 1, SEQ, SEQ)
    if documents is not None:
        allowed = allowed & (documents[:, None, :, None] == documents[:, None, None, :])
    if padding is not None:  # a padded query gives 0 whatever it sees, so let it see itself
        allowed = (
            allowed & padding[:, None, None, :]
            | torch.eye(SEQ, dtype=torch.bool) & ~padding[:, None, None, :]
        )
    bias = encoding.bias(q, positions, positions)
    weights = weights_by_definition(q, k, allowed, 0.0 if bias is None else bias, layer.scale)
    out = weights @ v.repeat_interleave(HEADS // v.shape[1], dim=1)
    beside = encoding.value_bias(weights, positions, positions)
    out = out if beside is None else out + beside
    out = out if padding is None else out * padding[:, None, :, None]
    return layer.o_proj(out.transpose(1, 2).flatten(-2))


def weights_by_definition(q, k, allowed, bias, scale):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return (q @ k.mT * scale + bias).masked_fill(~allowed, -torch.inf).softmax(dim=-1)


def layer_case(
    group,
    encoding,
    order,
    *,
    dtype=torch.float64,
    kv_heads=2,
    documents=None,
    padding=None,
    tile=64,
    **options,
):
    """Return the largest error of a whole attention layer: output, gradient of x and of every
    weight.
    """
    layer = Attention(
        MODEL,
        HEADS,
        kv_heads,
        HEAD_DIM,
        encoding=encoding,
        length=64,
        qk_norm=HeadNorm(),
        **options,
    ).to(dtype)
    x, towards = (
        torch.randn(BATCH, SEQ, MODEL, dtype=dtype),
        torch.randn(BATCH, SEQ, MODEL, dtype=dtype),
    )
    positions = positions_for(encoding, documents)
    of_tokens = {"documents": documents, "padding": padding}

    local = cut(x, order, group, 1).requires_grad_()
    out = ring_forward(
        layer,
        local,
        cut(positions, order, group),
        group=group,
        tile=tile,
        order=order if isinstance(order, str) else cut(torch.arange(SEQ), order, group),
        **{name: None if t is None else cut(t, order, group) for name, t in of_tokens.items()},
    )
    out.backward(cut(towards, order, group, 1))
    got = [joined(t, order, group, 1) for t in (out.detach(), local.grad)]
    got += [summed(p.grad, group) for p in layer.parameters()]
    if dist.get_rank(group):
        return 0.0  # the first rank of each group compares

    layer, whole = layer.double(), x.double().requires_grad_()
    layer.zero_grad()
    expected = layer_by_definition(layer, whole, positions, **of_tokens)
    expected.backward(towards.double())
    grads = [torch.zeros(()) if p.grad is None else p.grad for p in layer.parameters()]
    return error(got, [expected.detach(), whole.grad, *grads])


def plain_case(group, order, dtype, causal=True, distance_bias=False):
    """Return the largest error of ring_attention on bare tensors, with wide values, one key head
    and any bias.
    """
    q, k, v, towards = (
        torch.randn(BATCH, h, SEQ, d).to(dtype) for h, d in ((4, 6), (1, 6), (1, 5), (4, 5))
    )
    positions = torch.arange(SEQ) * 3
    hook = (
        (lambda q, a, b: (a[:, None] - b[None, :]).abs().sqrt() * q.mean(-1, keepdim=True))
        if distance_bias
        else None
    )
    local = [shard(t, 2, group, order).requires_grad_() for t in (q, k, v)]
    at = shard(positions, 0, group, order)
    out = ring_attention(
        *local,
        q_positions=at,
        encoding=hook,
        causal=causal,
        scale=0.3,
        order=order,
        group=group,
        tile=2,
    )
    out.backward(shard(towards, 2, group, order))
    whole = [t.double().requires_grad_() for t in (q, k, v)]
    allowed = torch.ones(SEQ, SEQ, dtype=torch.bool)
    bias = 0.0 if hook is None else hook(whole[0], positions, positions)
    expected = (
        weights_by_definition(*whole[:2], allowed.tril() if causal else allowed, bias, 0.3)
        @ whole[2]
    )
    expected.backward(towards.double())
    got = [unshard(t, 2, group, order) for t in (out.detach(), *(t.grad for t in local))]
    return error(got, [expected.detach(), *(t.grad for t in whole)])


def linear_case(group, form, causal, dtype=torch.float64, padding=None):
    """Return the largest error of ring_linear_attention: output, gradients of q, k, v and a trained
    scale, and the state.
    """
    rope = rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM))
    q, k, v, towards = (torch.randn(BATCH, 3, SEQ, d, dtype=dtype) for d in (6, 6, 5, 5))
    scale = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    options = {"form": form, "causal": causal} | ({"scale": scale} if form == "cosine" else {})
    local = [shard(t, 2, group).requires_grad_() for t in (q, k, v)]
    kept = None if padding is None else shard(padding, 1, group)
    out, state = ring_linear_attention(*local, rope, group=group, padding=kept, chunk=3, **options)
    out.backward(shard(towards, 2, group))
    got = [unshard(t, 2, group) for t in (out.detach(), *(t.grad for t in local))]
    got += [summed(scale.grad, group)] if form == "cosine" else []

    wide = scale.detach().double().requires_grad_()
    whole = [t.double().requires_grad_() for t in (q, k, v)]
    expected, last = linear_attention(
        *whole, rope, padding=padding, **(options | ({"scale": wide} if form == "cosine" else {}))
    )
    expected.backward(towards.double())
    want = [expected.detach(), *(t.grad for t in whole)] + ([wide.grad] if form == "cosine" else [])
    if not causal or dist.get_rank(group) == dist.get_world_size(group) - 1:
        got += [state.kv_sum.detach(), state.k_sum.detach(), state.count]
        want += [last.kv_sum.detach(), last.k_sum.detach(), last.count]
    return error(got, want)


def roundtrip_case(group, kind):
    """Return the error of unshard(shard(x)), which is x, and of its gradient, the sum of the
    gradients of all ranks.
    """
    x = torch.randn(3, SEQ, 2)
    local = shard(x, 1, group, kind).requires_grad_()
    whole = unshard(local, 1, group, kind)
    weight = torch.randn(3, SEQ, 2)
    ((dist.get_rank(group) + 1) * whole * weight).sum().backward()
    world = dist.get_world_size(group)
    asked = shard(weight, 1, group, kind) * world * (world + 1) / 2
    return error([whole.detach(), local.grad], [x, asked])


def softmax_cases(group) -> dict:
    """Return {name: case} of softmax attention in a process group."""
    cases = {}
    for kind in ("contiguous", "head_tail"):
        cases |= {
            f"rope {kind}": ("rope", kind, {}),
            f"rope {kind} float32": ("rope", kind, {"dtype": torch.float32}),
            f"alibi {kind} float32": ("alibi", kind, {"dtype": torch.float32, "tile": 3}),
            f"alibi {kind} one set of keys": ("alibi", kind, {"kv_heads": 1}),
            f"rope {kind} packed": ("rope", kind, {"documents": DOCUMENTS, "tile": 3}),
            f"rope {kind} packed float32": (
                "rope",
                kind,
                {"documents": DOCUMENTS, "dtype": torch.float32},
            ),
            f"rope_alibi {kind} packed, both ways": (
                "rope_alibi",
                kind,
                {"documents": DOCUMENTS, "causal": False},
            ),
            f"rope {kind} padded": ("rope", kind, {"padding": PADDING}),
            f"rope {kind} window": ("rope", kind, {"window": 3, "tile": 2}),
            f"dynamic {kind}": (DYNAMIC, kind, {}),
        }
    cases["t5 window both ways"] = ("t5", "head_tail", {"window": 4, "causal": False})
    cases["rope in any order"] = ("rope", SHUFFLED, {})
    cases["t5 in any order, packed"] = ("t5", SHUFFLED, {"documents": DOCUMENTS, "tile": 3})
    runs = {
        name: partial(layer_case, group, *args, **options)
        for name, (*args, options) in cases.items()
    }
    for kind in ("contiguous", "head_tail"):
        runs[f"plain {kind}"] = partial(plain_case, group, kind, torch.float64)
        runs[f"plain {kind} both ways, any bias"] = partial(
            plain_case, group, kind, torch.float64, False, True
        )
        runs[f"plain {kind} any bias float32"] = partial(
            plain_case, group, kind, torch.float32, True, True
        )
        runs[f"plain {kind} bfloat16"] = partial(plain_case, group, kind, torch.bfloat16)
        runs[f"roundtrip {kind} float32"] = partial(roundtrip_case, group, kind)
    return runs


def encoding_cases(group) -> dict:
    """Return {name: case} of every encoding, whatever its entry point."""
    return {f"encoding {name}": partial(layer_case, group, name, "head_tail") for name in ENCODINGS}


def linear_cases(group) -> dict:
    """Return {name: case} of linear attention in a process group."""
    runs = {}
    for form in ("numerator", "cosine"):
        runs[f"linear {form} causal"] = partial(linear_case, group, form, True)
        runs[f"linear {form} both ways"] = partial(linear_case, group, form, False)
        runs[f"linear {form} float32"] = partial(linear_case, group, form, True, torch.float32)
        runs[f"linear {form} padded"] = partial(linear_case, group, form, True, padding=PADDING)
    return runs


def everything() -> dict:
    """Return the results of all cases on four ranks, then on two groups of two, whose ranks are not
    those of the world.
    """
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[dist.get_rank() // 2]
    four = each(softmax_cases(None) | linear_cases(None))
    two = each(softmax_cases(mine) | linear_cases(mine) | encoding_cases(mine))
    return {f"4 ranks, {name}": found for name, found in four.items()} | {
        f"2 ranks, {name}": found for name, found in two.items()
    }


def of_all_files(draws: int) -> dict:
    """Return the results of the cases of three files, so that the ranks are started once for all of
    them.
    """
    import mesh_cases
    import random_cases

    random = {"random": random_cases.everything(draws), "refusals": random_cases.refusals()}
    return {"ring": everything(), "mesh": mesh_cases.everything(), **random}
