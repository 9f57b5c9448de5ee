"""`ropewalk info`: what is installed, what the machine has, and which kernels run on it."""

from __future__ import annotations

import json as json_format
import platform
import re
from importlib import metadata
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from ropewalk import RopeSpec, __version__
from ropewalk.commands import console
from ropewalk.kernels import available
from ropewalk.table import CACHE, memory

#: whose versions are worth a line, the package itself and Python aside
PACKAGES = ("torch", "numpy", "triton", "transformers", "safetensors", "matplotlib", "streamlit")
# `dev` is all of them and the tools that build this package
_NOT_SHOWN = ("dev",)
MEMORY_LENGTH = 131_072


def info(json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False) -> None:
    """Show versions, the machine, the extras and backends found here with the reason for each that is not, and cache memory."""
    found = gather()
    if json:
        print(json_format.dumps(found, indent=2))
        return
    out = console()
    versions = {name: version or "not installed" for name, version in found["versions"].items()}
    for title, rows in (("Versions", versions), ("Machine", found["machine"]), ("Table cache", found["cache"])):
        out.print(_pairs(title, rows))
    extras = {name: f"needs {', '.join(gap)}; pip install 'ropewalk[{name}]'" for name, gap in found["extras"].items() if gap}
    out.print(_pairs("Extras", dict.fromkeys(found["extras"], "installed") | extras))
    for device, backends in found["backends"].items():
        out.print(_pairs(f"Backends on {device}", {name: reason or "runs" for name, reason in backends.items()}))


def gather() -> dict[str, Any]:
    """Everything `info` shows, as plain data."""
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    table = memory(RopeSpec(128), MEMORY_LENGTH)
    return {
        "versions": {"ropewalk": __version__, "python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "machine": machine(),
        "extras": {name: missing for name, missing in extras().items() if name not in _NOT_SHOWN},
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


def extras() -> dict[str, list[str]]:
    """Every extra of the installed package with the packages it lacks here; empty where the package is not installed."""
    try:
        wanted = metadata.requires("ropewalk") or []
    except metadata.PackageNotFoundError:
        return {}
    needs: dict[str, list[str]] = {}
    for line in wanted:
        # such as: typer>=0.12; extra == "cli", or: ropewalk[cli]; extra == "lab"
        found = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?.*extra == ['\"](\w+)['\"]", line)
        if found is not None:
            package, others, extra = found.groups()
            needs.setdefault(extra, []).extend(f"[{other}]" for other in (others or "").split(",") if other)
            if package != "ropewalk":
                needs[extra].append(package)
    return {extra: sorted(_lacking(extra, needs)) for extra in sorted(needs)}


def _lacking(extra: str, needs: dict[str, list[str]]) -> set[str]:
    """The packages of an extra, and of the extras it names, that are not installed."""
    found: set[str] = set()
    for name in needs.get(extra, ()):
        if name.startswith("["):
            found |= _lacking(name.strip("[]"), needs)
        elif _version(name) is None:
            found.add(name)
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _pairs(title: str, rows: dict[str, Any]) -> Table:
    table = Table("", "", title=title, title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value))
    return table
