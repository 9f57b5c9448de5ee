"""The commands of `ropewalk`, one module each. They call the library and print the results.

`ropewalk_cli` lists the commands and imports a module only when its command runs.
"""

from __future__ import annotations

import sys


def console():
    """Return a rich console: coloured on a terminal; without colours and 120 columns wide if the output is piped."""
    from rich.console import Console

    # no markup: "[lab]" in a message is text, not a style
    return Console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False)


def device_of(name: str) -> str:
    """Return the device named by a command-line option; "auto" is cuda if there is a GPU."""
    import torch

    from ropewalk.errors import choice

    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return devices[-1] if name == "auto" else choice("device", name, devices)
