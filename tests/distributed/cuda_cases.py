"""Both engines on a GPU against one process in float64. Two ranks share one GPU: what they gather
goes by way of the host.
"""

from functools import partial

import torch
from ranks import each
from torch.distributed import _functional_collectives

from ropewalk.distributed.ring import ring_attention
from ropewalk.distributed.sharding import gather, shard, unshard
from ropewalk.encodings import make_encoding

SEQ, HEADS, HEAD_DIM = 256, 4, 64


def case(engine, order, dtype, encoding=None, kv_heads=HEADS):
    """Return the largest error of the output and the gradients of ring_attention, compared with one
    process in float64.
    """
    q, k, v, towards = (
        torch.randn(2, h, SEQ, HEAD_DIM).cuda().to(dtype)
        for h in (HEADS, kv_heads, kv_heads, HEADS)
    )
    bias = None if encoding is None else make_encoding(encoding, num_heads=HEADS, head_dim=HEAD_DIM)
    local = [shard(t, 2, None, order).requires_grad_() for t in (q, k, v)]
    positions = torch.arange(SEQ, device="cuda")
    out = ring_attention(
        *local,
        q_positions=shard(positions, 0, None, order),
        encoding=bias,
        order=order,
        engine=engine,
        tile=96,
    )
    out.backward(shard(towards, 2, None, order))
    whole = [t.double().requires_grad_() for t in (q, k, v)]
    keys, values = (t.repeat_interleave(HEADS // kv_heads, dim=1) for t in whole[1:])
    scores = whole[0] @ keys.mT * HEAD_DIM**-0.5
    scores = scores if bias is None else scores + bias.bias(whole[0], positions, positions)
    scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    expected = scores.softmax(dim=-1) @ values
    expected.backward(towards.double())
    got = [unshard(t.cpu(), 2, None, order) for t in (out.detach(), *(t.grad for t in local))]
    want = [expected.detach(), *(t.grad for t in whole)]
    return max(float((a.double() - b.cpu()).abs().max()) for a, b in zip(got, want, strict=True))


def gathered_by_host(x, gather_dim, group):
    """Return what all_gather_tensor would return: with two ranks on one GPU NCCL refuses this call,
    and gloo cannot make it.
    """
    return torch.cat(tuple(gather(x.cpu())), dim=gather_dim).to(x.device)


def of_torch() -> dict:
    """Return the results of torch's engine on two ranks, by case."""
    _functional_collectives.all_gather_tensor = gathered_by_host
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    cases = {f"torch {dtype}": partial(case, "torch", "head_tail", dtype) for dtype in dtypes}
    cases["torch bfloat16, shared keys"] = partial(
        case, "torch", "head_tail", torch.bfloat16, kv_heads=2
    )
    return each(cases)


def of_ring() -> dict:
    """Return the results of our ring, by case; it needs NCCL between GPUs, so one rank runs all but
    the sending.
    """
    return each(
        {
            f"ring {order} {encoding} {dtype}": partial(case, "ring", order, dtype, encoding, 2)
            for dtype in (torch.bfloat16, torch.float32)
            for order in ("contiguous", "head_tail")
            for encoding in (None, "alibi")
        }
    )
