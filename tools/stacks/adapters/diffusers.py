"""diffusers: `get_1d_rotary_pos_embed` and `apply_rotary_emb`, as its models call them."""

import torch
from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed

from stacks.adapters import Apply, Rope, only, whole


def rope(rope: Rope, config: dict) -> Apply:
    factor = only(rope, "default", "linear").get("factor", 1.0)
    whole(rope)
    interleaved = rope["layout"] == "interleaved"

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rows = []
        for row, at in zip(x, positions, strict=True):
            tables = get_1d_rotary_pos_embed(
                rope["head_dim"],
                at.float(),
                theta=rope["theta"],
                use_real=True,
                linear_factor=factor,
                repeat_interleave_real=interleaved,
            )
            unbind = -1 if interleaved else -2
            rows.append(apply_rotary_emb(row[None], tables, use_real_unbind_dim=unbind)[0])
        return torch.stack(rows)

    return apply
