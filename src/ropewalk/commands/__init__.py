"""The commands of `ropewalk`, one module each: they call the library and print what it returns.

`ropewalk_cli` lists them and imports a module when its command runs.
"""

from __future__ import annotations

import sys


def console():
    """A rich console: in colour on a terminal; plain and wide enough for every table when piped."""
    from rich.console import Console

    # no markup: "[lab]" in a message is text, not a style
    return Console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False)


def device_of(name: str) -> str:
    """The device that an option names; "auto" is cuda if there is a GPU."""
    import torch

    from ropewalk.errors import choice

    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return devices[-1] if name == "auto" else choice("device", name, devices)
