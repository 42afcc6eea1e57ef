"""Triton's routes that generate: infer with tensors, generate and generate_stream with JSON values.

MindIE shares generate and generate_stream: see `mindie/shared_with_triton`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.context import header
from serve_app.api.dialects.triton.aliases import Meaning, meaning
from serve_app.api.dialects.triton.ensemble.step_exchange import InferSteps, ValueSteps, exchange_steps
from serve_app.api.dialects.triton.generate import STREAM_TYPE, GenerateDialect
from serve_app.api.dialects.triton.infer import InferDialect, StopAsked
from serve_app.api.dialects.triton.stop import find_model, stopped
from serve_app.api.edge.connection import reply, reply_json
from serve_app.api.exchange.generate import GenerateExchange
from serve_app.api.exchange.stream import STREAM_HEADERS
from serve_app.api.kserve.http_body import BINARY_TYPE, HEADER
from serve_app.api.kserve.inflate import Inflated
from serve_app.api.kserve.recorded import HttpTensors
from serve_app.api.protocol.dialect import Dialect, KnownModel
from serve_app.api.services import Services
from serve_app.limits import MAX_BODY_BYTES, MAX_TENSOR_BODY_BYTES

_HEADER: Final = HEADER.lower().encode()


class InferRoute:
    """POST .../infer."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `GenerateRoute`."""
        names, services = scope["path_params"], self._services
        header_length = header(scope, _HEADER)
        meant = meaning(services, scope, names["model"])
        unpacked = Inflated(receive, header(scope, b"content-encoding"))
        # Only this header announces binary tensors, whose body may be larger than one of JSON.
        most = MAX_BODY_BYTES if header_length is None else MAX_TENSOR_BODY_BYTES
        if not meant.role.generates:
            steps = InferSteps(meant.role, names["model"], names.get("version"), header_length)
            await exchange_steps(
                steps, meant.endpoint, services, _bare(scope), unpacked, send, max_bytes=most
            )
            return
        dialect = InferDialect(
            services.config.trtllm,
            model=names["model"],
            version=names.get("version"),
            header_length=header_length,
            role=meant.role,
        )
        known = KnownModel(dialect, partial(find_model, services, scope, meant.endpoint))
        exchange = GenerateExchange(
            *(known, services, _bare(scope), unpacked, send), max_bytes=most, form=HttpTensors(header_length)
        )
        try:
            await exchange.run(meant.endpoint)
        except StopAsked as asked:
            told = stopped(services, scope, asked.stop, names.get("version"))
            await reply_json(send, {**told, "outputs": []})


class ValuesRoute:
    """POST .../generate and .../generate_stream."""

    def __init__(self, services: Services, *, stream: bool) -> None:
        self._services = services
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `GenerateRoute`."""
        names, services = scope["path_params"], self._services
        meant = self.meaning(scope)
        if not meant.role.generates:
            steps = ValueSteps(meant.role, names["model"], names.get("version"), self._stream)
            await exchange_steps(steps, meant.endpoint, services, scope, receive, send)
            return
        dialect = self.dialect(scope, meant)
        try:
            await GenerateExchange(dialect, services, self.read_as(scope, meant), receive, send).run(
                meant.endpoint
            )
        except StopAsked as asked:
            told = stopped(services, scope, asked.stop, names.get("version"))
            if self._stream:
                headers = {"content-type": STREAM_TYPE, **STREAM_HEADERS}
                await reply(send, 200, headers, b"data: " + msgspec.json.encode(told) + b"\n\n")
            else:
                await reply_json(send, told)

    def meaning(self, scope: Scope) -> Meaning:
        """The endpoint and the role that the model's name stands for."""
        return meaning(self._services, scope, scope["path_params"]["model"])

    def read_as(self, scope: Scope, meant: Meaning) -> Scope:
        """The request without the headers that the dialect itself reads."""
        return scope

    def dialect(self, scope: Scope, meant: Meaning) -> Dialect:
        return KnownModel(
            self.tritons(scope, meant), partial(find_model, self._services, scope, meant.endpoint)
        )

    def tritons(self, scope: Scope, meant: Meaning) -> Dialect:
        names = scope["path_params"]
        return GenerateDialect(
            self._services.config.trtllm,
            model=names["model"],
            version=names.get("version"),
            stream=self._stream,
            role=meant.role,
        )


def _bare(scope: Scope) -> Scope:
    """The request without the headers about the encoding of its body, which has been decoded already."""
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name != b"content-encoding" and (name, _media(value)) != (b"content-type", BINARY_TYPE)
    ]
    return {**scope, "headers": headers}


def _media(value: bytes) -> str:
    return str(value.partition(b";")[0].strip().lower(), "latin-1")
