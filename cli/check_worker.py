"""`tfm check-worker`: what `tfm check --against` starts in each of two installations. Not for people: it speaks lines of JSON."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def check_worker(threads: Annotated[int | None, typer.Option("--threads", help="Threads to measure with.")] = None) -> None:
    """Measure blocks of a gate as told on standard input (used by `tfm check --against`)."""
    from .measuring import need_torch

    need_torch()
    from ..kernels.alternating import work

    work(sys.stdin, sys.stdout, threads=threads)


def register(app: typer.Typer) -> None:
    """Add the command, hidden: help does not list it."""
    app.command("check-worker", hidden=True)(check_worker)
