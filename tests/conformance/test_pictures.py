"""Pictures in the sessions of agents: a note replaces each, or a setting refuses it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from serve_app.api.dialects.chat.pictures import NOTE
from serve_app.types import FinishReason
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import gateway

SOURCE: Final = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
PICTURE: Final = {"type": "image", "source": SOURCE}
INPUT: Final = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}
BLOCKS: Final[list[Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Look:"}, PICTURE]},
    {"role": "assistant", "content": [
        {"type": "tool_use", "id": "c1", "name": "screenshot", "input": {"content": [PICTURE]}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": [PICTURE, {"type": "text", "text": "done"}]},
    ]},
]  # fmt: skip
ITEMS: Final[list[Any]] = [
    {"role": "user", "content": [{"type": "input_text", "text": "Look:"}, INPUT]},
    {"type": "function_call", "call_id": "c1", "name": "screenshot", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1",
     "output": [INPUT, {"type": "input_text", "text": "done"}]},
]  # fmt: skip
ANTHROPIC: Final = ("messages.0.content.1", "messages.2.content.0.content.0")
RESPONSES: Final = ("input.0.content.1", "input.2.output.0")
ROUTES: Final[dict[str, tuple[dict[str, Any], tuple[str, str]]]] = {
    "/v1/messages": ({"messages": BLOCKS, "max_tokens": 5}, ANTHROPIC),
    "/serving-endpoints/anthropic/v1/messages": ({"messages": BLOCKS, "max_tokens": 5}, ANTHROPIC),
    "/v1/responses": ({"input": ITEMS}, RESPONSES),
    "/serving-endpoints/responses": ({"input": ITEMS}, RESPONSES),
    "/v3/responses": ({"input": ITEMS}, RESPONSES),
}
each_route = pytest.mark.parametrize("path", ROUTES)


@each_route
@pytest.mark.parametrize("stream", [False, True])
async def test_a_note_stands_in_place_of_a_picture(path: str, stream: bool) -> None:
    fields, places = ROUTES[path]
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        found = await g.post(path, {"model": "demo", "stream": stream, **fields})
    assert found.status_code == 200, found.text
    assert found.headers["x-ignored-fields"] == ", ".join(places)
    said, called, answered = g.backend.last.prompt.messages or ()
    assert said["content"] == f"Look:\n{NOTE}"
    assert answered["content"] == f"{NOTE}\ndone"
    arguments = called["tool_calls"][0]["function"]["arguments"]  # of a call, which are no content
    assert arguments == ({"content": [PICTURE]} if path.endswith("messages") else {})


@each_route
async def test_the_setting_refuses_pictures_by_their_place(path: str) -> None:
    fields, (place, _) = ROUTES[path]
    async with gateway(FakeBackend(), pictures="refuse") as g:
        found = await g.post(path, {"model": "demo", **fields})
    assert found.status_code == 400
    assert f"{place}.type" in found.text


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens"])
async def test_a_count_has_the_notes(path: str) -> None:
    fields, _ = ROUTES[path.rpartition("/")[0]]
    async with gateway(FakeBackend()) as g:
        found = await g.post(path, {"model": "demo", **fields})
    assert found.status_code == 200, found.text


async def test_what_is_kept_has_the_notes() -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        first = (await g.post("/v1/responses", {"model": "demo", "input": ITEMS})).json()
        body = {"model": "demo", "input": "And?", "previous_response_id": first["id"]}
        assert (await g.post("/v1/responses", body)).status_code == 200
        listed = await g.client.get(f"/v1/responses/{first['id']}/input_items")
    assert (g.backend.last.prompt.messages or ())[0]["content"] == f"Look:\n{NOTE}"
    assert "base64" not in listed.text
