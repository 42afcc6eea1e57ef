"""Prompts and lengths at the end of the context window, in every protocol that clients ask in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.conformance.target import DEMO, demo_app

WINDOW = 512
LETTER = 64  # a token id; the prompt is as long as wanted
module_loop = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Route:
    """One route that generates, by its name for a prompt and for a length."""

    path: str
    prompt: str
    length: str
    fields: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    async def ask(
        self, client: httpx.AsyncClient, letters: int, length: int | None, **fields: Any
    ) -> httpx.Response:
        text: Any = "1" * letters
        if self.prompt == "messages":
            text = [{"role": "user", "content": text}]
        lengths = {} if length is None else {self.length: length}
        named = {} if DEMO in self.path else {"model": DEMO}
        body = {**named, self.prompt: text, **lengths, **self.fields, **fields}
        return await client.post(self.path, json=body, headers=self.headers)


OPENAI = {
    "chat": Route("/v1/chat/completions", "messages", "max_tokens"),
    "chat by its new name": Route("/v1/chat/completions", "messages", "max_completion_tokens"),
    "completions": Route("/v1/completions", "prompt", "max_tokens"),
    "responses": Route("/v1/responses", "input", "max_output_tokens"),
}
MESSAGES = Route("/v1/messages", "messages", "max_tokens", headers={"anthropic-version": "2023-06-01"})
OTHERS = {
    "messages": MESSAGES,
    "invocations": Route(f"/serving-endpoints/{DEMO}/invocations", "messages", "max_tokens"),
    "ovms chat": Route("/v3/chat/completions", "messages", "max_tokens"),
    "ovms completions": Route("/v3/completions", "prompt", "max_tokens"),
    "ovms responses": Route("/v3/responses", "input", "max_output_tokens"),
    "triton": Route(f"/v2/models/{DEMO}/generate", "text_input", "max_tokens", {"bad_words": ""}),
}
ALL = {**OPENAI, **OTHERS}
each_openai = pytest.mark.parametrize("route", OPENAI.values(), ids=OPENAI.keys())
each_route = pytest.mark.parametrize("route", ALL.values(), ids=ALL.keys())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clamping() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of() as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def refusing() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(max_tokens_over_window="refuse") as client:
        yield client


def client_of(**settings: Any) -> Any:
    """HTTP to a gateway with these settings, over the demo model with a window of 512 tokens."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[httpx.AsyncClient]:
        endpoints = [
            {"name": DEMO},
            {
                "name": "texts",
                "task": "llm/v1/completions",
                "kind": "pay_per_token",
                "served_entities": [{"model": DEMO}],
            },
        ]
        async with demo_app(endpoints, window=WINDOW, **settings) as app:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                yield client

    return connected()


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


# --- a length that does not fit -------------------------------------------------------------------


@each_route
@pytest.mark.parametrize("stream", [False, True])
@module_loop
async def test_a_length_beyond_the_window_is_clamped_and_named(
    clamping: httpx.AsyncClient, route: Route, stream: bool
) -> None:
    if stream:
        route = replace(route, path=route.path.replace("/generate", "/generate_stream"))
    answer = await route.ask(clamping, 100, 32_000, stream=stream)
    assert answer.status_code == 200, answer.text
    name, _, number = answer.headers["x-clamped-fields"].partition("=")
    assert name == route.length
    assert WINDOW - 150 < int(number) <= WINDOW - 100


@each_route
@module_loop
async def test_a_length_that_fits_is_not_named(clamping: httpx.AsyncClient, route: Route) -> None:
    answer = await route.ask(clamping, 100, 3)
    assert answer.status_code == 200, answer.text
    assert "x-clamped-fields" not in answer.headers


@module_loop
async def test_a_clamped_answer_fills_the_window_and_ends_for_its_length(clamping: httpx.AsyncClient) -> None:
    answer = await OPENAI["chat"].ask(clamping, 450, 32_000, ignore_eos=True)
    body = answer.json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == WINDOW
    left = WINDOW - body["usage"]["prompt_tokens"]
    assert answer.headers["x-clamped-fields"] == f"max_tokens={left}"


