"""`python -m ropewalk`: the command line."""

from ropewalk_cli import main

main()
