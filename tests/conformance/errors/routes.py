"""The routes that are asked for conditions E1 to E15. A route takes part by an entry in ROUTES."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from serve_app.limits import MAX_BODY_BYTES, MAX_TENSOR_BODY_BYTES
from tests.conformance.errors import protocols as of

Fields = dict[str, Any]

CHATS: Final = "demo"  # models of the gateway with a backend that plays a part
EMBEDS: Final = "quay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How one route is asked, rightly and wrongly. "{model}" stands for the model's name."""

    protocol: of.Protocol
    path: str
    prompt: str  # the field of what is to be continued or embedded
    question: Any  # a value of that field
    long: Callable[[int], Any]  # a value of at least so many tokens
    fields: Fields = field(default_factory=dict)  # beside it
    wrong: tuple[Fields, str]  # E2: a field out of range, and what is said of it
    unknown: str = "{path}/nothing/here"  # E15: a path that no route has
    unknown_versions: tuple[str, ...] = ()  # E4: paths; or else the header names an entity
    headers: dict[str, str] = field(default_factory=dict)
    streams: bool = False  # whether `stream` is a field of it
    embeds: bool = False
    blamed: str | None = None  # E5: the name of a prompt that is too long, where it is not `prompt`
    largest: int = MAX_BODY_BYTES

    @property
    def model(self) -> str:
        """The model of a backend that plays a part."""
        return EMBEDS if self.embeds else CHATS

    def body(self, model: str, **fields: Any) -> Fields:
        return {**_named(self.fields, model), self.prompt: self.question, **fields}

    async def ask(
        self, client: httpx.AsyncClient, model: str | None = None, path: str | None = None, **fields: Any
    ) -> httpx.Response:
        return await self.post(client, self.body(model or self.model, **fields), model, path)

    async def post(
        self,
        client: httpx.AsyncClient,
        body: Any,
        model: str | None = None,
        path: str | None = None,
        **headers: str,
    ) -> httpx.Response:
        """`body`: an object, or the bytes of what may be none."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        where = (path or self.path).format(model=model or self.model)
        return await client.post(where, headers={**self.headers, **headers}, **content)


def _named(fields: Fields, model: str) -> Fields:
    return {
        name: value.format(model=model) if isinstance(value, str) else value for name, value in fields.items()
    }


IN_BODY: Final[Fields] = {"model": "{model}", "max_tokens": 2}


def _words(count: int) -> str:
    return "7 " * count


def _said(text: str) -> list[Fields]:
    return [{"role": "user", "content": text}]


CHAT: Final[Fields] = {
    "prompt": "messages", "question": _said("Tell me!"), "long": lambda count: _said(_words(count)),
}  # fmt: skip
TEXT: Final[Fields] = {"prompt": "prompt", "question": "The sea is", "long": _words}
INPUT: Final[Fields] = {
    "prompt": "input", "question": "quay", "long": _words, "fields": {"model": "{model}"}, "embeds": True,
    "wrong": ({"dimensions": 0}, "dimensions: must be an integer from 1 to 65536"),
}  # fmt: skip
HOT: Final = ({"temperature": 2.5}, "temperature: must be a number from 0 to 2")
RESPONSE: Final[Fields] = {
    **TEXT, "prompt": "input", "fields": {"model": "{model}", "max_output_tokens": 2}, "wrong": HOT,
    "streams": True, "blamed": "input",
}  # fmt: skip
V2: Final = "/v2/models/{model}"
MINDIE_TEXT: Final[Fields] = {
    "protocol": of.MINDIE_GENERATE, "prompt": "text_input", "question": "The tide", "long": _words,
    "fields": {"parameters": {"max_new_tokens": 2}}, "headers": {"x-api-dialect": "mindie"},
    "unknown": "/mindie/v2/nothing",
    "wrong": (
        {"parameters": {"typical_p": -1.0}}, "parameters.typical_p: must be a number above 0 and up to 1",
    ),
}  # fmt: skip
IDS: Final = [12, 71, 40, 3]
TENSORS: Final[Fields] = {
    "protocol": of.TRITON, "prompt": "input_ids", "question": IDS, "long": lambda count: [5] * count,
    "fields": {"request_output_len": 3},
    "wrong": ({"beam_width": 0}, "beam_width: must be an integer from 1 to 64"),
    "unknown": "/triton/v2/nothing", "largest": MAX_TENSOR_BODY_BYTES,
}  # fmt: skip


def _tensor(name: str, data: list[int], shape: list[int]) -> Fields:
    return {"name": name, "datatype": "INT32", "shape": shape, "data": data}


def _versions(path: str, *versions: str) -> tuple[str, ...]:
    return tuple(path.replace("{model}", f"{{model}}/versions/{version}") for version in versions)


def _infer(ids: list[int], *others: Fields) -> list[Fields]:
    output = _tensor("request_output_len", [3], [1, 1])
    return [_tensor("input_ids", ids, [1, len(ids)]), output, *others]


ROUTES: Final[Mapping[str, Route]] = {
    "openai chat": Route(
        protocol=of.OPENAI, path="/openai/v1/chat/completions", **CHAT, fields=IN_BODY, wrong=HOT,
        streams=True,
    ),
    "openai completions": Route(
        protocol=of.OPENAI, path="/openai/v1/completions", **TEXT, fields=IN_BODY, wrong=HOT, streams=True
    ),
    "openai responses": Route(protocol=of.OPENAI, path="/openai/v1/responses", **RESPONSE),
    "anthropic messages": Route(
        protocol=of.ANTHROPIC, path="/v1/messages", **CHAT, fields=IN_BODY, wrong=HOT, streams=True
    ),
    "openai embeddings": Route(protocol=of.OPENAI, path="/openai/v1/embeddings", **INPUT),
    "databricks invocations": Route(
        protocol=of.DATABRICKS, path="/serving-endpoints/{model}/invocations", **CHAT, wrong=HOT,
        streams=True,
        unknown_versions=("/serving-endpoints/{model}/served-models/{model}-9/invocations",),
    ),
    "databricks chat": Route(
        protocol=of.DATABRICKS, path="/serving-endpoints/chat/completions", **CHAT, fields=IN_BODY, wrong=HOT,
        streams=True,
    ),
    "databricks responses": Route(
        protocol=of.DATABRICKS, path="/serving-endpoints/open-responses", **RESPONSE
    ),
    "databricks embeddings": Route(protocol=of.DATABRICKS, path="/serving-endpoints/embeddings", **INPUT),
    "mindie chat": Route(
        protocol=of.MINDIE_CHAT, path="/mindie/v1/chat/completions", **CHAT, fields=IN_BODY, streams=True,
        wrong=({"temperature": 0}, "temperature: must be a number above 0 and up to 2"),
    ),
    **{
        f"mindie {what}": Route(
            path=f"{V2}/{what}", unknown_versions=_versions(f"{V2}/{what}", "2", "x"), **MINDIE_TEXT
        )
        for what in ("generate", "generate_stream")
    },
    "ovms chat": Route(
        protocol=of.OVMS, path="/v3/chat/completions", **CHAT, fields=IN_BODY, wrong=HOT, streams=True
    ),
    "ovms completions": Route(
        protocol=of.OVMS, path="/v3/completions", **TEXT, fields=IN_BODY, wrong=HOT, streams=True
    ),
    "ovms responses": Route(protocol=of.OVMS, path="/v3/responses", **RESPONSE),
    "ovms embeddings": Route(protocol=of.OVMS, path="/v3/embeddings", **INPUT),
    "triton infer": Route(
        path=f"/triton{V2}/infer", unknown_versions=_versions(f"/triton{V2}/infer", "9"),
        **{
            **TENSORS, "prompt": "inputs", "question": _infer(IDS), "fields": {}, "blamed": "input_ids",
            "long": lambda count: _infer([5] * count),
            "wrong": ({"inputs": _infer(IDS, _tensor("beam_width", [0], [1, 1]))}, TENSORS["wrong"][1]),
        },
    ),
    **{
        f"triton {what}": Route(
            path=f"/triton{V2}/{what}", unknown_versions=_versions(f"/triton{V2}/{what}", "9"), **TENSORS
        )
        for what in ("generate", "generate_stream")
    },
}  # fmt: skip
GENERATING: Final = {name: route for name, route in ROUTES.items() if not route.embeds}
