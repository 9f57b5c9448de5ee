"""A result is a JSON line with its machine and versions; a claim without one does not count."""

from __future__ import annotations

import datetime
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def machine(device: str) -> dict[str, Any]:
    """The machine and the versions a row was measured with."""
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    versions = {}
    for package in ("torch", "triton", "transformers", "liger-kernel", "rotary-embedding-torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__
    return {"machine": name, "python": platform.python_version(), "versions": versions, "date": str(datetime.date.today())}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.lower().startswith(("model name", "cpu part")):
                return f"{platform.machine()} {line.split(':', 1)[1].strip()}"
    return f"{platform.machine()} {platform.processor()}".strip()


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draft.replace(path)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a results file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]
