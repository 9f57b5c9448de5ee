"""The command line from Python: `main(["info"])` runs a command, and `COMMANDS` takes commands of
your own.

It is defined in the package `ropewalk_cli`, whose import needs the standard library alone.
"""

from ropewalk_cli import COMMANDS, Argument, Command, Option, main

__all__ = ["COMMANDS", "Argument", "Command", "Option", "main"]

if __name__ == "__main__":
    main()
