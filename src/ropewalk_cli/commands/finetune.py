"""`ropewalk lab sample`, `finetune` and `evaluate`: from labelled files and a checkpoint to an
accuracy.
"""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any

from rich.table import Table

from ropewalk_cli.commands import console, device_of, output_path
from ropewalk_cli.commands.train import accuracy, as_json, exit_if_stopped, run_training, show
from ropewalk_lab.finetuning import PUBLISHED_FOR, Files, evaluate_file, finetuning_preset
from ropewalk_lab.held_out import Measured
from ropewalk_lab.json_lines import write_atomically
from ropewalk_lab.published import PUBLISHED
from ropewalk_lab.samples import write_sample


def sample(folder: Path, form: str, count: int, characters: int, seed: int, json: bool) -> None:
    """Write a small generated sample into a folder, and print its paths: labelled files, a
    vocabulary, texts for pretraining.

    form        cail (triplets of Chinese cases) or glue (pairs of English sentences)
    count       lines of the three labelled files together
    characters  the least size of a text
    """
    files = write_sample(folder, form, count=count, characters=characters, seed=seed)
    if json:
        print(json_format.dumps({"files": [str(path) for path in files]}))
        return
    for path in files:
        console().print(str(path), soft_wrap=True)


def finetune(
    start: Path,
    train_file: Path,
    valid: Path | None,
    test: Path | None,
    tokenizer: str | None,
    columns: str | None,
    folder: Path,
    length: int,
    batch: int,
    epochs: float,
    learning_rate: float,
    change: list[str] | None,
    device: str | None,
    parallel: str | None,
    threads: int | None,
    tensorboard: bool,
    json: bool,
) -> None:
    """Fine-tune the checkpoint `start` on labelled files, and print its accuracy beside published
    ones.

    `change` are texts name=value, further settings to change; the other arguments are the options
    of the command.
    """
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
    model: Path, file: Path, predictions: Path | None, length: int | None, device: str, json: bool
) -> None:
    """Print the accuracy of a fine-tuned model on a file; `predictions` is the path of a file to
    write its answers to.
    """
    if predictions is not None:
        output_path(predictions, "--predictions")
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
    console().print(f"accuracy {accuracy(result)}{note}")
    if predictions is not None:
        console().print(f"predictions: {predictions}", soft_wrap=True)


def _published(objective: str) -> dict[str, Any] | None:
    """Return the published table to compare an objective with, as plain data; None if there is
    none.
    """
    if objective not in PUBLISHED_FOR:
        return None
    table = PUBLISHED[PUBLISHED_FOR[objective]]
    return {
        "source": table.source,
        "columns": list(table.columns),
        "rows": [list(row) for row in table.rows],
    }


def _show_accuracy(name: str, held_out: dict[str, Measured], objective: str) -> None:
    """Print a table of the accuracy on the valid and test files, with the published ones below."""
    published = _published(objective)
    caption = (
        f"Published: {published['source']}. Compare only runs on the same files."
        if published
        else None
    )
    table = Table(
        "model",
        "valid",
        "test",
        title="accuracy",
        title_justify="left",
        caption=caption,
        caption_justify="left",
    )
    table.add_row(name, accuracy(held_out.get("valid")), accuracy(held_out.get("test")))
    for row in published["rows"] if published else ():
        table.add_row(f"{row[0]} (published)", *row[1:])
    console().print(table)
