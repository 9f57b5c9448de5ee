"""Compare from_hf with the rotary modules of a model: the same frequencies and the same magnitude."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from ropewalk import RopeError, RopeSpec, from_hf
from ropewalk.tensor_frequencies import ladder


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules with frequencies and a config of their own, one of each class and config."""
    found = [
        module
        for module in model.modules()
        if hasattr(module, "config")
        and any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
    ]
    return list({(type(module), id(module.config)): module for module in found}.values())


def spec_verdicts(model: nn.Module) -> dict[str, str]:
    """Return {name: verdict} for each rotary module, and for one of the same class that is built from
    the default config.
    """
    verdicts = {}
    for module in rotary_modules(model):
        name = type(module).__name__
        verdicts[name] = spec_verdict(module)
        try:
            by_default = type(module)(type(module.config)())
        except Exception:  # some classes have no defaults that fit together
            continue
        verdicts[f"{name}, defaults"] = spec_verdict(by_default)
    return verdicts


def spec_verdict(module: nn.Module) -> str:
    """Return "equal" if from_hf(config) has the frequencies and the magnitude of a rotary module,
    else why it has not.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about keys that are not read
            specs = from_hf(module.config, per_layer=True)
    except RopeError as error:
        return f"refused: {error}"
    rotated = {name: spec for name, spec in specs.items() if spec is not None}
    for name, _ in module.named_buffers(recurse=False):
        if not name.endswith("inv_freq") or "original" in name:
            continue
        layer_type = name.removesuffix("inv_freq").removesuffix("_")
        candidates = [rotated[layer_type]] if layer_type in rotated else list(rotated.values())
        if not any(
            _are_those_of(spec, module, name.removesuffix("inv_freq")) for spec in candidates
        ):
            # MusicFlamingo's module rotates by timestamps, with other frequencies than its language
            # model
            is_text = module.config.get_text_config() is module.config
            return (
                f"wrong: {name}"
                if is_text
                else "another part: from_hf reads the config of the language model"
            )
    return "equal"


def _are_those_of(spec: RopeSpec, module: Any, prefix: str) -> bool:
    """Return whether a spec has the frequencies, in any order of the axes, and the magnitude that a
    module keeps.
    """
    own, frequencies = getattr(module, f"{prefix}inv_freq"), ladder(spec)
    ours = frequencies.radians.reshape(-1).to(own.dtype)
    scaling = getattr(module, f"{prefix}attention_scaling", 1.0)
    return (
        torch.equal(ours.sort().values, own.sort().values)
        and abs(float(frequencies.magnitude) - scaling) < 1e-6 * scaling
    )