@module_loop
async def test_a_search_is_clamped_to_what_the_cache_holds_of_its_beams(clamping: httpx.AsyncClient) -> None:
    fields = {"n": 16, "use_beam_search": True, "ignore_eos": True}
    answer = await OPENAI["completions"].ask(clamping, 100, 32_000, **fields)  # 128 blocks of 16 tokens
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-clamped-fields"] == "max_tokens=28"
    assert len(answer.json()["choices"]) == 16


@module_loop
async def test_the_models_own_limit_clamps_too(clamping: httpx.AsyncClient) -> None:
    async with client_of(max_output_tokens=7) as client:
        for route in OPENAI.values():
            answer = await route.ask(client, 10, 32_000)
            assert answer.headers["x-clamped-fields"] == f"{route.length}=7"
    async with client_of(max_output_tokens=7, max_tokens_over_window="refuse") as client:
        for route in OPENAI.values():
            answer = await route.ask(client, 10, 8)
            assert answer.status_code == 400
            assert error_of(answer)["param"] == route.length
            assert "from 1 to 7" in error_of(answer)["message"]


@each_openai
@module_loop
async def test_an_operator_may_refuse_lengths_that_do_not_fit(
    refusing: httpx.AsyncClient, route: Route
) -> None:
    answer = await route.ask(refusing, 100, 32_000)
    assert answer.status_code == 400
    error = error_of(answer)
    assert (error["code"], error["param"]) == ("context_length_exceeded", route.length)
    what = "prompt" if route.prompt == "prompt" else "messages"
    assert error["message"].startswith(
        f"This model's maximum context length is {WINDOW} tokens. However, you requested "
    )
    assert f"in the {what}, 32000 in the completion)" in error["message"]


@pytest.mark.parametrize("route", OTHERS.values(), ids=OTHERS.keys())
@module_loop
async def test_what_is_refused_is_refused_in_every_protocol(
    refusing: httpx.AsyncClient, route: Route
) -> None:
    answer = await route.ask(refusing, 100, 32_000)
    assert answer.status_code == 400
    assert f"This model's maximum context length is {WINDOW} tokens. However, you requested" in answer.text


@module_loop
async def test_a_length_that_a_protocol_gives_is_never_too_long(refusing: httpx.AsyncClient) -> None:
    texts = await OPENAI["completions"].ask(refusing, WINDOW - 5, None, ignore_eos=True)
    assert texts.json()["usage"]["completion_tokens"] == 5
    chat = await OTHERS["ovms chat"].ask(refusing, 100, None, ignore_eos=True)
    assert chat.json()["usage"]["total_tokens"] == WINDOW


@pytest.mark.parametrize(("behavior", "status"), [("error", 400), ("truncate", 200), (None, 200)])
@module_loop
async def test_error_behavior_of_databricks_is_the_clients_own_word(
    clamping: httpx.AsyncClient, behavior: str | None, status: int
) -> None:
    body = {"prompt": "1" * 100, "max_tokens": 32_000, "use_raw_prompt": True}
    asked = body if behavior is None else {**body, "error_behavior": behavior}
    answer = await clamping.post("/serving-endpoints/texts/invocations", json=asked)
    assert answer.status_code == status, answer.text


@module_loop
async def test_anthropics_agents_read_which_of_the_two_is_too_long(refusing: httpx.AsyncClient) -> None:
    length = await MESSAGES.ask(refusing, 100, 32_000)
    assert error_of(length)["message"].startswith("input length and `max_tokens` exceed context limit: ")
    prompt = await MESSAGES.ask(refusing, WINDOW, 5)
    assert error_of(prompt)["message"].startswith("prompt is too long: ")


# --- a prompt that does not fit -------------------------------------------------------------------


@each_openai
@pytest.mark.parametrize("letters", [WINDOW, 100_000])  # the latter is refused before it is counted
@module_loop
async def test_a_prompt_beyond_the_window_is_refused_in_words_that_clients_know(
    clamping: httpx.AsyncClient, route: Route, letters: int
) -> None:
    answer = await route.ask(clamping, letters, 5)
    assert answer.status_code == 400
    error = error_of(answer)
    assert (error["code"], error["param"]) == ("context_length_exceeded", route.prompt)
    assert error["message"].startswith(
        f"This model's maximum context length is {WINDOW} tokens. However, your "
    )
    what = "prompt" if route.prompt == "prompt" else "messages"
    assert error["message"].endswith(f"Please reduce the length of the {what}. (context_length_exceeded)")


