"""Server-sent events, read from bytes as they arrive.

The format is the one of the HTML standard, section "Server-sent events". Lines end with
LF or CR LF alone: splitting at whatever Unicode calls a line end would cut JSON text that
holds such a character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each complete event; comments and other fields are passed over."""
    data: list[bytes] = []
    for line in _lines(chunks):
        if not line:
            if data:
                yield b"\n".join(data).decode("utf-8", "replace")
            data = []
        elif line.startswith(b"data:"):
            data.append(line.removeprefix(b"data:").removeprefix(b" "))


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
