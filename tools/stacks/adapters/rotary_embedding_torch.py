"""rotary-embedding-torch: `RotaryEmbedding.rotate_queries_or_keys` with an offset."""

import torch
from rotary_embedding_torch import RotaryEmbedding

from stacks.adapters import Apply, Rope, at_start, in_layout, one_by_one, only


def rope(rope: Rope, config: dict) -> Apply:
    factor = only(rope, "default", "linear").get("factor", 1.0)
    at_start(rope)
    module = RotaryEmbedding(rope["rotary_dim"], theta=rope["theta"], interpolate_factor=factor)

    def rotate(x: torch.Tensor, position: int) -> torch.Tensor:
        return module.rotate_queries_or_keys(x[:, None], offset=position)[:, 0]

    return in_layout("interleaved", rope, one_by_one(rotate, torch.stack))
