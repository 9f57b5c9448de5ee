"""A compiled kernel is started directly only if Triton has everything that this needs; otherwise
Triton's ordinary launch is used.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton has no build for this platform")
from ropewalk.kernels import launch_plan as launch


class Kernel:
    """What triton.jit returns: launched with a grid, it returns the compiled kernel."""

    arg_names = ("x", "offset", "SIZE", "PDL")

    def __init__(self, compiled):
        self.compiled, self.launched = compiled, []

    def __getitem__(self, grid):
        def launched(*arguments, **options):
            self.launched.append((grid, arguments, options))
            return self.compiled

        return launched


def compiled_kernel(**changes):
    """A compiled kernel and its launcher with the attributes of Triton 3.6; `changes` replace some,
    None removes one.
    """
    launcher = {
        "launch_cooperative_grid": False,
        "launch_pdl": True,
        "global_scratch_size": 0,
        "profile_scratch_size": 0,
    }
    launcher = {"launch": lambda *arguments: None, **launcher, **changes}
    launcher = {name: value for name, value in launcher.items() if value is not None}
    return SimpleNamespace(function=11, packed_metadata=12, run=SimpleNamespace(**launcher))


def launched_plan(compiled) -> launch.LaunchPlan:
    plan = launch.LaunchPlan(
        Kernel(compiled), {"SIZE": 8, "PDL": True}, 2, torch.device("cpu"), warps=4
    )
    x = torch.zeros(1)
    plan.launch((2, 1, 1), (x, 5))
    assert plan.kernel.launched == [
        ((2, 1, 1), (x, 5, 8, True), {"num_warps": 4, "launch_pdl": True})
    ]
    return plan


@pytest.fixture(autouse=True)
def known_triton(monkeypatch):
    """Triton 3.6 with no hooks, whatever is installed."""
    hooks = SimpleNamespace(calls=[])
    monkeypatch.setattr(launch.triton, "__version__", "3.6.1")
    monkeypatch.setattr(
        launch, "knobs", SimpleNamespace(runtime=SimpleNamespace(launch_enter_hook=hooks))
    )
    return hooks.calls


def test_a_kernel_that_was_launched_once_is_started_with_new_pointers(monkeypatch):
    started = []
    plan = launched_plan(compiled_kernel(launch=lambda *arguments: started.append(arguments)))
    assert plan.can_start
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77, raising=False)
    plan.start((3, 1, 1), (1234, 6))
    assert started == [
        (3, 1, 1, 77, 11, False, True, None, None, 12, None, None, None, 1234, 6, 8, True)
    ]


def test_a_kernel_with_scratch_memory_is_started_by_the_launcher_that_allocates_it():
    compiled = compiled_kernel(global_scratch_size=64)
    plan = launched_plan(compiled)
    assert plan.launcher is compiled.run
    assert plan.launcher_arguments == (11, 12, None, None, None)


@pytest.mark.parametrize("missing", launch.LAUNCHER_ATTRIBUTES)
def test_a_launcher_without_one_of_the_attributes_is_not_used(missing):
    assert not launched_plan(compiled_kernel(**{missing: None})).can_start


def test_a_result_that_is_no_compiled_kernel_is_not_used():
    """The interpreter returns None."""
    assert not launched_plan(None).can_start
    assert not launched_plan(SimpleNamespace(run=None, function=1)).can_start


def test_a_kernel_is_not_started_directly_under_an_unknown_version_of_triton(monkeypatch):
    monkeypatch.setattr(launch.triton, "__version__", "3.99.0")
    assert not launched_plan(compiled_kernel()).can_start


@pytest.mark.parametrize(
    "knobs",
    [None, SimpleNamespace(), SimpleNamespace(runtime=SimpleNamespace(launch_enter_hook=None))],
)
def test_a_kernel_is_not_started_directly_if_triton_shows_no_launch_hooks(monkeypatch, knobs):
    """Triton 3.2 has no knobs; a hook that cannot be seen must not be skipped."""
    monkeypatch.setattr(launch, "knobs", knobs)
    assert not launched_plan(compiled_kernel()).can_start


def test_a_kernel_is_not_started_directly_while_a_launch_hook_is_set(known_triton):
    plan = launched_plan(compiled_kernel())
    known_triton.append(lambda *_: None)
    assert not plan.can_start
    known_triton.clear()
    assert plan.can_start
