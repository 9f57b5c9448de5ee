"""What makes a CPU read long texts faster: attention of the native library in a transformers model,
and the layout of weights in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.interop.extend.remap import OTHER_SCORES
from ropewalk.kernels.cpu import attention

#: the name under which transformers finds the function
NATIVE_ATTENTION = "ropewalk_native"


def native_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention's output [B, S, H, D], and None for the weights: an attention function
    of transformers, which calls it with query, key and value [B, H, S, D].

    Ropewalk's CPU library computes causal attention of two or more queries without a mask, dropout
    or an option that changes scores (OTHER_SCORES), if it supports the tensors; torch computes all
    else.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    # as transformers decides for "sdpa": an `is_causal` of the call replaces that of the module,
    # and a single query, which sees all keys, is not causal
    causal = options.get("is_causal")
    plain = (
        (getattr(module, "is_causal", True) if causal is None else causal)
        and query.shape[2] > 1
        and attention_mask is None
    )
    changed = options.get("dropout") or any(options.get(name) is not None for name in OTHER_SCORES)
    # `why_not` gives the reason for which the native attention cannot compute these tensors
    if not plain or changed or attention.why_not(query, key, value) is not None:
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **options)
    scale = options.get("scaling")
    out = attention.attend(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale)
    return out.transpose(1, 2), None


@contextmanager
def faster_on_cpu(model: nn.Module) -> Iterator[str]:
    """Context manager: the model on a CPU uses the attention and the layout of weights that read
    long texts fastest; yields whose attention runs, "ropewalk" or "the model's own".
    """
    with weights_by_columns(model), native_attention(model) as attention_of:
        yield attention_of


@contextmanager
def native_attention(model: nn.Module) -> Iterator[str]:
    """Context manager: a transformers model on the CPU that uses "sdpa" runs
    `native_attention_forward` instead, if the native library is there; yields whose code computes
    attention, "ropewalk" or "the model's own".
    """
    own = "the model's own"
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError:  # no transformers, or a release in which attention cannot be registered
        yield own
        return
    used = {
        getattr(each.config, "_attn_implementation", None)
        for each in model.modules()
        if hasattr(each, "config")
    }
    if (
        used != {"sdpa"}
        or next(model.parameters()).device.type != "cpu"
        or not attention.available()
    ):
        yield own
        return
    # the masks stay those of sdpa, which computes what the native attention does not
    AttentionInterface.register(NATIVE_ATTENTION, native_attention_forward)
    AttentionMaskInterface.register(NATIVE_ATTENTION, sdpa_mask)
    model.set_attn_implementation(NATIVE_ATTENTION)  # type: ignore[operator]
    try:
        yield "ropewalk"
    finally:
        model.set_attn_implementation("sdpa")  # type: ignore[operator]


@contextmanager
def weights_by_columns(model: nn.Module) -> Iterator[None]:
    """Context manager: store the float32 matrices of linear layers column by column, on a 64-bit
    ARM CPU with the native library; elsewhere do nothing.

    Shapes and values stay; afterwards the matrices are stored row by row again. OpenBLAS, which
    torch uses on such CPUs under Linux, multiplies many rows by such a matrix about a tenth faster,
    because it need not transpose it. A matrix that is also an embedding stays as it is: tokens are
    looked up in its rows.
    """
    embeddings = {each.weight for each in model.modules() if isinstance(each, nn.Embedding)}
    weights = {each.weight for each in model.modules() if type(each) is nn.Linear} - embeddings
    # the native attention is compiled for 64-bit ARM alone, so a CPU that has it is such a CPU
    changed = [each for each in weights if attention.available() and _is_plain(each)]
    for weight in changed:
        weight.data = weight.data.t().contiguous().t()
    try:
        yield
    finally:
        for weight in changed:
            weight.data = weight.data.contiguous()


def _is_plain(weight: torch.Tensor) -> bool:
    """Return whether a weight is a float32 parameter on the CPU, stored row by row; a quantized
    weight, for example, is not.
    """
    return (
        isinstance(weight, nn.Parameter)
        and weight.is_cpu
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    )
