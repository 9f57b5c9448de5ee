"""The fingerprint of a loaded model: equal only for models that compute the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.encodings.rotary import Rotary

#: bytes that are copied from a GPU and hashed at a time
CHUNK = 1 << 26
#: keys of a config that say where the model was loaded from, not what it computes
PLACES = ("_name_or_path",)


def model_fingerprint(model: nn.Module) -> str:
    """Return 32 hex digits from the class of a model, its config without the keys PLACES (where it
    was loaded from), the specs of its `Rotary` modules (a transformers model has none) and all its
    tensors.

    The name, shape, dtype and bytes of each parameter and buffer are hashed, so a model with
    permuted or rounded weights has another fingerprint. SHA-256 takes about a second for 1 GB on
    each core.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing releases the GIL
        digests = list(pool.map(_tensor_digest, tensors.values()))
    described = [
        [name, list(tensor.shape), str(tensor.dtype), digest]
        for (name, tensor), digest in zip(tensors.items(), digests, strict=True)
    ]
    config = plain(getattr(model, "config", None))
    if isinstance(config, dict):
        config = {key: value for key, value in config.items() if key not in PLACES}
    # a Decoder's ropes may have been replaced since it was made from its config
    ropes = [str(each.rope.spec) for each in model.modules() if isinstance(each, Rotary)]
    parts = [type(model).__qualname__, config, ropes, described]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _tensor_digest(tensor: Tensor) -> str:
    """Return the SHA-256 of the bytes of a tensor as hex digits, row by row whatever its layout in
    memory.
    """
    found = hashlib.sha256()
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    for part in flat.split(CHUNK):
        found.update(part.cpu().numpy().data)
    return found.hexdigest()


def plain(value: Any) -> Any:
    """Return a value as JSON data: an object with `to_dict` as a dict, a dataclass as a dict with
    the name of its class, a set as a sorted list, any object that is no JSON data as its text.
    """
    if callable(getattr(value, "to_dict", None)):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)} | {
            "class": type(value).__name__
        }
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):  # the order of a set may differ between processes
        return sorted(map(plain, value), key=repr)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
