"""RoPE for JAX: `rotate(q, k, positions, spec)`, a pure function for jit, vmap and grad, exact without 64-bit numbers.

Needs the extra `jax`. Positions are 32-bit integers; cos and sin come from tables of their digits (see `levels`), so they are as
exact at token 10,000,000 as at token 10.
"""

from __future__ import annotations

from typing import Any

from ropewalk import levels
from ropewalk.errors import RopeError
from ropewalk.spec import RopeSpec

try:
    import jax  # type: ignore[import-not-found]
    import jax.numpy as jnp  # type: ignore[import-not-found]
except ImportError:
    raise RopeError("ropewalk.jax", "needs jax; run: pip install 'ropewalk[jax]'", None) from None


def rotate(q: Any, k: Any, positions: Any, spec: RopeSpec, *, length: int | None = None) -> Any:
    """Return q and k rotated by their tokens' angles; q alone if k is None.

    q, k       [..., S, H, D]; k may have fewer heads
    positions  integers [S], [B, S], or [axes, ..., S] for a spec with axes; None: 0, 1, 2, ...
    spec       a RopeSpec; under `jax.jit` a constant or a static argument
    length     a Python int, read only by length-dependent scalings, which need it
    """
    length = levels.check_spec(spec, length)
    if positions is None:
        positions = jnp.arange(q.shape[-3], dtype=jnp.int32)
        positions = jnp.broadcast_to(positions, (spec.num_axes, *positions.shape)) if spec.num_axes > 1 else positions
    positions = jnp.asarray(positions)
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        raise RopeError("positions", "must be integers", positions.dtype.name)
    levels.check_shapes(q, k, positions, spec)
    positions = positions.astype(jnp.int32)
    rotated = []
    for x, key in ((q, False), (k, True)):
        if x is not None:
            rotated.append(levels.rotated(jnp, x, *cos_sin(positions, spec, length=length, key=key), spec))
    return tuple(rotated) if k is not None else rotated[0]


def cos_sin(positions: Any, spec: RopeSpec, *, length: int | None = None, key: bool = False) -> tuple[Any, Any]:
    """Return float32 cos and sin [..., S, pairs] of positions, magnitude included; `key` for the table of keys."""
    length = levels.check_spec(spec, length)
    key = key and spec.magnitude_on == "q"  # else q and k have the same table, which XLA then computes once
    cos, sin = levels.cos_sin(jnp, spec, jnp.asarray(positions).astype(jnp.int32), length, key)
    # without the barrier XLA would look up every table entry again for each head
    return jax.lax.optimization_barrier((cos, sin))
