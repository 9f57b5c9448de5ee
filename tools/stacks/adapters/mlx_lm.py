"""mlx-lm: `initialize_rope`, which its models call when they are built."""

from stacks.adapters import Apply, NotExpressible, Rope, as_config, at_start, bare
from stacks.adapters.mlx import by_offset

bare("mlx_lm", "mlx_lm.models")
from mlx_lm.models.rope_utils import initialize_rope  # noqa: E402

#: the stack's model types whose layers have two ropes
LAYER_TYPES = ("gemma3_text", "gemma4_text")


def rope(rope: Rope, config: dict, part: str | None = None) -> Apply:
    at_start(rope)
    if part is not None and config["model_type"] not in LAYER_TYPES:
        raise NotExpressible("no such model")
    module = initialize_rope(
        rope["rotary_dim"],
        rope["theta"],
        rope["layout"] == "interleaved",
        as_config(rope["scaling"]),
        rope["max_length"],
    )
    return by_offset(module, rope)
