"""The command line from Python: `main(["info"])` runs a command, and `COMMANDS` takes commands of
your own.

It is defined in the package `ropewalk_cli`, which does not import torch.
"""

from ropewalk_cli import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]

if __name__ == "__main__":
    main()
