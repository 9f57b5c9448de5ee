"""Checkpoints: Hugging Face folders in and out, without transformers. Files are data: no code runs, every size is checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ropewalk.errors import RopeError, choice
from ropewalk.interop.checkpoint.shards import Folder, open_folder, write_folder
from ropewalk.models.checkpoints_families import FAMILIES, WRITERS, Family, Piece

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def load(folder: str | os.PathLike[str], dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> nn.Module:
    """The model in a Hugging Face folder: config.json and one or more safetensors files; in eval mode.

    dtype   of the weights; None: as they are stored
    device  where they go, tensor by tensor; None: torch's default

    Refused by name: a model_type that is not in FAMILIES, a weight that is missing or surplus, a wrong shape or dtype.
    Tables that old files kept of their rotation are passed over.
    """
    source = open_folder(folder)
    family = FAMILIES[choice("model_type", source.config.get("model_type"), FAMILIES)]
    config = family.config_from_hf(source.config)
    _refuse_more_layers_than_tensors(config, source)
    with torch.device("meta"), _Unfilled():
        model = family.build(config)
    expected = {name: value.shape for name, value in model.state_dict().items()}
    plan = _plan(source, family, config, expected)
    dtype = _dtype(source, plan, dtype)
    device = torch.get_default_device() if device is None else device
    state = {name: _joined(source, keys, expected[name], dtype, device) for name, keys in plan.items()}
    model.load_state_dict(state, assign=True)
    return model.eval()


def save(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    beside: Mapping[str, Any] | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write a Decoder or a RoFormer as a Hugging Face folder that transformers loads; it appears whole or not at all.

    beside           further keys of config.json, such as {"eos_token_id": 2}; none of those that describe the model
    max_shard_bytes  several files and an index where the weights are larger
    """
    config = getattr(model, "config", None)
    if type(config) not in WRITERS:
        raise RopeError("model", f"must have one of {', '.join(kind.__name__ for kind in WRITERS)}", type(model).__name__)
    family = FAMILIES[WRITERS[type(config)]]
    written = family.config_to_hf(config)
    state = model.state_dict()
    dtypes = {str(value.dtype).removeprefix("torch.") for value in state.values()}
    if len(dtypes) == 1:
        written |= {"dtype": dtypes.pop()}
    taken = sorted(key for key in beside or {} if key in written)
    if taken:
        raise RopeError("beside", "must not say again what the model says", taken)
    # transformers would fill these in with numbers of its own, which may lie outside the vocabulary
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    write_folder(folder, _written(state, family, config), tokens | written | dict(beside or {}), max_shard_bytes=max_shard_bytes)


class _Unfilled(TorchFunctionMode):
    """Weights that are about to be replaced are not filled: drawing numbers without memory loads half of a compiler."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (Tensor.normal_, Tensor.uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _refuse_more_layers_than_tensors(config: Any, source: Folder) -> None:
    """A layer takes a tensor, so a config cannot make us build more of them than the file holds."""
    if config.num_layers > len(source.keys):
        raise RopeError("num_hidden_layers", f"must fit the file, which holds {len(source.keys)} tensors", config.num_layers)


def _plan(source: Folder, family: Family, config: Any, expected: Mapping[str, torch.Size]) -> dict[str, list[str]]:
    """Our name -> the keys it is made of, in order; everything that does not fit is refused before a tensor is read."""
    named: dict[str, str] = {}
    for key in source.keys:
        ours = family.to_ours(key, config)
        if ours is None:
            continue
        if ours in named:
            raise RopeError(key, f"must not stand beside {named[ours]}, which is the same weight", key)
        named[ours] = key
    plan: dict[str, list[str]] = {}
    missing: list[str] = []
    for name, shape in expected.items():
        parts = _parts(name, shape, family, config, named)
        absent = [part.name for part, _ in parts if part.name not in named]
        missing += absent
        if not absent:
            plan[name] = [_fitting(source, named.pop(part.name), wanted) for part, wanted in parts]
    if missing or named:
        lacks = [f"lacks {_few([family.to_theirs(name, config) for name in missing])}"] if missing else []
        has = [f"has surplus {_few(list(named.values()))}"] if named else []
        raise RopeError(
            str(source.path), "must hold the weights of its config: it " + ", and ".join(lacks + has), len(source.keys)
        )
    return plan


def _parts(
    name: str, shape: torch.Size, family: Family, config: Any, named: Mapping[str, str]
) -> list[tuple[Piece, tuple[int, ...]]]:
    """The pieces of one of our weights with the shapes they must have; the weight itself where the file has it whole."""
    pieces = () if name in named else family.pieces(name, config)
    if not pieces:
        return [(Piece(name, shape[0] if shape else 1), tuple(shape))]
    tail = tuple(shape[-1:]) if len(shape) > 1 else ()  # the rows of all experts stand under each other
    return [(piece, (piece.rows, *tail)) for piece in pieces]


def _fitting(source: Folder, key: str, shape: tuple[int, ...]) -> str:
    if source.shape(key) != shape:
        raise RopeError(key, f"must have the shape {list(shape)} that the config says", list(source.shape(key)))
    if source.dtype(key) not in FLOATS:
        raise RopeError(key, "must be float32, bfloat16, float16 or float64", source.dtype(key))
    return key


def _dtype(source: Folder, plan: Mapping[str, list[str]], dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None:
        if dtype not in FLOATS:
            raise RopeError("dtype", "must be torch.float32, bfloat16, float16 or float64", dtype)
        return dtype
    found = {source.dtype(key): key for keys in plan.values() for key in keys}
    if len(found) > 1:
        rule = f"must be given: {' and '.join(f'{key} is {kind}' for kind, key in list(found.items())[:2])}"
        raise RopeError("dtype", rule, None)
    return next(iter(found))


def _joined(source: Folder, keys: list[str], shape: torch.Size, dtype: torch.dtype, device: Any) -> Tensor:
    if len(keys) == 1:
        return source.read(keys[0]).to(dtype=dtype, device=device)
    whole = torch.empty((sum(source.shape(key)[0] for key in keys), *source.shape(keys[0])[1:]), dtype=dtype, device=device)
    row = 0
    for key in keys:
        rows = source.shape(key)[0]
        whole[row : row + rows] = source.read(key)
        row += rows
    return whole.view(shape)


def _written(state: Mapping[str, Tensor], family: Family, config: Any) -> Iterator[tuple]:
    """(their key, shape, dtype, make) of every weight, a packed one piece by piece."""
    for name, value in state.items():
        pieces = family.pieces(name, config)
        if not pieces:
            yield family.to_theirs(name, config), tuple(value.shape), value.dtype, lambda value=value: value
            continue
        rows = value.flatten(0, -2) if value.ndim == 3 else value
        start = 0
        for piece in pieces:
            part = rows[start : start + piece.rows]
            yield family.to_theirs(piece.name, config), tuple(part.shape), part.dtype, lambda part=part: part
            start += piece.rows


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


__all__ = ["FAMILIES", "Family", "Piece", "load", "save"]
