"""Chat and completions with a real model: what only an engine can show."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio

from serve_app.models import demo
from tests.conformance.target import DEMO, demo_app
from tests.support.gateway import events

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW: Final = 512
ENTITIES: Final = [{"model": DEMO}]
ENDPOINTS: Final[list[dict[str, Any]]] = [
    {"name": "talk", "served_entities": ENTITIES},
    {"name": "brief", "served_entities": ENTITIES, "databricks": {"system_prompt": "Answer in one word."}},
    {
        "name": "text",
        "task": "llm/v1/completions",
        "served_entities": ENTITIES,
        "databricks": {"allow_n_everywhere": True},
    },
]
VARIED: Final[dict[str, Any]] = {
    "temperature": 2,
    "repetition_penalty": 2,
    "max_tokens": 40,
}  # the model is sure of itself
STORY: Final = "Once upon a time"
CONFIG: Final = json.loads((Path(demo.__file__).parent / DEMO / "generation_config.json").read_text("utf-8"))
NO_END: Final = {str(token): -100 for token in CONFIG["eos_token_id"]}  # a bias against the end tokens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own() -> AsyncIterator[httpx.AsyncClient]:
    """The demo model behind endpoints of both tasks."""
    async with demo_app(ENDPOINTS) as app:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client


async def ask(own: httpx.AsyncClient, endpoint: str, **members: Any) -> Any:
    answer = await own.post(f"/serving-endpoints/{endpoint}/invocations", json=members)
    if answer.status_code != 200:
        raise AssertionError(answer.text)
    return events(answer.text) if members.get("stream") else answer.json()


async def chat(own: httpx.AsyncClient, text: str = "Tell me about the sea.", **members: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return await ask(own, "talk", **{"messages": messages, "max_tokens": 12, **members})


async def complete(own: httpx.AsyncClient, **members: Any) -> Any:
    return await ask(own, "text", **{"prompt": STORY, "max_tokens": 8, "temperature": 0, **members})


def content(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def test_the_same_seed_gives_the_same_chat_alone_and_among_others(own: httpx.AsyncClient) -> None:
    alone = [content(await chat(own, seed=-7, **VARIED)) for _ in range(2)]
    together = await asyncio.gather(
        *(chat(own, seed=-7, **VARIED) for _ in range(8)),
        *(chat(own, seed=seed, **VARIED) for seed in range(1, 9)),
    )
    texts = [content(answer) for answer in together]
    assert set(alone) | set(texts[:8]) == {alone[0]}
    assert len(set(texts)) > 1


async def test_the_same_seed_gives_the_same_completions_in_a_crowd(own: httpx.AsyncClient) -> None:
    asked = {**VARIED, "n": 3, "use_raw_prompt": True}
    alone = (await complete(own, seed=5, **asked))["choices"]
    together = await asyncio.gather(
        *(complete(own, seed=5, **asked) for _ in range(8)),
        *(complete(own, seed=seed, **asked) for seed in range(6, 10)),
    )
    assert all(answer["choices"] == alone for answer in together[:8])
    assert len({str(answer["choices"]) for answer in together}) > 1
    assert len({choice["text"] for choice in alone}) > 1


async def test_a_stream_has_the_text_of_a_whole_answer(own: httpx.AsyncClient) -> None:
    chunks = await chat(own, seed=3, stream=True)
    whole = await chat(own, seed=3)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == content(whole)
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    chunks = await complete(own, seed=3, stream=True, echo=True, suffix=" end")
    whole = await complete(own, seed=3, echo=True, suffix=" end")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]


async def streamed_is_whole(own: httpx.AsyncClient, number: int) -> None:
    """One random request, streamed and not: texts, ends and usage are equal."""
    rng = random.Random(number)
    words = ["sea", "count to 5", "hello", "Grüße aus Köln", "日本", "😀", "2+3", "naïve café"]
    text = " ".join(rng.choices(words, k=rng.randint(1, 5)))
    asked: dict[str, Any] = {
        "seed": number,
        "max_tokens": rng.randint(1, 40),
        "temperature": rng.choice([0, 1, 2]),
    }
    asked |= rng.choice(
        [{}, {"stop": ["e", "。"]}, {"top_k": 5}, {"top_p": 0.5}, {"repetition_penalty": 1.5}]
    )
    endpoint = "talk"
    task: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if rng.random() < 0.6:
        endpoint = "text"
        task = {"prompt": [text] + ["Once"] * rng.randint(0, 2), "n": rng.randint(1, 3)}
        task |= {name: rng.random() < 0.5 for name in ("echo", "use_raw_prompt")}
        task |= rng.choice([{}, {"suffix": " …"}, {"error_behavior": "truncate"}])
    whole = await ask(own, endpoint, **task, **asked)
    chunks = await ask(own, endpoint, **task, **asked, stream=True)
    for choice in whole["choices"]:
        mine = [part for c in chunks for part in c["choices"] if part["index"] == choice["index"]]
        texts = [part["text"] if "text" in part else part["delta"].get("content", "") for part in mine]
        expected = choice["text"] if "text" in choice else choice["message"]["content"]
        assert "".join(texts) == expected, (task, asked)
        ends = [None] * (len(mine) - 1) + [choice["finish_reason"]]
        assert [part["finish_reason"] for part in mine] == ends, (task, asked)
    spent = [
        {k: v for k, v in told["usage"].items() if k.endswith("_tokens")} for told in (whole, chunks[-1])
    ]
    assert spent[0] == spent[1], (task, asked)


@pytest.mark.parametrize("number", range(10))
async def test_streamed_text_is_the_whole_text(own: httpx.AsyncClient, number: int) -> None:
    await streamed_is_whole(own, number)


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_streamed_text_is_the_whole_text_hundreds_of_times(own: httpx.AsyncClient) -> None:
    for first in range(1_000, 1_300, 6):
        await asyncio.gather(*(streamed_is_whole(own, first + i) for i in range(6)))


async def test_temperature_0_and_top_k_1_are_greedy(own: httpx.AsyncClient) -> None:
    texts = {content(await chat(own, top_k=1, seed=seed, temperature=2)) for seed in (1, 2)}
    assert texts == {content(await chat(own, temperature=0))}


async def test_the_default_system_prompt_is_counted_in_prompt_tokens(own: httpx.AsyncClient) -> None:
    user = {"role": "user", "content": "Capital of Peru?"}
    system = {"role": "system", "content": "Answer in one word."}
    tokens = [
        (await ask(own, endpoint, messages=messages, max_tokens=1))["usage"]["prompt_tokens"]
        for endpoint, messages in (("talk", [user]), ("brief", [user]), ("talk", [system, user]))
    ]
    assert tokens[0] < tokens[1] == tokens[2]


async def test_use_raw_prompt_leaves_the_template_out(own: httpx.AsyncClient) -> None:
    raw, templated = await complete(own, use_raw_prompt=True), await complete(own)
    as_chat = await chat(own, STORY, max_tokens=8, temperature=0)
    assert raw["usage"]["prompt_tokens"] < templated["usage"]["prompt_tokens"]
    assert templated["usage"]["prompt_tokens"] == as_chat["usage"]["prompt_tokens"]
    assert templated["choices"][0]["text"] == content(as_chat)


async def test_a_stop_string_is_not_part_of_the_text(own: httpx.AsyncClient) -> None:
    text = content(await chat(own, temperature=0))
    stop = text[3:6]
    (choice,) = (await chat(own, temperature=0, stop=stop))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")


async def test_logprobs_spell_the_text(own: httpx.AsyncClient) -> None:
    (choice,) = (await chat(own, temperature=0, logprobs=True, top_logprobs=3))["choices"]
    listed = choice["logprobs"]["content"]
    spelled = b"".join(bytes(entry["bytes"]) for entry in listed).decode()
    assert spelled.startswith(choice["message"]["content"])
    assert all(len(entry["top_logprobs"]) == 3 for entry in listed)
    (choice,) = (await complete(own, use_raw_prompt=True, logprobs=5, echo=True))["choices"]
    assert STORY + "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"][0] == len(STORY)


async def test_response_format_is_kept_to(own: httpx.AsyncClient) -> None:
    schema = {
        "type": "object",
        "properties": {"sea": {"enum": ["calm", "wild"]}},
        "required": ["sea"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    (choice,) = (await chat(own, response_format=form, max_tokens=60, temperature=0))["choices"]
    assert json.loads(choice["message"]["content"])["sea"] in ("calm", "wild")
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
async def test_tool_choice_forces_a_call(own: httpx.AsyncClient, choice: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters, "strict": True}}
    answer = await chat(own, tools=[tool], tool_choice=choice, max_tokens=100, temperature=0)
    (only,) = answer["choices"]
    assert (only["finish_reason"], only["message"]["content"]) == ("tool_calls", None)
    (call,) = only["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert 0 <= json.loads(call["function"]["arguments"])["a"] <= 9
    turns = [
        {"role": "user", "content": "Add."},
        only["message"],
        {"role": "tool", "content": "5", "tool_call_id": call["id"]},
    ]
    assert content(await chat(own, messages=turns)) is not None


# --- what does not fit -------------------------------------------------------------------------


async def refusal(own: httpx.AsyncClient, endpoint: str, **members: Any) -> tuple[int, str]:
    answer = await own.post(f"/serving-endpoints/{endpoint}/invocations", json=members)
    return answer.status_code, answer.json()["error_code"]


async def test_e5_a_prompt_beyond_the_window(own: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "sea " * 2_000}]
    assert await refusal(own, "talk", messages=messages) == (400, "BAD_REQUEST")
    for behavior in ({}, {"error_behavior": "error"}):
        assert await refusal(own, "text", prompt="sea " * 2_000, **behavior) == (400, "BAD_REQUEST")


async def test_max_tokens_beyond_the_window_are_an_error_where_the_client_says_so(
    own: httpx.AsyncClient,
) -> None:
    asked = {"prompt": "sea", "max_tokens": WINDOW, "error_behavior": "error"}
    assert (await refusal(own, "text", **asked))[0] == 400


@pytest.mark.parametrize(
    ("max_tokens", "prompt_tokens"),
    [(None, WINDOW - WINDOW // 4), (7, WINDOW - 7), (10**6, WINDOW - WINDOW // 4)],
)
async def test_error_behavior_truncate_keeps_the_end_of_a_prompt(
    own: httpx.AsyncClient, max_tokens: int | None, prompt_tokens: int
) -> None:
    asked = {"prompt": "sea " * 2_000, "max_tokens": max_tokens, "use_raw_prompt": True}
    answer = await complete(own, error_behavior="truncate", logit_bias=NO_END, **asked)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == prompt_tokens
    assert usage["completion_tokens"] == min(max_tokens or WINDOW, WINDOW - prompt_tokens)
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_error_behavior_truncate_lowers_max_tokens(own: httpx.AsyncClient) -> None:
    asked = {"max_tokens": WINDOW, "use_raw_prompt": True, "logit_bias": NO_END}
    answer = await complete(own, error_behavior="truncate", **asked)
    assert answer["usage"]["total_tokens"] == WINDOW
    assert answer["choices"][0]["finish_reason"] == "length"
