"""transformers plug-in: a model's `rotary_pos_emb` functions run ropewalk's kernels, by
transformers' own kernel mapping.

    AutoModelForCausalLM.from_pretrained(path, use_kernels=True,
    kernel_config=ropewalk_transformers.kernel_config())

Nothing is downloaded, and the tables of cos and sin stay transformers' own. `kernels` keeps one
function for each family, so that all models of that family in the process rotate with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.utils.kernel_config import KernelConfig

import ropewalk
from kernels import Device

#: the name under which transformers registers a family's `apply_rotary_pos_emb`
NAME = "rotary_pos_emb"
DEVICES = ("cpu", "cuda", "rocm")


class Rotary(nn.Module):
    """Rotates q and k by given cos and sin; takes the place of `apply_rotary_pos_emb`."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return ropewalk.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


class _Here:
    """The place from which `kernels` loads the layer: this file."""

    def load(self) -> type[nn.Module]:
        return Rotary


class _Config(KernelConfig):
    """A kernel mapping that is made when the model is there: it names all layers, so that no other
    kernel is looked for.
    """

    def sanitize_kernel_mapping(self, model: Any) -> None:
        """Do nothing: the mapping has no names of repositories to check."""

    def create_compatible_mapping(self, model: Any, compile: bool = False) -> None:
        """Map the model's rotations to ropewalk if it computes all of them as the model does; other
        layers keep transformers' code.
        """
        found = [module for module in model.modules() if hasattr(type(module), "kernel_layer_name")]
        functions = [
            each
            for module in model.modules()
            for each in getattr(module, "_kernel_funcs", {}).values()
        ]
        self.kernel_mapping = {type(each).kernel_layer_name: {} for each in (*found, *functions)}
        rotations = [each for each in functions if type(each).kernel_layer_name == NAME]
        if rotations and all(map(_is_same, dict.fromkeys(rotations))):
            self.kernel_mapping[NAME] = {Device(type=device): _Here() for device in DEVICES}


def kernel_config() -> KernelConfig:
    """Return the kernel config that a model is loaded with to rotate with ropewalk's kernels."""
    return _Config(inherit_mapping=False)


def _is_same(function: Any) -> bool:
    """Return whether a family's function rotates as ropewalk does, with tables that have each entry
    twice.
    """
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 3, 8, generator=generator) for heads in (4, 2))
    angles = torch.randn(2, 3, 4, generator=generator).repeat(1, 1, 2)
    try:
        theirs = type(function).forward(function, q, k, angles.cos(), angles.sin())
    except (RuntimeError, TypeError):  # its tables have another shape
        return False
    ours = ropewalk.apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    return all(
        torch.allclose(one, other, atol=1e-5) for one, other in zip(theirs, ours, strict=True)
    )
