"""Requests through the whole app: answers, streams, failures early and late, limits."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from serve_app.api.dialects.openai.errors import SPENT, TABLE, render_error
from serve_app.errors import (
    KINDS,
    BudgetSpent,
    DeadlineExceeded,
    EngineRefused,
    FieldError,
    GenerationFailed,
    InvalidField,
    NumericalError,
    Overloaded,
    PromptTooLong,
    QuotaExceeded,
    ServeError,
    Unavailable,
)
from tests.support.fakes_backend import WORDS, FakeBackend, model_info
from tests.support.gateway import (
    CHAT,
    COMPLETIONS,
    body_for,
    chat_body,
    completion_body,
    events,
    fake_app,
    gateway,
)

TEXT = "".join(WORDS)
ROUTES = [CHAT, COMPLETIONS, "/openai" + CHAT, "/openai" + COMPLETIONS]


def content(event):
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in event["choices"])


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("burst", [False, True])
async def test_streamed_and_whole_answers_are_equal(path, burst):
    async with gateway(FakeBackend(burst=burst)) as g:
        whole = (await g.post(path, body_for(path))).json()
        stream = await g.post(path, body_for(path, stream=True, stream_options={"include_usage": True}))
        got = events(stream.text)
        choice = whole["choices"][0]
        assert (choice["text"] if "text" in choice else choice["message"]["content"]) == TEXT
        assert "".join(map(content, got)) == TEXT
        assert got[-2]["choices"][0]["finish_reason"] == choice["finish_reason"] == "length"
        assert got[-1]["usage"] == whole["usage"]
        assert got[-1]["choices"] == []
        assert len([e for e in got if content(e)]) == len(WORDS)
        await g.check()


async def test_stream_headers():
    async with gateway() as g:
        headers = (await g.chat(stream=True)).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")


async def test_choices_are_ordered_by_prompt_then_by_number():
    async with gateway() as g:
        answer = (await g.complete(prompt=["a", "b", "c"], n=2)).json()
        assert [c["index"] for c in answer["choices"]] == list(range(6))
        assert [c["text"][:6] for c in answer["choices"]] == ["Grüße ", "Grüße1"] * 3
        assert answer["usage"]["prompt_tokens"] == 15
        assert answer["usage"]["completion_tokens"] == 3 * 2 * len(WORDS)
        streamed = events((await g.complete(prompt=["a", "b", "c"], n=2, stream=True)).text)
        texts = dict.fromkeys(range(6), "")
        for event in streamed:
            texts[event["choices"][0]["index"]] += content(event)
        assert [texts[c["index"]] for c in answer["choices"]] == [c["text"] for c in answer["choices"]]
        parents = {(r.parent_id, r.id) for r in g.backend.requests[:3]}
        assert {id for _, id in parents} == {f"{parent}-{i}" for i, (parent, _) in enumerate(sorted(parents))}
        await g.check()


@pytest.mark.parametrize("path", ROUTES[:2])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [k for k in KINDS.values() if k not in (ServeError, FieldError)])
async def test_every_error_before_the_first_delta_is_a_status(path, stream, kind):
    is_field = issubclass(kind, FieldError)
    refusal = kind("no", "must be") if is_field else kind("must be")
    async with gateway(FakeBackend(refuse=refusal)) as g:
        answer = await g.post(path, body_for(path, stream=stream))
        row = TABLE[kind.condition]
        error = answer.json()["error"]
        assert answer.status_code == kind.condition.status
        assert set(error) == {"message", "type", "param", "code"}
        type = SPENT if kind is BudgetSpent else row.type
        assert (error["type"], error["message"], error["param"]) == (
            (type, "no: must be", "no") if is_field else (type, "must be", None)
        )
        assert ("retry-after" in answer.headers) == (kind.condition.status in (429, 503) and kind.retryable)
        may_be_retried = (
            answer.status_code == 429 or answer.status_code >= 500
        )  # by the SDK, unless told otherwise
        assert (answer.headers.get("x-should-retry") == "false") == (may_be_retried and not kind.retryable)


@pytest.mark.parametrize("fault", ["raise", "delta", "end", "bug"])
async def test_a_failure_after_the_first_byte_is_an_event_and_never_a_clean_end(fault):
    backend = FakeBackend(fail_after=2)
    if fault == "raise":
        backend.failure = Unavailable("gone")
    if fault == "delta":
        backend.error_delta = NumericalError("logits")
    if fault == "bug":
        backend.failure = KeyError("/secret/path")
    async with gateway(backend) as g:
        for path in ROUTES[:2]:
            answer = await g.post(path, body_for(path, stream=True))
            got = events(answer.text)
            assert answer.status_code == 200
            assert got[-1].keys() == {"error"}
            assert "secret" not in answer.text
            assert all(c["finish_reason"] is None for e in got[:-1] for c in e["choices"])
        await g.check()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_in_the_first_delta_is_a_status(stream):
    async with gateway(FakeBackend(fail_after=0, error_delta=DeadlineExceeded("late"))) as g:
        assert (await g.chat(stream=stream)).status_code == 504


async def test_one_failing_prompt_fails_the_body_and_stops_the_others():
    backend = FakeBackend()
    step = backend._step

    def broken(request, k):
        if request.prompt.text == "bad" and k == 2:
            raise GenerationFailed("broken")
        return step(request, k)

    backend._step = broken  # type: ignore[method-assign]
    backend.hang_after = 4
    async with gateway(backend) as g:
        assert (await g.complete(prompt=["good", "bad"])).status_code == 500
        backend._step = step  # type: ignore[method-assign]
        await g.check()


async def test_an_unexpected_exception_is_a_500_with_a_fixed_text():
    async with gateway(FakeBackend(fail_after=0, failure=ZeroDivisionError("at 0xdeadbeef"))) as g:
        answer = await g.chat()
        assert answer.status_code == 500
        assert "0x" not in answer.text
        assert "ZeroDivision" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_the_deadline_is_the_smaller_one_and_frees_the_request(stream):
    async with gateway(FakeBackend(hang_after=0), request_timeout_s=0.5) as g:
        answer = await g.chat(stream=stream, timeout=60)
        assert answer.status_code == 504
        assert g.backend.last.timeout_s == 0.5
        assert g.backend.aborted == [g.backend.last.id]
        await g.check()


async def test_the_deadline_ends_a_stream_with_an_error_event():
    async with gateway(FakeBackend(hang_after=2)) as g:
        got = events((await g.chat(stream=True, timeout=0.5)).text)
        assert got[-1]["error"]["code"] == "deadline_exceeded"
        await g.check()


async def test_a_request_over_the_limit_is_refused_at_once():
    async with gateway(FakeBackend(hang_after=0), max_in_flight=2) as g:
        waiting = [asyncio.ensure_future(g.chat(timeout=1)) for _ in range(2)]
        while g.backend.running < 2:
            await asyncio.sleep(0)
        refused = await g.chat()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        await asyncio.gather(*waiting)
        await g.check()


async def test_prompts_count_one_by_one():
    async with gateway(FakeBackend(hang_after=0), max_in_flight=2) as g:
        held = asyncio.ensure_future(g.complete())
        while not g.backend.running:
            await asyncio.sleep(0)
        assert (await g.complete(prompt=["a", "b"])).status_code == 503  # there is room for one
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        g.backend.hang_after = None
        assert (await g.complete(prompt=["a", "b"])).status_code == 200


async def call(app, body, receive_more, send):
    first = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive():
        return first.pop() if first else await receive_more()

    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "headers": [],
        "client": ("127.0.0.1", 1),
        "query_string": b"",
    }
    await app(scope, receive, send)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_departed_client_aborts_its_request(stream, after):
    backend = FakeBackend(hang_after=min(after, 0 if not stream else after))
    async with gateway(backend) as g:
        gone = asyncio.Event()

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            return None

        task = asyncio.ensure_future(call(g.app, chat_body(stream=stream), receive, send))
        while not backend.running:
            await asyncio.sleep(0)
        gone.set()
        await task
        assert backend.aborted == [backend.last.id]
        assert 'status="cancelled"' in (await g.client.get("/metrics")).text
        await g.check()


async def test_a_client_that_does_not_read_is_given_up(monkeypatch):
    for writer in ("keepalive.KeptAlive", "connection.Writer"):
        monkeypatch.setattr(f"serve_app.api.edge.{writer}.__init__.__defaults__", (0.02,))
    async with gateway() as g:

        async def send(message):
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        await asyncio.wait_for(call(g.app, chat_body(stream=True), asyncio.Event().wait, send), 60)
        assert len(g.backend.aborted) == 1
        await g.check()


async def test_cancelling_the_handler_aborts_the_request():
    async with gateway(FakeBackend(hang_after=1)) as g:

        async def send(message):
            return None

        task = asyncio.ensure_future(call(g.app, chat_body(stream=True), asyncio.Event().wait, send))
        while not g.backend.running:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert len(g.backend.aborted) == 1
        await g.check()


async def test_each_step_is_one_write():
    async with gateway() as g:
        writes = []

        async def send(message):
            if message["type"] == "http.response.body":
                writes.append(message["body"])

        await call(g.app, chat_body(stream=True), asyncio.Event().wait, send)
        assert len(writes) == len(WORDS) + 1
        assert writes[-1] == b"data: [DONE]\n\n"


async def test_request_ids_are_echoed_when_they_are_sound_and_never_used_inside():
    async with gateway() as g:
        ours = (await g.chat()).headers["x-request-id"]
        assert ours == f"req_{g.backend.last.id}"
        given = await g.post(CHAT, chat_body(), headers={"x-request-id": "my-id_1"})
        assert given.headers["x-request-id"] == "my-id_1"
        assert "my-id" not in g.backend.last.id
        for bad in ("a b", "x" * 257, "é".encode(), "a;b"):
            answer = await g.post(CHAT, chat_body(), headers={"x-request-id": bad})
            assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(("sent", "added"), [("mine", []), ("not sound", ["req_"]), (None, ["req_"])])
async def test_a_sound_request_id_is_left_to_a_server_that_echoes_it(sent, added):
    app = fake_app(FakeBackend(), ids_are_echoed=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        headers = {} if sent is None else {"x-request-id": sent}
        answer = await client.post(CHAT, json=chat_body(), headers=headers)
        assert [value[:4] for value in answer.headers.get_list("x-request-id")] == added


async def test_unknown_fields_are_listed_sanitised_and_bounded():
    async with gateway() as g:
        answer = await g.chat(**{"logprob_start": 1, "a\r\nb": 1, "x" * 70: 1})
        assert answer.headers["x-ignored-fields"] == "logprob_start, ?, ?"
        many = await g.chat(**{f"f{i}": 1 for i in range(500)})
        assert many.headers["x-ignored-fields"].endswith(", f19, ...")


SAID = [{"role": "user", "content": "Hi"}]
BUDGET = {"type": "enabled", "budget_tokens": 9}
BUDGETS: dict[str, tuple[dict[str, Any], str]] = {
    CHAT: ({"messages": SAID, "thinking_token_budget": 9}, "thinking_token_budget"),
    "/v1/responses": ({"input": "Hi", "thinking_token_budget": 9}, "thinking_token_budget"),
    "/v1/messages": ({"messages": SAID, "max_tokens": 9, "thinking": BUDGET}, "thinking.budget_tokens"),
    "/serving-endpoints/demo/invocations": ({"messages": SAID, "thinking": BUDGET}, "thinking.budget_tokens"),
}


@pytest.mark.parametrize("path", BUDGETS)
@pytest.mark.parametrize(("stream", "alive_s"), [(False, 0), (True, 0), (True, 1)])
async def test_a_budget_that_ends_no_thoughts_is_listed_by_the_clients_name(path, stream, alive_s):
    body, name = BUDGETS[path]
    model = {} if "invocations" in path else {"model": "demo"}
    for limits_thoughts, listed in ((True, None), (False, name)):
        backend = FakeBackend(infos=[replace(model_info(), limits_thoughts=limits_thoughts)])
        async with gateway(backend, sse_keepalive_s=alive_s) as g:
            answer = await g.post(path, {**model, **body, "stream": stream})
            assert answer.status_code == 200, answer.text
            assert answer.headers.get("x-ignored-fields") == listed
            without = {name: value for name, value in body.items() if not name.startswith("thinking")}
            assert "x-ignored-fields" not in (await g.post(path, {**model, **without})).headers


@pytest.mark.parametrize("name", ["X-Request-Disconnect-Disabled", "x-request-timeout-seconds"])
@pytest.mark.parametrize("path", [*ROUTES, "/v1/models", "/livez"])
async def test_headers_that_steer_the_proxies_are_refused(name, path):
    async with gateway() as g:
        method = "POST" if "completions" in path else "GET"
        answer = await g.client.request(method, path, headers={name: "?1"}, json=chat_body())
        assert answer.status_code == 400
        assert not g.backend.requests


async def test_the_dialect_header_is_checked():
    async with gateway() as g:
        assert (await g.post(CHAT, chat_body(), headers={"x-api-dialect": "openai"})).status_code == 200
        assert (await g.post(CHAT, chat_body(), headers={"x-api-dialect": "nope"})).status_code == 400


async def test_models():
    async with gateway(FakeBackend(loading={"org/other"})) as g:
        listed = (await g.client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [m["id"] for m in listed["data"]] == ["demo"]
        (entity,) = listed["data"][0]["served_entities"]
        assert (entity["dtype"], entity["quantization"]) == ("float32", "none")
        assert (await g.client.get("/v1/models/demo")).json() == listed["data"][0]
        loading = await g.client.get("/v1/models/org/other")
        assert (loading.status_code, loading.headers["retry-after"]) == (503, "2")
        assert (await g.chat(model="org/other")).status_code == 503
        g.backend.loading.clear()
        assert (await g.client.get("/v1/models/org/other")).json()["id"] == "org/other"


async def test_long_bodies_are_parsed_off_the_loop_to_the_same_request():
    async with gateway() as g:
        assert (await g.complete(prompt=[7] * 200_000)).status_code == 200
        assert len(g.backend.last.prompt.token_ids) == 200_000


async def test_a_flood_of_long_bodies_is_refused_beyond_its_bytes_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr("serve_app.api.admission.permits.BodyBytes.__init__.__defaults__", (350_000, 1_000))
    body = json.dumps(completion_body(prompt="x" * 100_000)).encode()
    async with gateway(FakeBackend(hang_after=0)) as g:
        waiting = [asyncio.ensure_future(g.client.post(COMPLETIONS, content=body)) for _ in range(3)]
        async with asyncio.timeout(60):
            while g.backend.running < 3:
                await asyncio.sleep(0.01)
        refused = await g.client.post(COMPLETIONS, content=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        assert (await g.complete(timeout=0.01)).status_code == 504  # a short one is taken all the same
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await g.check()


@pytest.mark.parametrize(
    ("path", "fields", "error", "param", "message"),
    [
        (CHAT, {"max_completion_tokens": 9}, InvalidField("max_tokens", "is 9", joint=" "),
         "max_completion_tokens", "max_completion_tokens is 9"),
        (CHAT, {"max_tokens": 9}, InvalidField("max_tokens", "is 9", joint=" "),
         "max_tokens", "max_tokens is 9"),
        (CHAT, {}, PromptTooLong("prompt", "The prompt has 9 tokens", joint=None),
         "messages", "The prompt has 9 tokens"),
        (COMPLETIONS, {}, PromptTooLong("prompt", "The prompt has 9 tokens", joint=None),
         "prompt", "The prompt has 9 tokens"),
    ],
)  # fmt: skip
async def test_an_error_of_the_model_names_the_field_that_the_client_sent(
    path, fields, error, param, message
):
    async with gateway(FakeBackend(refuse=error)) as g:
        answer = (await g.post(path, body_for(path, **fields))).json()["error"]
        assert (answer["param"], answer["message"]) == (param, message)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
async def test_other_methods_are_405_and_say_what_is_allowed(method):
    async with gateway() as g:
        answer = await g.client.request(method, CHAT)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        models = await g.client.request(method, "/v1/models")
        assert models.status_code == (200 if method == "HEAD" else 405)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/readyz", "/v1/models", "/v1/models/demo"])
async def test_a_trailing_slash_is_another_route_and_never_a_redirect(path):
    async with gateway() as g:
        method = "POST" if "completions" in path else "GET"
        answer = await g.client.request(method, path + "/", json=chat_body())
        assert answer.status_code == 404


def test_every_condition_has_a_row():
    assert {kind.condition for kind in KINDS.values()} == set(TABLE)


def test_capacity_and_quota_say_when_to_return():
    for error in (Overloaded("x"), Unavailable("x"), QuotaExceeded("x")):
        assert render_error(error).headers["retry-after"] == "1"
    assert not EngineRefused.retryable
    assert TABLE[PromptTooLong.condition].code == "context_length_exceeded"
