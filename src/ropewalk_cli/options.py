"""The options of every command. The functions that do the work are imported when a command runs,
because they import torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def runs(target: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a function that only declares options: a call imports
    "module:attribute" and passes them to it.
    """

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


Config = Annotated[
    Path,
    typer.Argument(
        help="A config.json, a model folder that contains one, or smollm2 after `ropewalk lab fetch`."
    ),
]
OptionalConfig = Annotated[
    Path | None,
    typer.Argument(
        help=(
            "A config.json, a model folder that contains one, a GGUF file, or smollm2 after "
            "`ropewalk lab fetch`."
        )
    ),
]
Example = Annotated[
    str | None,
    typer.Option(help="Instead of CONFIG: the config of a well-known model, such as Llama-3.1-8B."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Details = Annotated[bool, typer.Option("--details", help="Also print all other tables.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if there is a GPU.")]


@runs("ropewalk_cli.commands.inspect:inspect")
def inspect(
    config: OptionalConfig = None,
    example: Example = None,
    trained: Annotated[
        int | None,
        typer.Option(help="Context length in training, in tokens; by default from the config."),
    ] = None,
    served: Annotated[
        int | None,
        typer.Option(help="Context length in use, in tokens; by default the config's maximum."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also write figures to this .png, .svg or .pdf file.")
    ] = None,
    guide: Annotated[
        bool,
        typer.Option("--guide", help="Also print a table of recommended scalings by use case."),
    ] = False,
    details: Details = False,
    json: Json = False,
) -> None:
    """Print the trained and the served length of a checkpoint's rope, and the most important
    advice.

    With --details also every value and its source, wavelengths, coverage, precision, memory, and
    advice.
    """


@runs("ropewalk_cli.commands.audit:audit")
def audit(
    config: OptionalConfig = None,
    example: Example = None,
    length: Annotated[
        int | None,
        typer.Option(
            help=(
                "Tokens of the longest sequence of a batch; by default the trained and the served "
                "length."
            )
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help=(
                "The longest sequence that engines are started for; by default each engine's own "
                "limit."
            )
        ),
    ] = None,
    details: Details = False,
    json: Json = False,
) -> None:
    """Compare the rope that transformers, vLLM, SGLang, mlx-lm and llama.cpp compute from the same
    config.

    With --details also the other measures of each difference, and the source of every engine's
    rule.
    """


@runs("ropewalk_cli.commands.engines:engines")
def engines(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Run only this engine: hf (transformers), vllm, sglang, mlx-lm, llama.cpp or "
                "onnxruntime; may be repeated."
            )
        ),
    ] = None,
    match: Annotated[str, typer.Option(help="Run only the configs whose name contains this.")] = "",
    all_rows: Annotated[
        bool,
        typer.Option(
            "--all-rows",
            help="Also run configs of no real checkpoint, which engines may read differently.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Run the inference engines that are installed here on small models, and compare their ropes
    with each config's spec.

    Each engine builds its own model from the config and rotates unit vectors. Engines that are not
    installed are listed with the reason.
    """


@runs("ropewalk_cli.commands.figures:figures")
def figures(
    folder: Annotated[Path, typer.Argument(help="The folder to write to.")],
    format: Annotated[
        str, typer.Option(help="png, svg or pdf; the contact sheet is always PNG.")
    ] = "png",
    dark: Annotated[bool, typer.Option("--dark", help="Use a dark background.")] = False,
    language: Annotated[
        str, typer.Option(help="en or zh; zh needs a font with Chinese glyphs.")
    ] = "en",
    only: Annotated[
        list[str] | None, typer.Option(help="Write only this figure; may be repeated.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Draw the rope of this config.json or model folder.")
    ] = None,
    json: Json = False,
) -> None:
    """Write every figure about rotary encodings, and a contact sheet: one picture that shows all of
    them.
    """


@runs("ropewalk_cli.commands.explore:explore")
def explore(
    port: Annotated[int, typer.Option(help="The port of the page on this machine.")] = 8501,
    report: Annotated[
        Path | None,
        typer.Option(help="A report of `ropewalk lab` to show on the page: .html or .md."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    model: Annotated[
        str | None,
        typer.Option(
            help=(
                "A model to read with: a .gguf file, a Hugging Face folder, or smollm2 once "
                "fetched."
            )
        ),
    ] = None,
) -> None:
    """Open an interactive page on which rope settings can be changed; in English and Chinese, works
    offline.

    The page is served on 127.0.0.1 only. An uploaded config.json may have at most 1 MB. Ctrl-C
    stops the server.
    """


@runs("ropewalk_cli.commands.convert:convert")
def convert(
    source: Annotated[
        Path, typer.Argument(help="The checkpoint folder: safetensors and config.json.")
    ],
    target: Annotated[
        Path | None, typer.Argument(help="The folder to write; it must not exist or be empty.")
    ] = None,
    from_layout: Annotated[
        str | None,
        typer.Option("--from", help="Current layout of the checkpoint: half or interleaved."),
    ] = None,
    to_layout: Annotated[
        str | None, typer.Option("--to", help="Layout to convert to: half or interleaved.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Path of config.json, if the folder has none.")
    ] = None,
    which: Annotated[
        bool,
        typer.Option(
            "--which", help="Only detect and print the layout of the folder, with the evidence."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change; write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Convert the q and k rows of a checkpoint between the half and the interleaved pair layout."""


@runs("ropewalk_cli.commands.extend:extend")
def extend(
    config: Config,
    kind: Annotated[
        str, typer.Argument(help="The scaling: linear, ntk, dynamic, yarn, longrope or llama3.")
    ],
    factor: Annotated[float, typer.Option(help="How many times longer the context becomes.")],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of the scaling as name=JSON, such as beta_fast=16; may be repeated.",
        ),
    ] = None,
    original_length: Annotated[
        int | None,
        typer.Option(help="Context length in training, in tokens; by default from the config."),
    ] = None,
    layer_type: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Layer type to extend, if each has a rope of its own; may be repeated; by default "
                "full_attention."
            )
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the existing scaling of the config.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The config.json to write, which must not exist; without it nothing is written."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a config for a longer context; print the changes and which engines interpret the config
    differently.
    """


@runs("ropewalk_cli.commands.demo:demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the reports, pictures and rows.")] = Path(
        "demo"
    ),
    tokens: Annotated[int, typer.Option(help="Length of the sequence that is timed.")] = 1024,
    device: Device = "auto",
    preset: Annotated[
        str, typer.Option(help="Size of the studies: smoke (seconds), cpu (minutes), gpu.")
    ] = "cpu",
    check_only: Annotated[
        bool,
        typer.Option(
            "--check-only", help="Run only the self-check, which takes seconds; train nothing."
        ),
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Train more and longer models: eight minutes on two cores."),
    ] = False,
    json: Json = False,
) -> None:
    """Check this machine, time the kernels, train and extend small models, and write one page with
    the results.

    An interrupted demo continues where it stopped. The exit code is 1 if any error is beyond its
    bound.
    """


@runs("ropewalk_cli.commands.bench:bench")
def bench(
    device: Device = "auto",
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Name of a shape or of a group of shapes; may be repeated; see --list."),
    ] = None,
    contender: Annotated[
        list[str] | None,
        typer.Option(
            help="Time only this implementation (contender); may be repeated; see --list."
        ),
    ] = None,
    names: Annotated[
        bool, typer.Option("--list", help="Only print the names of all shapes and contenders.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the rows to this file, as JSON lines.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a chart of the rows to this .png, .svg or .pdf file.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines instead of a table.")
    ] = False,
) -> None:
    """Time the rotation, a copy, and other installed libraries, and measure the memory that each
    call needs.

    A library whose results are wrong is not timed.
    """


@runs("ropewalk_cli.commands.info:info")
def info(json: Json = False) -> None:
    """Print versions, the machine, caches, backends and extras, with the reason if one is missing."""
