"""torchtitan: `ComplexRoPE` (Llama, DeepSeek) for interleaved pairs, `CosSinRoPE` (Qwen, gpt-oss)
for halves; only `ComplexRoPE` has llama3 scaling, and checkpoints for it are permuted on load.
"""

import torch

from stacks.adapters import (
    Apply,
    Rope,
    absent,
    bare,
    in_layout,
    only,
    rows,
    unused,
    whole,
)

absent("spmd_types", "tyro", "torchdata", "datasets", "tokenizers")
bare("torchtitan", "torchtitan.models", "torchtitan.models.common", "torchtitan.protocols")
import spmd_types  # noqa: E402

spmd_types.no_typecheck = spmd_types.local_map = lambda **_: lambda function: function
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE  # noqa: E402


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "llama3", "yarn")
    unused(scaling, attention_factor=None, mscale=None)
    whole(rope)
    given = {}
    if scaling["type"] == "llama3":
        given = {
            "scaling": "llama",
            "scaling_factor": scaling["factor"],
            "low_freq_factor": scaling["low_freq_factor"],
            "high_freq_factor": scaling["high_freq_factor"],
            "original_max_position_embeddings": scaling["original_length"],
        }
    elif scaling["type"] == "yarn":
        given = {
            "scaling": "yarn",
            "rope_factor": scaling["factor"],
            "beta_fast": scaling["beta_fast"],
            "beta_slow": scaling["beta_slow"],
            "original_seq_len": scaling["original_length"],
            "truncate": scaling["truncate"],
        }
    halves = rope["layout"] == "half" and scaling["type"] != "llama3"
    kind = CosSinRoPE if halves else ComplexRoPE

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        length = max(rope["max_length"], rows(positions))
        made = kind.Config(dim=rope["head_dim"], max_seq_len=length, theta=rope["theta"], **given)
        x = x.transpose(1, 2)
        return kind(made)(x, x.clone(), positions)[0].transpose(1, 2)

    return apply if halves else in_layout("interleaved", rope, apply)
