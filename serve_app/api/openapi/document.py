"""The OpenAPI document of a table of routes: every operation in the shape of each protocol, in one file.

Made once, together with the app. A path that several protocols share is one operation here, with the header
that chooses between the protocols. Independent of protocols, since routes bring their own descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import msgspec

from serve_app.api.openapi.headers import REQUEST_HEADERS, RESPONSE_HEADERS, answer_names, header_names
from serve_app.api.openapi.operation import EVENTS, JSON, Answer, Body, Errors, Operation, Parameter
from serve_app.api.openapi.schemas import any_of, schemas
from serve_app.api.protocol.family import HEADER, WORDS, Family, family_of
from serve_app.api.route import Path
from serve_app.errors import (
    Condition,
    GenerationFailed,
    InvalidField,
    MethodNotAllowed,
    PermissionDenied,
    RouteNotFound,
    ServeError,
    Unauthenticated,
    from_info,
)
from serve_app.limits import MAX_BODY_BYTES, MAX_MODEL_NAME_CHARS
from serve_app.types import ErrorInfo

OPENAPI: Final = "3.2.0"  # the first version that describes the events of a stream
KEY: Final = "key"  # the security scheme's name

_PLACE: Final = re.compile(r"\{(?P<name>\w+)(?::(?P<kind>\w+))?\}")


@dataclass(frozen=True, slots=True)
class About:
    """The document's facts about the server as a whole."""

    title: str
    version: str
    text: str
    tags: Mapping[str, str] = field(default_factory=dict)  # a protocol's name -> a sentence


def document(
    routes: Sequence[Path], about: About, errors: Mapping[Family, Errors], v1: Family
) -> dict[str, Any]:
    """The document; `v1` is the protocol of /v1 unless a request selects another."""
    types = [*_types(routes), *(each.type for each in errors.values())]
    by_key, components = schemas({repr(each): each for each in types})
    writer = _Writer(by_key, errors, v1)
    paths: dict[str, dict[str, Any]] = {}
    for path in routes:
        if _operations(path):
            paths.setdefault(plain(path.template), {})[path.method.lower()] = writer.operation(path)
    return {
        "openapi": OPENAPI,
        "info": {"title": about.title, "version": about.version, "description": about.text},
        "servers": [{"url": "/"}],
        "security": [{KEY: []}],
        "tags": [{"name": name, "description": text} for name, text in about.tags.items()],
        "paths": paths,
        "components": {
            "schemas": _used(paths, components),
            "headers": RESPONSE_HEADERS,
            "securitySchemes": {
                KEY: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key. Without any keys the server answers loopback alone.",
                }
            },
        },
    }


def plain(template: str) -> str:
    """A Starlette path in OpenAPI's notation, which has no converters."""
    return _PLACE.sub(r"{\g<name>}", template)


def _operations(path: Path) -> list[tuple[Family | None, Operation]]:
    """The operations on a path, each with its protocol; None: the operation is the same for all protocols."""
    return [(each.family, each.operation) for each in path.entries if each.operation is not None]


def _types(routes: Iterable[Path]) -> Iterator[Any]:
    for path in routes:
        for _, operation in _operations(path):
            if operation.errors is not None:
                yield operation.errors.type
            yield from (body.type for body in operation.bodies)
            yield from (answer.type for answer in operation.answers if answer.type is not None)
            yield from (parameter.type for parameter in operation.parameters)


def _used(paths: Any, components: dict[str, Any]) -> dict[str, Any]:
    """The components to which paths refer, directly or through other components."""
    found: dict[str, Any] = {}
    pending = [paths]
    while pending:
        text = msgspec.json.encode(pending.pop()).decode()
        for name in re.findall(r'"#/components/schemas/([^"]+)"', text):
            if name not in found:
                found[name] = components[name]
                pending.append(components[name])
    return dict(sorted(found.items()))


