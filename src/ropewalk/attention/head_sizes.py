"""The sizes of the heads of an attention layer, checked once for all layers."""

from __future__ import annotations

from ropewalk.errors import RopeError, integer


def head_sizes(
    model_dim: int, num_heads: int, num_kv_heads: int | None, head_dim: int | None
) -> tuple[int, int, int]:
    """Return (heads, heads of keys and values, dimensions of a head), checked; by default there are
    as many heads of keys and values as of queries, and head_dim is model_dim / num_heads.
    """
    integer("num_heads", num_heads, low=1)
    kv_heads = integer(
        "num_kv_heads", num_heads if num_kv_heads is None else num_kv_heads, low=1, high=num_heads
    )
    if num_heads % kv_heads:
        raise RopeError("num_kv_heads", f"must divide num_heads = {num_heads}", num_kv_heads)
    if head_dim is None and model_dim % num_heads:
        rule = f"must be given: model_dim = {model_dim} is no multiple of num_heads = {num_heads}"
        raise RopeError("head_dim", rule, head_dim)
    return (
        num_heads,
        kv_heads,
        integer("head_dim", model_dim // num_heads if head_dim is None else head_dim, low=1),
    )
