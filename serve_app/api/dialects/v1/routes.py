"""Chat of OpenAI's protocol and of MindIE's, whose path is the same."""

from __future__ import annotations

from collections.abc import Iterator

from serve_app.api.dialects.base import Dialect
from serve_app.api.dialects.chat.paths import CHAT, V1
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.mindie.chat import ChatDialect as MindieChat
from serve_app.api.dialects.mindie.operations import chat as mindies_chat
from serve_app.api.dialects.openai.chat import ChatDialect as OpenaiChat
from serve_app.api.dialects.openai.operations import CHAT as OPENAIS_CHAT
from serve_app.api.dialects.v1.chat import ChatRoute
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope


def routes(services: Services) -> Iterator[Entry]:
    """One app for both, as it may be the endpoint that chooses."""
    mindie = services.config.mindie
    dialects: dict[Family, Dialect] = {Family.OPENAI: OpenaiChat(), Family.MINDIE: MindieChat(mindie)}
    app = ChatRoute(dialects, services)
    for family, operation in ((Family.OPENAI, OPENAIS_CHAT), (Family.MINDIE, mindies_chat(mindie))):
        yield Entry("POST", f"{V1}{CHAT}", app, Scope.INFERENCE, family, operation)
