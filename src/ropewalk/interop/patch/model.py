"""Run a loaded transformers model on this library's kernels, and restore it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import TypeVar

from torch import nn

from ropewalk.errors import RopeError, choice
from ropewalk.interop.patch.functions import RotationFunction, convention_of
from ropewalk.interop.patch.methods import (
    ROTATION_NAME,
    FunctionReplacement,
    MethodReplacement,
    RedirectedMethod,
    Replacement,
    methods,
    rotations_called_by,
)
from ropewalk.interop.patch.rotary import RotaryReplacement, is_rotary, matches_of
from ropewalk.kernels import BACKENDS

Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model, *, backend: str | None = None) -> Model:
    """Make a transformers model rotate its queries and keys by exact angles with this library's kernels, in place.

    Modules are recognised by behaviour, not by name: rotation functions are run and compared with the reference, rotary
    modules with the spec of their config. A model with a rotation that is not recognised raises an error and stays
    unchanged. Only this instance changes: its weights, its class and other models do not. Patching a patched model reads
    its config again. Returns the model.
    """
    if backend is not None:
        choice("backend", backend, BACKENDS)
    previous = _installed(model)
    unpatch(model)
    try:
        replacements = _Search(model, backend).replacements()
    except Exception:
        for replacement in previous:
            replacement.install()
        raise
    for replacement in replacements:
        replacement.install()
    return model


def unpatch(model: Model) -> Model:
    """Undo `patch` and return the model; does nothing if it is not patched."""
    for replacement in _installed(model):
        replacement.remove()
    return model


@contextmanager
def patched(model: Model, *, backend: str | None = None) -> Iterator[Model]:
    """Patch a model inside a with block; afterwards it is as before, patched or not."""
    previous = _installed(model)
    patch(model, backend=backend)
    try:
        yield model
    finally:
        unpatch(model)
        for replacement in previous:
            replacement.install()


def patch_again(model: nn.Module) -> None:
    """Update a patched model to its current config, with the same backend; does nothing if it is not patched."""
    replacements = _installed(model)
    if replacements:
        rotary = [each for each in replacements if isinstance(each, RotaryReplacement)]
        matches = [match for each in rotary for match in each.matches.values()]
        patch(model, backend=matches[0].rope.backend if matches else None)


def _installed(model: nn.Module) -> list[Replacement]:
    if not isinstance(model, nn.Module):
        raise RopeError("model", "must be a torch module, such as a loaded transformers model", type(model).__name__)
    return [value for module in model.modules() for value in vars(module).values() if isinstance(value, Replacement)]


class _Search:
    """Finds the methods of a model that rotate q and k or compute tables, and builds their replacements."""

    def __init__(self, model: nn.Module, backend: str | None) -> None:
        self.model, self.backend = model, backend
        self.functions: dict[Callable, RotationFunction] = {}
        self.redirected: dict[tuple[type, str], RedirectedMethod] = {}

    def replacements(self) -> list[Replacement]:
        """Return all replacements, none installed; refuses a model without rotations or with an unsupported one."""
        layers, rotary = [], []
        for module in self.model.modules():
            if isinstance(type(module).forward, FunctionType) and is_rotary(module):
                rotary.append(module)  # not a layer: Qwen3-VL's apply_interleaved_mrope, for example, merges angles
            else:
                layers += self._layer_replacements(module)
        if not layers:
            rule = "must rotate q and k with a function such as apply_rotary_pos_emb; no module of this model calls one"
            raise RopeError("model", rule, type(self.model).__name__)
        tables = [RotaryReplacement(module, matches) for module in rotary if (matches := matches_of(module, self.backend))]
        for replacement in tables:
            for match in replacement.matches.values():
                for function in self.functions.values():
                    function.add_spec(match.rope.spec)
        for replacement in (*layers, *tables):
            replacement.check()
        return [*layers, *tables]

    def _layer_replacements(self, module: nn.Module) -> Iterator[Replacement]:
        cls = type(module)
        for name, function in methods(cls):
            if isinstance(function, staticmethod):
                if ROTATION_NAME.match(name):
                    yield FunctionReplacement(module, name, self._rotation_function(function.__func__, cls))
                continue
            rotations = rotations_called_by(function)
            if rotations:
                if (cls, name) not in self.redirected:
                    substitutes = {each: self._rotation_function(target, cls) for each, target in rotations.items()}
                    self.redirected[cls, name] = RedirectedMethod(cls, name, substitutes)
                yield MethodReplacement(module, self.redirected[cls, name])
            elif ROTATION_NAME.match(name):
                raise RopeError(cls.__name__, "rotates q and k in a method that this library does not support", name)

    def _rotation_function(self, function: Callable, cls: type) -> RotationFunction:
        if function not in self.functions:
            convention = convention_of(function)
            if convention is None:
                rule = "calls a function that is no rotation this library supports, so the model is left unchanged"
                raise RopeError(cls.__name__, rule, getattr(function, "__name__", repr(function)))
            self.functions[function] = RotationFunction(function, convention, self.backend)
        return self.functions[function]
