"""gpt-oss: `RotaryEmbedding` of its torch model; of its table, the rows of the positions are used."""

import torch
from gpt_oss.torch.model import RotaryEmbedding, _apply_rotary_emb

from stacks.adapters import Apply, Rope, halves_only, only, rows, unused, whole


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "yarn")
    unused(scaling, attention_factor=None, mscale=None)
    whole(rope)
    halves_only(rope)
    given = {}
    if scaling["type"] == "yarn":
        given = {
            "initial_context_length": scaling["original_length"],
            "scaling_factor": scaling["factor"],
            "ntk_alpha": scaling["beta_slow"],
            "ntk_beta": scaling["beta_fast"],
        }
    module = RotaryEmbedding(rope["head_dim"], rope["theta"], torch.float32, **given)

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = module._compute_cos_sin(rows(positions))
        out = [
            _apply_rotary_emb(row.transpose(0, 1), cos[at], sin[at]).transpose(0, 1)
            for row, at in zip(x, positions, strict=True)
        ]
        return torch.stack(out)

    return apply
