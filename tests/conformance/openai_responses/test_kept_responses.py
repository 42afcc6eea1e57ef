"""Responses that are kept: gone on from, referred to item by item, read, listed and removed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from serve_app.accounts.keys import new_key
from serve_app.errors import GenerationFailed, Unavailable
from serve_app.types import FinishReason
from serve_app.types.control import KnownKey, Snapshot
from tests.conformance.openai_errors import INVALID, error_of
from tests.conformance.openai_rules import Route
from tests.support.fakes_backend import WORDS, FakeBackend
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import Gateway, bearer, fake_app, gateway
from tests.support.response_events import events_of
from tests.support.run_time_keys import run_time_key, take
from tests.support.whole_service import whole_service

module_loop = pytest.mark.asyncio(loop_scope="module")

PATH: Final = "/v1/responses"
ROUTE: Final = Route(PATH, {"input": "What is the capital of France?"}, length="max_output_tokens")
SAID: Final = "".join(WORDS)
ITEM: Final = TypeAdapter[Any](ResponseItem)
BOTH: Final = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
# Where Databricks has the route with OpenAI's items; its errors are its own.
BASES: Final = ("/v1", "/serving-endpoints", "/ai-gateway/mlflow/v1", "/databricks/v1")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reference(id: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": id}


def response_of(found: httpx.Response) -> dict[str, Any]:
    """The response, whole or at the end of its stream."""
    assert found.status_code == 200, found.text
    if found.headers["content-type"].startswith("text/event-stream"):
        last: dict[str, Any] = json.loads(found.text.strip().rpartition("data: ")[2])
        assert [event.type for event in events_of(found.text)][-1] == last["type"]
        response: dict[str, Any] = last["response"]
        return response
    whole: dict[str, Any] = found.json()
    Response.model_validate(whole)
    return whole


async def ask(g: Gateway, path: str = PATH, headers: Any = None, **fields: Any) -> httpx.Response:
    return await g.post(path, {"model": "demo", "input": "One?", **fields}, headers=headers)


def messages(g: Gateway) -> list[tuple[str, str]]:
    """Role and text of what the model read last."""
    return [(each["role"], each["content"]) for each in g.backend.last.prompt.messages or ()]


@module_loop
@BOTH
async def test_a_response_goes_on_as_if_all_items_were_sent_again(
    client: httpx.AsyncClient, stream: bool
) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_output_tokens": 20, "stream": stream}
    first = response_of(await ROUTE.ask(client, **options, instructions="Be brief."))
    second = [user("And of Italy?")]
    sent = [user("What is the capital of France?"), *first["output"], *second]
    expected = response_of(await ROUTE.ask(client, **options, input=sent))
    previous = {"previous_response_id": first["id"]}
    found = response_of(await ROUTE.ask(client, **options, input=second, **previous))
    assert found["previous_response_id"] == first["id"]
    assert [item["content"] for item in found["output"]] == [item["content"] for item in expected["output"]]
    assert found["usage"]["input_tokens"] == expected["usage"]["input_tokens"]
    counted = await client.post(f"/openai{PATH}/input_tokens", json=ROUTE.body(input=second, **previous))
    assert counted.json()["input_tokens"] == expected["usage"]["input_tokens"]


@BOTH
@pytest.mark.parametrize("base", BASES)
async def test_a_conversation_of_three_turns(base: str, stream: bool) -> None:
    """Instructions and tools are of one request; all that was said is of the conversation."""
    path = f"{base}/responses"
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        first = response_of(await ask(g, path, stream=stream, instructions="Be brief."))
        assert first["store"] is True
        second = response_of(
            await ask(g, path, stream=stream, input="Two?", previous_response_id=first["id"])
        )
        await ask(
            g, path, stream=stream, input=[user("Three?")], previous_response_id=second["id"],
            instructions="Be kind.",
        )  # fmt: skip
        assert messages(g) == [
            ("system", "Be kind."), ("user", "One?"), ("assistant", SAID), ("user", "Two?"),
            ("assistant", SAID), ("user", "Three?"),
        ]  # fmt: skip
        read = await g.client.get(f"{path}/{second['id']}")
        assert read.json() == second
        # One response may be gone on from twice.
        await ask(g, path, input="Else?", previous_response_id=first["id"])
        assert messages(g) == [("user", "One?"), ("assistant", SAID), ("user", "Else?")]


@BOTH
async def test_a_reference_stands_for_an_item(stream: bool) -> None:
    """Of the output, and of the input; where it stands among others."""
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        first = response_of(await ask(g, stream=stream))
        (said,) = first["output"]
        (asked,) = (await g.client.get(f"{PATH}/{first['id']}/input_items")).json()["data"]
        referred = [reference(asked["id"]), {"id": said["id"]}, user("Two?")]
        second = response_of(await ask(g, stream=stream, input=referred))
        assert messages(g) == [("user", "One?"), ("assistant", SAID), ("user", "Two?")]
        # What was referred to is kept with the second response, whatever becomes of the first one.
        await g.client.delete(f"{PATH}/{first['id']}")
        third = await ask(g, input="Three?", previous_response_id=second["id"])
        assert third.status_code == 200
        assert messages(g)[:2] == [("user", "One?"), ("assistant", SAID)]


@module_loop
@pytest.mark.own_server
async def test_a_call_is_referred_to(client: httpx.AsyncClient) -> None:
    """As the AI SDK asks its second turn: the call by its id, its output in full."""
    tool = {
        "type": "function", "name": "get_weather", "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }  # fmt: skip
    question = user("What is the weather in Paris?")
    options: dict[str, Any] = {"tools": [tool], "temperature": 0, "max_output_tokens": 60}
    (call,) = response_of(await ROUTE.ask(client, input=[question], **options))["output"]
    assert call["type"] == "function_call"
    output = {
        "type": "function_call_output", "call_id": call["call_id"], "output": "It is sunny in Paris."
    }  # fmt: skip
    found = response_of(await ROUTE.ask(client, input=[question, reference(call["id"]), output], **options))
    assert "sunny" in found["output"][0]["content"][0]["text"]


async def test_the_input_is_listed_in_pages() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": "b", "id": "msg_of_mine"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    ]
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        first = response_of(await ask(g, input=items))
        second = response_of(await ask(g, input="Two?", previous_response_id=first["id"]))

        async def page(**query: Any) -> dict[str, Any]:
            found = await g.client.get(f"{PATH}/{second['id']}/input_items", params=query)
            assert found.status_code == 200, found.text
            listed: dict[str, Any] = found.json()
            assert listed["object"] == "list"
            return listed

        whole = await page(order="asc")
        for each in whole["data"]:
            ITEM.validate_python(each, strict=False)
        kinds = [each["type"] for each in whole["data"]]
        assert kinds == [
            "message", "message", "message", "function_call", "function_call_output", "reasoning", "message",
            "message",
        ]  # fmt: skip
        assert whole["data"][2]["id"] == "msg_of_mine"
        assert whole["data"][6] == first["output"][0]
        assert whole["data"][7]["content"] == [{"type": "input_text", "text": "Two?"}]
        ids = [each["id"] for each in whole["data"]]
        assert len(set(ids)) == len(ids)
        assert (whole["first_id"], whole["last_id"], whole["has_more"]) == (ids[0], ids[-1], False)
        newest = await page(limit=3)
        assert [each["id"] for each in newest["data"]] == ids[:-4:-1]
        assert newest["has_more"] is True
        after = await page(limit=3, after=newest["last_id"])
        assert [each["id"] for each in after["data"]] == ids[-4:-7:-1]
        for query, field in (
            ({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"limit": "x"}, "limit"),
            ({"order": "up"}, "order"), ({"after": "msg_nobody"}, "after"),
        ):  # fmt: skip
            refused = await g.client.get(f"{PATH}/{second['id']}/input_items", params=query)
            assert (refused.status_code, error_of(refused)["param"]) == (400, field)
        streamed = await g.client.get(f"{PATH}/{second['id']}", params={"stream": "true"})
        assert (streamed.status_code, error_of(streamed)["param"]) == (400, "stream")


async def test_what_is_removed_is_gone() -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        first = response_of(await ask(g))
        second = response_of(await ask(g, previous_response_id=first["id"]))
        removed = await g.client.delete(f"{PATH}/{first['id']}")
        assert removed.json() == {"id": first["id"], "object": "response", "deleted": True}
        await _is_missing(g, first)
        broken = await ask(g, previous_response_id=second["id"])  # it goes on from what is gone
        assert (broken.status_code, first["id"] in error_of(broken)["message"]) == (404, True)
        assert response_of(await g.client.get(f"{PATH}/{second['id']}")) == second


async def _is_missing(g: Gateway, response: dict[str, Any], headers: Any = None) -> None:
    number = len(g.backend.requests)
    await _is_nothing_to(g.client, response, headers)
    assert len(g.backend.requests) == number


async def _is_nothing_to(client: httpx.AsyncClient, response: dict[str, Any], headers: Any) -> None:
    """No route tells this caller anything of the response."""
    path = f"{PATH}/{response['id']}"
    for method, each in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")):
        found = await client.request(method, each, headers=headers)
        assert (found.status_code, error_of(found)["param"], error_of(found)["code"]) == (404, None, None)
        assert error_of(found)["message"] == f"Response with id '{response['id']}' not found."
    body = {"model": "demo", "input": "x", "previous_response_id": response["id"]}
    previous = await client.post(PATH, json=body, headers=headers)
    error = error_of(previous)
    assert (previous.status_code, error["type"], error["param"], error["code"]) == (
        404, INVALID, "previous_response_id", "previous_response_not_found",
    )  # fmt: skip
    if response["output"]:
        body = {"model": "demo", "input": [user("x"), reference(response["output"][0]["id"])]}
        item = await client.post(PATH, json=body, headers=headers)
        error = error_of(item)
        assert (item.status_code, error["param"], error["code"]) == (404, "input.1.id", None)
        assert "`store`" in error["message"]


async def test_no_key_sees_what_another_one_has() -> None:
    (ann_key, ann_line), (bob_key, bob_line) = new_key("ann"), new_key("bob")
    async with gateway(FakeBackend(finish=FinishReason.EOS), keys=f"{ann_line} {bob_line}") as g:
        ann, bob = bearer(ann_key), bearer(bob_key)
        response = response_of(await ask(g, headers=ann))
        await _is_missing(g, response, bob)
        unknown = await g.client.get(f"{PATH}/{response['id']}", headers=bearer("sk-nobody"))
        assert unknown.status_code == 401
        assert response_of(await g.client.get(f"{PATH}/{response['id']}", headers=ann)) == response


@pytest.mark.parametrize("id", ["resp_" + "0" * 32, "nonsense", "x" * 256, "../x", "resp_\u00e4"])
async def test_an_id_of_nothing(id: str) -> None:
    async with gateway() as g:
        found = await ask(g, previous_response_id=id)
        assert (found.status_code, error_of(found)["param"]) == (404, "previous_response_id")
        found = await ask(g, input=[reference(id)])
        assert (found.status_code, error_of(found)["param"]) == (404, "input.0.id")
        too_long = await ask(g, previous_response_id="x" * 257)
        assert (too_long.status_code, error_of(too_long)["param"]) == (400, "previous_response_id")


@BOTH
async def test_a_response_that_is_not_stored_is_not_there(stream: bool) -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        response = response_of(await ask(g, stream=stream, store=False))
        assert response["store"] is False
        await _is_missing(g, response)
        # It may still go on from one that is.
        first = response_of(await ask(g))
        response = response_of(await ask(g, store=False, previous_response_id=first["id"]))
        assert messages(g) == [("user", "One?"), ("assistant", SAID), ("user", "One?")]
        await _is_missing(g, response)


async def test_a_cut_answer_is_kept_and_a_failed_one_is_not() -> None:
    async with gateway(FakeBackend(finish=FinishReason.LENGTH)) as g:
        cut = response_of(await ask(g))
        assert cut["status"] == "incomplete"
        assert (await ask(g, previous_response_id=cut["id"])).status_code == 200
        g.backend.fail_after, g.backend.failure = 2, GenerationFailed("the engine failed")
        failed = response_of(await ask(g, stream=True))
        assert failed["status"] == "failed"
        g.backend.fail_after = None
        await _is_missing(g, failed)


async def test_the_setting_keeps_nothing() -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS), responses={"keep": False}) as g:
        found = await ask(g, store=True)
        response = response_of(found)
        assert (response["store"], found.headers["x-ignored-fields"]) == (False, "store")
        for fields, param in (
            ({"previous_response_id": response["id"]}, "previous_response_id"),
            ({"input": [reference(response["output"][0]["id"])]}, "input"),
        ):
            refused = await ask(g, **fields)
            error = error_of(refused)
            assert (refused.status_code, error["code"], error["param"]) == (
                400, "unsupported_parameter", param,
            )  # fmt: skip
            assert "store: false" in error["message"]
        for method in ("GET", "DELETE"):
            read = await g.client.request(method, f"{PATH}/{response['id']}")
            assert (read.status_code, "store: false" in error_of(read)["message"]) == (404, True)


async def test_guardrails_read_what_is_kept() -> None:
    """A word that became forbidden after it was said is found in the history."""
    rules = {"guardrails": {"input": {"invalid_keywords": ["secret"], "pii": {"behavior": "MASK"}}}}
    endpoints = [{"name": "open", "served_entities": [{"model": "demo"}]},
                 {"name": "demo", "ai_gateway": rules}]  # fmt: skip
    async with gateway(FakeBackend(finish=FinishReason.EOS), endpoints=endpoints) as g:
        told = response_of(await ask(g, model="open", input="The secret is 5."))
        for fields in (
            {"previous_response_id": told["id"]},
            {"input": [reference(f"msg_{told['id'][5:]}_i0"), user("x")]},
        ):
            blocked = await ask(g, **fields)
            assert (blocked.status_code, error_of(blocked)["code"]) == (400, "content_filter")
        mailed = response_of(await ask(g, model="open", input="Write to ann@example.com."))
        await ask(g, previous_response_id=mailed["id"])
        assert "ann@example.com" not in str(messages(g))


@BOTH
async def test_an_answer_that_cannot_be_kept_says_so(stream: bool) -> None:
    """The control plane is away: answers go on, and what needs it is told to come back."""
    away = FakeManagement(refuse=Unavailable("the control plane does not answer; try again"))
    backend = FakeBackend(finish=FinishReason.EOS)
    async with _app(fake_app(backend, management=away)) as client:
        body = {"model": "demo", "input": "x", "stream": stream}
        response = response_of(await client.post(PATH, json=body))
        assert (response["status"], response["store"]) == ("completed", False)
        later = await client.post(PATH, json={**body, "previous_response_id": response["id"]})
        assert later.status_code == 503
        assert (await client.get(f"{PATH}/{response['id']}")).status_code == 503


async def test_every_gateway_has_what_the_control_plane_keeps(tmp_path: Path) -> None:
    """Also one that starts later. Neither another key sees it, nor one that has the name of a revoked one."""
    ann, bob, again = (run_time_key(name) for name in ("ann", "bob", "ann"))
    async with whole_service(tmp_path) as service:

        def another_gateway(*keys: KnownKey) -> Any:
            app = fake_app(service.backend, management=service.plane, at_run_time=True)
            take(app.state.services, Snapshot(version=1, keys=keys))
            return app

        async with _app(another_gateway(ann[1])) as client:
            body = {"model": "demo", "input": "One?"}
            response = response_of(await client.post(PATH, json=body, headers=bearer(ann[0])))
            assert response["store"] is True
        async with _app(another_gateway(ann[1], bob[1])) as client:
            read = await client.get(f"{PATH}/{response['id']}", headers=bearer(ann[0]))
            assert response_of(read) == response
            body = {"model": "demo", "input": "Two?", "previous_response_id": response["id"]}
            found = await client.post(PATH, json=body, headers=bearer(ann[0]))
            assert response_of(found)["previous_response_id"] == response["id"]
            asked = [each["content"] for each in service.backend.last.prompt.messages or ()]
            assert asked == ["One?", SAID, "Two?"]
            await _is_nothing_to(client, response, bearer(bob[0]))
        async with _app(another_gateway(again[1])) as client:
            revoked = await client.get(f"{PATH}/{response['id']}", headers=bearer(ann[0]))
            assert revoked.status_code == 401
            await _is_nothing_to(client, response, bearer(again[0]))


@asynccontextmanager
async def _app(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client
