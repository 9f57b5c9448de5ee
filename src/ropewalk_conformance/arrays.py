"""Arrays of any library to lists of floats and back, without importing one that is not used."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import types
from collections.abc import Callable
from typing import Any

from ropewalk.errors import RopeError

#: libraries whose arrays a project's function may take, in the order in which they are looked for;
#: "list": nested lists of numbers
LIBRARIES = ("torch", "jax", "mlx", "numpy", "list")
#: the spacing of a type's numbers just above 1; a rounding is off by less, in any rounding mode
ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


def library_of(function: Callable[..., Any]) -> str:
    """Return the name of the array library that a function's module imports, the first in LIBRARIES
    if there are several; "list" if it imports none.
    """
    inside = inspect.unwrap(getattr(function, "__func__", function))  # of a method, its function
    inside = getattr(inside, "func", inside)  # functools.partial
    if not hasattr(inside, "__globals__"):
        inside = type(inside).__call__  # an object that can be called
    known = getattr(inside, "__globals__", {}).values()
    # "jax.numpy" and "mlx.core" count as their packages
    names = {value.__name__.split(".")[0] for value in known if isinstance(value, types.ModuleType)}
    return next((name for name in LIBRARIES if name in names), "list")


def maker(library: str) -> Callable[[Any, str], Any]:
    """Return a function that makes an array of a library from nested lists and the name of a type;
    for "list" it returns the lists.
    """
    if library == "list":
        return lambda values, dtype: values
    name = {"jax": "jax.numpy", "mlx": "mlx.core"}.get(library, library)
    if library not in LIBRARIES or importlib.util.find_spec(library) is None:
        rule = f"must be one of {', '.join(LIBRARIES)}, and installed here"
        raise RopeError("arrays", rule, library)
    module = importlib.import_module(name)
    make = module.tensor if library == "torch" else module.array

    def made(values: Any, dtype: str) -> Any:
        # numpy has no bfloat16; JAX has no 64 bits by default, and raises an error for an integer
        # that 32 bits cannot hold
        dtype = {("numpy", "bfloat16"): "float16", ("jax", "int64"): "int32"}.get(
            (library, dtype), dtype
        )
        return make(values, dtype=getattr(module, dtype))

    return made


def dtype_of(value: Any) -> str:
    """Return "bfloat16" or "float16" if an array, or one in a tuple, has this type, else "float32"
    for all finer types; bfloat16 comes first.
    """
    if isinstance(value, tuple | list):
        kinds = [dtype_of(each) for each in value if not isinstance(each, int | float)]
        return next((kind for kind in ROUNDING if kind in kinds), "float32")
    name = str(getattr(value, "dtype", "float32"))
    return next((kind for kind in ROUNDING if kind in name), "float32")


def to_lists(value: Any) -> Any:
    """Return an array, or arrays inside tuples and lists, as nested lists of plain numbers."""
    if isinstance(value, tuple | list):
        return [to_lists(each) for each in value]
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if hasattr(value, "resolve_conj"):  # torch keeps a conjugate as a mark on the tensor
            value = value.resolve_conj()
    if hasattr(value, "tolist"):
        # it may hold scalars of numpy's added types, such as bfloat16
        found = value.tolist()
        return to_lists(found) if isinstance(found, list) else found
    if isinstance(value, bool | int | float | complex):
        return value
    if hasattr(value, "__array__"):
        return to_lists(value.__array__())
    try:
        return float(value)  # scalars of numpy's added types
    except (TypeError, ValueError):
        rule = "must be arrays, lists or numbers"
        raise RopeError("the function's result", rule, type(value).__name__) from None


def flat(values: Any) -> list[float]:
    """Return the numbers of nested lists in order."""
    if not isinstance(values, list):
        return [float(values)]
    return [number for each in values for number in flat(each)]


def rows(values: Any) -> list[list[Any]]:
    """Return the innermost lists of nested lists in order."""
    if not isinstance(values, list):
        return [[values]]
    if not values or not isinstance(values[0], list):
        return [values]
    return [row for each in values for row in rows(each)]
