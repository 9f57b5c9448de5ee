"""Run a loaded transformers model on this library's kernels, and restore it.

Words of this module:
  rotation function  a function of the model that rotates q and k by cos and sin
  convention         how a rotation function reads its tables and what it rotates
  rotary module      a module that computes the tables, cos and sin, from positions
  replacement        what is called in place of one method of one module, a `Replacement`
  refused            {path of a module: why it cannot be patched}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import TypeVar

from torch import nn

from ropewalk.errors import RopeError, choice
from ropewalk.interop.patch.conventions import Convention
from ropewalk.interop.patch.functions import RotationFunction
from ropewalk.interop.patch.methods import (
    ROTATION_NAME,
    FunctionReplacement,
    MethodReplacement,
    RedirectedMethod,
    Replacement,
    methods,
    rotations_called_by,
)
from ropewalk.interop.patch.rotary import RotaryReplacement, is_rotary, matches_of, unequal_members
from ropewalk.interop.patch.trials import PAIRS, convention_of
from ropewalk.kernels import BACKENDS

Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model, *, backend: str | None = None) -> Model:
    """Make a transformers model rotate its queries and keys by exact angles with this library's
    kernels, in place.

    What a function or module does is found by running it: rotation functions are compared with the
    reference, rotary modules with the specs of their config. A model with a rotation function that
    is not recognised raises an error and stays unchanged; a rotary module that fits no spec keeps
    its own tables, by which our kernels then rotate. Methods of this instance are replaced; its
    weights, its class and other models stay the same. Patching a patched model reads its config
    again. Returns the model.
    """
    if backend is not None:
        choice("backend", backend, BACKENDS)
    previous = _installed(model)
    unpatch(model)
    try:
        replacements = _MethodSearch(model, backend).replacements()
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
        if previous:
            # not with the previous replacements: the config may have changed inside the block
            patch(model, backend=_backend_of(previous))


def patch_again(model: nn.Module) -> None:
    """Update a patched model to its current config, with the same backend; does nothing if it is
    not patched.
    """
    replacements = _installed(model)
    if replacements:
        patch(model, backend=_backend_of(replacements))


def _backend_of(replacements: list[Replacement]) -> str | None:
    """Return the backend that a model with these replacements was patched with."""
    return replacements[0].backend


def _installed(model: nn.Module) -> list[Replacement]:
    """Return the replacements that the modules of a model have; none if it is not patched. Raise an
    error if the model is no torch module.
    """
    if not isinstance(model, nn.Module):
        raise RopeError(
            "model",
            "must be a torch module, such as a loaded transformers model",
            type(model).__name__,
        )
    return [
        value
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Replacement)
    ]


class _MethodSearch:
    """Finds the methods of a model that rotate q and k or compute tables, and builds their
    replacements.
    """

    def __init__(self, model: nn.Module, backend: str | None) -> None:
        self.model, self.backend = model, backend
        #: {rotation function of the model: what replaces it}
        self.functions: dict[Callable, RotationFunction] = {}
        #: {(class, name of its method): the copy that all its instances share}
        self.redirected: dict[tuple[type, str], RedirectedMethod] = {}

    def replacements(self) -> list[Replacement]:
        """Return all replacements, none installed; refuses a model without rotations or with an
        unsupported one.
        """
        layers: dict[str, list[Replacement]] = {}  # by the path of a module, as `refused`
        refused: dict[str, RopeError] = {}
        rotary = []
        for path, module in self.model.named_modules():
            if isinstance(type(module).forward, FunctionType) and is_rotary(module):
                # it computes tables, and the functions that it calls rotate nothing: Qwen3-VL's
                # apply_interleaved_mrope, for example, merges angles
                rotary.append((path, module))
                continue
            try:
                layers[path] = list(self._layer_replacements(module))
            except RopeError as error:
                refused[path] = error
        layers = {path: of_module for path, of_module in layers.items() if of_module}
        conventions = [function.convention for function in self.functions.values()]
        for path, module in rotary:
            error = unequal_members(module, conventions)
            if error is not None:
                refused[path.rpartition(".")[0]] = error  # the layers beside it use its tables
        if refused:
            raise _with_hint(next(iter(refused.values())), list(layers), list(refused))
        if not layers:
            rule = (
                "must rotate q and k with a function such as apply_rotary_pos_emb; no module of "
                "this model calls one"
            )
            raise RopeError("model", rule, type(self.model).__name__)
        replacements = [replacement for of_module in layers.values() for replacement in of_module]
        for _, module in rotary:
            matches = matches_of(module, self.backend)
            if matches:
                replacements.append(RotaryReplacement(module, matches))
            for match in matches.values():
                for function in self.functions.values():
                    function.add_spec(match.rope.spec)
        for replacement in replacements:
            replacement.check()
            replacement.backend = self.backend
        return replacements

    def _layer_replacements(self, module: nn.Module) -> Iterator[Replacement]:
        """Yield the replacements of all methods of a module that rotate, or that call a function
        that does.
        """
        cls = type(module)
        if getattr(module, "position_embeddings_type", "rotary") != "rotary":
            return  # a layer of Wav2Vec2-Conformer that can rotate but was built not to
        for name, function in methods(cls):
            if isinstance(function, staticmethod):
                if ROTATION_NAME.match(name):
                    yield FunctionReplacement(
                        module, name, self._rotation_function(function.__func__, cls, name)
                    )
                continue
            rotations = rotations_called_by(function)
            if rotations:
                if (cls, name) not in self.redirected:
                    substitutes = {
                        each: self._rotation_function(target, cls, each)
                        for each, target in rotations.items()
                    }
                    self.redirected[cls, name] = RedirectedMethod(cls, name, substitutes)
                yield MethodReplacement(module, self.redirected[cls, name])
            elif ROTATION_NAME.match(name):
                yield FunctionReplacement(
                    module, name, self._rotation_method(module, name, function)
                )

    def _rotation_function(self, function: Callable, cls: type, name: str) -> RotationFunction:
        """Return the replacement of a rotation function that methods of `cls` call by `name`; each
        function is run on trial tensors only once.
        """
        if function not in self.functions:
            convention = convention_of(function)
            self.functions[function] = self._recognised(cls, function, convention, name)
        return self.functions[function]

    def _rotation_method(
        self, module: nn.Module, name: str, function: Callable
    ) -> RotationFunction:
        """Return the replacement of `function`, the method `name` of the module's class, which
        rotates tensors itself. It is run on trial tensors only once, with the heads and the head
        size of this module, because the method may support no other sizes.
        """
        if function not in self.functions:
            method = MethodType(function, module)
            heads = getattr(module, "num_heads", None)  # None: any number will do
            pairs = getattr(module, "head_size", 2 * PAIRS) // 2
            self.functions[function] = self._recognised(
                type(module), method, convention_of(method, heads, pairs), name
            )
        return self.functions[function]

    def _recognised(
        self, cls: type, function: Callable, convention: Convention | None, name: str
    ) -> RotationFunction:
        """Return the replacement of a function with this convention; raise an error that names the
        module class `cls` and the function, `name`, if the convention is None: none was found.
        """
        if convention is None:
            rule = (
                "calls a function that is no rotation this library supports, so the model is left "
                "unchanged"
            )
            raise RopeError(cls.__name__, rule, name)
        return RotationFunction(function, convention, self.backend)


def _with_hint(error: RopeError, layers: list[str], refused: list[str]) -> RopeError:
    """Return the error with the calls that patch the other parts of the model, as a hint.

    `layers` are the paths of the modules that could be patched, `refused` those of the others.
    """
    largest = dict.fromkeys(_largest_part(path, refused) for path in layers)
    parts = [part for part in largest if part is not None]
    if not parts:
        return error
    calls = ", ".join(f"patch(model{part})" for part in parts[:3])
    return RopeError(
        error.field, f"{error.rule}; to patch the other parts alone, call {calls}", error.value
    )


def _largest_part(path: str, refused: list[str]) -> str | None:
    """Return the largest module around `path` that neither holds a refused module nor is part of
    one.

    It is written as Python code after the model: .layers[0]. None: there is none.
    """
    names = path.split(".") if path else []  # the model itself holds every module
    for count in range(1, len(names) + 1):
        part = ".".join(names[:count])
        holds_refused = any(f"{other}.".startswith(f"{part}.") for other in refused)
        # "" is the whole model
        is_in_refused = any(other == "" or f"{part}.".startswith(f"{other}.") for other in refused)
        if not holds_refused and not is_in_refused:
            return re.sub(r"\.(\d+)", r"[\1]", f".{part}")
    return None
