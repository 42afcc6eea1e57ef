"""Bodies that arrive compressed: the same ASGI messages, unpacked piece by piece.

Pieces are bounded, so the reader reaches its own limit before memory runs out. Independent of the content.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

from starlette.types import Message, Receive

from serve_app.errors import InvalidBody

PIECE_BYTES: Final = 64 * 2**10  # of one message
_ANY_HEADER: Final = zlib.MAX_WBITS | 32  # gzip's or zlib's, as the data has it
ENCODINGS: Final = ("gzip", "deflate")


class Inflated:
    """A `receive` that unpacks the body. After the body's end it passes messages on unchanged."""

    def __init__(self, receive: Receive, encoding: str | None) -> None:
        """`encoding`: the header Content-Encoding. Raises InvalidBody for an unknown encoding."""
        word = (encoding or "identity").strip().lower() or "identity"
        if word not in (*ENCODINGS, "identity"):
            raise InvalidBody(f"Content-Encoding must be one of: {', '.join(ENCODINGS)}, identity")
        self._receive = receive
        self._unpack = zlib.decompressobj(_ANY_HEADER) if word != "identity" else None
        self._held = b""  # packed, not yet unpacked
        self._more = True  # packed data may still come

    async def __call__(self) -> Message:
        """Raises InvalidBody for data that cannot be unpacked."""
        if self._unpack is None:
            return await self._receive()
        if self._held:  # nothing is awaited below: a small body may unpack to hundreds of pieces
            await asyncio.sleep(0)
        while not self._held and self._more and not self._unpack.eof:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message
            self._held = message.get("body", b"")
            self._more = message.get("more_body", False)
        try:
            piece = self._unpack.decompress(self._held, PIECE_BYTES)
        except zlib.error:
            raise InvalidBody("the body is not what Content-Encoding says") from None
        self._held = self._unpack.unconsumed_tail
        if self._unpack.eof:
            return await self._last(piece)
        if not piece and not self._held and not self._more:
            raise InvalidBody("the compressed body ends before its end")
        return {"type": "http.request", "body": piece, "more_body": True}

    async def _last(self, piece: bytes) -> Message:
        """The last piece of the body. Raises InvalidBody if data follows the end of the packed data."""
        if self._unpack is not None and self._unpack.unused_data:
            raise InvalidBody("data follows the end of the compressed body")
        while self._more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message
            if message.get("body", b""):
                raise InvalidBody("data follows the end of the compressed body")
            self._more = message.get("more_body", False)
        self._unpack = None
        return {"type": "http.request", "body": piece, "more_body": False}