@pytest.mark.parametrize("route", OTHERS.values(), ids=OTHERS.keys())
@module_loop
async def test_the_words_are_the_same_in_every_protocol(clamping: httpx.AsyncClient, route: Route) -> None:
    answer = await route.ask(clamping, 2 * WINDOW, 5)
    assert answer.status_code == 400
    assert f"This model's maximum context length is {WINDOW} tokens. However, your " in answer.text


# --- a prompt that is cut -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "kept"),
    [(5, WINDOW - 5), (None, WINDOW - 16), (WINDOW - 1, 1), (32_000, WINDOW - WINDOW // 4)],
)
@module_loop
async def test_a_cut_prompt_leaves_room_for_the_asked_length(
    clamping: httpx.AsyncClient, length: int | None, kept: int
) -> None:
    fields = {"truncate_prompt_tokens": -1, "ignore_eos": True}
    answer = await OPENAI["completions"].ask(clamping, 600, length, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"] == {
        **answer.json()["usage"],
        "prompt_tokens": kept,
        "completion_tokens": WINDOW - kept,
    }


@pytest.mark.parametrize("name", ["chat", "ovms chat"])
@module_loop
async def test_a_cut_chat_leaves_room_for_the_asked_length(clamping: httpx.AsyncClient, name: str) -> None:
    answer = await ALL[name].ask(clamping, 600, 5, truncate_prompt_tokens=-1, ignore_eos=True)
    usage = answer.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (WINDOW - 5, 5)


# --- the last place of the window -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["completions", "ovms completions"])
@pytest.mark.parametrize("fields", [{}, {"best_of": 2, "n": 2}], ids=["one", "two"])
@module_loop
async def test_an_echoed_prompt_may_fill_the_window(
    clamping: httpx.AsyncClient, name: str, fields: dict[str, Any]
) -> None:
    route = ALL[name]
    asked = {"prompt": [LETTER] * WINDOW, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 1}
    answer = await route.ask(clamping, 0, None, **asked, **fields)
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        assert len(choice["logprobs"]["tokens"]) == WINDOW
    assert answer.json()["usage"]["completion_tokens"] == 0
    longer = await route.ask(clamping, 0, None, **{**asked, "prompt": [LETTER] * (WINDOW + 1)})
    assert longer.status_code == 400
    assert f"resulted in {WINDOW + 1} tokens" in longer.text


@module_loop
async def test_log_probabilities_of_a_full_window_are_those_of_a_shorter_prompt(
    clamping: httpx.AsyncClient,
) -> None:
    asked = {"max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
    ids = [LETTER + i % 7 for i in range(WINDOW)]
    full = (await OPENAI["completions"].ask(clamping, 0, None, **asked, prompt=ids)).json()
    short = (await OPENAI["completions"].ask(clamping, 0, None, **asked, prompt=ids[:-1])).json()
    full_logprobs, short_logprobs = (
        body["choices"][0]["logprobs"]["token_logprobs"] for body in (full, short)
    )
    assert full_logprobs[:-1] == short_logprobs
    assert full_logprobs[-1] < 0


@module_loop
async def test_a_message_that_takes_the_last_place_ends_for_its_own_length(
    clamping: httpx.AsyncClient,
) -> None:
    beside = (await MESSAGES.ask(clamping, 1, 1)).json()["usage"]["input_tokens"] - 1
    letters = WINDOW - beside - 1
    asked = await MESSAGES.ask(clamping, letters, 1)
    assert asked.json()["stop_reason"] == "max_tokens"
    more = await MESSAGES.ask(clamping, letters, 2)
    assert more.json()["stop_reason"] == "model_context_window_exceeded"
    streams = [await MESSAGES.ask(clamping, letters, length, stream=True) for length in (1, 2)]
    assert '"stop_reason":"max_tokens"' in streams[0].text
    assert '"stop_reason":"model_context_window_exceeded"' in streams[1].text


@module_loop
async def test_a_message_of_no_tokens_may_fill_the_window(clamping: httpx.AsyncClient) -> None:
    beside = (await MESSAGES.ask(clamping, 1, 1)).json()["usage"]["input_tokens"] - 1
    answer = await MESSAGES.ask(clamping, WINDOW - beside, 0)
    assert answer.status_code == 200, answer.text
    assert answer.json()["stop_reason"] == "max_tokens"
