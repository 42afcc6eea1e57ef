"""Chat below /v1, whose path MindIE shares with OpenAI: an endpoint may choose the protocol of its chat.

If neither header nor prefix names the protocol, and some endpoint has chosen its own, the answer's protocol
is known only once the body has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.context import context_of
from serve_app.api.dialects.chat.paths import CHAT, V1
from serve_app.api.dialects.mindie.chat import ChatDialect as MindieChat
from serve_app.api.dialects.mindie.routes import chat_operation
from serve_app.api.dialects.openai.chat import ChatDialect as OpenaiChat
from serve_app.api.dialects.openai.routes import CHAT_OPERATION
from serve_app.api.exchange.generate import GenerateExchange
from serve_app.api.protocol.dialect import Call, ChosenDialect, Dialect, Referring
from serve_app.api.protocol.family import Family
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import ModelNotFound, PermissionDenied
from serve_app.types import Scope

FamilyOf = Callable[[str], Family | None]  # of an endpoint's chat, by the name that a client gives


class _Named(msgspec.Struct):
    """The part of a body that names its endpoint."""

    model: Any = None


class EndpointsDialect(ChosenDialect):
    """For one request: the gateway's dialect, unless the body names an endpoint with another dialect."""

    def __init__(self, gateways: Dialect, dialects: Mapping[Family, Dialect], family_of: FamilyOf) -> None:
        super().__init__(gateways)
        self._dialects = dialects
        self._family_of = family_of

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call | Referring[Call]:
        """Raises the errors of the endpoint's dialect."""
        family = self._family_of(_model_of(raw))
        if family is not None:
            self._chosen = self._dialects[family]
        return super().parse(raw, endpoint)


class ChatRoute:
    """The route of both protocols."""

    def __init__(self, dialects: Mapping[Family, Dialect], services: Services) -> None:
        self._dialects = dialects
        self._services = services

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises ServeError only before the answer's first byte, but ClientGone at any time."""
        await GenerateExchange(self._dialect(scope), self._services, scope, receive, send).run()

    def _dialect(self, scope: AsgiScope) -> Dialect:
        context = context_of(scope)
        dialect = self._dialects[context.family]
        if context.is_forced or not self._services.directory.has_v1_dialects:
            return dialect

        def family_of(model: str) -> Family | None:
            try:
                endpoint, _ = self._services.endpoints(scope).resolve(model, self._services.backend)
            except (ModelNotFound, PermissionDenied):
                return None
            return None if endpoint.v1_dialect is None else Family(endpoint.v1_dialect)

        return EndpointsDialect(dialect, self._dialects, family_of)


def routes(services: Services) -> Iterator[Entry]:
    """One app for both protocols, since the endpoint may choose between them."""
    mindie = services.config.mindie
    dialects: dict[Family, Dialect] = {Family.OPENAI: OpenaiChat(), Family.MINDIE: MindieChat(mindie)}
    app = ChatRoute(dialects, services)
    for family, operation in ((Family.OPENAI, CHAT_OPERATION), (Family.MINDIE, chat_operation(mindie))):
        yield Entry("POST", f"{V1}{CHAT}", app, Scope.INFERENCE, family, operation)


def _model_of(raw: bytes) -> str:
    """The model's name in a body. If the body has none, the name is empty, which the dialect refuses."""
    try:
        model = msgspec.json.decode(raw, type=_Named).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return model if isinstance(model, str) else ""
