"""`ropewalk conformance`: test a project's rope with the vectors, and say what differs."""

from __future__ import annotations

import importlib
import importlib.util
import json as json_format
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from ropewalk.errors import RopeError
from ropewalk_cli.commands import Json
from ropewalk_cli.declare import Option
from ropewalk_cli.output import say, table

Arrays = Literal["torch", "jax", "mlx", "numpy", "list"]
Dtype = Literal["float32", "float64", "float16", "bfloat16"]


def conformance(
    module: Annotated[
        str | None,
        Option(
            "A module or file with some of the functions of the groups, such as inv_freq(config) "
            "or rotate(config, q, k, positions); without it the groups are listed."
        ),
    ] = None,
    group: Annotated[list[str] | None, Option("A group to run; by default all.")] = None,
    arrays: Annotated[
        Arrays | None,
        Option("The library of the arrays that are passed in; by default what the module imports."),
    ] = None,
    dtype: Annotated[
        Dtype, Option("The type of q, k, v, cached keys and weights that are passed in.")
    ] = "float32",
    json: Json = False,
) -> None:
    """Test a project's rope with vectors of exact numbers, and say in words what differs.

    Exit status: 0 nothing differs, 1 a result differs, a function raised an error or no result was
    the same, 2 refused. Groups of the level "optional" count only if --group names them.
    """
    from ropewalk_conformance import run

    if module is None:
        _list_groups(json)
        return
    report = run(_imported(module), groups=group or None, arrays=arrays, dtype=dtype)
    if json:
        print(json_format.dumps(report.as_dict(), indent=2, default=str))
    else:
        first, *rest = str(report).split("\n")
        say(first, style="bold")
        say(*rest)
    if not report.passed:
        raise SystemExit(1)


def _list_groups(json: bool) -> None:
    """Print every group with its functions and what it tests; as JSON also why it exists."""
    from ropewalk_conformance import groups, load
    from ropewalk_conformance.vectors import index

    loaded = [load(name) for name in groups()]
    if json:
        keys = ("group", "title", "level", "functions", "why", "bugs")
        rows = [{key: each[key] for key in keys} for each in loaded]
        print(json_format.dumps(index() | {"groups": rows}, indent=2))
        return
    title = f"Vectors {index()['version']} of {index()['date']}"
    rows = [
        (each["group"], str(len(each["cases"])), ", ".join(each["functions"]), each["title"])
        for each in loaded
    ]
    table(title, ("group", "cases", "functions", "what it tests"), rows)


def _imported(name: str) -> Any:
    """Return a module, given by the path of its .py file or by a name that Python finds, also in the
    current folder.
    """
    path = Path(name)
    try:
        if path.suffix == ".py":
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.exists():
                raise ImportError("no such file")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return importlib.import_module(name)
    except Exception as error:
        rule = f"must be importable ({type(error).__name__}: {error})"
        raise RopeError("module", rule, name) from None
