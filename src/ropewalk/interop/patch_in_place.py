"""When a rotation may overwrite q and k instead of making new ones: when nobody could tell the difference.

Two things must hold. The method forgets the old tensors, which its code shows: `q, k = apply_rotary_pos_emb(q, k, cos, sin)`.
And nobody else remembers them, which the counts of references show at each call: no other name, no hook that kept the
output of a projection, no view of the same memory, no caller.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.tokens import check_own_memory

_functorch_depth = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]  # missing from the stubs
_modes = torch._C._len_torch_dispatch_stack
#: numbers in q below which two new tensors cost less than the question who knows the old ones
SMALL = 2**20
#: how many tensors lie in a memory; a build of torch that does not tell never turns in place
_sharers = getattr(torch._C, "_storage_Use_Count", None)


def rebinds(code: CodeType, name: str) -> bool:
    """Whether code uses the global `name` only as in `q, k = name(q, k, a, b)`, for a q and a k of its own making.

    Read in the bytecode, which is what runs. A form that is not known, as of a newer python, counts as no.
    """
    steps, given = list(_steps(code)), inspect.getargs(code).args
    uses = [at for at, (_, operand) in enumerate(steps) if operand == name]
    inner = any(name in each.co_names for each in _inner(code))
    return bool(uses) and not inner and all(_forgets(steps[at + 1 : at + 9], given) for at in uses)


def _steps(code: CodeType) -> Iterator[tuple[str, Any]]:
    """(verb, operand), one local name at a time: newer pythons load and store two at once."""
    for step in dis.get_instructions(code):
        verbs = re.findall("(LOAD|STORE)_FAST", step.opname)
        if verbs:
            yield from zip(verbs, step.argval if isinstance(step.argval, tuple) else [step.argval], strict=False)
        elif step.opname not in ("PRECALL", "PUSH_NULL", "EXTENDED_ARG"):
            yield step.opname, step.argval


def _forgets(steps: list[tuple[str, Any]], given: list[str]) -> bool:
    match steps:
        case [("LOAD", q), ("LOAD", k), ("LOAD", _), ("LOAD", _), ("CALL", 4), ("UNPACK_SEQUENCE", 2), *stores]:
            return stores == [("STORE", q), ("STORE", k)] and q != k and q not in given and k not in given
    return False


def _inner(code: CodeType) -> Iterator[CodeType]:
    """The code of functions that are defined inside."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inner(each)


def unseen(args: tuple[Any, ...]) -> bool:
    """Whether the first two arguments of a turner's call, plain tensors, are known to its caller's two names alone."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or _sharers is None:
        return False
    if type(args[0]) is not Tensor or type(args[1]) is not Tensor or args[0].numel() < SMALL:
        return False
    if _functorch_depth() is not None or _modes():
        return False
    if _holders(args, 0) not in _ALONE or _holders(args, 1) not in _ALONE:
        return False
    try:
        check_own_memory(args[:2], addresses=False)  # they share none, says the count
    except RopeError:
        return False  # such as heads expanded from one
    return True


def _holders(args: tuple[Any, ...], index: int) -> tuple[int, ...]:
    """References to a tensor, to its memory and to the tensor it is a view of, those of the call itself included."""
    x = args[index]
    base, memory = x._base, x.untyped_storage()
    # what C++ holds, python counts in some versions of torch only
    counts = sys.getrefcount(x), x._use_count(), _sharers(memory._cdata)  # type: ignore[misc]  # asked before
    return counts if base is None else (*counts, sys.getrefcount(base), base._use_count())


class _Count:
    """Called as a turner is, counts as a turner does."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _holders(args, 0), _holders(args, 1)


@torch.inference_mode(False)
@torch.no_grad()
def _alone() -> tuple[tuple[int, ...], ...]:
    """What is counted for a tensor that nobody else knows, and for a view of one: python and torch differ by version."""
    count = _Count()
    q, k, cos, sin = torch.empty(6, device="cpu"), torch.empty(6, device="cpu").view(2, 3), None, None
    q, k = count(q, k, cos, sin)
    return q, k


_ALONE = () if _sharers is None else _alone()
