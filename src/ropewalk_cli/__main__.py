"""`python -m ropewalk_cli`: the command line."""

from ropewalk_cli import main

if __name__ == "__main__":
    main()
