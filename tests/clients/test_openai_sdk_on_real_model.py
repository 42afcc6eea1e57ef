"""The unmodified openai package against the demo model: through HAProxy, gateway, replica and engine.

Every question goes to the asynchronous and the synchronous client, which must agree. Answers are
compared with one another, hardly ever with fixed texts: the demo model may be trained again.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.completion_choice import CompletionChoice
from tokenizers import Tokenizer

from tests.support.ray_cluster import ROOT, Cluster
from tests.support.served import MODEL

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

STORY = "Once upon a time"
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.5, "extra_body": {"top_k": 20}},
    {"temperature": 1.2, "extra_body": {"min_p": 0.02}},
    {"temperature": 1.0, "stop": ["e", " the"], "n": 2},
    {"temperature": 1.3, "frequency_penalty": 0.8, "presence_penalty": 0.4},
    {"temperature": 0.9, "extra_body": {"repetition_penalty": 1.2, "ignore_eos": True}},
    {"temperature": 2.0, "extra_body": {"typical_p": 0.95}},
]


class Sdk:
    """Both clients of the package."""

    def __init__(self, url: str) -> None:
        options: dict[str, Any] = {
            "base_url": f"{url}/v1",
            "api_key": "none",
            "max_retries": 0,
            "timeout": 60,
        }
        self.both = openai.AsyncOpenAI(**options), openai.OpenAI(**options)
        self.client = self.both[0]

    async def chat(self, question: str, **options: Any) -> ChatCompletion:
        return await self._whole("chat.completions", **chat(question, **options))

    async def complete(self, prompt: Any, **options: Any) -> Completion:
        return await self._whole("completions", **completion(prompt, **options))

    async def _whole(self, resource: str, **options: Any) -> Any:
        first = await at(self.client, resource).create(**options)
        second = await asyncio.to_thread(at(self.both[1], resource).create, **options)
        assert first.choices == second.choices
        assert spent(first.usage) == spent(second.usage)
        return second

    async def chat_stream(self, question: str, **options: Any) -> list[Any]:
        return await self._stream("chat.completions", **chat(question, **options))

    async def completion_stream(self, prompt: Any, **options: Any) -> list[Any]:
        return await self._stream("completions", **completion(prompt, **options))

    async def _stream(self, resource: str, **options: Any) -> list[Any]:
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        first = [chunk async for chunk in await at(self.client, resource).create(**options)]
        second = await asyncio.to_thread(lambda: list(at(self.both[1], resource).create(**options)))
        assert texts(first) == texts(second)
        return second


def at(client: Any, resource: str) -> Any:
    for name in resource.split("."):
        client = getattr(client, name)
    return client


def chat(question: str, **options: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 40,
        **options,
    }


def completion(prompt: Any, **options: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 24, **options}


def spent(usage: Any) -> tuple[int, int, int]:
    """Without the cached tokens, which a second request has more of."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def texts(chunks: list[Any]) -> dict[int, tuple[str, str | None]]:
    """By choice: the text of a stream and its finish reason."""
    found: dict[int, tuple[str, str | None]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            text, _ = found.get(choice.index, ("", None))
            piece = choice.text if hasattr(choice, "text") else choice.delta.content
            found[choice.index] = text + (piece or ""), choice.finish_reason
    return found


def whole_texts(answer: Any) -> dict[int, tuple[str, str | None]]:
    return {
        choice.index: (
            choice.text if hasattr(choice, "text") else choice.message.content,
            choice.finish_reason,
        )
        for choice in answer.choices
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sdk(demo_chat: Cluster) -> AsyncIterator[Sdk]:
    found = Sdk(demo_chat.url)
    yield found
    await found.both[0].close()
    found.both[1].close()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(ROOT / "serve_app/models/demo/demo-chat/tokenizer.json"))


async def test_a_question_is_answered_and_the_turn_ends(sdk: Sdk) -> None:
    answer = await sdk.chat("What is the capital of France?")
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert [model.id for model in sdk.both[1].models.list()] == [MODEL]


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_stream_has_the_text_the_reason_and_the_usage_of_the_whole_answer(
    sdk: Sdk, kind: str
) -> None:
    ask, stream = (sdk.chat, sdk.chat_stream) if kind == "chat" else (sdk.complete, sdk.completion_stream)
    options = {"n": 3, "seed": 4, "temperature": 0.8}
    whole, chunks = await ask("Tell me a story.", **options), await stream("Tell me a story.", **options)
    assert texts(chunks) == whole_texts(whole)
    assert chunks[-1].choices == []
    assert spent(chunks[-1].usage) == spent(whole.usage)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_every_form_of_prompt_gives_the_same_answer(sdk: Sdk, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(STORY).ids
    (alone,) = (await sdk.complete(STORY)).choices
    for prompt in ([STORY], ids, [ids]):
        (choice,) = (await sdk.complete(prompt)).choices
        assert choice.text == alone.text
    both = await sdk.complete([STORY, "The capital of France is"], n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in both.choices[:2]] == [alone.text] * 2
    assert both.choices[2].text != alone.text
    mixed = await sdk.complete([ids, tokenizer.encode("The capital of France is").ids], n=2)
    assert [choice.text for choice in mixed.choices] == [choice.text for choice in both.choices]


async def test_choices_differ_and_best_of_returns_the_likeliest(sdk: Sdk) -> None:
    options = {"temperature": 1.0, "seed": 11, "logprobs": 0, "max_tokens": 12}
    four = (await sdk.complete(STORY, n=4, **options)).choices
    assert len({choice.text for choice in four}) > 1
    likeliest = max(four, key=lambda choice: math.fsum(choice.logprobs.token_logprobs))
    best = await sdk.complete(STORY, n=1, best_of=4, **options)
    assert best.choices[0].text == likeliest.text
    assert best.usage is not None
    assert best.usage.completion_tokens == len(likeliest.logprobs.token_logprobs)


async def test_echo_gives_the_prompt_and_the_log_probabilities_of_all(sdk: Sdk) -> None:
    (choice,) = (await sdk.complete(STORY, echo=True, logprobs=3, max_tokens=6)).choices
    listed: Any = choice.logprobs
    assert choice.text.startswith(STORY)
    assert "".join(listed.tokens) == choice.text
    assert listed.text_offset == [len("".join(listed.tokens[:i])) for i in range(len(listed.tokens))]
    assert listed.token_logprobs[0] is None
    assert all(-100 < value <= 0 for value in listed.token_logprobs[1:])
    assert all(3 <= len(top) <= 4 for top in listed.top_logprobs[1:])
    (only,) = (await sdk.complete(STORY, echo=True, logprobs=1, max_tokens=0)).choices
    assert only.text == STORY
    alone: Any = only.logprobs
    assert alone.token_logprobs == pytest.approx(listed.token_logprobs[: len(alone.tokens)], abs=1e-4)


async def test_log_probabilities_of_a_chat_spell_its_text_and_rank_the_greedy_token_first(sdk: Sdk) -> None:
    options = {"logprobs": True, "top_logprobs": 5, "extra_body": {"ignore_eos": False}}
    (choice,) = (await sdk.chat("Say hello.", **options)).choices
    listed = choice.logprobs.content
    spelled = b"".join(bytes(entry.bytes) for entry in listed).decode()
    assert spelled.startswith(choice.message.content or "?")
    for entry in listed:
        values = [other.logprob for other in entry.top_logprobs]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == values[0] <= 0
    streamed = [
        entry
        for chunk in await sdk.chat_stream("Say hello.", **options)
        for part in chunk.choices
        if part.logprobs
        for entry in part.logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in listed]


async def test_a_stop_string_ends_the_text_where_it_begins(sdk: Sdk) -> None:
    free = (await sdk.complete(STORY, max_tokens=40)).choices[0].text
    stop = free[9:14]
    (cut,) = (await sdk.complete(STORY, max_tokens=40, stop=["never said", stop])).choices
    assert (cut.text, cut.finish_reason) == (free[: free.index(stop)], "stop")
    (kept,) = (
        await sdk.complete(STORY, max_tokens=40, stop=stop, extra_body={"include_stop_str_in_output": True})
    ).choices
    assert kept.text == free[: free.index(stop) + len(stop)]
    chunks = await sdk.completion_stream(STORY, max_tokens=40, stop=stop)
    assert texts(chunks) == {0: (cut.text, "stop")}


async def test_a_seed_decides_alone_and_in_a_crowd(sdk: Sdk) -> None:
    options = chat("Tell me a story.", temperature=1.0, seed=2**63 - 1)
    alone = await sdk.client.chat.completions.create(**options)
    crowd = await asyncio.gather(*(sdk.client.chat.completions.create(**options) for _ in range(8)))
    assert {one.choices[0].message.content for one in crowd} == {alone.choices[0].message.content}
    others = [await sdk.client.chat.completions.create(**{**options, "seed": seed}) for seed in (1, 2, -1)]
    assert len({one.choices[0].message.content for one in [alone, *others]}) > 1


def tokens_of(choice: CompletionChoice) -> list[str]:
    """The tokens of an answer with log-probabilities."""
    assert choice.logprobs is not None
    return choice.logprobs.tokens or []


async def test_a_bias_bans_and_forces_a_token(sdk: Sdk, tokenizer: Tokenizer) -> None:
    (free,) = (await sdk.complete(STORY, logprobs=0)).choices
    first = tokens_of(free)[0]
    (token,) = tokenizer.encode(first, add_special_tokens=False).ids
    (banned,) = (await sdk.complete(STORY, logprobs=0, logit_bias={str(token): -100})).choices
    assert first not in tokens_of(banned)
    (forced,) = (await sdk.complete(STORY, logprobs=0, max_tokens=5, logit_bias={str(token): 100})).choices
    assert tokens_of(forced) == [first] * 5


async def test_lengths_are_kept(sdk: Sdk) -> None:
    question = "What is the capital of France?"
    natural = await sdk.chat(question)
    assert natural.usage is not None
    short = natural.usage.completion_tokens
    assert short < 30
    cut = await sdk.chat(question, max_completion_tokens=2, max_tokens=openai.omit)
    assert (cut.usage.completion_tokens, cut.choices[0].finish_reason) == (2, "length")
    longer = await sdk.chat(question, extra_body={"min_tokens": short + 5})
    assert longer.usage.completion_tokens >= short + 5
    on = await sdk.chat(question, extra_body={"ignore_eos": True})
    assert (on.usage.completion_tokens, on.choices[0].finish_reason) == (40, "length")
    default = await sdk.complete(STORY, max_tokens=openai.omit, extra_body={"ignore_eos": True})
    assert default.usage.completion_tokens == 16
    unlimited = await sdk.chat(question, max_tokens=openai.omit)
    assert unlimited.choices == natural.choices


@pytest.mark.parametrize(
    "penalty",
    [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"extra_body": {"repetition_penalty": 1.5}}],
)
async def test_penalties_make_repetition_rarer(sdk: Sdk, penalty: dict[str, Any]) -> None:
    def different_tokens(answer: Completion) -> int:
        return sum(len(set(tokens_of(choice))) for choice in answer.choices)

    # Hot enough that even a very sure model repeats itself by choice of the sampler.
    prompts = [STORY, "Hello", "The capital of", "1 2 3"]
    options: dict[str, Any] = {"max_tokens": 60, "logprobs": 0, "temperature": 2.0, "seed": 5, "n": 4}
    body = {"ignore_eos": True}
    free = await sdk.complete(prompts, **options, extra_body=body)
    body |= penalty.get("extra_body", {})
    penalised = await sdk.complete(prompts, **options, **{**penalty, "extra_body": body})
    assert different_tokens(penalised) > different_tokens(free)


async def test_a_second_identical_prompt_is_found_in_the_cache(sdk: Sdk) -> None:
    prompt = f"Note {random.random()}: " + "the sea was calm and the night was long, " * 8
    first = await sdk.client.completions.create(**completion(prompt))
    second = await sdk.client.completions.create(**completion(prompt))
    assert first.choices == second.choices
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert 16 <= second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens
    *_, last = [
        chunk
        async for chunk in await sdk.client.completions.create(
            **completion(prompt, stream=True, stream_options={"include_usage": True})
        )
    ]
    assert last.usage == second.usage


async def streamed_is_whole(sdk: Sdk, number: int) -> None:
    """One random request, streamed and not: text, finish reasons and usage are equal."""
    rng = random.Random(number)
    words = [
        "sea",
        "count to 5",
        "hello",
        "Grüße aus Köln",
        "日本",
        "😀",
        "2+3",
        "repeat: naïve café",
        "name",
    ]
    prompt = " ".join(rng.choices(words, k=rng.randint(1, 6)))
    options: dict[str, Any] = {**rng.choice(SETTINGS), "seed": number, "max_tokens": rng.randint(1, 60)}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    if rng.random() < 0.5:
        create: Any = sdk.client.chat.completions.create
        wanted = chat(prompt, **options)
    else:
        create, wanted = sdk.client.completions.create, completion(prompt, **options)
    whole: Any = await create(**wanted)
    stream: Any = await create(**wanted, **usage)
    chunks = [chunk async for chunk in stream]
    assert texts(chunks) == whole_texts(whole), wanted
    assert spent(chunks[-1].usage) == spent(whole.usage), wanted


async def in_parallel(sdk: Sdk, count: int, first: int) -> None:
    slots = asyncio.Semaphore(12)

    async def one(number: int) -> None:
        async with slots:
            await streamed_is_whole(sdk, number)

    await asyncio.gather(*(one(first + number) for number in range(count)))


async def test_streamed_text_is_the_whole_text(sdk: Sdk) -> None:
    await in_parallel(sdk, 60, first=0)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_streamed_text_is_the_whole_text_a_thousand_times(sdk: Sdk) -> None:
    await in_parallel(sdk, 1_000, first=1_000)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 129}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"extra_body": {"stop_token_ids": [999_999]}}, "stop_token_ids"),
        ({"stop": ""}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": []}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_bad_input_is_a_bad_request_that_names_the_field(
    sdk: Sdk, options: dict[str, Any], param: str, stream: bool
) -> None:
    wanted = {**chat("Hello!", stream=stream), **options}
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.client.chat.completions.create(**wanted)
    with pytest.raises(openai.BadRequestError) as blocking:
        await asyncio.to_thread(sdk.both[1].chat.completions.create, **wanted)
    for error in (caught.value, blocking.value):
        assert (error.param, error.type) == (param, "invalid_request_error")
        assert param in error.message


