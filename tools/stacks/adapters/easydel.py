"""EasyDeL: `get_frequencies`, whose table its models pass to attention, and `apply_basic_rope`."""

import sys

import jax
import jax.numpy as jnp

from stacks.adapters import Apply, Rope, as_config, at_start, bare, empty, only, rows

bare("easydel", "easydel.layers", "easydel.layers.rotary")
empty("easydel.utils", "easydel.layers.norms", "easydel.layers.rotary._modules")
sys.modules["easydel.utils"].ejit = lambda *_, **__: lambda function: function
sys.modules["easydel.layers.norms"].lowfloats = ()
from easydel.layers.rotary._compute_fns import apply_basic_rope  # noqa: E402
from easydel.layers.rotary._rotary import get_frequencies  # noqa: E402


def rope(rope: Rope, config: dict) -> Apply:
    scaling = only(rope, "default", "linear", "llama3", "yarn")
    at_start(rope)
    neox = rope["layout"] == "half"

    def apply(x: jax.Array, positions: jax.Array) -> jax.Array:
        rows(positions)
        table = get_frequencies(
            rope["head_dim"],
            rope["head_dim"],
            rope["max_length"],
            rope["theta"],
            as_config(scaling),
            rope["rotary_dim"] / rope["head_dim"],
        )
        x = jnp.swapaxes(x, 1, 2)
        out = apply_basic_rope(x, x, positions, table, rope["rotary_dim"], neox)[0]
        return jnp.swapaxes(out, 1, 2)

    return apply
