"""Run a training to its end, and another that is killed KILLS times at moments drawn from a seed;
print the last logged step before each kill.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it, which takes seconds: here once, not in every run

sys.path.insert(0, str(Path(__file__).parent))
from lab_tiny import tiny_batches, tiny_model, tiny_settings, tiny_trainer

from ropewalk_lab.log import read_log
from ropewalk_lab.schedule import Stage

KILLS = 3
#: the least time of a step: during the longest wait before a kill, 0.05 s, there are at most three
STEP_SECONDS = 0.02


def begin(folder: Path, run: str) -> int:
    """Begin or continue a run in a process of its own; return the process id."""
    child = os.fork()
    if child:
        return child
    settings = tiny_settings(stages=(Stage(12, 4, 20), Stage(16, 4, 6)), log_every=1, save_every=3)
    model = tiny_model(dropout=0.1)
    # on a fast machine the run would otherwise end while `kill_somewhere` waits
    model.layers[0].register_forward_pre_hook(lambda *_: time.sleep(STEP_SECONDS))
    tiny_trainer(folder, run, settings=settings, model=model).run()
    os._exit(0)


def kill_somewhere(folder: Path, draw: random.Random) -> int:
    """Begin or continue the run "killed", kill it after a few steps; return the last step in its
    log.
    """
    log = folder / "killed" / "log.jsonl"
    child, before = begin(folder, "killed"), len(read_log(log))
    wanted = before + draw.randint(2, 5)
    while len(read_log(log)) < wanted and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.001)
    time.sleep(draw.random() * 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return read_log(log)[-1]["step"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, draw = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    tiny_batches(place)
    os.waitpid(begin(place, "whole"), 0)
    killed_at = [kill_somewhere(place, draw) for _ in range(KILLS)]
    os.waitpid(begin(place, "killed"), 0)
    print(json.dumps(killed_at))
