"""LaunchPlan: launches a Triton kernel once, then starts the compiled kernel directly if this
version of Triton is known. Importing this imports Triton.

Words of this module:
  launcher        the object by which Triton starts a compiled kernel: Python above a C function
  constants       the arguments that are the same in every launch; they follow the changing ones
  launch hook     a function that Triton calls before (enter hook) or after (exit hook) every
                  launch, for profilers
  scratch memory  memory that some compiled kernels need at every launch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton

try:
    from triton import knobs
except ImportError:  # Triton 3.2, which comes with torch 2.6
    knobs = None

#: Triton versions whose C launcher takes its arguments in the order that `_save_launcher` uses
KNOWN_VERSIONS = ("3.6.",)
#: attributes that `_save_launcher` reads from a compiled kernel and from its launcher
KERNEL_ATTRIBUTES = ("run", "function", "packed_metadata")
LAUNCHER_ATTRIBUTES = (
    "launch",
    "launch_cooperative_grid",
    "launch_pdl",
    "global_scratch_size",
    "profile_scratch_size",
)

Grid = tuple[int, int, int]


def launch_hooks() -> Any:
    """Return Triton's chain of enter hooks, or None if this Triton has no such chain."""
    return getattr(getattr(knobs, "runtime", None), "launch_enter_hook", None)


class LaunchPlan:
    """A kernel with the arguments and options that are the same in every call.

    `launch` is Triton's ordinary launch, which compiles at the first call. `start` runs the
    compiled kernel and skips Triton's argument binding, hashing and checks; call it only if
    `can_start` is true.
    """

    def __init__(
        self, kernel: Any, values: dict[str, Any], changing: int, device: torch.device, warps: int
    ) -> None:
        """Make the plan of a kernel whose first `changing` arguments differ from launch to launch.

        `values` holds the other arguments by name. One of them is PDL: start before the previous
        kernel ends (programmatic dependent launch).
        """
        self.kernel = kernel
        self.constants = tuple(values[name] for name in kernel.arg_names[changing:])
        self.options = (
            {"num_warps": warps, "launch_pdl": True} if values["PDL"] else {"num_warps": warps}
        )
        self.device_index = device.index
        #: Triton's launcher; None before the kernel is compiled, or if this Triton version is not
        #: supported
        self.launcher: Callable[..., None] | None = None
        #: the launcher's arguments between the stream and the kernel arguments
        self.launcher_arguments: tuple = ()

    @property
    def can_start(self) -> bool:
        """Whether `start` may be called: the kernel is compiled, its launcher was saved, and no
        enter hook is set. `start` calls no launch hooks. Profilers such as Proton set an exit hook
        together with an enter hook, so only the enter hook is checked.
        """
        return self.launcher is not None and not knobs.runtime.launch_enter_hook.calls  # type: ignore[union-attr]

    def launch(self, grid: Grid, arguments: Sequence[Any]) -> None:
        """Launch through Triton's API; `arguments` are tensors, numbers or None, and the first is a
        tensor.
        """
        with torch.cuda.device_of(arguments[0]):
            compiled = self.kernel[grid](*arguments, *self.constants, **self.options)
        self._save_launcher(compiled)

    def start(self, grid: Grid, arguments: Sequence[Any]) -> None:
        """Start the compiled kernel; takes the arguments of `launch` with pointers instead of
        tensors.
        """
        if torch._C._cuda_getDevice() != self.device_index:  # a kernel is loaded on one device only
            with torch.cuda.device(self.device_index):
                return self.start(grid, arguments)
        stream = torch._C._cuda_getCurrentRawStream(self.device_index)
        # `can_start` was true, so there is a launcher
        self.launcher(*grid, stream, *self.launcher_arguments, *arguments, *self.constants)  # type: ignore[misc]

    def _save_launcher(self, compiled: Any) -> None:
        """Save the launcher of `compiled` if this Triton version is supported; under the
        interpreter `compiled` is None.
        """
        # `can_start` reads `calls`, the list of the hooks in Triton's chain
        if not triton.__version__.startswith(KNOWN_VERSIONS) or not hasattr(
            launch_hooks(), "calls"
        ):
            return
        if not all(hasattr(compiled, name) for name in KERNEL_ATTRIBUTES):
            return
        # no launch metadata, no enter hook, no exit hook; no global and no profile scratch memory
        launcher, no_hooks, no_scratch = compiled.run, (None, None, None), (None, None)
        if not all(hasattr(launcher, name) for name in LAUNCHER_ATTRIBUTES):
            return
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            # this kernel needs scratch memory at every launch, which Triton's Python launcher
            # allocates; that launcher passes the flags and the scratch memory itself
            self.launcher_arguments = (compiled.function, compiled.packed_metadata, *no_hooks)
            self.launcher = launcher
            return
        # without scratch memory the C function below the Python launcher is called directly
        flags = (launcher.launch_cooperative_grid, launcher.launch_pdl)
        self.launcher_arguments = (
            compiled.function,
            *flags,
            *no_scratch,
            compiled.packed_metadata,
            *no_hooks,
        )
        self.launcher = launcher.launch
