"""What each rank of the lab's distributed tests does, in a process of its own; its losses go into
the run's own log.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from lab_tiny import tiny_batches, tiny_model, tiny_settings, tiny_trainer

from ropewalk_lab.batches import MaskedBatches
from ropewalk_lab.distributed import launched
from ropewalk_lab.runs import run_preset
from ropewalk_lab.settings import read_preset
from ropewalk_lab.tokenizer import Bytes

WORLD = 2


def shared_run(folder: Path, kind: str, parallel=None, stop: int | None = None):
    """Train with unequal counts of targets, learned frequencies, accumulation and clipping, up to
    `stop`, from the last checkpoint if there is one; return the trainer.
    """
    masked = MaskedBatches(tiny_batches(folder), Bytes(), share=0.4)
    model = tiny_model("rope_learnable")
    settings = tiny_settings(accumulation=2, clip=0.5)
    trainer = tiny_trainer(
        folder, kind, model=model, batches=masked, settings=settings, parallel=parallel
    )
    trainer.run(stop=stop)
    return trainer


def evaluated_run(folder: Path, kind: str, parallel):
    """Train a masked language model of a preset for a step, and return the report with its
    evaluation on held-out text.
    """
    text = [
        f"data.source={folder / 'text'}",
        f"data.cache={folder / 'cache'}",
        "data.objective=masked",
        "model.kind=roformer",
    ]
    sizes = [
        "train.stages=[{length=12,batch=4,steps=1}]",
        "model.num_layers=1",
        "model.dropout=0",
        "model.attention_dropout=0",
    ]
    return run_preset(
        read_preset("smoke", text + sizes), folder / f"evaluated-{kind}", parallel, progress=False
    )


def start(rank: int, folder: str, ports: dict[str, int]) -> None:
    """Run what one rank does: for each kind of parallel run, the shared run in two pieces, of which
    the second continues the first, then the evaluated run.
    """
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    for kind, port in ports.items():
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with launched(kind, "cpu", timedelta(seconds=90)) as parallel:
            shared_run(Path(folder), kind, parallel, stop=4)
            trainer = shared_run(Path(folder), kind, parallel)
            evaluated_run(Path(folder), kind, parallel)
            answer = (
                trainer.predict(torch.arange(16).view(1, 16))
                if kind != "context"
                else torch.zeros(1)
            )
            if parallel.first:
                torch.save(answer, Path(folder, f"{kind}.answer"))
