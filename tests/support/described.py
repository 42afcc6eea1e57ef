"""Whether an answer is one that the OpenAPI document describes: status, Content-Type, body, every event."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jsonschema_rs
from starlette.types import Message, Receive, Scope, Send

from serve_app.api import app as app_module
from serve_app.api.context import context_of
from serve_app.api.ingress import Ingress
from serve_app.api.openapi.document import plain
from serve_app.api.openapi.operation import EVENTS
from serve_app.api.route import Path
from serve_app.config import GatewayConfig


class Document:
    """An OpenAPI document, asked about answers."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self._validators: dict[str, Any] = {}

    @cached_property
    def operations(self) -> set[tuple[str, str]]:
        """(method, path) of each."""
        paths: Mapping[str, Any] = self.document["paths"]
        return {(method.upper(), path) for path, item in paths.items() for method in item}

    def problems(self, method: str, template: str, status: int, media: str, body: bytes) -> Iterator[str]:
        """What the document does not say of this answer to `method` of a route; Starlette's template."""
        where = f"{method} {plain(template)} {status}"
        operation = self.document["paths"].get(plain(template), {}).get(method.lower())
        if operation is None:
            yield f"{where}: there is no such operation"
            return
        response = operation["responses"].get(str(status))
        if response is None:
            yield f"{where}: there is no such status; it may be {', '.join(operation['responses'])}"
            return
        kind, content = media.partition(";")[0].strip(), response.get("content")
        if content is None:
            yield from [f"{where}: there must be no body"] if body else []
            return
        if kind not in content:
            if body or "content" in response:
                yield f"{where}: the type is {kind!r}, not one of {', '.join(content)}"
            return
        if kind == EVENTS:
            yield from self._events(where, content[kind]["itemSchema"], body)
        elif kind == "application/json":
            yield from self._mismatch(where, content[kind]["schema"], body)

    def _events(self, where: str, schema: Mapping[str, Any], body: bytes) -> Iterator[str]:
        data = schema["properties"]["data"]
        listed = data.get("anyOf", [data])
        words = {each["const"] for each in listed if "const" in each}
        (inner,) = (each["contentSchema"] for each in listed if "contentSchema" in each)
        for event in body.decode().split("\n\n"):
            told = re.sub(r"\A(event: \S+\n)?data:", "", event).strip()  # some events have a name
            if event and not event.startswith(":") and told not in words:
                yield from self._mismatch(f"{where}, event", inner, told)

    def _mismatch(self, where: str, schema: Mapping[str, Any], text: str | bytes) -> Iterator[str]:
        try:
            value = json.loads(text)
        except ValueError:
            yield f"{where}: no JSON: {text[:100]!r}"
            return
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[key] = jsonschema_rs.validator_for(whole)
        errors = [error.message for error in self._validators[key].iter_errors(value)]
        if errors:
            yield f"{where}: {errors[0][:300]} in {json.dumps(value)[:600]}"


@dataclass(slots=True)
class _Answer:
    """What an app sent."""

    status: int = 0
    media: str = ""
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    def add(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message["headers"]}
            self.status, self.media = message["status"], headers.get(b"content-type", b"").decode("latin-1")
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            self.is_whole = not message.get("more_body", False)


@contextmanager
def answers_are_described() -> Iterator[list[str]]:
    """Compares every answer of every gateway of this process with its document; problems are collected.

    Answers to requests that no route took, and those whose client left, are not looked at.
    """
    problems: list[str] = []
    documents: dict[str, Document] = {}
    call = Ingress.__call__
    describe = app_module.describe  # type: ignore[attr-defined]

    def described_once(paths: Sequence[Path], config: GatewayConfig) -> Mapping[str, Any]:
        # All that a document depends on: apps, which are made for each gateway, are no part of it.
        routes = [
            (path.method, path.template, [(e.family, e.operation) for e in path.entries]) for path in paths
        ]
        key = repr((routes, config.v1_dialect, config.ovms))
        if key not in documents:
            documents[key] = Document(describe(paths, config))
        return documents[key].document

    async def compared(app: Ingress, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer()

        async def kept(message: Message) -> None:
            answer.add(message)
            await send(message)

        await call(app, scope, receive, kept)
        route = context_of(scope).route if scope["type"] == "http" else "unknown"
        if answer.is_whole and route != "unknown" and scope["method"] != "HEAD":
            document = app.openapi()
            known = next(each for each in documents.values() if each.document is document)
            told = scope["method"], route, answer.status, answer.media, bytes(answer.body)
            problems.extend(known.problems(*told))

    app_module.describe = described_once  # type: ignore[attr-defined,assignment]
    Ingress.__call__ = compared  # type: ignore[method-assign,assignment]
    try:
        yield problems
    finally:
        app_module.describe = describe  # type: ignore[attr-defined]
        Ingress.__call__ = call  # type: ignore[method-assign]
