"""`python -m fedtailor`: the command line, also where no script of that name is on the path."""

from __future__ import annotations

from fedtailor.cli import main

if __name__ == "__main__":
    main()
