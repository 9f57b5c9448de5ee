"""A forward hook that computes a rotary module's tables for the longest sequence of each batch.

Needed for dynamic_yarn and clipped, for which `extend` writes no config key. The hook runs after
the module's forward: it copies the module, sets the copy's frequencies for that length, runs
forward again on the copy, and returns that output in place of the first. The module itself is not
changed, because threads may share it.
"""

from __future__ import annotations

import copy
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
    """A forward hook that replaces the tables of a rotary module by those for the longest sequence
    of the batch.
    """

    def __init__(self, specs: dict[str, RopeSpec]) -> None:
        self.specs = specs

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        """Return the output of a rotary module's forward with the frequencies for the length of the
        longest sequence, the largest position + 1; `output` itself if the module is patched.
        """
        if any(isinstance(vars(module).get(slot), Replacement) for slot in ("forward", HOOKED)):
            # a patched module uses the specs, and calls `at_length` itself where it runs the
            # original forward
            return output
        arguments = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        other = self.at_length(module, arguments["position_ids"], arguments.get("layer_type"))
        return output if other is module else type(module).forward(other, *args, **kwargs)

    def at_length(self, module: nn.Module, positions: Tensor, layer_type: str | None) -> nn.Module:
        """Return a copy of a rotary module with the frequencies that a layer type has at the length
        of the longest sequence, the largest position + 1; the module itself if `specs` lacks that
        layer type.

        layer_type  None: the module has one rope for all layers
        """
        spec = (
            self.specs.get(layer_type)
            if layer_type is not None
            else next(iter(self.specs.values()))
        )
        if spec is None:
            return module
        # the frequencies and the magnitude at that length
        frequencies = ladder(spec, int(positions.max()) + 1)
        prefix = "" if layer_type is None else f"{layer_type}_"
        other = copy.copy(module)
        vars(other)["_buffers"] = dict(module._buffers)  # copy.copy shares the dict
        device = getattr(module, f"{prefix}inv_freq").device
        radians = frequencies.radians.reshape(-1).to(device, torch.float32)
        setattr(other, f"{prefix}inv_freq", radians)
        setattr(other, f"{prefix}attention_scaling", float(frequencies.magnitude))
        return other


def length_hook(module: nn.Module) -> LengthHook | None:
    """Return the module's LengthHook, or None."""
    return next(
        (hook for hook in module._forward_hooks.values() if isinstance(hook, LengthHook)), None
    )
