"""Time `ropewalk.jax.rotate` beside `jit(x + 1)` of the same bytes, after a check against exact
angles at token 10,000,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import numpy as np

from ropewalk.spec import RopeSpec
from ropewalk_lab.bench.rows import run_script

FAR = 10_000_000
#: batch, tokens, heads of q, heads of k, dimensions
SHAPES = {
    "8k tokens of Llama 3 8B": (4, 8192, 32, 8, 128),
    "64k tokens of Llama 3 8B": (1, 65536, 32, 8, 128),
    "8k tokens, as many heads of k": (4, 8192, 32, 32, 128),
    "head of 64": (8, 4096, 32, 8, 64),
}
#: for a CPU
SMALL = {"small": (1, 512, 8, 2, 64)}
CALLS, ROUNDS = 20, 7


def error_at(position: int, spec: RopeSpec) -> float:
    """Return the largest error of `ropewalk.jax.cos_sin` at a position and the eight before it."""
    import jax

    from ropewalk.jax import cos_sin

    positions = list(range(position - 8, position + 1))
    cos, sin = jax.jit(lambda p: cos_sin(p, spec))(np.array(positions, dtype=np.int32))
    with mpmath.workdps(40):
        radians = [mpmath.mpf(value) for value in spec.frequencies().radians]
        exact_cos = np.array([[float(mpmath.cos(p * step)) for step in radians] for p in positions])
        exact_sin = np.array([[float(mpmath.sin(p * step)) for step in radians] for p in positions])
    return max(
        float(np.abs(np.asarray(cos) - exact_cos).max()),
        float(np.abs(np.asarray(sin) - exact_sin).max()),
    )


def seconds(call: Callable[..., Any], *args: Any) -> float:
    """Return the time of one call: the fastest of several rounds of calls that are queued one after
    the other.
    """
    import jax

    jax.block_until_ready(call(*args))
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        out = None
        for _ in range(CALLS):
            out = call(*args)
        jax.block_until_ready(out)
        best = min(best, (time.perf_counter() - began) / CALLS)
    return best


def measure(shapes: dict[str, tuple[int, ...]] = SHAPES) -> Iterator[dict[str, Any]]:
    """Yield one row for each shape of q and k and each shape of positions, [S] and [B, S]."""
    import jax
    import jax.numpy as jnp

    from ropewalk.jax import rotate

    for name, (batch, tokens, heads, kv_heads, dim) in shapes.items():
        spec = RopeSpec(dim, theta=500_000.0)
        error = error_at(FAR, spec)
        if error > 1e-6:
            raise SystemExit(f"cos and sin are off by {error:.1e} at position {FAR:,}")
        q, k = (
            jax.random.normal(jax.random.key(h), (batch, tokens, h, dim), dtype=jnp.bfloat16)
            for h in (heads, kv_heads)
        )
        add = seconds(jax.jit(lambda q, k: (q + 1, k + 1)), q, k)
        contiguous = jnp.arange(tokens, dtype=jnp.int32)
        by_shape = {
            "[S]": contiguous,
            "[B, S]": jax.random.randint(jax.random.key(0), (batch, tokens), 0, FAR),
        }
        for positions_shape, positions in by_shape.items():
            took = seconds(
                jax.jit(lambda q, k, p, spec=spec: rotate(q, k, p, spec)), q, k, positions
            )
            yield {
                "shape": name,
                "positions": positions_shape,
                "contender": "ropewalk.jax.rotate",
                "us": round(took * 1e6, 1),
                "us_add_one": round(add * 1e6, 1),
                "percent_of_add_one": round(100 * add / took, 1),
                "error_at_10M": error,
                "jax": jax.__version__,
                "device": jax.devices()[0].device_kind,
            }


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure, "cpu": lambda: measure(SMALL)})
