"""Rotate a loaded transformers model with this library's kernels, and give it back as it was."""

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
    Redirection,
    Stand,
    StandingFunction,
    StandingMethod,
    called_rotations,
    methods,
)
from ropewalk.interop.patch.rotary import StandingRotary, is_rotary, plans_of
from ropewalk.kernels import BACKENDS

Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model, *, backend: str | None = None) -> Model:
    """Let a transformers model turn its queries and keys by exact angles with our kernels; the same object is returned.

    The parts are found by structure and recognised by what they compute, so no list of models is involved: functions
    that turn q and k are tried against the definition, rotary modules against the spec of their config. A model with a
    rotation that is not recognised is refused with the reason and left as it is. Only this instance changes: weights,
    class and other models do not. Patching again reads the config again.
    """
    if backend is not None:
        choice("backend", backend, BACKENDS)
    before = _stands(model)
    unpatch(model)
    try:
        stands = _Search(model, backend).stands()
    except Exception:
        for stand in before:
            stand.place()
        raise
    for stand in stands:
        stand.place()
    return model


def unpatch(model: Model) -> Model:
    """Undo `patch`: every method is the class's own again. A model that is not patched stays as it is."""
    for stand in _stands(model):
        stand.leave()
    return model


@contextmanager
def patched(model: Model, *, backend: str | None = None) -> Iterator[Model]:
    """`patch` for the length of a with block; a model that was patched before stays patched."""
    before = _stands(model)
    patch(model, backend=backend)
    try:
        yield model
    finally:
        unpatch(model)
        for stand in before:
            stand.place()


def _stands(model: nn.Module) -> list[Stand]:
    if not isinstance(model, nn.Module):
        raise RopeError("model", "must be a torch module, such as a loaded transformers model", type(model).__name__)
    return [found for module in model.modules() for found in list(vars(module).values()) if isinstance(found, Stand)]


class _Search:
    """The parts of a model that turn q and k, and what will stand in for each."""

    def __init__(self, model: nn.Module, backend: str | None) -> None:
        self.model, self.backend = model, backend
        self.rotation_functions: dict[Callable, RotationFunction] = {}
        self.redirections: dict[tuple[type, str], Redirection] = {}

    def stands(self) -> list[Stand]:
        """All of them, checked, none in place yet; refuses a model that has none or one that is not understood."""
        turning = [stand for module in self.model.modules() for stand in self._turning(module)]
        if not turning:
            rule = "must turn its queries and keys by a function such as apply_rotary_pos_emb; nothing here does"
            raise RopeError("model", rule, type(self.model).__name__)
        making = [stand for module in self.model.modules() for stand in self._making(module)]
        for stand in making:
            for plan in stand.plans.values():
                for rotation_function in self.rotation_functions.values():
                    rotation_function.learn(plan.rope.spec)
        found = [*turning, *making]
        for stand in found:
            stand.check()
        return found

    def _turning(self, module: nn.Module) -> Iterator[Stand]:
        kind = type(module)
        if self._makes_tables(module):
            return  # what it applies to its angles, such as Qwen3-VL's apply_interleaved_mrope, turns no q and no k
        for name, function in methods(kind):
            if isinstance(function, staticmethod):
                if ROTATION_NAME.match(name):
                    yield StandingFunction(module, name, self._rotation_function(function.__func__, kind))
                continue
            called = called_rotations(function)
            if called:
                if (kind, name) not in self.redirections:
                    instead = {each: self._rotation_function(target, kind) for each, target in called.items()}
                    self.redirections[kind, name] = Redirection(kind, name, instead)
                yield StandingMethod(module, self.redirections[kind, name])
            elif ROTATION_NAME.match(name):
                raise RopeError(kind.__name__, f"turns by a method of its own, {name}, which is not one this library knows", name)

    def _rotation_function(self, function: Callable, kind: type) -> RotationFunction:
        if function not in self.rotation_functions:
            convention = convention_of(function)
            if convention is None:
                name = getattr(function, "__name__", repr(function))
                rule = "turns by a function that is no rotation this library has, so the model is left as it is"
                raise RopeError(kind.__name__, rule, name)
            self.rotation_functions[function] = RotationFunction(function, convention, self.backend)
        return self.rotation_functions[function]

    @staticmethod
    def _makes_tables(module: nn.Module) -> bool:
        return isinstance(type(module).forward, FunctionType) and is_rotary(module)

    def _making(self, module: nn.Module) -> Iterator[StandingRotary]:
        if self._makes_tables(module):
            plans = plans_of(module, self.backend)
            if plans:
                yield StandingRotary(module, plans)
