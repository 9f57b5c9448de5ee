"""RoPE for JAX: `rotate(q, k, positions, spec)`, a pure function for jit, vmap and grad, as exact
without JAX's 64-bit numbers as with them.

Needs the extra `jax`. Positions are integers of 32 bits, or of 64 bits with `jax_enable_x64`; cos
and sin come from tables of their digits (see `levels`), so they are as exact at token 10,000,000 as
at token 10.
"""

from __future__ import annotations

from typing import Any

from ropewalk import levels
from ropewalk.errors import MissingExtra
from ropewalk.spec import RopeSpec

try:
    import jax  # type: ignore[import-not-found]
    import jax.numpy as jnp  # type: ignore[import-not-found]
except ImportError:
    raise MissingExtra("ropewalk.jax", "jax", "jax") from None

#: applied to cos and sin, because XLA would otherwise look up every table entry again for each head
_BARRIER = jax.lax.optimization_barrier


def rotate(q: Any, k: Any, positions: Any, spec: RopeSpec, *, length: int | None = None) -> Any:
    """Return q and k rotated by their tokens' angles; q alone if k is None.

    q, k       [..., S, H, D]; k may have fewer heads
    positions  integers [S] or [B, S]; [axes, S] or [axes, B, S] for a spec with several axes;
               None: 0, 1, 2, ...
    spec       a RopeSpec; under `jax.jit` a constant or a static argument
    length     a Python int, read only by length-dependent scalings, which need it
    """
    return levels.rotate(jnp, q, k, positions, spec, length, _BARRIER)


def cos_sin(
    positions: Any, spec: RopeSpec, *, length: int | None = None, key: bool = False
) -> tuple[Any, Any]:
    """Return float32 cos and sin [..., S, pairs] of positions, magnitude included.

    positions  integers [..., S], or [axes, ..., S] for a spec with several axes
    spec       a RopeSpec; under `jax.jit` a constant or a static argument
    length     a Python int, read only by length-dependent scalings, which need it
    key        return the tables of keys. They differ from those of queries only if
               spec.magnitude_on is "q": queries then have the square of the magnitude, keys have 1
    """
    length = levels.check_spec(spec, length)
    return _BARRIER(levels.cos_sin(jnp, spec, levels.integers(jnp, positions), length, key))
