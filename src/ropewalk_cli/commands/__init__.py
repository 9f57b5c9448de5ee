"""The commands of `ropewalk`: each is a function with its options in its signature.

A module imports what takes long, such as torch, inside the function that needs it, because help and
completion import the module and do not run the command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from ropewalk.errors import RopeError
from ropewalk_cli.declare import Argument, Option
from ropewalk_cli.hub_cache import NAME, snapshot

MODEL = "A config.json, a model folder, a GGUF file, or a model in the Hugging Face cache"
Config = Annotated[Path, Argument(f"{MODEL}, such as Qwen/Qwen3-8B.")]
OptionalConfig = Annotated[Path | None, Argument(f"{MODEL}, such as Qwen/Qwen3-8B.")]
Example = Annotated[
    str | None,
    Option("Instead of CONFIG: the config of a well-known model, such as Llama-3.1-8B."),
]
Json = Annotated[bool, Option("Print one JSON object instead of text.")]
Details = Annotated[bool, Option("Also print the tables with the details.")]
DEVICES = Literal["auto", "cpu", "cuda"]
Device = Annotated[DEVICES, Option("Where to compute; auto is cuda if there is a GPU.")]


def device_of(name: str) -> str:
    """Return the device named by a command-line option; "auto" is cuda if there is a GPU."""
    import torch

    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise RopeError("device", "must be auto or cpu: CUDA is not available here", name)
    return name if name != "auto" else "cuda" if has_gpu else "cpu"


def model_path(given: str | Path) -> Path:
    """Return the path of a config, a model folder or a GGUF file.

    A name such as Qwen/Qwen3-8B stands for a model in the Hugging Face cache, and smollm2 for what
    `ropewalk lab fetch smollm2` downloaded.
    """
    path, name = Path(given), Path(given).as_posix()
    try:
        if path.exists():
            return path
    except OSError:  # a name that no file may have
        return path
    if path.suffix in (".json", ".gguf"):  # a missing file: whoever reads it raises the error
        return path
    if not NAME.fullmatch(name):
        from ropewalk_lab.downloads import find_fetched

        return find_fetched(name)
    found = snapshot(name)
    if found is None:
        rule = (
            "must be a file or a folder, or a model in the Hugging Face cache of this machine; to "
            f"download it run: hf download {name}"
        )
        raise RopeError("CONFIG", rule, name)
    return found


def config_or_example(config: Path | None, name: str | None) -> Any:
    """Return the path of a config, or the config of the well-known model `name`: exactly one of the
    two must be given.
    """
    if config is None and name is None:
        rule = (
            f"must be {MODEL[0].lower()}{MODEL[1:]}; or give --example with a well-known model, "
            "such as llama-3.1-8b"
        )
        raise RopeError("CONFIG", rule, None)
    if config is not None and name is not None:
        raise RopeError(
            "CONFIG",
            "must not be given together with --example; give one of them",
            [str(config), name],
        )
    if name is None:
        assert config is not None
        return model_path(config)
    from ropewalk.config.examples import example

    return example(name)


def picture_path(path: Path) -> Path:
    """Return the path of a picture to write, given as --plot; refuse a format that cannot be
    written, and a folder.
    """
    from ropewalk_lab.plots.look import FORMATS

    if path.suffix.lower().lstrip(".") not in FORMATS:
        raise RopeError(
            "--plot", f"must end with {', '.join(f'.{suffix}' for suffix in FORMATS)}", str(path)
        )
    return output_path(path, "--plot")


def output_path(path: Path, option: str = "--out") -> Path:
    """Return the path of a file to write; refuse a folder, and a path below a file."""
    nearest_existing = next((parent for parent in path.absolute().parents if parent.exists()), None)
    if path.is_dir() or (nearest_existing is not None and not nearest_existing.is_dir()):
        raise RopeError(
            option, "must be the path of a file, not a folder or below a file", str(path)
        )
    return path


def output_folder(path: Path, option: str = "--out") -> Path:
    """Return the path of a folder to write to; refuse a file, and a path below a file."""
    nearest_existing = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not nearest_existing.is_dir():
        raise RopeError(option, "must be a folder, which may be new", str(path))
    return path
