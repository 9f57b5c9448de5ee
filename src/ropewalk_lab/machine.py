"""The machine and the package versions that a result was measured with."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: packages whose versions are stored with a measured row
PACKAGES = ("torch", "triton", "transformers", "liger-kernel", "rotary-embedding-torch")


def machine(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Return what is stored with a measured row: the name of the device, the Python and package
    versions and the date.
    """
    return {
        "machine": device_name(device),
        "python": platform.python_version(),
        "versions": versions(),
        "date": str(datetime.date.today()),
    }


def device_name(device: str | torch.device = "cpu") -> str:
    """Return the name of the GPU if `device` is one, otherwise the architecture and model of the
    processor.
    """
    if str(device).startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        # x86 has lines "model name", ARM has numbers: "CPU part"
        if line.lower().startswith(("model name", "cpu part")):
            return f"{platform.machine()} {line.split(':', 1)[1].strip()}"
    return f"{platform.machine()} {platform.processor()}".strip()


def cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return {package: version} of those that are installed."""
    every_version = {name: version(name) for name in packages}
    return {name: number for name, number in every_version.items() if number is not None}


def version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        if package == "torch":
            import torch

            return torch.__version__  # with the build, such as +cu130, which the metadata may lack
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ImportError):
        return None
