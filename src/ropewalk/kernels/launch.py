"""LaunchPlan: launch a Triton kernel once, then start the compiled kernel with new pointers. Importing this imports Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton

try:
    from triton import knobs
except ImportError:  # Triton 3.2, which comes with torch 2.6
    knobs = None

#: versions whose C launcher takes its arguments in the order that `_keep` uses
KNOWN_VERSIONS = ("3.6.",)
#: what `_keep` reads from a compiled kernel, and from its launcher
KERNEL_ATTRIBUTES = ("run", "function", "packed_metadata")
LAUNCHER_ATTRIBUTES = ("launch", "launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size")

Grid = tuple[int, int, int]


def launch_hooks() -> Any:
    """Return Triton's chain of launch hooks, which profilers use, or None if this Triton has none."""
    return getattr(getattr(knobs, "runtime", None), "launch_enter_hook", None)


class LaunchPlan:
    """A kernel with every argument and option that stays the same from call to call.

    `launch` is Triton's ordinary launch, which compiles at the first call. `start` runs the compiled kernel without binding,
    hashing and checking the arguments again; it may be called while `can_start` is true.
    """

    def __init__(self, kernel: Any, values: dict[str, Any], changing: int, device: torch.device, warps: int) -> None:
        """`values` has every argument after the first `changing` ones by name; PDL is an argument of every kernel."""
        self.kernel = kernel
        self.constants = tuple(values[name] for name in kernel.arg_names[changing:])
        self.options = {"num_warps": warps, **({"launch_pdl": True} if values["PDL"] else {})}
        self.device_index = device.index
        #: the C launcher, or None until the kernel is compiled and where this Triton's launcher is not known
        self.launcher: Callable[..., None] | None = None
        #: the arguments of the C launcher between the stream and the kernel's own
        self.launcher_arguments: tuple = ()

    @property
    def can_start(self) -> bool:
        """Whether the kernel is compiled, its launcher is known and no launch hook is set."""
        return self.launcher is not None and not knobs.runtime.launch_enter_hook.calls  # type: ignore[union-attr]

    def launch(self, grid: Grid, arguments: Sequence[Any]) -> None:
        """Launch by Triton's own API; `arguments` are tensors, numbers and None, the first one a tensor."""
        with torch.cuda.device_of(arguments[0]):
            compiled = self.kernel[grid](*arguments, *self.constants, **self.options)
        self._keep(compiled)

    def start(self, grid: Grid, arguments: Sequence[Any]) -> None:
        """Start the compiled kernel; `arguments` are those of `launch`, with pointers instead of tensors."""
        if torch._C._cuda_getDevice() != self.device_index:
            with torch.cuda.device(self.device_index):
                return self.start(grid, arguments)
        stream = torch._C._cuda_getCurrentRawStream(self.device_index)
        self.launcher(*grid, stream, *self.launcher_arguments, *arguments, *self.constants)  # type: ignore[misc]  # see can_start

    def _keep(self, compiled: Any) -> None:
        """Keep the launcher of a compiled kernel if it is one we know; the interpreter's result is None."""
        if not triton.__version__.startswith(KNOWN_VERSIONS) or not hasattr(launch_hooks(), "calls"):
            return
        if not all(hasattr(compiled, name) for name in KERNEL_ATTRIBUTES):
            return
        launcher, no_hooks = compiled.run, (None, None, None)
        if not all(hasattr(launcher, name) for name in LAUNCHER_ATTRIBUTES):
            return
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            # this kernel needs scratch memory at every launch, which Triton's Python launcher allocates
            self.launcher_arguments = (compiled.function, compiled.packed_metadata, *no_hooks)
            self.launcher = launcher
            return
        flags = (launcher.launch_cooperative_grid, launcher.launch_pdl)
        self.launcher_arguments = (compiled.function, *flags, None, None, compiled.packed_metadata, *no_hooks)
        self.launcher = launcher.launch
