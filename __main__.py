"""`python -m tfm`, and the command `tfm`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt while it is still being loaded ends as any other does."""
    try:
        from .cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
