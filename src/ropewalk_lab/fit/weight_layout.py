"""The layout in memory of the weights of linear layers while a CPU reads long texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ropewalk.kernels.cpu import attention


@contextmanager
def weights_by_columns(model: nn.Module) -> Iterator[None]:
    """Context manager: store the float32 matrices of linear layers column by column on a 64-bit ARM
    CPU.

    Shapes and values stay. OpenBLAS, which torch uses there, multiplies many rows by such a matrix
    about a tenth faster, because it need not transpose it. A matrix that is also an embedding stays
    as it is: tokens are looked up in its rows.
    """
    embeddings = {each.weight for each in model.modules() if isinstance(each, nn.Embedding)}
    weights = {each.weight for each in model.modules() if type(each) is nn.Linear} - embeddings
    changed = [each for each in weights if attention.available() and _is_plain(each)]
    for weight in changed:
        weight.data = weight.data.t().contiguous().t()
    try:
        yield
    finally:
        for weight in changed:
            weight.data = weight.data.contiguous()


def _is_plain(weight: torch.Tensor) -> bool:
    """Return whether a weight is a float32 parameter on the CPU, stored row by row."""
    return (
        isinstance(weight, nn.Parameter)
        and weight.is_cpu
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    )
