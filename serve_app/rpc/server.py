"""The gRPC server of a gateway: one port, every call authenticated before a message of it is read.

On the wire, a call with one message looks like a call with many, so all methods are served as streams of
bytes. This way a caller without permission is refused before anything is read, parsed or looked up. Deny by
default: all methods, even unknown ones, need a caller; only the standard health check does not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import grpc

from serve_app.api.context import header, open_context
from serve_app.api.dialects.triton.errors import render_error
from serve_app.api.edge.body import ClientGone
from serve_app.api.edge.middleware import log_done
from serve_app.api.services import Services
from serve_app.errors import PermissionDenied, RouteNotFound
from serve_app.limits import MAX_RPC_METADATA_BYTES, MAX_TENSOR_BODY_BYTES
from serve_app.rpc.call import RpcCall, public
from serve_app.rpc.methods import METHODS

logger = logging.getLogger(__name__)

_OPEN_BESIDES: Final = 256  # calls that do not generate, and idle streams
_PING_S: Final = 60  # between two keep-alive pings
_PING_WAIT_S: Final = 20
_CLIENT_PING_S: Final = 10  # clients may ping this often, as with Triton
HANDSHAKE_S: Final = 10  # from a connection to the settings of HTTP/2; before them nothing is known of it
IDLE_S: Final = 60  # a connection without a call is closed; clients open another with the next call
MAX_CONNECTIONS: Final = 2_048  # of one gateway; a client needs one


class RpcServer:
    """Answers calls of KServe's protocol."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._server: Any = None
        self.port: int | None = None  # once it is started

    async def start(self, host: str, port: int) -> None:
        """Listen on `host`; port 0 means any free port. Raises OSError when that port is taken.

        Gateways on one machine share a port: the operating system spreads connections among them.
        """
        options = [
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", MAX_TENSOR_BODY_BYTES),
            ("grpc.max_send_message_length", -1),  # answers have bounds of their own
            ("grpc.max_metadata_size", MAX_RPC_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", 2 * MAX_RPC_METADATA_BYTES),
            ("grpc.keepalive_time_ms", _PING_S * 1_000),
            ("grpc.keepalive_timeout_ms", _PING_WAIT_S * 1_000),
            ("grpc.http2.min_ping_interval_without_data_ms", _CLIENT_PING_S * 1_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1_000),
            ("grpc.max_connection_idle_ms", IDLE_S * 1_000),
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ]
        most = 2 * self._services.config.max_in_flight + _OPEN_BESIDES
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=most)
        server.add_generic_rpc_handlers((_Handlers(self),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {address}") from error
        await server.start()
        self._server = server
        logger.info("gRPC on %s", address)

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls; running calls have `grace_s` to end."""
        if self._server is not None:
            await self._server.stop(grace_s)

    async def answer(self, rpc: Any, path: str) -> None:
        """Serve one call to its end."""
        call = RpcCall(rpc, path)
        context = open_context(call.scope, render_error)
        method = METHODS.get(path)
        try:
            if method is None or method.scope is not None:
                context.caller = self._services.accounts.authenticate(
                    header(call.scope, b"authorization"), call.peer
                )
            if method is None:
                raise RouteNotFound("there is no such method")
            context.route = path
            if method.scope is not None and (
                context.caller is None or method.scope not in context.caller.scopes
            ):
                raise PermissionDenied(f"the API key lacks the scope '{method.scope}'")
            await method.run(call, self._services)
            context.status = context.status or 200
            call.finish(context)
        except ClientGone:
            context.outcome = "cancelled"
            await rpc.abort(grpc.StatusCode.CANCELLED, "the client does not read")
        except asyncio.CancelledError:
            context.outcome = "cancelled"
            raise
        except Exception as error:
            await call.abort(public(error, context))
        finally:
            log_done(self._services.metrics, context, "gRPC", context.status)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    def __init__(self, server: RpcServer) -> None:
        self._server = server

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method

        async def answer(messages: Any, rpc: Any) -> None:
            await self._server.answer(rpc, path)

        return grpc.stream_stream_rpc_method_handler(answer)
