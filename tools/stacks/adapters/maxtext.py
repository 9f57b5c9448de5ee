"""MaxText: the class that `Attention.init_rotary_embedding` chooses by `rope_type`."""

import jax
import jax.numpy as jnp

from stacks.adapters import (
    Apply,
    NotExpressible,
    Rope,
    absent,
    at_start,
    bare,
    empty,
    halves_only,
    in_layout,
    only,
    rows,
    unused,
    whole,
)

absent(
    "qwix", "tensorflow", "aqt", "pathwaysutils", "orbax", "grain", "omegaconf", "ml_collections"
)
bare("maxtext", "maxtext.layers", "maxtext.common", "maxtext.utils")
empty("maxtext.common.common_types", "maxtext.layers.initializers", "maxtext.utils.max_logging")
empty("maxtext.utils.max_utils", "maxtext.utils.sharding")
from maxtext.layers import embeddings  # noqa: E402


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "linear", "llama3", "yarn")
    at_start(rope)
    common = {"mesh": None, "cast_as_fprop_dtype": False}
    old = (1, rope["theta"])
    own = "half"
    if scaling["type"] == "llama3":
        whole(rope)
        unused(scaling, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
        own = "interleaved"
        module = embeddings.LLaMARotaryEmbedding(
            *old, embedding_dims=rope["head_dim"], use_scale=True, **common
        )
    elif scaling["type"] == "yarn":
        whole(rope)
        halves_only(rope)
        unused(scaling, attention_factor=None, mscale=None)
        module = None  # its table has as many rows as the model's longest sequence
    elif rope["rotary_dim"] != rope["head_dim"]:
        if scaling["type"] != "default":
            raise NotExpressible("no argument for a scaling of a partial rope")
        halves_only(rope)
        module = embeddings.PartialRotaryEmbedding(
            *old,
            embedding_dims=rope["head_dim"],
            partial_rotary_factor=rope["rotary_dim"] / rope["head_dim"],
            **common,
        )
    else:
        module = embeddings.RotaryEmbedding(
            *old,
            embedding_dims=rope["head_dim"],
            rope_linear_scaling_factor=scaling.get("factor", 1.0),
            **common,
        )

    def yarn(length: int) -> embeddings.YarnRotaryEmbedding:
        return embeddings.YarnRotaryEmbedding(
            rope["head_dim"],
            max_position_embeddings=max(rope["max_length"], length),
            original_max_position_embeddings=scaling["original_length"],
            beta_fast=scaling["beta_fast"],
            beta_slow=scaling["beta_slow"],
            rope_theta=rope["theta"],
            rope_factor=scaling["factor"],
            interleave=False,
            truncate=scaling["truncate"],
            attention_scaling=True,
            **common,
        )

    def apply(x: jax.Array, positions: jax.Array) -> jax.Array:
        made = module or yarn(rows(positions))
        return jnp.swapaxes(made(jnp.swapaxes(x, 1, 2), positions), 1, 2)

    return (
        in_layout(own, rope, apply) if own == "interleaved" or rope["layout"] == "half" else _no()
    )


def _no() -> Apply:
    raise NotExpressible("no argument for interleaved pairs without llama3 scaling")
