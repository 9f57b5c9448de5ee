"""mistral-inference: `precompute_freqs_cis` and `apply_rotary_emb`."""

import torch
from mistral_inference.rope import apply_rotary_emb, precompute_freqs_cis

from stacks.adapters import Apply, Rope, in_layout, only, rows, whole


def rope(rope: Rope, config: dict) -> Apply:
    only(rope, "default")
    whole(rope)

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        table = precompute_freqs_cis(rope["head_dim"], rows(positions), rope["theta"])
        # tokens of all sequences follow each other
        flat = x.transpose(1, 2).flatten(0, 1)
        out = apply_rotary_emb(flat, flat, table[positions.flatten()])[0]
        return out.view(x.shape[0], x.shape[2], *flat.shape[1:]).transpose(1, 2)

    return in_layout("interleaved", rope, apply)
