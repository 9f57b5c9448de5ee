"""RoPE for MLX: `rotate(q, k, positions, spec)`, a pure function for compile, vmap and grad, exact
without float64.

Needs the extra `mlx`. Positions are integers of up to 64 bits; cos and sin come from tables of
their digits (see `levels`), so they are as exact at token 10,000,000 as at token 10.
"""

from __future__ import annotations

from typing import Any

from ropewalk import levels
from ropewalk.errors import MissingExtra
from ropewalk.spec import RopeSpec

try:
    import mlx.core as mx  # type: ignore[import-not-found]
except ImportError:
    raise MissingExtra("ropewalk.mlx", "mlx", "mlx") from None


def rotate(q: Any, k: Any, positions: Any, spec: RopeSpec, *, length: int | None = None) -> Any:
    """Return q and k rotated by their tokens' angles; q alone if k is None.

    q, k       [..., S, H, D]; k may have fewer heads
    positions  integers [S] or [B, S]; [axes, S] or [axes, B, S] for a spec with several axes;
               None: 0, 1, 2, ...
    spec       a RopeSpec
    length     a Python int, read only by length-dependent scalings, which need it
    """
    return levels.rotate(mx, q, k, positions, spec, length)


def cos_sin(
    positions: Any, spec: RopeSpec, *, length: int | None = None, key: bool = False
) -> tuple[Any, Any]:
    """Return float32 cos and sin [..., S, pairs] of positions, magnitude included.

    positions  integers [..., S], or [axes, ..., S] for a spec with several axes
    spec       a RopeSpec
    length     a Python int, read only by length-dependent scalings, which need it
    key        return the tables of keys. They differ from those of queries only if
               spec.magnitude_on is "q": queries then have the square of the magnitude, keys have 1
    """
    length = levels.check_spec(spec, length)
    return levels.cos_sin(mx, spec, levels.integers(mx, positions), length, key)
