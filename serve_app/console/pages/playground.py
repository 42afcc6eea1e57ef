"""The Playground: its page, the form of options for one protocol, and requests as code to copy.

The page's scripts ask the public API themselves, through the console's forwarder; no text is made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serve_app.console.playground.options import FORMS, groups_of
from serve_app.console.playground.protocols import PROTOCOLS, Protocol, protocol_named, protocols_of
from serve_app.console.playground.schemas import Json, members_of
from serve_app.console.playground.snippets import curl, python
from serve_app.console.playground.translate import Ask, translated
from serve_app.console.request import console_of
from serve_app.console.templates import render

TITLE: Final = "Playground"
SCOPES: Final = frozenset({"inference"})
PATH: Final = "/console/playground"
ROUTING: Final = "routing"  # the scope of a key that may choose an entity

# The example that a button puts into an empty field.
TOOLS_EXAMPLE: Final = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather of a city",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        }
    ],
    indent=2,
)
SCHEMA_EXAMPLE: Final = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
        "required": ["city", "country"],
        "additionalProperties": False,
    },
    indent=2,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """An endpoint to choose from, as in the list of models."""

    name: str
    task: str
    entities: Sequence[Mapping[str, Any]]
    window: int | None

    def defaults(self, entity: str | None) -> Mapping[str, float]:
        """The sampling defaults of `entity`, or of the one with the most traffic."""
        named = [each for each in self.entities if each["name"] == entity]
        found = named or sorted(self.entities, key=lambda each: -each["traffic"])[:1]
        return found[0]["generation_config"] if found else {}


def routes() -> Iterator[Route]:
    """The page, and the two routes that its scripts call."""
    yield Route(PATH, _page, methods=["GET"])
    yield Route(f"{PATH}/options", _options, methods=["GET"])
    yield Route(f"{PATH}/code", _code, methods=["POST"])


async def _page(request: Request) -> Response:
    choices = await _choices(request)
    if not choices:
        return render(request, "playground.html", choices=choices)
    return render(
        request,
        "playground.html",
        choices=choices,
        protocols=PROTOCOLS,
        unknown=_unknown(request.query_params, choices),
        **await _form(request, choices),
    )


async def _options(request: Request) -> Response:
    """The form of options alone, with which a script replaces the previous form."""
    choices = await _choices(request)
    if not choices:
        return JSONResponse({"error": "there is no endpoint that generates text"}, HTTPStatus.NOT_FOUND)
    return render(request, "_playground_options.html", **await _form(request, choices))


async def _code(request: Request) -> Response:
    """The form's `request` as code, in JSON: one entry for every protocol with the same kind of prompt."""
    console = console_of(request)
    document = (await console.api.get("/openapi.json")).body
    try:
        ask, task = _asked(json.loads(console.form.text("request")))
    except (ValueError, KeyError, TypeError) as error:
        return JSONResponse(
            {"error": f"this is not a request of the Playground: {error}"}, HTTPStatus.BAD_REQUEST
        )
    server = f"{request.url.scheme}://{request.url.netloc}"
    codes = []
    for target in protocols_of(task):
        if target.mode != ask.protocol.mode:
            continue
        same, lost = translated(document, ask, target)
        keys = not console.needs_no_key
        codes.append(
            {
                "protocol": target.id,
                "title": target.title,
                "lost": list(lost),
                "curl": curl(document, same, server, keys=keys),
                "python": python(document, same, server, keys=keys),
            }
        )
    return JSONResponse({"codes": codes})


async def _choices(request: Request) -> list[Choice]:
    """The endpoints that generate text, in the order of the list of models."""
    listed = (await console_of(request).api.get("/v1/models")).body["data"]
    choices = [
        Choice(each["id"], each["task"], each["served_entities"], each.get("max_model_len"))
        for each in listed
    ]
    return [each for each in choices if protocols_of(each.task)]


async def _form(request: Request, choices: Sequence[Choice]) -> dict[str, Any]:
    """The values for the form of options, for the query's endpoint and protocol or else the first ones."""
    query = request.query_params
    choice = next((each for each in choices if each.name == query.get("endpoint")), choices[0])
    spoken = protocols_of(choice.task)
    protocol = next((each for each in spoken if each.id == query.get("protocol")), spoken[0])
    document = (await console_of(request).api.get("/openapi.json")).body
    return {
        "choice": choice,
        "protocol": protocol,
        "groups": groups_of(document, protocol, choice.defaults(query.get("entity"))),
        "data": _data(document, protocol),
        "may_choose": console_of(request).can(ROUTING),
        "tools_example": TOOLS_EXAMPLE,
        "schema_example": SCHEMA_EXAMPLE,
    }


def _unknown(query: Mapping[str, str], choices: Sequence[Choice]) -> str:
    """The notice that the query's endpoint or entity is not available; "" if both are available."""
    name, entity = query.get("endpoint"), query.get("entity")
    choice = next((each for each in choices if each.name == name), None)
    if name and choice is None:
        return f"Your key has no endpoint {name} that generates text. Choose one of those listed below."
    if choice is not None and entity and entity not in {each["name"] for each in choice.entities}:
        return f"The endpoint {choice.name} has no served entity {entity}."
    return ""


def _data(document: Json, protocol: Protocol) -> Mapping[str, bool]:
    """Which members of the body the page itself writes for `protocol`."""
    members = members_of(document, protocol).keys()
    return {
        "names_model": protocol.names_model,
        "streams": "stream" in members,
        # Other protocols have other members, and their last event has the usage anyway.
        "usage": "stream_options" in members and protocol.shape in ("chat", "text"),
        "tools": "tools" in members,
    }


def _asked(sent: Mapping[str, Any]) -> tuple[Ask, str]:
    """The request that the page sent, and its endpoint's task. Raises ValueError, KeyError or TypeError."""
    protocol = protocol_named(sent["protocol"])
    body = sent["body"]
    if protocol is None or not isinstance(body, dict) or protocol.prompt not in body:
        raise ValueError("protocol, or body, is not one of the page")
    shapes = sent.get("shapes") or {}
    if protocol.mode == "chat" and not all(isinstance(shapes[shape], dict) for shape in FORMS):
        raise ValueError("shapes is not what the page writes")
    entity = str(sent.get("entity") or "") or None
    ask = Ask(protocol, str(sent["model"]), bool(sent["stream"]), body, entity, shapes)
    return ask, str(sent["task"])
