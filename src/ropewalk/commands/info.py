"""`ropewalk info`: what is installed, what the machine has, and which kernels run on it."""

from __future__ import annotations

import json as json_format
import platform
from importlib import metadata
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from ropewalk import RopeSpec, __version__
from ropewalk.commands import console
from ropewalk.kernels import available
from ropewalk.table import CACHE, memory

#: package -> what installs it where it is missing
PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "triton": "triton",
    "transformers": "'ropewalk[hf]'",
    "safetensors": "'ropewalk[hf]'",
    "matplotlib": "'ropewalk[lab]'",
}
MEMORY_LENGTH = 131_072


def info(json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False) -> None:
    """Show versions, the machine, the backends that run here with the reason for each that does not, and cache memory."""
    found = gather()
    if json:
        print(json_format.dumps(found, indent=2))
        return
    out = console()
    for title, rows in (("Versions", found["versions"]), ("Machine", found["machine"]), ("Table cache", found["cache"])):
        out.print(_pairs(title, rows))
    for device, backends in found["backends"].items():
        out.print(_pairs(f"Backends on {device}", {name: reason or "runs" for name, reason in backends.items()}))


def gather() -> dict[str, Any]:
    """Everything `info` shows, as plain data."""
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    table = memory(RopeSpec(128), MEMORY_LENGTH)
    return {
        "versions": {"ropewalk": __version__, "python": platform.python_version()}
        | {name: _version(name, source) for name, source in PACKAGES.items()},
        "machine": machine(),
        "backends": {device: available(device) for device in devices},
        "cache": {"kept_tables": len(CACHE), "kept_bytes": CACHE.bytes, "limit_bytes": CACHE.limit}
        | {f"{form}_bytes_for_{MEMORY_LENGTH}_tokens_of_128_dims": size for form, size in table.items()},
    }


def machine() -> dict[str, Any]:
    """The machine in the words a report needs."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def _version(name: str, source: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"not installed; pip install {source}"


def _pairs(title: str, rows: dict[str, Any]) -> Table:
    table = Table("", "", title=title, title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value))
    return table
