"""mlx-vlm: `initialize_rope`, and `MRoPERotaryEmbedding` of the Qwen-VL models."""

import mlx.core as mx

from stacks.adapters import Apply, NotExpressible, Rope, as_config, at_start, bare, only
from stacks.adapters.mlx import by_offset

bare("mlx_vlm", "mlx_vlm.models")
from mlx_vlm.models.rope_utils import (  # noqa: E402
    MRoPERotaryEmbedding,
    apply_multimodal_rotary_pos_emb,
    initialize_rope,
)

AXES = True
#: model types that it has and whose layers have two ropes
LAYER_TYPES = ("gemma3_text", "gemma4_text")


def rope(rope: Rope, config: dict, part: str | None = None) -> Apply:
    at_start(rope)
    if part is not None and config["model_type"] not in LAYER_TYPES:
        raise NotExpressible("no such model")
    if rope["axes"]:
        return _multimodal(rope)
    module = initialize_rope(
        rope["rotary_dim"],
        rope["theta"],
        rope["layout"] == "interleaved",
        as_config(rope["scaling"]),
        rope["max_length"],
    )
    return by_offset(module, rope)


def _multimodal(rope: Rope) -> Apply:
    only(rope, "default")
    style, width = rope["axes"]["order"], rope["rotary_dim"]
    module = MRoPERotaryEmbedding(
        width,
        rope["max_length"],
        rope["theta"],
        mrope_section=rope["axes"]["sections"],
        style=style,
    )

    def apply(x: mx.array, positions: mx.array) -> mx.array:
        head = x[..., :width]
        out = apply_multimodal_rotary_pos_emb(head, head, *module(head, positions), style=style)[0]
        return mx.concatenate([out, x[..., width:]], axis=-1)

    return apply
