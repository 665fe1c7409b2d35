"""The command line: its root is here (commands in `lazy.py`), and errors become text and an exit code here and nowhere else."""

from __future__ import annotations

import errno
import os
import sys

import typer

from .. import __version__
from ..presets.errors import TfmError
from .lazy import LazyGroup

app = typer.Typer(
    name="tfm",
    cls=LazyGroup,
    help="The arithmetic of transformers: exact, explained, and proven on the machine at hand.",
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tfm {__version__}")
        raise typer.Exit


@app.callback()
def root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and exit.")) -> None:
    """The arithmetic of transformers: exact, explained, and proven on the machine at hand."""


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """Run one command and return its exit code; no traceback ever reaches a user."""
    try:
        code = app(args=args, standalone_mode=False)
        _flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last stop before the user
        return _trouble(error)
    if code == 130:  # the parser has caught the interrupt
        return _fail("interrupted", 130)
    return code if isinstance(code, int) else 0


def _flush() -> None:
    """Everything out; OSError where there is no room for it, or no stdout at all (`>&-`)."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "stdout")
    sys.stdout.flush()


def _trouble(error: BaseException) -> int:
    """What went wrong in one line on stderr, and the exit code."""
    match error:
        case TfmError():
            return _fail(str(error), error.exit_code)
        case typer.Abort() | KeyboardInterrupt():
            return _fail("interrupted", 130)
        case BrokenPipeError():
            return _closed_pipe()
        case typer.TyperException():
            return _usage(error)
        case MemoryError():
            return _fail("out of memory; ask for fewer points or a smaller model", 1)
        case OSError():
            return _fail(f"{error.filename or 'input or output'}: {error.strerror or error}", 1)
        case _ if os.environ.get("TFM_DEBUG"):
            raise error
        case _:
            return _fail(f"a fault in tfm itself ({type(error).__name__}: {error}); TFM_DEBUG=1 shows where, please report it", 1)


def _fail(message: str, code: int) -> int:
    from .render import clean

    typer.echo(f"error: {clean(' '.join(message.split()))}", err=True)
    return code


def _usage(error: Exception) -> int:
    """A usage error of the parser: one line, exit 2."""
    message = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message, err=True)
        return 2
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    return _fail(f"{message}{hint}", getattr(error, "exit_code", 2))


def _closed_pipe() -> int:
    """The reader (`| head`) has seen enough: nothing more to say, not even at shutdown."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
