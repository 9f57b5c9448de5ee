"""Attention of a transformers model on the CPU by the native library, which reads long texts faster
than torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    """The attention function that transformers calls: the native library for causal attention
    without a mask, else torch's.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    causal = options.get("is_causal")
    plain = (
        (getattr(module, "is_causal", True) if causal is None else causal)
        and query.shape[2] > 1
        and attention_mask is None
    )
    changed = options.get("dropout") or any(options.get(name) is not None for name in OTHER_SCORES)
    if not plain or changed or attention.why_not(query, key, value) is not None:
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **options)
    scale = options.get("scaling")
    out = attention.attend(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale)
    return out.transpose(1, 2), None


@contextmanager
def native_attention(model: nn.Module) -> Iterator[str]:
    """Context manager: a model whose attention is torch's runs the native one where it can; yields
    the name of the one in use.
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
    AttentionInterface.register(NATIVE_ATTENTION, native_attention_forward)
    AttentionMaskInterface.register(NATIVE_ATTENTION, sdpa_mask)
    model.set_attn_implementation(NATIVE_ATTENTION)  # type: ignore[operator]
    try:
        yield "ropewalk"
    finally:
        model.set_attn_implementation("sdpa")  # type: ignore[operator]
