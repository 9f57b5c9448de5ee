"""`ropewalk lab sample`, `finetune` and `evaluate`: from labelled files and a checkpoint to an
accuracy.
"""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ropewalk_cli.commands import Device, Json, device_of, output_path
from ropewalk_cli.commands.train import (
    Change,
    Folder,
    Parallel,
    Tensorboard,
    Threads,
    TrainingDevice,
    accuracy,
    as_json,
    exit_if_stopped,
    run_training,
    show,
)
from ropewalk_cli.declare import Argument, Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk_lab.held_out import Measured


def sample(
    folder: Annotated[Path, Argument("A new folder for the files.")],
    form: Annotated[
        Literal["cail", "glue"],
        Option("cail: triplets of Chinese cases. glue: pairs of English sentences.", "--format"),
    ] = "cail",
    count: Annotated[int, Option("Lines of the train, valid and test files together.")] = 200,
    characters: Annotated[
        int, Option("The least number of characters of a text; with glue, of the first of a pair.")
    ] = 60,
    seed: Annotated[int, Option("Another seed gives other texts.")] = 0,
    json: Json = False,
) -> None:
    """Write a small generated sample of labelled files, with a vocabulary and texts for
    pretraining.
    """
    from ropewalk_lab.samples import write_sample

    files = write_sample(folder, form, count=count, characters=characters, seed=seed)
    if json:
        print(json_format.dumps({"files": [str(path) for path in files]}))
        return
    say(*files)


def finetune(
    start: Annotated[
        Path,
        Argument("The checkpoint: a Hugging Face folder, or the folder of a finished training."),
    ],
    train_file: Annotated[
        Path, Option("Labelled lines: CAIL2019-SCM triplets, GLUE tsv or JSON lines.", "--train")
    ],
    valid: Annotated[
        Path | None, Option("File to evaluate on; by default a tenth of --train is held out.")
    ] = None,
    test: Annotated[
        Path | None, Option("A second file to evaluate on, after the training.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        Option(
            "vocab.txt, tokenizer.json or bytes; by default the tokenizer beside the checkpoint."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        Option(
            "Columns of the one or two texts, then that of the label: names, as in "
            '"sentence1,sentence2,label"; for a file without a header numbers from 1, as in "4,2".'
        ),
    ] = None,
    folder: Folder = Path("run"),
    length: Annotated[int, Option("Rows are truncated to this number of tokens.")] = 512,
    batch: Annotated[int, Option("Lines in one step.")] = 16,
    epochs: Annotated[float, Option("Passes over the training file.")] = 3.0,
    learning_rate: Annotated[float, Option("The highest learning rate.")] = 2e-5,
    change: Change = None,
    device: TrainingDevice = None,
    parallel: Parallel = None,
    threads: Threads = None,
    tensorboard: Tensorboard = False,
    json: Json = False,
) -> None:
    """Fine-tune a checkpoint on labelled files, and print its accuracy, on CAIL2019-SCM beside
    published ones.
    """
    from ropewalk_lab.finetuning import Files, finetuning_preset

    files = Files(train_file, valid, test, tuple(columns.split(",")) if columns else ())
    preset = finetuning_preset(
        start,
        files,
        tokenizer=tokenizer,
        length=length,
        batch=batch,
        epochs=epochs,
        learning_rate=learning_rate,
        changes=change or (),
    )
    report = run_training(preset, folder, device, parallel, threads, tensorboard, quiet=json)
    if report is None:  # the first rank prints
        return
    objective = preset.data["objective"]
    if json:
        print(json_format.dumps(as_json(report, folder) | {"published": _published(objective)}))
    else:
        show(report, folder)
        if report.held_out:
            _show_accuracy(f"this run, {length} tokens", report.held_out, objective)
    exit_if_stopped(report)


def evaluate(
    model: Annotated[
        Path, Argument("The folder of a finished fine-tuning, or its folder `model`.")
    ],
    file: Annotated[
        Path, Argument("A file in the format of the training file; labels may be missing.")
    ],
    predictions: Annotated[
        Path | None, Option("Write the predicted label of each line to this file.")
    ] = None,
    length: Annotated[
        int | None, Option("Truncate rows to this length; by default that of the training.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Print the accuracy of a fine-tuned model on a file."""
    if predictions is not None:
        output_path(predictions, "--predictions")
    from ropewalk_lab.finetuning import evaluate_file
    from ropewalk_lab.json_lines import write_atomically

    result, predicted = evaluate_file(
        model, file, length=length, device=device_of(device), progress=not json
    )
    if predictions is not None:
        write_atomically(predictions, "".join(f"{label}\n" for label in predicted), "--predictions")
    if json:
        written = None if predictions is None else str(predictions)
        print(json_format.dumps({"file": str(file), **result.numbers(), "predictions": written}))
        return
    unlabelled = len(predicted) - result.count  # lines without a right answer to compare with
    note = f"; {unlabelled:,} of {len(predicted):,} lines have no label" if unlabelled else ""
    say(f"accuracy {accuracy(result)}{note}")
    if predictions is not None:
        say(f"predictions: {predictions}")


def _published(objective: str) -> dict[str, Any] | None:
    """Return the published table to compare an objective with, as plain data; None if there is
    none.
    """
    from ropewalk_lab.finetuning import PUBLISHED_FOR
    from ropewalk_lab.published import PUBLISHED

    if objective not in PUBLISHED_FOR:
        return None
    found = PUBLISHED[PUBLISHED_FOR[objective]]
    return {
        "source": found.source,
        "columns": list(found.columns),
        "rows": [list(row) for row in found.rows],
    }


def _show_accuracy(name: str, held_out: dict[str, Measured], objective: str) -> None:
    """Print a table of this run's accuracy on the valid and test files, and below it the published
    accuracies for the objective, if there are any.
    """
    published = _published(objective)
    note = ""
    if published:
        note = f"Published: {published['source']}. Compare only runs on the same files."
    rows = [(name, accuracy(held_out.get("valid")), accuracy(held_out.get("test")))]
    # a published row is the name of a model and its accuracies on the two files
    for row in published["rows"] if published else ():
        rows.append((f"{row[0]} (published)", *row[1:3]))
    table("accuracy", ("model", "valid", "test"), rows, note)
