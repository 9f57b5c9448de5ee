"""One file per subcommand: each gathers numbers from lower floors and shows them."""

from __future__ import annotations

import sys


def console():
    """A rich console: colours on a terminal, plain and wide enough for every table when piped."""
    from rich.console import Console

    # no markup: "[lab]" in a message is text, not a style
    return Console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False)