async def test_other_refusals_have_their_own_exceptions(sdk: Sdk) -> None:
    for client in (sdk.client.completions, sdk.client.chat.completions):
        wanted = completion("x") if client is sdk.client.completions else chat("x")
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.create(**{**wanted, "model": "nobody"})
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        await sdk.client.models.retrieve("nobody")
    with pytest.raises(openai.BadRequestError) as long_text:
        await sdk.complete("word " * 2_000)
    assert (long_text.value.code, long_text.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError) as long_chat:
        await sdk.chat("word " * 2_000)
    assert (long_chat.value.code, long_chat.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.APIStatusError) as late:
        await sdk.complete(STORY, max_tokens=400, extra_body={"timeout": 0.001, "ignore_eos": True})
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")


async def test_log_lines_carry_our_id_and_no_prompt(sdk: Sdk) -> None:
    import ray

    raw = await sdk.client.completions.with_raw_response.create(
        **completion("a secret about whales"), extra_headers={"X-Request-Id": "whale-watcher_1"}
    )
    ours = raw.parse().id.removeprefix("cmpl-")
    assert raw.headers.get_list("x-request-id") == ["whale-watcher_1"]
    folder = Path(ray._private.worker._global_node.get_logs_dir_path()) / "serve"
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while not found:  # a line is written when its answer is out
            lines = "".join(path.read_text() for path in folder.glob("serve_app_*Gateway*.log")).splitlines()
            found = [entry for entry in map(json.loads, lines) if entry.get("request_id") == ours]
            await asyncio.sleep(0.05)
    (entry,) = found
    assert (entry["endpoint"], entry["entity"]) == (MODEL, MODEL)
    assert (entry["route"], entry["status"]) == ("/v1/completions", 200)
    assert entry["client_request_id"] == "whale-watcher_1"
    written = "".join(path.read_text(errors="replace") for path in folder.glob("*.log"))
    assert "whales" not in written


def snippet(opening: str) -> str:
    """The Python block of the README that begins with `opening`."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(opening)]
    return str(found)


async def run_script(text: str, *arguments: str) -> str:
    """What a script prints, in a process of its own."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", text, *arguments],
        env={**os.environ, "RAY_SERVE_THROUGHPUT_OPTIMIZED": "0"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


async def test_the_readmes_openai_snippet_prints_an_answer(sdk: Sdk, demo_chat: Cluster) -> None:
    text = snippet("from openai import OpenAI")
    assert "http://127.0.0.1:8000" in text
    printed = await run_script(text.replace("http://127.0.0.1:8000", demo_chat.url))
    assert len(printed) > 1


async def test_the_readmes_handle_snippet_prints_an_answer(demo_chat: Cluster) -> None:
    text = snippet("from serve_app import Beam, Client")
    start = "import sys, ray\nray.init(address=sys.argv[1], log_to_driver=False)\n"
    printed = await run_script(start + text, demo_chat.gcs_address)
    assert len(printed) > 1