class _Writer:
    """Writes operations, given the schema of every type."""

    def __init__(
        self, schemas: Mapping[Hashable, dict[str, Any]], errors: Mapping[Family, Errors], v1: Family
    ) -> None:
        self._schemas = schemas
        self._errors = errors  # of a protocol, where a route has none of its own
        self._v1 = v1

    def _schema(self, type_: Any) -> dict[str, Any]:
        return self._schemas[repr(type_)]

    def operation(self, path: Path) -> dict[str, Any]:
        operations = [operation for _, operation in _operations(path)]
        found: dict[str, Any] = {
            "operationId": _id(path),
            "tags": list(dict.fromkeys(each.tag for each in operations)),
            "summary": "; ".join(dict.fromkeys(each.summary for each in operations)),
            "description": self._text(path),
            "parameters": list(self._parameters(path)),
            "responses": self._responses(path),
        }
        if path.scope is None:
            found["security"] = []
        if any(each.bodies for each in operations):
            found["requestBody"] = self._body(operations)
        return found

    def _text(self, path: Path) -> str:
        scopes = " or ".join(f"`{scope}`" for scope in (path.scope, *path.other_scopes) if scope)
        needs = f"Needs a key with the scope {scopes}." if scopes else "Open to everyone."
        operations = [operation for _, operation in _operations(path)]
        several = len(operations) > 1
        told = [f"**{each.tag}**: {each.what}" if several else each.what for each in operations if each.what]
        return "\n\n".join([*told, needs])

    def _parameters(self, path: Path) -> Iterator[dict[str, Any]]:
        operations = [operation for _, operation in _operations(path)]
        known = {each.name: each for operation in operations for each in operation.parameters}
        for place in _PLACE.finditer(path.template):
            given = known.pop(place["name"], None)
            yield self._parameter(given) if given else _path_parameter(place["name"], place["kind"])
        families = [family for family, _ in _operations(path) if family is not None]
        if len(families) > 1:
            yield self._family_parameter(path, families)
        yield from (self._parameter(each) for each in known.values())
        asks = any(operation.bodies and operation.asks_model for operation in operations)
        yield from (each for name, each in REQUEST_HEADERS.items() if name in header_names(asks))

    def _parameter(self, parameter: Parameter) -> dict[str, Any]:
        return {
            "name": parameter.name,
            "in": parameter.place,
            "required": parameter.is_required or parameter.place == "path",
            "description": parameter.what,
            "schema": self._schema(parameter.type),
            **({} if parameter.example is None else {"example": parameter.example}),
        }

    def _family_parameter(self, path: Path, families: Sequence[Family]) -> dict[str, Any]:
        usual = family_of(None, None, path.template, self._v1)
        listed = [word for word, family in WORDS.items() if family in families]
        return {
            "name": HEADER,
            "in": "header",
            "required": False,
            "description": f"The protocol that the request speaks. Without this header: {usual}.",
            "schema": {"type": "string", "enum": listed, "default": str(usual)},
        }

    def _body(self, operations: Sequence[Operation]) -> dict[str, Any]:
        by_media: dict[str, list[tuple[Operation, Body]]] = {}
        for operation in operations:
            for body in operation.bodies:
                by_media.setdefault(body.media, []).append((operation, body))
        content: dict[str, Any] = {}
        for media, bodies in by_media.items():
            content[media] = {"schema": any_of(self._body_schema(body) for _, body in bodies)}
            examples = {
                f"{operation.tag}: {name}": {"value": value}
                for operation, body in bodies
                for name, value in body.examples.items()
            }
            if examples:
                content[media]["examples"] = examples
        required = all(body.is_required for operation in operations for body in operation.bodies)
        return {"required": required, "content": content}

    def _body_schema(self, body: Body) -> dict[str, Any]:
        schema = self._schema(body.type)
        return {"allOf": [schema, {"required": list(body.required)}]} if body.required else schema

    def _responses(self, path: Path) -> dict[str, Any]:
        told: dict[int, list[str]] = {}
        content: dict[int, dict[str, list[dict[str, Any]]]] = {}
        examples: dict[int, dict[str, dict[str, Any]]] = {}

        def add(status: int, what: str, media: str, schema: dict[str, Any] | None) -> None:
            told.setdefault(status, []).append(what)
            by_media = content.setdefault(status, {})
            if schema is not None:
                by_media.setdefault(media, []).append(schema)

        operations = [operation for _, operation in _operations(path)]
        several = len(operations) > 1
        for operation in operations:
            for answer in operation.answers:
                what = f"{operation.tag}: {answer.what}" if several else answer.what
                add(answer.status, what, answer.media, self._answer_schema(answer))
            for error, errors in self._told_errors(path, operation):
                reply = errors.render(_example(error))
                add(reply.status, "", JSON, self._schema(errors.type))
                if errors is not (operation.errors or errors):
                    continue  # another protocol's, of which the schema says enough
                name = f"{operation.tag}: {error.__name__}" if several else error.__name__
                example = {"value": msgspec.json.decode(reply.body)}
                examples.setdefault(reply.status, {})[name] = example
        return {
            str(status): _response(
                " ".join(dict.fromkeys(filter(None, what))) or _phrase(status),
                content[status],
                examples.get(status, {}),
                status,
            )
            for status, what in sorted(told.items())
        }

    def _told_errors(self, path: Path, operation: Operation) -> Iterator[tuple[type[ServeError], Errors]]:
        """The possible errors, each with its shape."""
        usual = self._errors[family_of(None, None, path.template, self._v1)]
        yield from ((error, operation.errors or usual) for error in _conditions(path, operation))
        if any(entry.family is not None for entry in path.entries):
            # The header may name a protocol that has no such route, or none at all.
            yield from ((RouteNotFound, errors) for errors in self._errors.values())
            yield InvalidField, self._errors[Family.OPENAI]

    def _answer_schema(self, answer: Answer) -> dict[str, Any] | None:
        return None if answer.type is None else self._schema(answer.type)


