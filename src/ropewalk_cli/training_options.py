"""The options of the commands that train: `ropewalk train` and `ropewalk lab`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk_cli.options import Device, Json, runs

Folder = Annotated[
    Path,
    typer.Option(help="Folder for the log and checkpoints; an interrupted run in it is resumed."),
]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", help='Change one value, as in "train.learning_rate=1e-3".'),
]
TrainingDevice = Annotated[
    str | None, typer.Option(help="cpu or cuda; by default cuda if there is a GPU.")
]
Parallel = Annotated[
    str | None,
    typer.Option(help="Under torchrun: ddp, fsdp, or context (sequences divided over ranks)."),
]
Threads = Annotated[int | None, typer.Option(help="Number of CPU threads of this process.")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")]


@runs("ropewalk_cli.commands.train:train")
def train(
    preset: Annotated[
        str,
        typer.Argument(help="A preset's name (smoke, cpu, gpu, ...) or the path of a TOML file."),
    ],
    folder: Folder = Path("run"),
    change: Change = None,
    device: TrainingDevice = None,
    parallel: Parallel = None,
    threads: Threads = None,
    tensorboard: Tensorboard = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a model and evaluate it on held-out data:
    `ropewalk train cpu --folder runs/rope --set model.encoding=rope`.
    """


lab = typer.Typer(
    no_args_is_help=True,
    help="Train, extend and compare small models; studies write rows, figures and one report.",
)
lab.command("train")(train)


@lab.command("sample")
@runs("ropewalk_cli.commands.finetune:sample")
def sample(
    folder: Annotated[Path, typer.Argument(help="A new folder for the files.")],
    form: Annotated[
        str, typer.Option("--format", help="Format of the files: cail or glue.")
    ] = "cail",
    count: Annotated[
        int, typer.Option(help="Lines of the train, valid and test files together.")
    ] = 200,
    characters: Annotated[int, typer.Option(help="The least number of characters of a text.")] = 60,
    seed: Annotated[int, typer.Option(help="Another seed gives other texts.")] = 0,
    json: Json = False,
) -> None:
    """Write a small generated sample of labelled files: `ropewalk lab sample data --format cail`."""


@lab.command("finetune")
@runs("ropewalk_cli.commands.finetune:finetune")
def finetune(
    start: Annotated[
        Path,
        typer.Argument(
            help="The checkpoint: a Hugging Face folder, or the folder of a finished training."
        ),
    ],
    train_file: Annotated[
        Path,
        typer.Option(
            "--train", help="Labelled lines: CAIL2019-SCM triplets, GLUE tsv or JSON lines."
        ),
    ],
    valid: Annotated[
        Path | None,
        typer.Option(help="File to evaluate on; by default a tenth of --train is held out."),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="A second file to evaluate on, after the training.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help=(
                "vocab.txt, tokenizer.json or bytes; by default the tokenizer beside the "
                "checkpoint."
            )
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help='Columns of the texts and the label, as in "sentence1,sentence2,label" or "4,2".'
        ),
    ] = None,
    folder: Folder = Path("run"),
    length: Annotated[int, typer.Option(help="Rows are truncated to this number of tokens.")] = 512,
    batch: Annotated[int, typer.Option(help="Lines in one step.")] = 16,
    epochs: Annotated[float, typer.Option(help="Passes over the training file.")] = 3.0,
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 2e-5,
    change: Change = None,
    device: TrainingDevice = None,
    parallel: Parallel = None,
    threads: Threads = None,
    tensorboard: Tensorboard = False,
    json: Json = False,
) -> None:
    """Fine-tune a checkpoint: `ropewalk lab finetune roformer --train train.json --valid valid.json
    --test test.json`.
    """


@lab.command("evaluate")
@runs("ropewalk_cli.commands.finetune:evaluate")
def evaluate(
    model: Annotated[
        Path, typer.Argument(help="The folder of a finished fine-tuning, or its folder `model`.")
    ],
    file: Annotated[
        Path,
        typer.Argument(help="A file in the format of the training file; labels may be missing."),
    ],
    predictions: Annotated[
        Path | None, typer.Option(help="Write the predicted label of each line to this file.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(help="Truncate rows to this length; by default that of the training."),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Evaluate a fine-tuned model on a file: `ropewalk lab evaluate run test.json --predictions
    labels.txt`.
    """


@lab.command("list")
@runs("ropewalk_cli.commands.lab:list_studies")
def list_studies(json: Json = False) -> None:
    """Show every study with its question and its presets."""


@lab.command("run")
@runs("ropewalk_cli.commands.lab:run")
def run_studies(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names of studies, or 'all'.")
    ],
    preset: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), cpu (minutes), gpu (minutes on one large GPU), cluster."
        ),
    ] = "cpu",
    seeds: Annotated[
        int | None,
        typer.Option(
            help=(
                "How often each model is trained, with different seeds; by default from the preset."
            )
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for rows, figures and the report; existing rows are not measured again."
        ),
    ] = Path("lab"),
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help='Change one setting of the study, as in "windows=8".'),
    ] = None,
    device: Device = "auto",
    models: Annotated[
        Path | None, typer.Option(help="Folder for trained models; by default OUT/models.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Parallel processes; default: one per core, on a GPU one.")
    ] = None,
    json: Json = False,
) -> None:
    """Run studies and write the report: `ropewalk lab run encodings extend --preset cpu --out lab`."""


@lab.command("report")
@runs("ropewalk_cli.commands.lab:report")
def write_report(
    folder: Annotated[Path, typer.Argument(help="A folder that `lab run` wrote.")],
    json: Json = False,
) -> None:
    """Write one self-contained HTML page about all studies in a folder."""
