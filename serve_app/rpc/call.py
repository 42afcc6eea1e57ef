"""One gRPC call as its methods see it: the caller, messages in and out, and its end.

Metadata are to a gRPC call what headers are to an HTTP request. The metadata are put into a scope of the same
form, so that the code for credentials, ids and the traffic split can read them like headers. Messages are
bytes here; no message is read before the caller is authenticated.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message
from starlette.types import Scope

from serve_app.api.context import RequestContext, context_of
from serve_app.api.dialects.triton.errors import GRPC_STATUS, render_error
from serve_app.api.edge.body import ClientGone
from serve_app.api.edge.connection import WRITE_TIMEOUT_S
from serve_app.api.edge.middleware import public_error
from serve_app.api.edge.ratelimit import budget_headers
from serve_app.api.exchange.dispatch import ANSWERED_BY
from serve_app.api.exchange.generate import IGNORED_FIELDS, listed
from serve_app.api.protocol.error_reply import SHOULD_RETRY
from serve_app.errors import (
    BodyTooLarge,
    GenerationFailed,
    InvalidBody,
    ReadTimeout,
    ServeError,
    UnsupportedField,
)
from serve_app.limits import MAX_BODY_READ_S, MAX_ERROR_BYTES, MAX_TENSOR_BODY_BYTES
from serve_app.rpc import kserve_pb2 as pb
from serve_app.telemetry import UNKNOWN

logger = logging.getLogger(__name__)

_RETRY_HEADERS: Final = ("retry-after", SHOULD_RETRY)
_NO_RETRY: Final = (b"grpc-retry-pushback-ms", b"-1")  # gRPC's own word to channels that retry by policy
Parsed = TypeVar("Parsed", bound=Message)
_STREAMING: Final = frozenset({"streaming", "stream"})  # what a client may call it


class RpcCall:
    """The messages of one call."""

    def __init__(self, rpc: Any, path: str) -> None:
        """`rpc`: gRPC's ServicerContext; `path`: `/service/method`."""
        self._rpc = rpc
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self.scope: Scope = {"type": "grpc", "path": path, "headers": _headers(rpc.invocation_metadata())}
        self.peer = host_of(rpc.peer())

    async def read(self) -> bytes | None:
        """The next message; None: the client has sent all its messages."""
        raw = await self._rpc.read()
        return None if raw is grpc.aio.EOF else raw

    async def read_only(self, most: int = MAX_TENSOR_BODY_BYTES) -> bytes:
        """The message of a call that has exactly one. Raises InvalidBody, ReadTimeout or BodyTooLarge."""
        raw = await self.read_soon(most)
        if raw is None:
            raise InvalidBody("the call has no message")
        return raw

    async def read_soon(self, most: int) -> bytes | None:
        """As `read`, for a message of at most `most` bytes. Raises ReadTimeout or BodyTooLarge."""
        try:
            async with asyncio.timeout(MAX_BODY_READ_S):
                raw = await self.read()
        except TimeoutError:
            raise ReadTimeout(f"the message did not arrive within {MAX_BODY_READ_S:.0f} s") from None
        if raw is not None and len(raw) > most:
            raise BodyTooLarge(f"the message must not exceed {most} bytes")
        return raw

    async def write(self, message: bytes) -> None:
        """Send a message. Raises ClientGone if the client does not read in time, or has disconnected."""
        try:
            async with self._writing, asyncio.timeout(WRITE_TIMEOUT_S):
                await self._rpc.write(message)
        except (TimeoutError, grpc.aio.UsageError, grpc.aio.InternalError):
            raise ClientGone from None

    def finish(self, context: RequestContext) -> None:
        """After the last message, send the metadata that HTTP sends as headers."""
        headers = _told(context)
        if context.status == 200 and context.entity != UNKNOWN:
            headers.append((ANSWERED_BY.encode(), context.entity.encode()))
        if context.ignored:
            headers.append((IGNORED_FIELDS.encode(), listed(context.ignored).encode()))
        headers += [(name.encode(), value.encode()) for name, value in context.clamped.items()]
        self._rpc.set_trailing_metadata(_metadata(headers))

    async def abort(self, error: ServeError) -> None:
        """End the call with the error. Always raises, since that is how gRPC ends a call."""
        context = context_of(self.scope)
        context.status = status_of(error)
        if context.recording is not None:
            context.recording.sent(
                pb.ModelStreamInferResponse(error_message=message_of(error)).SerializeToString()
            )
        headers = _told(context)
        said = render_error(error).headers
        headers += [(name.encode(), said[name].encode()) for name in _RETRY_HEADERS if name in said]
        if SHOULD_RETRY in said:
            headers.append(_NO_RETRY)
        await self._rpc.abort(code_of(error), message_of(error), _metadata(headers))


def parsed(kind: type[Parsed], raw: bytes) -> Parsed:
    """Parse `raw` as a message of this type. Raises InvalidBody."""
    try:
        message: Parsed = kind.FromString(raw)
    except DecodeError:
        raise InvalidBody(f"the message is not a {kind.DESCRIPTOR.name}") from None
    return message


def public(error: Exception, context: RequestContext) -> ServeError:
    """The public form of any exception; the details go to the log."""
    shown = public_error(error)
    if isinstance(shown, GenerationFailed) and shown is not error:
        logger.exception("request %s: unexpected error", context.id)
    return shown


def code_of(error: ServeError) -> grpc.StatusCode:
    """The status of a call that ends with `error`."""
    if isinstance(error, UnsupportedField) and error.param in _STREAMING:
        return grpc.StatusCode.UNIMPLEMENTED  # of a call with one answer
    return grpc.StatusCode[GRPC_STATUS[error.condition]]


def message_of(error: ServeError) -> str:
    """The message of `error`, bounded in size."""
    return error.message[: MAX_ERROR_BYTES // 4]


def status_of(error: ServeError) -> int:
    """The HTTP status for `error`, as the journal and the metrics record it."""
    return render_error(error).status


def host_of(peer: str) -> str | None:
    """The IP address of a gRPC peer, such as `ipv4:127.0.0.1:50000`; None if it is not an IP address."""
    family, _, rest = unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return None
    return rest.rpartition(":")[0].strip("[]")


def _told(context: RequestContext) -> list[tuple[bytes, bytes]]:
    """The metadata that every call ends with."""
    return [(b"x-request-id", context.public_id.encode()), *budget_headers(context.budgets, context.caller)]


def _headers(metadata: Any) -> list[tuple[bytes, bytes]]:
    return [
        (key.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for key, value in metadata or ()
    ]


def _metadata(headers: list[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode(), value.decode("latin-1")) for name, value in headers)
