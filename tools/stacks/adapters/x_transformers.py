"""x-transformers: `RotaryEmbedding` and `apply_rotary_pos_emb`, as `Attention` calls them."""

import torch
from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

from stacks.adapters import Apply, Rope, at_start, in_layout, only


def rope(rope: Rope, config: dict) -> Apply:
    factor = only(rope, "default", "linear").get("factor", 1.0)
    at_start(rope)
    module = RotaryEmbedding(rope["rotary_dim"], base=rope["theta"], interpolation_factor=factor)

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return apply_rotary_pos_emb(x, *module(positions))

    return in_layout("interleaved", rope, apply)
