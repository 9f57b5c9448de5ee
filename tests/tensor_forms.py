"""The frequencies of a spec as tensors, in the shape that `spec.frequencies` gives them."""

from dataclasses import replace

import torch

from ropewalk.axes import AxisMap
from ropewalk.tensor_frequencies import TensorFrequencies, ladder


def tensors(spec, length=None) -> TensorFrequencies:
    """Return a spec's frequencies: radians [..., pairs], with an axis map [..., pairs, axes], and
    with axes by head [heads, pairs, axes].
    """
    found = ladder(spec, length)
    if spec.per_head:
        directions = torch.tensor(spec.axes.directions(), dtype=torch.float64, device="cpu")
        return replace(found, radians=found.radians[:, None] * directions)
    if not isinstance(spec.axes, AxisMap):
        return found
    one_hot = torch.nn.functional.one_hot(
        torch.tensor(spec.axis_of_pair, device="cpu"), spec.num_axes
    )
    return replace(found, radians=found.radians.unsqueeze(-1) * one_hot.to(torch.float64))
