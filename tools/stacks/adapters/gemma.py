"""gemma: `apply_rope` of its attention layers, Gemma 3 and Gemma 4."""

import jax
import jax.numpy as jnp

from stacks.adapters import Apply, NotExpressible, Rope, bare, halves_only, only, whole

bare("gemma", "gemma.gm", "gemma.gm.math")
from gemma.gm.math._positional_embeddings import apply_rope  # noqa: E402


def rope(rope: Rope, config: dict, part: str | None = None) -> Apply:
    scaling = only(rope, "default", "linear", "proportional")
    if part is not None and not config["model_type"].startswith("gemma"):
        raise NotExpressible("no such model")
    whole(rope)
    halves_only(rope)

    def apply(x: jax.Array, positions: jax.Array) -> jax.Array:
        return jnp.swapaxes(
            apply_rope(
                jnp.swapaxes(x, 1, 2),
                positions,
                base_frequency=rope["theta"],
                scale_factor=scaling.get("factor") or 1.0,
                rope_proportion=scaling.get("fraction", 1.0),
            ),
            1,
            2,
        )

    return apply
