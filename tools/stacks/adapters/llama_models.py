"""llama-models: `precompute_freqs_cis` and `apply_rotary_emb` of Llama 3."""

import torch

from stacks.adapters import (
    Apply,
    Rope,
    absent,
    bare,
    in_layout,
    one_by_one,
    only,
    rows,
    unused,
    whole,
)

absent("fairscale")
bare("llama_models", "llama_models.llama3")
from llama_models.llama3.model import apply_rotary_emb, precompute_freqs_cis  # noqa: E402


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "llama3")
    if scaling["type"] == "llama3":  # values that all of its own models have
        unused(scaling, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
    whole(rope)

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # the only argument for a scaling is whether there is one
        scaled = scaling["type"] == "llama3"
        table = precompute_freqs_cis(rope["head_dim"], rows(positions), rope["theta"], scaled)

        def rotate(heads: torch.Tensor, position: int) -> torch.Tensor:
            one = heads[None, None]
            return apply_rotary_emb(one, one, table[position : position + 1])[0][0, 0]

        return one_by_one(rotate, torch.stack)(x, positions)

    return in_layout("interleaved", rope, apply)
