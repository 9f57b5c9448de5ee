"""Copies of a model's methods that call other functions: the same code with some global names
replaced.

Only the instances of one model get such copies. The class, its Python module and all other models
are unchanged.

Words of this module:
  rotation         a function that rotates q and k; its name matches ROTATION_NAME
  substitutes      {global name of a rotation: the function to call in its place}
  dispatch dict    a global dict of functions that call a rotation; a method picks one of them
  accelerate hook  a forward that accelerate puts in place of the module's, which it keeps as
                   `_old_forward`
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from ropewalk.errors import RopeError

#: how transformers names the functions that rotate q and k
ROTATION_NAME = re.compile(r"^_?(vision_)?apply_\w*(rot|rope)")
#: where an accelerate hook keeps the original forward
HOOKED = "_old_forward"


def methods(cls: type) -> Iterator[tuple[str, FunctionType | staticmethod]]:
    """Yield the name and function of each method of a module class, without those of nn.Module."""
    seen = set()
    for base in cls.__mro__:
        if base is nn.Module:
            return
        for name, attribute in vars(base).items():
            if name not in seen and isinstance(attribute, FunctionType | staticmethod):
                yield name, attribute
            seen.add(name)


def rotations_called_by(function: FunctionType) -> dict[str, Callable]:
    """Return the rotation functions that a function calls by a global name, also through decorators
    and dispatch dicts.
    """
    rotations = {}
    for part in _reachable(function):
        for name in part.__code__.co_names:
            target = part.__globals__.get(name)
            if ROTATION_NAME.match(name) and callable(target):
                rotations[name] = target
    return rotations


def redirected(function: FunctionType, substitutes: Mapping[str, Callable]) -> FunctionType:
    """Return a copy of a function with the globals in `substitutes` replaced, also in functions it
    wraps or dispatches to.
    """
    replaced: dict[str, Any] = {
        name: value for name, value in substitutes.items() if name in function.__code__.co_names
    }
    for name, dispatch in _dispatch_dicts(function).items():
        entries = _rotating_entries(dispatch)
        replaced[name] = dispatch | {
            key: redirected(entry, substitutes) for key, entry in entries.items()
        }
    namespace = function.__globals__
    if replaced:
        # __name__ is dropped because dynamo would look the globals up in the module of that name
        # and find the old ones
        namespace = {
            name: value for name, value in {**namespace, **replaced}.items() if name != "__name__"
        }
    # a function that calls itself is in its own closure; its copy shall call the copy
    own = CellType()
    cells = tuple(
        own if _content(cell) is function else _redirected_cell(cell, substitutes)
        for cell in function.__closure__ or ()
    )
    copy = own.cell_contents = FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, cells or None
    )
    for name in ("__kwdefaults__", "__doc__", "__qualname__", "__module__", "__annotations__"):
        setattr(copy, name, getattr(function, name))
    wrapped = getattr(function, "__wrapped__", None)
    if isinstance(wrapped, FunctionType):
        copy.__wrapped__ = redirected(wrapped, substitutes)  # type: ignore[attr-defined]
    return copy


def _reachable(function: FunctionType) -> Iterator[FunctionType]:
    """Yield a function, the functions in its closure at any depth, and the rotating functions in
    its dispatch dicts.
    """
    yield function
    for cell in function.__closure__ or ():
        if isinstance(inner := _content(cell), FunctionType) and inner is not function:
            yield from _reachable(inner)
    for dispatch in _dispatch_dicts(function).values():
        yield from _rotating_entries(dispatch).values()


def _dispatch_dicts(function: FunctionType) -> dict[str, dict]:
    """Return {name: dict} of the global dicts from which a function takes a rotation, as ModernBERT
    does in transformers 4.
    """
    if _names_rotation(function):  # it calls the rotation itself
        return {}
    values = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {
        name: value
        for name, value in values.items()
        if type(value) is dict and _rotating_entries(value)
    }


def _rotating_entries(dispatch: dict) -> dict[Any, FunctionType]:
    """Return the entries of a dispatch dict whose functions call a rotation by name."""
    return {
        key: entry
        for key, entry in dispatch.items()
        if isinstance(entry, FunctionType) and _names_rotation(entry)
    }


def _names_rotation(function: FunctionType) -> bool:
    """Return whether the code of a function itself has the name of a rotation in it."""
    return any(map(ROTATION_NAME.match, function.__code__.co_names))


def _redirected_cell(cell: CellType, substitutes: Mapping[str, Callable]) -> CellType:
    """Return a closure cell whose function calls the substitutes; the cell itself if it calls no
    rotation.
    """
    inner = _content(cell)
    if isinstance(inner, FunctionType) and rotations_called_by(inner):
        return CellType(redirected(inner, substitutes))
    return cell


def _content(cell: CellType) -> Any:
    """Return what a closure cell holds, or None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


class RedirectedMethod:
    """A copy of one method with its rotations replaced; all layers share it, so torch.compile needs
    one graph for all.
    """

    def __init__(self, cls: type, name: str, substitutes: Mapping[str, Callable]) -> None:
        self.cls, self.name, self.substitutes = cls, name, dict(substitutes)
        self.function = redirected(inspect.getattr_static(cls, name), self.substitutes)

    def __reduce__(self):
        # pickle cannot find the copied function by name, so it is made again
        return type(self), (self.cls, self.name, self.substitutes)


class Replacement:
    """A replacement for one method of one module instance; `backend` is that of the patch which
    made it.
    """

    backend: str | None = None

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    def install(self) -> None:
        """Replace the method on this instance; an accelerate hook stays around it."""
        setattr(self.module, self._slot(), self)

    def remove(self) -> None:
        """Restore the class's method, also if an accelerate hook was added or removed since
        `install`.
        """
        if vars(self.module).get(self.name) is self:
            delattr(self.module, self.name)
        if vars(self.module).get(HOOKED) is self:
            # the accelerate hook stays and calls what is in this attribute
            setattr(
                self.module,
                HOOKED,
                MethodType(inspect.getattr_static(type(self.module), self.name), self.module),
            )

    def check(self) -> None:
        """Refuse a method that other code has already replaced on this instance."""
        # None, or the method of the class, which accelerate keeps there, is no replacement
        current = vars(self.module).get(self._slot())
        if current is not None and getattr(current, "__func__", None) is not inspect.getattr_static(
            type(self.module), self.name
        ):
            rule = (
                f"must have the {self.name} of its class: other code replaced it on this instance; "
                "undo that before patching"
            )
            raise RopeError(type(self.module).__name__, rule, current)

    def _slot(self) -> str:
        """Return the attribute of the instance to set: the method's name, or where an accelerate
        hook keeps the forward.
        """
        return HOOKED if self.name == "forward" and HOOKED in vars(self.module) else self.name


class MethodReplacement(Replacement):
    """A redirected method bound to its module."""

    def __init__(self, module: nn.Module, method: RedirectedMethod) -> None:
        super().__init__(module, method.name)
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method.function(self.module, *args, **kwargs)


class FunctionReplacement(Replacement):
    """A replacement for a method that rotates tensors itself; `function` rotates by the convention
    that was found for the method, so it does not take the module.
    """

    def __init__(self, module: nn.Module, name: str, function: Callable) -> None:
        super().__init__(module, name)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
