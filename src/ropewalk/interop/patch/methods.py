"""Methods that call other functions: a copy of a method whose code is the same and whose global names are ours.

Only the instances of one model get such copies. The class, its module and every other model stay as they are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from ropewalk.errors import RopeError

#: how transformers names the functions that turn q and k
ROTATION_NAME = re.compile(r"^_?(vision_)?apply_\w*(rot|rope)")
#: where a hook of accelerate keeps the method it stands before
HOOKED = "_old_forward"


def methods(kind: type) -> Iterator[tuple[str, FunctionType | staticmethod]]:
    """The functions a module class defines or inherits, below nn.Module."""
    seen = set()
    for owner in kind.__mro__:
        if owner is nn.Module:
            return
        for name, found in vars(owner).items():
            if name not in seen and isinstance(found, FunctionType | staticmethod):
                yield name, found
            seen.add(name)


def called_rotations(function: FunctionType) -> dict[str, Callable]:
    """The rotations that a function, one it wraps or one it picks from a table, calls by a global name."""
    found = {}
    for part in layers(function):
        for name in part.__code__.co_names:
            target = part.__globals__.get(name)
            if ROTATION_NAME.match(name) and callable(target):
                found[name] = target
    return found


def redirected(function: FunctionType, instead: Mapping[str, Callable]) -> FunctionType:
    """The same code seeing `instead` among its globals; so do the functions it wraps and those in its tables."""
    own: dict[str, Any] = {name: value for name, value in instead.items() if name in function.__code__.co_names}
    for name, table in _tables(function).items():
        own[name] = {**table, **{key: redirected(each, instead) for key, each in _turning(table).items()}}
    space = function.__globals__
    if own:
        # without a __name__: a compiler would look the names up in the module of that name, and find the old ones
        space = {name: value for name, value in {**space, **own}.items() if name != "__name__"}
    cells = tuple(_redirected_cell(cell, instead) for cell in function.__closure__ or ())
    copy = FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells or None)
    copy.__kwdefaults__, copy.__doc__, copy.__qualname__ = function.__kwdefaults__, function.__doc__, function.__qualname__
    copy.__module__, copy.__annotations__ = function.__module__, function.__annotations__
    if isinstance(inner := getattr(function, "__wrapped__", None), FunctionType):
        copy.__wrapped__ = redirected(inner, instead) if called_rotations(inner) else inner  # type: ignore[attr-defined]
    return copy


def layers(function: FunctionType) -> Iterator[FunctionType]:
    """A function, those it holds in its closure if it is decorated, at any depth, and those in its tables that turn."""
    yield from _wrapped(function)
    for table in _tables(function).values():
        yield from _turning(table).values()


def _wrapped(function: FunctionType) -> Iterator[FunctionType]:
    yield function
    for cell in function.__closure__ or ():
        if isinstance(inner := _content(cell), FunctionType) and inner is not function:
            yield from layers(inner)


def _tables(function: FunctionType) -> dict[str, dict]:
    """Where a function picks one that turns from a dict it knows by a global name, as ModernBERT's do in transformers 4."""
    if _names_rotation(function):
        return {}
    known = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {name: table for name, table in known.items() if type(table) is dict and _turning(table)}


def _turning(table: dict) -> dict[Any, FunctionType]:
    return {key: each for key, each in table.items() if isinstance(each, FunctionType) and _names_rotation(each)}


def _names_rotation(function: FunctionType) -> bool:
    return any(map(ROTATION_NAME.match, function.__code__.co_names))


def _redirected_cell(cell: CellType, instead: Mapping[str, Callable]) -> CellType:
    inner = _content(cell)
    if isinstance(inner, FunctionType) and called_rotations(inner):
        return CellType(redirected(inner, instead))
    return cell


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


class Redirection:
    """One method of one class with its rotations replaced; all layers of a model share it, and with it one compiled graph."""

    def __init__(self, kind: type, name: str, instead: Mapping[str, Callable]) -> None:
        self.kind, self.name, self.instead = kind, name, dict(instead)
        self.function = redirected(inspect.getattr_static(kind, name), self.instead)

    def __reduce__(self):
        # the copy has no name to pickle it by; it is made again
        return type(self), (self.kind, self.name, self.instead)


class Stand:
    """What stands in for a method of one module: put in its place, and taken away again without a trace."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    def place(self) -> None:
        """Take the method's place on this instance, behind a hook of accelerate if there is one."""
        setattr(self.module, self._slot(), self)

    def leave(self) -> None:
        """Give the place back to the class's own method, wherever hooks have moved this stand since."""
        for slot in (self.name, HOOKED):
            if vars(self.module).get(slot) is self:
                if slot == HOOKED:
                    setattr(self.module, slot, MethodType(inspect.getattr_static(type(self.module), self.name), self.module))
                else:
                    delattr(self.module, slot)

    def check(self) -> None:
        """Refuse a method that somebody else has already replaced on this instance."""
        found = vars(self.module).get(self._slot())
        if found is not None and getattr(found, "__func__", None) is not inspect.getattr_static(type(self.module), self.name):
            rule = f"has a {self.name} of its own on this instance, put there by other code; take it away before patching"
            raise RopeError(type(self.module).__name__, rule, found)

    def _slot(self) -> str:
        return HOOKED if self.name == "forward" and HOOKED in vars(self.module) else self.name


class StandingMethod(Stand):
    """A redirected method, bound to its module."""

    def __init__(self, module: nn.Module, redirection: Redirection) -> None:
        super().__init__(module, redirection.name)
        self.redirection = redirection

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.redirection.function(self.module, *args, **kwargs)


class StandingFunction(Stand):
    """A static method's replacement."""

    def __init__(self, module: nn.Module, name: str, function: Callable) -> None:
        super().__init__(module, name)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
