"""Two ranks, of which the second falls silent or goes away."""

import datetime
import json
import os
import time
from pathlib import Path

import torch
from ranks import join

from ropewalk.distributed.ring import ring_attention

SECONDS = {"silent": 2, "lost": 30}  # how long a rank waits for the other
LOST = 7  # the exit code of the second rank


def attempt() -> dict:
    """Call ring_attention; return the seconds until it fails, and the error."""
    q = torch.randn(1, 2, 4, 6)
    began = time.monotonic()
    try:
        ring_attention(q, q, q)
        error = ""
    except RuntimeError as failed:
        error = str(failed)
    return {"seconds": time.monotonic() - began, "error": error}


def work(rank: int, folder: str, how: str) -> None:
    """Run one of two ranks: the first calls the ring and writes what happened, the second stays
    `silent` or is `lost`.
    """
    found, joined = Path(folder, f"{how}.json"), Path(folder, f"{how}.joined")
    join(rank, 2, folder, how, datetime.timedelta(seconds=SECONDS[how]))
    if rank == 0:
        joined.touch()
        found.write_text(json.dumps(attempt()))
        os._exit(0)  # torch 2.6 would wait for ever for the other rank when it leaves the group
    # the first rank may still be connecting when the second has joined
    while not (found if how == "silent" else joined).exists():
        time.sleep(0.05)
    os._exit(LOST)
