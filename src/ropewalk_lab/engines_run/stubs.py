"""Empty modules in the place of packages that an engine imports and a rotary module does not need."""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class Anything(type):
    """The metaclass of classes that have every attribute, may be called and subclassed."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # Python asks for these to learn what a class can do
            raise AttributeError(name)
        return make(name)


def make(name: str) -> Any:
    """Return a class with this name; it can be called with any arguments, and so can its objects,
    which then return None.
    """
    return Anything(
        name,
        (),
        {
            "__init__": lambda self, *args, **named: None,
            "__call__": lambda self, *args, **named: None,
        },
    )


class _Module(types.ModuleType):
    """A module that has every attribute: each is a class from `make`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for these to learn what a module has
            raise AttributeError(name)
        return make(name)


def module(name: str) -> types.ModuleType:
    """Return an empty module that is a package too."""
    made = _Module(name)
    made.__path__ = []
    return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and makes an empty module for every import of a package in `names`, or of a module in
    it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec that makes an empty module, or None for other packages."""
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(*names: str) -> None:
    """Answer imports of these packages with empty modules where they are not installed.

    transformers checks once which packages are installed, and remembers it. These checks run before
    the empty modules are there, so that it does not try to use them.
    """
    from transformers.utils import import_utils

    for name in dir(import_utils):
        if name.startswith("is_") and name.endswith("_available"):
            with contextlib.suppress(Exception):
                getattr(import_utils, name)()
    answer(*names)


def answer(*names: str) -> None:
    """Answer imports of these packages with empty modules where they are not installed."""
    # the last finder is asked only if no other one found the package
    sys.meta_path.append(_Finder(names))
