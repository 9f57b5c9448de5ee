"""Run test files, or one function several times at once, in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch.multiprocessing

import ropewalk

TESTS = Path(__file__).parent
#: modules that the ranks of distributed tests need; importing them takes seconds, so the server from
#: which the ranks are forked does it once
SHARED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "ropewalk",
]


def start_processes(
    work: Callable[..., None], arguments: tuple[Any, ...], count: int, join: bool = True
) -> Any:
    """Call `work(rank, *arguments)` in `count` processes that inherit nothing which this process
    imported or started.
    """
    forkserver.set_forkserver_preload(SHARED)
    return torch.multiprocessing.start_processes(
        work, arguments, nprocs=count, join=join, start_method="forkserver"
    )


def run_tests(files: Sequence[Path], full: bool, *options: str, **environment: str) -> None:
    """Run test files with pytest in another process, with `full` also the cases that `sampled`
    leaves out; fail if one fails.
    """
    folders = [
        TESTS,
        files[0].parent,
        Path(ropewalk.__file__).parents[1],
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **environment}
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *options,
        *(["--full"] if full else []),
    )
    command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
    done = subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
