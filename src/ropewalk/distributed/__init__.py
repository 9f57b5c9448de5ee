"""Attention over sequences that are split across processes.

`shard` and `unshard` split and gather, the ring functions attend across ranks, `register_rules`
adds DTensor sharding rules.
"""

from ropewalk.distributed.placements import register_rules
from ropewalk.distributed.ring import ring_attention, ring_forward
from ropewalk.distributed.ring_linear import ring_linear_attention
from ropewalk.distributed.sharding import shard, shard_positions, unshard

__all__ = [
    "register_rules",
    "ring_attention",
    "ring_forward",
    "ring_linear_attention",
    "shard",
    "shard_positions",
    "unshard",
]