def _response(
    what: str,
    content: Mapping[str, list[dict[str, Any]]],
    examples: Mapping[str, dict[str, Any]],
    status: int,
) -> dict[str, Any]:
    found: dict[str, Any] = {"description": what, "headers": _headers(status)}
    for media, listed in content.items():
        schema = any_of(listed)
        entry = {"itemSchema": _event(schema)} if media == EVENTS else {"schema": schema}
        if examples and media == JSON:
            entry["examples"] = dict(examples)
        found.setdefault("content", {})[media] = entry
    return found


def _headers(status: int) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in answer_names(status)}


def _event(data: dict[str, Any]) -> dict[str, Any]:
    """An event whose data is JSON, or the word that closes the stream."""
    listed = data.get("anyOf", [data])
    done = [each for each in listed if "const" in each]
    as_json = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": any_of(each for each in listed if "const" not in each),
    }
    return {"type": "object", "properties": {"data": any_of([as_json, *done])}, "required": ["data"]}


def _conditions(path: Path, operation: Operation) -> Iterator[type[ServeError]]:
    """The errors of an operation: its own, and those that every route may raise."""
    found: list[type[ServeError]] = [*operation.conditions]
    if path.scope is not None:
        found += [Unauthenticated, PermissionDenied]
    if ":" in path.template:  # a name with slashes may look like another path
        found += [RouteNotFound, MethodNotAllowed]
    yield from dict.fromkeys([*found, GenerationFailed])


def _path_parameter(name: str, kind: str | None) -> dict[str, Any]:
    slashes = " It may hold slashes." if kind is not None else ""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": f"The name of the {name}.{slashes}",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_MODEL_NAME_CHARS},
    }


def _id(path: Path) -> str:
    """A name for the operation, such as get_v1_models, after which generated clients name a method."""
    words = re.findall(r"[A-Za-z0-9]+", plain(path.template))
    return "_".join([path.method.lower(), *words, *(["slash"] if path.template.endswith("/") else [])])


def _example(error: type[ServeError]) -> ServeError:
    """An error as clients may see it."""
    param, reason = _FIELDS.get(error.condition, (None, _MESSAGES.get(error.condition, "")))
    return from_info(ErrorInfo(kind=error.__name__, reason=reason, param=param, joint=": "))


# The example of each condition: the field at fault and the reason, or the whole message.
_FIELDS: Final[Mapping[Condition, tuple[str | None, str]]] = {
    Condition.INVALID_FIELD: ("temperature", "must be a number from 0 to 2"),
    Condition.MODEL_NOT_FOUND: ("model", "no such model"),
    Condition.VERSION_NOT_FOUND: ("version", "no such version of the model"),
    Condition.PROMPT_TOO_LONG: (None, "the prompt is longer than the model's window"),
}
_MESSAGES: Final[Mapping[Condition, str]] = {
    Condition.INVALID_BODY: "the body must be a JSON object",
    Condition.UNAUTHENTICATED: "an API key is required",
    Condition.PERMISSION_DENIED: "the API key lacks the scope 'inference'",
    Condition.QUOTA_EXCEEDED: "the limit of the API key is used up",
    Condition.OVERLOADED: "the server is busy; try again",
    Condition.UNAVAILABLE: "the model is loading; try again",
    Condition.DEADLINE_EXCEEDED: "the answer was not ready in time",
    Condition.ENGINE_REFUSED: "the engine could not accept the request",
    Condition.GENERATION_FAILED: "an internal error occurred; the request may be retried",
    Condition.METHOD_NOT_ALLOWED: "this route takes POST",
    Condition.BODY_TOO_LARGE: f"the body must not exceed {MAX_BODY_BYTES} bytes",
    Condition.READ_TIMEOUT: "the body did not arrive in time",
    Condition.ROUTE_NOT_FOUND: "there is no such route",
    Condition.ALREADY_EXISTS: "an endpoint of this name exists",
    Condition.CONFLICT: "the endpoint is being updated; wait until it is not",
    Condition.GUARDRAIL_TRIGGERED: "the prompt has personal data",
}


def _phrase(status: int) -> str:
    """The reason phrase of a status. HTTP has no phrase for 529, Anthropic's status for a full queue."""
    return "Overloaded" if status == 529 else HTTPStatus(status).phrase
