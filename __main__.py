"""`python -m tfm`: the same as the command `tfm`."""

from __future__ import annotations

from .cli.app import main

if __name__ == "__main__":
    main()
