"""POST /v3/tokenize: texts as tokens of a model that generates or embeds."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest

from serve_app.limits import MAX_QUESTION_CHARS, MAX_QUESTION_TOKENS
from tests.conformance import conftest
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.ovms.asks import names
from tests.support.gateway import gateway

module_loop = pytest.mark.asyncio(loop_scope="module")

PATH: Final = "/v3/tokenize"
TEXT: Final = "What is the capital of France? Größe 😀"
BOOLEAN: Final = ([True, False, None], [1, 0, "true"])
BOUNDS: Final[Bounds] = {
    "model": ([], [None, 5, "", ["demo"]]),
    "text": (["x", "", ["x"], ["x", ""], ["x"] * 128], [None, [], 5, [5], [["x"]], [[1, 2]], ["x"] * 129]),
    "max_length": ([1, 5, 3.0, MAX_QUESTION_TOKENS, None], [0, -1, MAX_QUESTION_TOKENS + 1, 1.5, "1", True]),
    "pad_to_max_length": BOOLEAN,
    "padding_side": (["left", "right", None], ["both", "", 5]),
    "add_special_tokens": BOOLEAN,
}


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(PATH, json={"model": conftest.MODEL, "text": TEXT, **fields})


async def tokens(client: httpx.AsyncClient, **fields: Any) -> Any:
    found = await ask(client, **fields)
    assert found.status_code == 200, found.text
    body = found.json()
    assert list(body) == ["tokens"]
    return body["tokens"]


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    await tokens(client, **{field: value})


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    names(await ask(client, **{field: value}), field)


@module_loop
async def test_a_text_is_one_list_of_tokens_and_several_are_a_list_of_them(client: httpx.AsyncClient) -> None:
    """`text` as the model would read it."""
    one = await tokens(client)
    told = await client.post("/tokenize", json={"model": conftest.MODEL, "prompt": TEXT})
    assert one == told.json()["tokens"]
    assert await tokens(client, text=[TEXT, "", "Hello"], add_special_tokens=False) == [
        await tokens(client, text=text, add_special_tokens=False) for text in (TEXT, "", "Hello")
    ]
    assert await tokens(client, text=[TEXT]) == [one]
    assert await tokens(client, text="", add_special_tokens=False) == []


@module_loop
async def test_max_length_cuts_and_pad_to_max_length_fills_up(client: httpx.AsyncClient) -> None:
    """On the `padding_side`."""
    bare = await tokens(client, add_special_tokens=False)
    assert await tokens(client, add_special_tokens=False, max_length=5) == bare[:5]
    width = len(bare) + 3
    fields = {"add_special_tokens": False, "max_length": width, "pad_to_max_length": True}
    right, left = await tokens(client, **fields), await tokens(client, **fields, padding_side="left")
    pad = right[-1]
    assert right == [*bare, pad, pad, pad]
    assert left == [pad, pad, pad, *bare]
    rows = await tokens(client, text=[TEXT, "Hello"], add_special_tokens=False, pad_to_max_length=True)
    assert [len(row) for row in rows] == [len(bare)] * 2
    assert rows[1][-1] == pad


@module_loop
async def test_an_answer_is_bounded(client: httpx.AsyncClient) -> None:
    many = MAX_QUESTION_TOKENS // 2 + 1
    fields = {"text": ["x", "y"], "pad_to_max_length": True}
    names(await ask(client, **fields, max_length=many), "max_length: must be at most 131072")
    assert [len(row) for row in await tokens(client, **fields, max_length=many - 1)] == [many - 1] * 2
    names(await ask(client, text=["x" * (MAX_QUESTION_CHARS // 2)] * 3), "text")


async def test_malformed_json_has_the_status_of_the_setting() -> None:
    for settings, status in (({}, 400), ({"malformed_json_status": 412}, 412)):
        async with gateway(ovms=settings) as g:
            found = await g.client.post(PATH, content=b'{"text": ')
        assert (found.status_code, list(found.json())) == (status, ["error"])


async def test_a_model_nobody_knows_is_a_404() -> None:
    async with gateway() as g:
        found = await g.post(PATH, {"model": "nobody", "text": "x"})
        assert (found.status_code, list(found.json())) == (404, ["error"])
        assert (await g.post("/v3/v1/tokenize", {"model": "demo"})).status_code == 400
        assert (await g.post("/openai/v3/tokenize", {"model": "demo", "text": "x"})).status_code == 404
