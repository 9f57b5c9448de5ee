"""Frequencies that follow the length of each call, on a rotary module whose config cannot say so."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.interop.patch.methods import HOOKED, Stand
from ropewalk.spec import RopeSpec

#: where a rotary module keeps the extension it is under
MARK = "_ropewalk_extension"


class FollowLength:
    """A hook before each forward: the frequencies and magnitude of the longest sequence in the batch."""

    def __init__(self, specs: dict[str, RopeSpec]) -> None:
        self.specs = specs

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if any(isinstance(vars(module).get(slot), Stand) for slot in ("forward", HOOKED)):
            return  # a patched module turns by the specs, and calls `follow` where it does not
        given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        self.follow(module, given["position_ids"], given.get("layer_type"))

    def follow(self, module: nn.Module, positions: Tensor, layer_type: str | None) -> None:
        """Give a module the frequencies that a call at these positions needs."""
        spec = self.specs.get(layer_type) if layer_type is not None else next(iter(self.specs.values()))
        if spec is None:
            return
        found = spec.ladder_frequencies(int(positions.max()) + 1)
        prefix = "" if layer_type is None else f"{layer_type}_"
        device = module._buffers[f"{prefix}inv_freq"].device  # type: ignore[union-attr]  # a rotary module has it
        module._buffers[f"{prefix}inv_freq"] = found.radians.reshape(-1).to(device, torch.float32)
        setattr(module, f"{prefix}attention_scaling", float(found.magnitude))


def followed(module: nn.Module) -> FollowLength | None:
    """The hook that a module has, if it has one."""
    return next((hook for hook in module._forward_pre_hooks.values() if isinstance(hook, FollowLength)), None)
