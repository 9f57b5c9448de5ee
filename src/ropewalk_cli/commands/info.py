"""`ropewalk info`: print installed versions, the machine, caches, the memory of tables, extras,
plug-ins and backends.
"""

from __future__ import annotations

import json as json_format
import os
import platform
import re
from importlib import metadata
from typing import TYPE_CHECKING, Any

import ropewalk as rw
from ropewalk_cli.commands import Json
from ropewalk_cli.output import table
from ropewalk_lab.machine import device_name, version

if TYPE_CHECKING:
    from ropewalk.caches import CacheInfo

#: packages whose versions are shown besides ropewalk and Python
PACKAGES = ("torch", "numpy", "triton", "transformers", "safetensors", "matplotlib", "starlette")
#: engine: the group of entry points in which ropewalk's plug-in is found, and the variable that
#: turns it on
PLUGINS = {
    "vLLM": ("vllm.general_plugins", "ROPEWALK_VLLM"),
    "SGLang": ("sglang.srt.plugins", "ROPEWALK_SGLANG"),
}
# `dev` is only for developing ropewalk
_NOT_SHOWN = ("dev",)
#: tokens for which the memory of tables is shown
MEMORY_LENGTH = 131_072


def info(json: Json = False) -> None:
    """Print versions, the machine, caches, the memory of tables, extras, plug-ins and backends, with
    the reason if one is missing.
    """
    report = gather()
    if json:
        print(json_format.dumps(report, indent=2))
        return
    versions = {name: number or "not installed" for name, number in report["versions"].items()}
    caches = {cache.name: _size(cache) for cache in rw.caches.cache_infos()}
    table_bytes = (
        f"Bytes of cos and sin that Rope(tables=...) keeps for {MEMORY_LENGTH:,} tokens of 128 "
        "dimensions"
    )
    extras = {
        name: f"needs {', '.join(missing)}; pip install 'ropewalk[{name}]'"
        if missing
        else "installed"
        for name, missing in report["extras"].items()
    }
    for title, rows in (
        ("Versions", versions),
        ("Machine", report["machine"]),
        ("Caches", caches),
        (table_bytes, report["table_bytes"]),
        ("Extras", extras),
        ("Plug-ins of inference engines", report["plugins"]),
    ):
        if rows:
            _pairs(title, rows)
    for device, backends in report["backends"].items():
        states = {name: reason or "runs" for name, reason in backends.items()}
        _pairs(f"Backends on {device}", states)


def gather() -> dict[str, Any]:
    """Return everything that `info` prints, as plain data; if torch is not installed, only what does
    not need it.
    """
    found = {
        "versions": {"ropewalk": rw.__version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cpu": device_name()},
        "extras": {name: missing for name, missing in extras().items() if name not in _NOT_SHOWN},
        "backends": {},
        "plugins": plugins(),
        "caches": [cache._asdict() for cache in rw.caches.cache_infos()],
        "table_bytes": rw.strategies.memory(rw.RopeSpec(128), MEMORY_LENGTH),
    }
    return found | (_with_torch(found["machine"]) if found["versions"]["torch"] else {})


def _with_torch(machine: dict[str, Any]) -> dict[str, Any]:
    """Return what only torch can say.

    "machine" is `machine` with the CPU's vector instructions, torch's threads, and the GPU (None
    without one).
    "backends" is {device: {backend: why it does not run there, or None if it runs}}.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "machine": machine
        | {
            "cpu": f"{machine['cpu']}, {capability}",
            "threads": torch.get_num_threads(),
            "gpu": device_name("cuda") if has_gpu else None,
        },
        "backends": {
            device: rw.kernels.available(device) for device in ("cpu", *(["cuda"] * has_gpu))
        },
    }


def plugins() -> dict[str, str]:
    """Return for each engine whether ropewalk's plug-in is installed, and whether it is on."""
    states = {}
    for engine, (group, switch) in PLUGINS.items():
        installed = any(point.name == "ropewalk" for point in metadata.entry_points(group=group))
        on = "on" if os.environ.get(switch) == "1" else f"off; set {switch}=1 to turn it on"
        states[engine] = f"installed, {on}" if installed else "not installed"
    # transformers has no entry points: the plug-in is on for each model that is loaded with its
    # kernel config
    installed = version("ropewalk-transformers") is not None
    on = "on for models loaded with kernel_config=ropewalk_transformers.kernel_config()"
    states["transformers"] = f"installed; {on}" if installed else "not installed"
    return states


def extras() -> dict[str, list[str]]:
    """Return the missing packages of every extra; empty if ropewalk itself is not installed."""
    try:
        required = metadata.requires("ropewalk") or []
    except metadata.PackageNotFoundError:
        return {}
    # extra -> its packages, and in brackets the extras that it includes
    needs: dict[str, list[str]] = {}
    for line in required:
        # such as: starlette>=0.46; extra == "explore", or: ropewalk[torch]; extra == "lab"
        match = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?.*extra == ['\"](\w+)['\"]", line)
        if match is not None:
            package, others, extra = match.groups()
            needs.setdefault(extra, []).extend(
                f"[{other}]" for other in (others or "").split(",") if other
            )
            if package != "ropewalk":
                needs[extra].append(package)
    return {extra: sorted(_missing(extra, needs)) for extra in sorted(needs)}


def _missing(extra: str, needs: dict[str, list[str]]) -> set[str]:
    """Return the packages of an extra, and of the extras it includes, that are not installed."""
    missing: set[str] = set()
    for name in needs.get(extra, ()):
        if name.startswith("["):
            missing |= _missing(name.strip("[]"), needs)
        elif version(name) is None:
            missing.add(name)
    return missing


def _size(cache: CacheInfo) -> str:
    """Return how full a cache is, as text."""
    size = f"{cache.entries:,} of {cache.most_entries:,} entries"
    return (
        size
        if cache.most_bytes is None
        else f"{size}, {cache.bytes:,} of {cache.most_bytes:,} bytes"
    )


def _pairs(title: str, rows: dict[str, Any]) -> None:
    """Print a table of names and values without a header."""
    texts = {
        name: f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)
        for name, value in rows.items()
    }
    table(title, ("", ""), texts.items())
