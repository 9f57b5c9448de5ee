"""Load the native library (_cpu.so) and select its thread pool and instruction set.

`handle` is the loaded library, or None; ISA is short for instruction set.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from ropewalk.errors import choice

#: must equal ABI in cpu.c
ABI = 3

_PATH = Path(__file__).with_name("_cpu.so")
_REBUILD = (
    "install a C compiler (gcc or clang), then: pip install --force-reinstall --no-cache-dir "
    "--no-binary ropewalk ropewalk"
)


def _load() -> tuple[ctypes.CDLL | None, str]:
    """Return (library, ""), or (None, the reason why there is none)."""
    if not _PATH.exists():
        return None, f"the native library was not built when ropewalk was installed; {_REBUILD}"
    try:
        library = ctypes.CDLL(str(_PATH))
        if library.ropewalk_abi() != ABI:
            return None, f"the native library was built for another version of ropewalk; {_REBUILD}"
    except (OSError, AttributeError) as error:
        return None, f"the native library does not load ({error}); {_REBUILD}"
    library.ropewalk_isa.restype = ctypes.c_char_p
    for name in ("ropewalk_rotate", "ropewalk_attend"):
        if hasattr(library, name):  # attention is for some machines only
            # the one argument: the bytes of all values and pointers, packed
            getattr(library, name).argtypes = [ctypes.c_char_p]
    return library, ""


#: torch's thread pools by name, best first: the function of our library that selects the pool, and
#: the symbols of torch that it needs.
#: Linking OpenMP instead could load a second OpenMP runtime into the process.
POOLS = {
    "torch": ("ropewalk_use_torch", ("torch_parallel_for",)),
    "openmp": (
        "ropewalk_use_openmp",
        ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads"),
    ),
}


def join_pool(*names: str) -> str:
    """Select the first of the named thread pools that this torch has, and return its name; "serial"
    if it has none. The library must be loaded.
    """
    library: ctypes.CDLL = handle  # type: ignore[assignment]
    library.ropewalk_serial()  # no pool, unless one is found below
    try:
        torch_library = ctypes.CDLL(
            str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")))
        )
    except (OSError, StopIteration):
        return "serial"
    for name in names:
        setter, symbols = POOLS[name]
        if all(hasattr(torch_library, symbol) for symbol in symbols):
            # our library calls these functions of torch
            getattr(library, setter)(*(getattr(torch_library, symbol) for symbol in symbols))
            return name
    return "serial"


def isas() -> dict[str, int]:
    """Return the instruction sets that this machine can run, widest first, with their indices in
    the library.
    """
    # the library returns an empty name for an instruction set that the machine lacks, and None
    # after the last
    names = []
    while handle is not None and (name := handle.ropewalk_isa(len(names))) is not None:
        names.append(name.decode())
    return {name: index for index, name in enumerate(names) if name}


def choose_isa(name: str | None = None) -> str:
    """Select an instruction set for the whole process, the widest if `name` is None, and return its
    name. The library must be loaded.
    """
    indices = isas()
    # an error is reported for the environment variable by which users choose
    name = choice("ROPEWALK_ISA", name, indices) if name else next(iter(indices))
    handle.ropewalk_choose_isa(indices[name])  # type: ignore[union-attr]
    return name


#: the loaded library and "", or None and the reason why it is missing
handle, missing = _load()
if handle is not None:
    join_pool(*POOLS)
    choose_isa(os.environ.get("ROPEWALK_ISA"))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=handle.ropewalk_serial)
