"""Parts of a file on a server, by HTTP range: bounded in bytes and in time, whatever the server says."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from typing import Any, TypeVar

from ..errors import UnreadableError

T = TypeVar("T")
FIRST_PART = 2**17  # most headers are shorter: one request a file
READ_SECONDS = 10.0  # without a byte
MOST_PASSED_OVER = 2**24  # of a server that sends the whole file where a part was asked for
RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


def hub_utils() -> Any:
    """The module huggingface_hub.utils, whose names its types do not export. Raises ImportError."""
    return import_module("huggingface_hub.utils")


class Deadline:
    """A moment after which nothing more is waited for."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left, 0 at the least."""
        return max(self.end - time.monotonic(), 0.0)


def within(seconds: float, ask: Callable[[], T]) -> T:
    """The answer, if it comes in time; raises TimeoutError else.

    No client bounds all of an answer (its retries, a header sent byte by byte), so it runs in a thread that is left behind.
    """
    outcome: list[T | Exception] = []

    def work() -> None:
        try:
            outcome.append(ask())
        except Exception as error:  # noqa: BLE001 - handed to the caller, below
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


class RangeSource:
    """A file on a server, read by parts.

    Args:
        url: where it is. headers: of every request (the token).
        name: for messages. session: a client of huggingface_hub, httpx's or requests'. deadline: for all reads together.
    """

    def __init__(self, url: str, headers: dict[str, str], *, name: str, session: Any, deadline: Deadline) -> None:
        self.url, self.headers, self.name = url, {**headers, "Accept-Encoding": "identity"}, name
        self.session, self.deadline = session, deadline
        self.size = 2**62  # until the server has said
        self._first = b""
        self._first = self._fetch(0, FIRST_PART)

    def read(self, start: int, count: int) -> bytes:
        """Bytes of the file; those of the first part are at hand."""
        if start + count <= len(self._first) or len(self._first) == self.size:
            return self._first[start : start + count]
        return self._fetch(start, count)

    def _fetch(self, start: int, count: int) -> bytes:
        """A part, before the deadline."""
        return within(self.deadline.left() + 1, lambda: self._part(start, count))

    def _part(self, start: int, count: int) -> bytes:
        """One request."""
        asked = {**self.headers, "Range": f"bytes={start}-{start + count - 1}"}
        with closing(Reply(self.session, self.url, asked, min(READ_SECONDS, self.deadline.left() or 0.001))) as reply:
            skipped = self._check(reply, start)
            wanted = min(count, max(self.size - start, 0))
            data = self._take(reply, skipped + wanted)
        if len(data) < skipped + wanted:
            raise self._refuse(f"sent {len(data):,} bytes of the {skipped + wanted:,} it announced")
        return data[skipped:]

    def _check(self, reply: Reply, start: int) -> int:
        """Hold the answer against the question; how many bytes to pass over."""
        if reply.status == 416:
            raise self._refuse(f"has nothing from byte {start:,} on")
        if reply.status == 206:
            found = RANGE.fullmatch(reply.headers.get("content-range", ""))
            if not found or int(found[1]) != start or int(found[2]) >= int(found[3]):
                said = reply.headers.get("content-range", "none")
                raise self._refuse(f"answered another range ({said[:60]!a}) than asked for, from byte {start:,}")
            self._size(int(found[3]))
            return 0
        length = reply.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 18:
            raise self._refuse("sends neither a range nor a length")
        self._size(int(length))
        if start > MOST_PASSED_OVER:
            raise self._refuse("does not serve parts of files (no Accept-Ranges), which reading a header needs")
        return start

    def _size(self, size: int) -> None:
        """What the server says of the file's size, the same every time."""
        if self._first and size != self.size:
            raise self._refuse(f"said that it has {self.size:,} bytes, and now {size:,}")
        self.size = size

    def _take(self, reply: Reply, count: int) -> bytes:
        """At most `count` bytes of the body; the rest is never read."""
        parts, have = [], 0
        for chunk in reply.chunks():
            parts.append(chunk[: count - have])
            have += len(parts[-1])
            if have >= count:
                break
            if not self.deadline.left():
                raise self._refuse(f"sends too slowly ({have:,} of {count:,} bytes when time was up)")
        return b"".join(parts)

    def _refuse(self, why: str) -> UnreadableError:
        return UnreadableError(f"{self.name}: the server {why}")


class Reply:
    """An answer whose body is read piece by piece: httpx has contexts for it, requests (huggingface_hub before 1.0) a flag."""

    def __init__(self, session: Any, url: str, headers: dict[str, str], seconds: float) -> None:
        self._context: Any = None
        if callable(getattr(session, "stream", None)):
            self._context = session.stream("GET", url, headers=headers, timeout=seconds, follow_redirects=True)
            self._response: Any = self._context.__enter__()
        else:
            self._response = session.get(url, headers=headers, timeout=seconds, stream=True)
        self.status: int = self._response.status_code
        self.headers: dict[str, str] = {key.lower(): value for key, value in self._response.headers.items()}
        try:
            self._raise_for_status()
        except BaseException:
            self.close()
            raise

    def _raise_for_status(self) -> None:
        """The Hub's own errors (gated, missing) for what they are."""
        if self.status >= 400 and self.status != 416:
            length = self.headers.get("content-length", "")
            if self._context is not None and length.isdigit() and len(length) < 6:
                self._response.read()  # what the Hub says about it; the errors quote it
            hub_utils().hf_raise_for_status(self._response)

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives, not decoded."""
        if self._context is not None:
            yield from self._response.iter_raw()  # with a size it would wait until that much is there
        else:
            yield from self._response.iter_content(None)

    def close(self) -> None:
        """Leave the rest of the body where it is."""
        if self._context is not None:
            self._context.__exit__(None, None, None)
        else:
            self._response.close()
