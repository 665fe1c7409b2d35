"""A prompt as a context: how many tokens a text is, by the tokenizer that the model uses."""

from __future__ import annotations

from pathlib import Path

from .errors import MissingExtraError, UnreadableError

MAX_BYTES = 256 * 2**20


def count_tokens(prompt: Path, tokenizer: Path) -> int:
    """Tokens of the text in `prompt` by the `tokenizer.json` given, special tokens that it adds included.

    Raises MissingExtraError without the package tokenizers, UnreadableError for files that cannot be used.
    """
    text = read_text(prompt)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("counting a prompt's tokens needs the package tokenizers: pip install 'tfm-toolkit[files]'") from error
    source = read_text(tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer)
    try:
        reader = Tokenizer.from_str(source)
    except Exception as error:
        raise UnreadableError(f"{tokenizer}: is no tokenizer.json ({' '.join(str(error).split())[:120]})") from error
    count = len(reader.encode(text).ids)
    if count == 0:
        raise UnreadableError(f"{prompt}: holds no token; a context has at least one")
    return count


def read_text(path: Path) -> str:
    """The UTF-8 text of a file of bounded size."""
    try:
        if path.is_dir():
            raise UnreadableError(f"{path}: is a folder, expected a file")
        if path.stat().st_size > MAX_BYTES:
            raise UnreadableError(f"{path}: is larger than {MAX_BYTES // 2**20} MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{path}: is not UTF-8 text (byte {error.start})") from error
