"""Megatron Core: `RotaryEmbedding`, `YarnRotaryEmbedding` and `MultimodalRotaryEmbedding`, applied
by `_apply_rotary_pos_emb_bshd`, which is the path without fused kernels.
"""

import torch

# the modules move their frequencies to the current CUDA device at the first forward
torch.cuda.current_device = lambda: "cpu"
from megatron.core.models.common.embeddings.rope_utils import (  # noqa: E402
    _apply_rotary_pos_emb_bshd,
)
from megatron.core.models.common.embeddings.rotary_pos_embedding import (  # noqa: E402
    MultimodalRotaryEmbedding,
    RotaryEmbedding,
)
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import (  # noqa: E402
    YarnRotaryEmbedding,
)

from stacks.adapters import (  # noqa: E402
    Apply,
    NotExpressible,
    Rope,
    at_start,
    one_by_one,
    only,
    unused,
)

AXES = True


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "linear", "llama3", "yarn")
    at_start(rope)
    common = {
        "kv_channels": rope["head_dim"],
        "rotary_percent": rope["rotary_dim"] / rope["head_dim"],
        "rotary_interleaved": rope["layout"] == "interleaved",
        "rotary_base": rope["theta"],
    }
    if rope["axes"]:
        return _multimodal(rope, common)
    common["use_cpu_initialization"] = True
    if scaling["type"] == "yarn":
        unused(scaling, attention_factor=None)
        module = YarnRotaryEmbedding(
            **common,
            scaling_factor=scaling["factor"],
            original_max_position_embeddings=scaling["original_length"],
            beta_fast=scaling["beta_fast"],
            beta_slow=scaling["beta_slow"],
            mscale=1.0 if scaling["mscale"] is None else scaling["mscale"],
            mscale_all_dim=scaling["mscale_all_dim"] or 0.0,
            correction_range_round_to_int=scaling["truncate"],
        )
    elif scaling["type"] == "llama3":
        unused(scaling, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
        more = {"rope_scaling": True, "rope_scaling_factor": scaling["factor"]}
        module = RotaryEmbedding(**common, **more)
    else:
        module = RotaryEmbedding(**common, seq_len_interpolation_factor=scaling.get("factor"))

    def rotate(x: torch.Tensor, position: int) -> torch.Tensor:
        angles = module(1, offset=position)
        angles, size = angles if isinstance(angles, tuple) else (angles, 1.0)
        return _apply_rotary_pos_emb_bshd(
            x[None, None], angles, common["rotary_interleaved"], mscale=size
        )[0, 0]

    return one_by_one(rotate, torch.stack)


def _multimodal(rope: Rope, common: dict) -> Apply:
    if rope["axes"]["order"] != "chunked":
        raise NotExpressible("no argument for axes in turn over the pairs")
    module = MultimodalRotaryEmbedding(**common)

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = module(positions, rope["axes"]["sections"])
        return _apply_rotary_pos_emb_bshd(x.permute(2, 0, 1, 3), angles).permute(1, 2, 0, 3)

    return apply
