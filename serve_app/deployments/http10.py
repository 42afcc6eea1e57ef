"""Answers over HTTP/1.0 that have no chunks, since that version does not know them.

uvicorn sends every answer in chunks if its length is unknown. A client that speaks HTTP/1.0, such as `ab` or
an old proxy, would read the chunk sizes as text. Here the end of the connection ends the answer instead.
"""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http import httptools_impl


class UnchunkedCycle(httptools_impl.RequestResponseCycle):
    """One request and its answer in uvicorn."""

    ends_with_connection = False

    async def send(self, message: ASGISendEvent) -> None:
        """ASGI's `send`."""
        if message["type"] == "http.response.start" and self.scope["http_version"] == "1.0":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self.ends_with_connection = b"content-length" not in names
            self.chunked_encoding = False if self.ends_with_connection else None
        elif message["type"] == "http.response.body" and self.ends_with_connection:
            self.expected_content_length = len(message.get("body", b""))  # which uvicorn counts down
        await super().send(message)


def speak_http10() -> None:
    """Make the servers of this process send answers without chunks to HTTP/1.0 clients. Ray's code starts
    these servers, and has no setting for this."""
    httptools_impl.RequestResponseCycle = UnchunkedCycle  # type: ignore[misc]
