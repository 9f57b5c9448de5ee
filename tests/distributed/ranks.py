"""What each rank of the distributed tests does; it runs in processes of its own and leaves what it
measured in a file.
"""

import datetime
import json
import os
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from another_process import start_processes

TIMEOUT = datetime.timedelta(seconds=60)


def join(
    rank: int, world: int, folder: str, name: str = "meet", timeout: datetime.timedelta = TIMEOUT
) -> None:
    """Join the process group of `world` ranks that meet in a folder."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=world, timeout=timeout
    )


def _start(rank: int, world: int, folder: str, work) -> None:
    """Run `work()` on one rank, and write what it returns, or its traceback, to a file."""
    torch.manual_seed(0)
    join(rank, world, folder)
    try:
        found = work()
    except Exception:
        found = {"the rank itself": traceback.format_exc()}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measured(world: int, folder: Path, work) -> list[dict]:
    """Return what `work()` returns on each of `world` ranks."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start_processes(_start, (world, str(folder), work), world)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def each(cases: dict) -> dict:
    """Return {case: what it measured, or its traceback}; all ranks run the cases in the same order."""
    found = {}
    for name, case in cases.items():
        torch.manual_seed(0)  # every rank draws the same whole tensors
        try:
            found[name] = case()
        except Exception:
            found[name] = traceback.format_exc()
    return found
