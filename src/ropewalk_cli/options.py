"""The options of every command. The functions that do the work are imported when a command runs, because they import torch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def runs(target: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a function that only declares options: a call imports "module:attribute" and passes them to it."""

    def decorate(declared: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(declared)
        def call(**options: object) -> None:
            target_of(call)(**options)

        vars(call)["target"] = target
        return call

    return decorate


def target_of(command: Callable[..., None]) -> Callable[..., None]:
    """Return the function that does the work of a command."""
    module, attribute = vars(command)["target"].split(":")
    return getattr(importlib.import_module(module), attribute)


Config = Annotated[Path, typer.Argument(help="A config.json, or a model folder that contains one.")]
OptionalConfig = Annotated[Path | None, typer.Argument(help="A config.json, a model folder that contains one, or a GGUF file.")]
Example = Annotated[str | None, typer.Option(help="Instead of CONFIG: the config of a well-known model, such as Llama-3.1-8B.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Details = Annotated[bool, typer.Option("--details", help="Also print the tables behind the first one.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if there is a GPU.")]


@runs("ropewalk.commands.inspect:inspect")
def inspect(
    config: OptionalConfig = None,
    example: Example = None,
    trained: Annotated[
        int | None, typer.Option(help="Context length in training, in tokens; by default from the config.")
    ] = None,
    served: Annotated[int | None, typer.Option(help="Context length in use, in tokens; by default the config's maximum.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also write figures to this .png, .svg or .pdf file.")] = None,
    guide: Annotated[bool, typer.Option("--guide", help="Also print a table of recommended scalings by use case.")] = False,
    details: Details = False,
    json: Json = False,
) -> None:
    """Say up to which length a checkpoint's rope was trained and is served, and what follows from it.

    With --details also every value and its source, wavelengths, coverage, precision, memory, and advice.
    """


@runs("ropewalk.commands.audit:audit")
def audit(
    config: OptionalConfig = None,
    example: Example = None,
    length: Annotated[int | None, typer.Option(help="Length of the longest sequence of a batch, in tokens.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="The maximum sequence length that engines are started with.")] = None,
    details: Details = False,
    json: Json = False,
) -> None:
    """Compare the rope that transformers, vLLM, SGLang, mlx-lm and llama.cpp compute from the same config.

    With --details also the other measures of each difference, and the source of every engine's rule.
    """


@runs("ropewalk.commands.engines:engines")
def engines(
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this engine: hf, vllm, sglang, mlx-lm or llama.cpp; may be repeated.")
    ] = None,
    match: Annotated[str, typer.Option(help="Run only the configs whose name contains this.")] = "",
    all_rows: Annotated[bool, typer.Option("--all-rows", help="Run every config of the matrix, not only real ones.")] = False,
    json: Json = False,
) -> None:
    """Run the inference engines that are installed here on small models, and compare their ropes with each config's spec.

    Each engine builds its own model from the config and rotates unit vectors. Engines that are not installed are named.
    """


@runs("ropewalk.commands.figures:figures")
def figures(
    folder: Annotated[Path, typer.Argument(help="The folder to write to.")],
    format: Annotated[str, typer.Option(help="png, svg or pdf; the contact sheet is always PNG.")] = "png",
    dark: Annotated[bool, typer.Option("--dark", help="Use a dark background.")] = False,
    language: Annotated[str, typer.Option(help="en or zh; zh needs a font with Chinese glyphs.")] = "en",
    only: Annotated[list[str] | None, typer.Option(help="Write only this figure; may be repeated.")] = None,
    config: Annotated[Path | None, typer.Option(help="Draw the rope of this config.json or model folder.")] = None,
    json: Json = False,
) -> None:
    """Write every figure about rotary encodings and a contact sheet."""


@runs("ropewalk.commands.explore:explore")
def explore(
    port: Annotated[int, typer.Option(help="The port of the page on this machine.")] = 8501,
    report: Annotated[Path | None, typer.Option(help="A report of `ropewalk lab` to show on the page: .html or .md.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open an interactive page on which rope settings can be changed; in English and Chinese, works offline.

    The page is served on 127.0.0.1 only. An uploaded config.json may have at most 1 MB. Ctrl-C stops the server.
    """


@runs("ropewalk.commands.convert:convert")
def convert(
    source: Annotated[Path, typer.Argument(help="The checkpoint folder: safetensors and config.json.")],
    target: Annotated[Path | None, typer.Argument(help="The folder to write; it must not exist.")] = None,
    from_layout: Annotated[
        str | None, typer.Option("--from", help="Current layout of the checkpoint: half or interleaved.")
    ] = None,
    to_layout: Annotated[str | None, typer.Option("--to", help="Layout to convert to: half or interleaved.")] = None,
    config: Annotated[Path | None, typer.Option(help="Path of config.json, if the folder has none.")] = None,
    which: Annotated[
        bool, typer.Option("--which", help="Only detect and print the layout of the folder, with the evidence.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change; write nothing.")] = False,
    json: Json = False,
) -> None:
    """Convert the q and k rows of a checkpoint between the half and the interleaved pair layout."""


@runs("ropewalk.commands.extend:extend")
def extend(
    config: Config,
    kind: Annotated[str, typer.Argument(help="linear, ntk, dynamic, yarn, longrope or llama3.")],
    factor: Annotated[float, typer.Option(help="How many times longer the context becomes.")],
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the scaling as name=JSON, such as beta_fast=16; may be repeated.")
    ] = None,
    original_length: Annotated[
        int | None, typer.Option(help="Context length in training, in tokens; by default from the config.")
    ] = None,
    layer_type: Annotated[
        list[str] | None,
        typer.Option(help="Layer type to extend, if they have separate ropes; may be repeated; full_attention by default."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the existing scaling of the config.")] = False,
    out: Annotated[Path | None, typer.Option(help="The config.json to write; it must not exist.")] = None,
    json: Json = False,
) -> None:
    """Write a config for a longer context; print the changes and which engines interpret the config differently."""


@runs("ropewalk.commands.demo:demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the reports, pictures and rows.")] = Path("demo"),
    tokens: Annotated[int, typer.Option(help="Length of the sequence that is timed.")] = 1024,
    device: Device = "auto",
    preset: Annotated[str, typer.Option(help="Size of the studies: smoke (seconds), cpu (minutes), gpu.")] = "cpu",
    check_only: Annotated[
        bool, typer.Option("--check-only", help="Run only the self-check, which takes seconds; train nothing.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Train more and longer models: eight minutes on two cores.")] = False,
    json: Json = False,
) -> None:
    """Check this machine, time the kernels, train and extend small models, and write one page with the results.

    An interrupted demo continues where it stopped. The exit code is 1 if any error is beyond its bound.
    """


@runs("ropewalk.commands.bench:bench")
def bench(
    device: Device = "auto",
    shape: Annotated[
        list[str] | None, typer.Option(help="Name of a shape or of a group of shapes; may be repeated; see --list.")
    ] = None,
    contender: Annotated[list[str] | None, typer.Option(help="Name of a contender; may be repeated; see --list.")] = None,
    names: Annotated[bool, typer.Option("--list", help="Only print the names of all shapes and contenders.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the rows to this file, as JSON lines.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of the rows to this .png, .svg or .pdf file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
) -> None:
    """Time the rotation, a copy, and other installed libraries, and measure the memory that each call needs.

    A library whose results are wrong is not timed.
    """


@runs("ropewalk.commands.info:info")
def info(json: Json = False) -> None:
    """Print versions, the machine, caches, backends and extras, with the reason if one is missing."""


Folder = Annotated[Path, typer.Option(help="Folder for the log and checkpoints; an interrupted run in it is resumed.")]
Change = Annotated[list[str] | None, typer.Option("--set", help='Change one value, as in "train.learning_rate=1e-3".')]
TrainingDevice = Annotated[str | None, typer.Option(help="cpu or cuda; by default cuda if there is a GPU.")]
Parallel = Annotated[str | None, typer.Option(help="Under torchrun: ddp, fsdp, or context (sequences divided over ranks).")]
Threads = Annotated[int | None, typer.Option(help="Number of CPU threads of this process.")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")]


@runs("ropewalk.commands.train:train")
def train(
    preset: Annotated[str, typer.Argument(help="A preset's name (smoke, cpu, gpu, ...) or the path of a TOML file.")],
    folder: Folder = Path("run"),
    change: Change = None,
    device: TrainingDevice = None,
    parallel: Parallel = None,
    threads: Threads = None,
    tensorboard: Tensorboard = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a model and evaluate it on held-out data: `ropewalk train cpu --folder runs/rope --set model.encoding=rope`."""


lab = typer.Typer(
    no_args_is_help=True, help="Train, extend and compare small models; studies write rows, figures and one report."
)
lab.command("train")(train)


@lab.command("sample")
@runs("ropewalk.commands.finetune:sample")
def sample(
    folder: Annotated[Path, typer.Argument(help="A new folder for the files.")],
    form: Annotated[str, typer.Option("--format", help="Format of the files: cail or glue.")] = "cail",
    count: Annotated[int, typer.Option(help="Lines of the train, valid and test files together.")] = 200,
    characters: Annotated[int, typer.Option(help="The least number of characters of a text.")] = 60,
    seed: Annotated[int, typer.Option(help="Another seed gives other texts.")] = 0,
    json: Json = False,
) -> None:
    """Write a small generated sample of labelled files: `ropewalk lab sample sample --format cail`."""


@lab.command("finetune")
@runs("ropewalk.commands.finetune:finetune")
def finetune(
    start: Annotated[Path, typer.Argument(help="The checkpoint: a Hugging Face folder, or the folder of a finished training.")],
    train_file: Annotated[Path, typer.Option("--train", help="Labelled lines: CAIL2019-SCM triplets, GLUE tsv or JSON lines.")],
    valid: Annotated[Path | None, typer.Option(help="File to evaluate on; by default a tenth of --train is held out.")] = None,
    test: Annotated[Path | None, typer.Option(help="A second file to evaluate on, after the training.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="vocab.txt, tokenizer.json or bytes; by default the tokenizer beside the checkpoint.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help='Columns of the texts and the label, as in "sentence1,sentence2,label" or "4,2".')
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
    """Fine-tune a checkpoint: `ropewalk lab finetune roformer --train train.json --valid valid.json --test test.json`."""


@lab.command("evaluate")
@runs("ropewalk.commands.finetune:evaluate")
def evaluate(
    model: Annotated[Path, typer.Argument(help="The folder of a finished fine-tuning, or its folder `model`.")],
    file: Annotated[Path, typer.Argument(help="A file in the format of the training file; labels may be missing.")],
    predictions: Annotated[Path | None, typer.Option(help="Write the predicted label of each line to this file.")] = None,
    length: Annotated[int | None, typer.Option(help="Truncate rows to this length; by default that of the training.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Evaluate a fine-tuned model on a file: `ropewalk lab evaluate run test.json --predictions labels.txt`."""


@lab.command("list")
@runs("ropewalk.commands.lab:list_studies")
def list_studies(json: Json = False) -> None:
    """Show every study with its question and its presets."""


@lab.command("run")
@runs("ropewalk.commands.lab:run")
def run_studies(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of studies, or 'all'.")],
    preset: Annotated[str, typer.Option(help="smoke (seconds), cpu (minutes), gpu (minutes on one large GPU), cluster.")] = "cpu",
    seeds: Annotated[
        int | None, typer.Option(help="How often each model is trained, with different seeds; by default from the preset.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for rows, figures and the report; existing rows are not measured again.")
    ] = Path("lab"),
    change: Annotated[list[str] | None, typer.Option("--set", help='Change one setting of the study, as in "windows=8".')] = None,
    device: Device = "auto",
    models: Annotated[Path | None, typer.Option(help="Folder for trained models; by default OUT/models.")] = None,
    workers: Annotated[int | None, typer.Option(help="Parallel processes on a CPU; by default one per core.")] = None,
    json: Json = False,
) -> None:
    """Run studies and write the report: `ropewalk lab run encodings extend --preset cpu --out lab`."""


@lab.command("report")
@runs("ropewalk.commands.lab:report")
def write_report(
    folder: Annotated[Path, typer.Argument(help="A folder that `lab run` wrote.")],
    json: Json = False,
) -> None:
    """Write one self-contained HTML page about all studies in a folder."""
