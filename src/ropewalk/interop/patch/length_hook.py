"""A forward hook that updates a rotary module's frequencies to the length of each call.

Needed for dynamic_yarn, which transformers configs cannot express.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.interop.patch.methods import HOOKED, Replacement
from ropewalk.spec import RopeSpec
from ropewalk.tensor_frequencies import ladder

#: the attribute of a rotary module that holds its extension
EXTENSION = "_ropewalk_extension"


class LengthHook:
    """A forward pre-hook that sets the frequencies and magnitude for the longest sequence of the
    batch.
    """

    def __init__(self, specs: dict[str, RopeSpec]) -> None:
        self.specs = specs

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Set the frequencies before the forward of a rotary module, from the positions in its
        arguments.
        """
        if any(isinstance(vars(module).get(slot), Replacement) for slot in ("forward", HOOKED)):
            # a patched module uses the specs, and calls `update` itself where it runs the original
            # forward
            return
        arguments = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        self.update(module, arguments["position_ids"], arguments.get("layer_type"))

    def update(self, module: nn.Module, positions: Tensor, layer_type: str | None) -> None:
        """Set the frequencies of a layer type that a call at these positions needs; None: the
        module has one rope for all.
        """
        spec = (
            self.specs.get(layer_type)
            if layer_type is not None
            else next(iter(self.specs.values()))
        )
        if spec is None:
            return
        frequencies = ladder(spec, int(positions.max()) + 1)
        prefix = "" if layer_type is None else f"{layer_type}_"
        device = getattr(
            module, f"{prefix}inv_freq"
        ).device  # a buffer, which every rotary module has
        setattr(
            module, f"{prefix}inv_freq", frequencies.radians.reshape(-1).to(device, torch.float32)
        )
        setattr(module, f"{prefix}attention_scaling", float(frequencies.magnitude))


def length_hook(module: nn.Module) -> LengthHook | None:
    """Return the module's LengthHook, or None."""
    return next(
        (hook for hook in module._forward_pre_hooks.values() if isinstance(hook, LengthHook)), None
    )
