"""What the adapters of MLX stacks share: a rotation of x at any positions by a module that takes an
offset.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from stacks.adapters import Apply, Rope, one_by_one

mx.set_default_device(mx.cpu)


def by_offset(module: Callable[..., Any], rope: Rope) -> Apply:
    """Return a rotation by a module that is called with x and an offset."""

    def rotate(heads: Any, position: int) -> Any:
        return module(heads[None, :, None], offset=position)[0, :, 0]

    def whole(x: Any, positions: Any) -> Any:
        """Rotate each row of x within a whole sequence from position 0; return only its tokens."""
        length = 1 + int(positions.max())
        out = np.empty(x.shape, np.float32)
        for row, at in enumerate(np.array(positions)):
            for head in range(x.shape[1]):
                full = np.zeros((1, 1, length, x.shape[-1]), np.float32)
                full[0, 0, at] = np.array(x[row, head])
                out[row, head] = np.array(module(mx.array(full), offset=0))[0, 0, at]
        return mx.array(out)

    if rope["scaling"]["type"] in ("dynamic", "longrope"):
        # the frequencies depend on the length of the sequence
        return whole
    return one_by_one(rotate, mx.stack)
