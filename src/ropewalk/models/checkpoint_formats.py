"""CheckpointFormat: how the Hugging Face checkpoints of one `model_type` are read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ropewalk.rope import LEGACY_STATE

# "weight" names a rotary table only inside a Rope; in a whole checkpoint any module may have a
# tensor of this name
_LEGACY_SUFFIXES = tuple("." + name for name in LEGACY_STATE if name != "weight")


def is_legacy(name: str) -> bool:
    """Return whether the tensor of this name holds rotary frequencies or tables, which follow from
    the config and are not loaded.
    """
    return ("." + name).endswith(_LEGACY_SUFFIXES)


@dataclass(frozen=True)
class CheckpointFormat:
    """How to read and write the checkpoints of one `model_type`.

    config_from_hf  contents of config.json -> our config
    config_to_hf    our config -> contents of config.json, with its `model_type`
    build           our config -> the model
    name_from_hf    (name in the file, our config) -> our name of the weight, or None to ignore the
                    tensor
    name_to_hf      (our name, our config) -> name in the file
    parts           (our name, our config) -> {name of each part, as `name_from_hf` returns it: its
                    number of rows}, if a file may store the weight as several tensors; empty if
                    it never does
    """

    config_from_hf: Callable[[Mapping[str, Any]], Any]
    config_to_hf: Callable[[Any], dict[str, Any]]
    build: Callable[[Any], nn.Module]
    name_from_hf: Callable[[str, Any], str | None]
    name_to_hf: Callable[[str, Any], str]
    parts: Callable[[str, Any], dict[str, int]] = lambda name, config: {}
