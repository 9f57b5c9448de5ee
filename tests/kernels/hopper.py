"""Compile a Triton kernel without a GPU, for sm_90 by default, specialised as a launch would; read
its machine code.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any


def compile_for_hopper(
    kernel: Any, arguments: dict[str, Any], options: dict[str, Any], capability: int = 90
) -> Any:
    """Return the kernel compiled for one call's arguments, given by name; for another GPU with
    another `capability`.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    bound, specialised, found = create_function_from_signature(
        kernel.signature, kernel.params, backend
    )(**arguments, **options, debug=False)
    found, signature, constants, attributes = kernel._pack_args(
        backend, dict(options), bound, specialised, found
    )
    return triton.compile(
        ASTSource(kernel, signature, constants, attributes), target=target, options=found.__dict__
    )


class CompileInstead:
    """Takes the place of a kernel: a launch compiles it for the launch's arguments instead, and
    appends (name, compiled) to `built`.
    """

    def __init__(
        self, kernel: Any, built: list[tuple[str, Any]], capability: int = 90, **changed: Any
    ) -> None:
        self.kernel, self.built, self.capability, self.changed = kernel, built, capability, changed

    def __getitem__(self, grid: Any) -> CompileInstead:
        return self

    def __call__(
        self, *arguments: Any, num_warps: int = 4, num_stages: int = 3, **constants: Any
    ) -> None:
        constants.pop("launch_pdl", None)  # of the launch alone
        given = dict(zip(self.kernel.arg_names, arguments, strict=False)) | constants | self.changed
        options = {"num_warps": num_warps, "num_stages": num_stages}
        self.built.append(
            (
                self.kernel.fn.__name__,
                compile_for_hopper(self.kernel, given, options, self.capability),
            )
        )


def machine_code(built: Any, folder: Path, *what: str) -> str:
    """Return the output of cuobjdump for a compiled kernel."""
    import triton

    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(built.asm["cubin"])
    return subprocess.run([reader, *what, cubin], capture_output=True, text=True, check=True).stdout


def registers_and_spills(built: Any, folder: Path) -> tuple[int, int]:
    """Return (registers of a thread, bytes of registers that are spilled to memory)."""
    used = machine_code(built, folder, "--dump-resource-usage")
    registers, stack, local = map(
        int, re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", used).groups()
    )
    return registers, stack + local
