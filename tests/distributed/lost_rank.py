"""Two ranks, of which the second falls silent, and then goes away."""

import datetime
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import join

from ropewalk.distributed.ring import ring_attention

SHORT, LONG = 2, 30  # seconds
LOST = 7  # the exit code of the rank that goes away


def attempt() -> dict:
    q = torch.randn(1, 2, 4, 6)
    began = time.monotonic()
    try:
        ring_attention(q, q, q)
        error = ""
    except RuntimeError as failed:
        error = str(failed)
    return {"seconds": time.monotonic() - began, "error": error}


def work(rank: int, folder: str) -> None:
    gave_up = Path(folder, "gave up")
    join(rank, 2, folder, "first", datetime.timedelta(seconds=SHORT))
    if rank == 0:
        found = [attempt()]
        gave_up.touch()
    else:
        while not gave_up.exists():
            time.sleep(0.05)
    dist.destroy_process_group()
    join(rank, 2, folder, "second", datetime.timedelta(seconds=LONG))
    if rank == 1:
        os._exit(LOST)
    found.append(attempt())
    Path(folder, "found.json").write_text(json.dumps(found))
