"""One model through every protocol: the same tokens, and streams that say what whole answers say.

Random seeded requests over the demo model, in this process. A protocol takes part by an entry in
`DIALECTS`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio

from serve_app.config import EngineConfig, ModelConfig
from serve_app.replica.server import ModelServer
from serve_app.types import GenerateRequest, TokenDelta
from tests.conformance.target import DEMO
from tests.support.gateway import directory_of, events, fake_app
from tests.support.local_backend import LocalBackend
from tests.support.streams import streamed

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.own_server]

Fields = dict[str, Any]
Texts = dict[int, str]  # of the choices, by index

TEXT_ENDPOINT: Final = "text"
ENDPOINTS: Final[list[Fields]] = [
    {"name": DEMO},
    {"name": TEXT_ENDPOINT, "task": "llm/v1/completions", "served_entities": [{"model": DEMO}]},
]
AT_ONCE: Final = 8


class RecordingBackend(LocalBackend):
    """Keeps the token ids of what it is asked last."""

    ids: dict[int, list[int]]

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:  # type: ignore[override]
        self.ids = {}
        async for deltas in super().generate(request):
            for delta in deltas:
                self.ids.setdefault(delta.index, []).extend(delta.token_ids)
            yield deltas


@pytest.fixture(scope="module")
def backends() -> list[RecordingBackend]:
    return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(backends: list[RecordingBackend]) -> AsyncIterator[httpx.AsyncClient]:
    config = ModelConfig(
        name=DEMO,
        dtype="float32",
        threads=1,
        engine=EngineConfig(max_sequences=32, block_size=16, num_blocks=256, max_model_len=512),
    )
    server = await ModelServer.start(config, lambda _: None)
    backend: Any = RecordingBackend(server)
    backends.append(backend)
    # The one text that a stream has and a whole answer has not; see the setting.
    app = fake_app(backend, directory=directory_of(backend, ENDPOINTS), mindie={"emit_end_token_text": False})
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=120) as client:
        yield client
    await server.stop()


# --- the protocols ---------------------------------------------------------------------


def chat_texts(answer: Fields) -> Texts:
    return {c["index"]: c["message"]["content"] or "" for c in answer["choices"]}


def completion_texts(answer: Fields) -> Texts:
    return {c["index"]: c["text"] for c in answer["choices"]}


def _joined(raw: str, piece: Callable[[Fields], str | None]) -> Texts:
    texts: Texts = {}
    for event in events(raw):
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + (piece(choice) or "")
    return texts


def chat_stream(raw: str) -> Texts:
    return _joined(raw, lambda choice: choice["delta"].get("content"))


def completion_stream(raw: str) -> Texts:
    return _joined(raw, lambda choice: choice["text"])


def generate_stream(raw: str) -> Texts:
    parts = raw.split("\n\n")[:-1]
    return {0: "".join(json.loads(part.removeprefix("data:"))["text_output"] for part in parts)}


def plain(body: Fields) -> Fields:
    return {"model": DEMO, **body}


def in_path(body: Fields) -> Fields:
    return body


def raw_prompt(body: Fields) -> Fields:
    return {**body, "use_raw_prompt": True}


def parameters(body: Fields) -> Fields:
    rest = {name: value for name, value in body.items() if name not in ("prompt", "stream", "max_tokens")}
    asked = {"do_sample": True, **rest, "max_new_tokens": body["max_tokens"]}
    return {"text_input": body["prompt"], "parameters": asked}


@dataclass(frozen=True)
class Dialect:
    """How a protocol is asked with OpenAI's names of fields, and how its answers are read."""

    path: str
    stream_path: str | None = None  # where it is another
    body: Callable[[Fields], Fields] = plain
    whole: Callable[[Fields], Texts] = chat_texts
    stream: Callable[[str], Texts] = chat_stream
    # Whole answers list their choices by likelihood; a stream numbers them before that is known.
    ranks: bool = False
    # What it has beyond what all have; one of them at a time is added.
    extras: Sequence[Fields] = field(default_factory=tuple)


PENALTIES: Final[Fields] = {"presence_penalty": 0.8, "frequency_penalty": -0.4}
SEVERAL: Final[Fields] = {"n": 3}
OPENAI_EXTRAS: Final[tuple[Fields, ...]] = (
    PENALTIES,
    SEVERAL,
    {"min_p": 0.05},
    {"typical_p": 0.7},
    {"watermark": True},
    {"no_repeat_ngram_size": 2},
    {"logit_bias": {"300": 5, "301": -5}},
    {"min_tokens": 4},
    {"skip_special_tokens": False},
    {"include_stop_str_in_output": True},
    {"bad_words": ["the", "a"]},
    {"use_beam_search": True, "n": 2, "best_of": 4},
    {"use_beam_search": True, "n": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "early_stopping": True},
    {"guided_regex": "[A-Z][a-z]{2,12}( [a-z]{1,9}){1,4}"},
)

CHATS: Final = {
    "openai chat": Dialect(
        "/v1/chat/completions",
        extras=(*OPENAI_EXTRAS, {"logprobs": True, "top_logprobs": 2}, {"add_generation_prompt": False}),
    ),
    "mindie chat": Dialect(
        "/mindie/v1/chat/completions",
        extras=(PENALTIES, SEVERAL, {"use_beam_search": True, "n": 3}, {"skip_special_tokens": False}),
    ),
    "ovms chat": Dialect(
        "/v3/chat/completions",
        ranks=True,
        extras=(PENALTIES, {"n": 2, "best_of": 2}, {"min_p": 0.05}, {"logprobs": True}),
    ),
    "databricks chat": Dialect(
        f"/serving-endpoints/{DEMO}/invocations", body=in_path, extras=(PENALTIES, {"logprobs": True})
    ),
}
TEXTS: Final = {
    "openai completions": Dialect(
        "/v1/completions",
        whole=completion_texts,
        stream=completion_stream,
        extras=(*OPENAI_EXTRAS, {"echo": True}, {"logprobs": 2}),
    ),
    "mindie generate": Dialect(
        f"/v2/models/{DEMO}/generate",
        stream_path=f"/v2/models/{DEMO}/generate_stream",
        body=parameters,
        whole=lambda answer: {0: answer["text_output"]},
        stream=generate_stream,
        extras=({"typical_p": 0.7}, {"watermark": True}, {"details": True, "perf_stat": True}),
    ),
    "ovms completions": Dialect(
        "/v3/completions",
        whole=completion_texts,
        stream=completion_stream,
        ranks=True,
        extras=(PENALTIES, {"n": 2, "best_of": 2}, {"echo": True}),
    ),
    "databricks completions": Dialect(
        f"/serving-endpoints/{TEXT_ENDPOINT}/invocations",
        body=raw_prompt,
        whole=completion_texts,
        stream=completion_stream,
        extras=(PENALTIES, {"echo": True}),
    ),
}
DIALECTS: Final = {**CHATS, **TEXTS}

QUESTIONS: Final = (
    "Hello!",
    "What is the capital of France?",
    "Repeat after me: Größe 日本語 😀👩‍👩‍👧 naïve",
    "Tell me about the sea.",
    "2 + 2 =",
    "Once upon a time",
)


def common(rng: random.Random) -> Fields:
    """Fields that every protocol has, within the ranges of all."""
    fields: Fields = {
        "temperature": rng.choice([0.3, 1.0, 1.6, 2.0]),
        "max_tokens": rng.randint(1, 24),
        "seed": rng.randint(1, 2**32 - 1),
    }
    options: list[Fields] = [
        {"top_p": rng.uniform(0.4, 1.0)},
        {"top_k": rng.choice([1, 3, 40])},
        {"repetition_penalty": rng.uniform(0.7, 2.0)},
        {"stop": rng.sample(["e", " the", "\n", ". ", "an", "é", "日"], 2)},
    ]
    for option in rng.sample(options, rng.randint(0, 3)):
        fields |= option
    return fields


def body_of(dialect: Dialect, question: str, fields: Fields, *, stream: bool) -> Fields:
    prompt: Fields = {"prompt": question}
    if dialect in CHATS.values():
        prompt = {"messages": [{"role": "user", "content": question}]}
    return dialect.body({**prompt, **fields, "stream": stream})


async def ask(
    http: httpx.AsyncClient, dialect: Dialect, question: str, fields: Fields, *, stream: bool
) -> Texts:
    """The texts of an answer, which must be one."""
    path = dialect.stream_path if stream and dialect.stream_path else dialect.path
    answer = await http.post(path, json=body_of(dialect, question, fields, stream=stream))
    if answer.status_code != 200:
        raise AssertionError(f"{path} {fields}: {answer.status_code} {answer.text}")
    return dialect.stream(answer.text) if stream else dialect.whole(answer.json())


# --- streams and whole answers -----------------------------------------------------------


async def check_streams(http: httpx.AsyncClient, dialect: Dialect, seeds: range) -> int:
    """Streamed and whole texts are equal for a random request a seed; returns how many said anything."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def check(seed: int) -> bool:
        rng = random.Random(f"{dialect.path} {seed}")
        question, fields = rng.choice(QUESTIONS), common(rng)
        if rng.random() < 0.7 and dialect.extras:
            fields |= rng.choice(dialect.extras)
        async with limit:
            streamed = await ask(http, dialect, question, fields, stream=True)
            whole = await ask(http, dialect, question, fields, stream=False)
        # A choice without any text may have no event of its own in a protocol's stream.
        texts, expected = [streamed.get(i, "") for i in whole], list(whole.values())
        if dialect.ranks:
            texts, expected = sorted(texts), sorted(expected)
        assert texts == expected, (question, fields)
        return any(whole.values())

    async with asyncio.TaskGroup() as group:
        checks = [group.create_task(check(seed)) for seed in seeds]
    return sum(each.result() for each in checks)


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_stream_says_what_a_whole_answer_says(http: httpx.AsyncClient, name: str) -> None:
    assert await check_streams(http, DIALECTS[name], range(12)) >= 6


@pytest.mark.full
@pytest.mark.parametrize("name", DIALECTS)
async def test_a_thousand_streams_say_what_whole_answers_say(http: httpx.AsyncClient, name: str) -> None:
    count = -(-1_000 // len(DIALECTS))
    assert await check_streams(http, DIALECTS[name], range(100, 100 + count)) > count // 2


# --- the same tokens ---------------------------------------------------------------------


async def check_ids(
    http: httpx.AsyncClient, backend: RecordingBackend, dialects: dict[str, Dialect], seed: int
) -> None:
    """All of `dialects`, streaming or not, get the same tokens and say the same text."""
    rng = random.Random(seed)
    question, fields = rng.choice(QUESTIONS), common(rng)
    said: dict[str, tuple[list[int], str]] = {}
    for name, dialect in dialects.items():
        texts = await ask(http, dialect, question, fields, stream=rng.random() < 0.5)
        said[name] = (backend.ids[0], texts[0])
    first = next(iter(said.values()))
    assert first[0]
    assert said == dict.fromkeys(said, first), (question, fields)


@pytest.mark.parametrize("dialects", [CHATS, TEXTS], ids=["chat", "text"])
@pytest.mark.parametrize("seed", range(8))
async def test_every_protocol_gets_the_same_tokens(
    http: httpx.AsyncClient, backends: list[RecordingBackend], dialects: dict[str, Dialect], seed: int
) -> None:
    await check_ids(http, backends[0], dialects, seed)


@pytest.mark.full
@pytest.mark.parametrize("dialects", [CHATS, TEXTS], ids=["chat", "text"])
async def test_every_protocol_gets_the_same_tokens_a_hundred_times(
    http: httpx.AsyncClient, backends: list[RecordingBackend], dialects: dict[str, Dialect]
) -> None:
    for seed in range(1_000, 1_100):
        await check_ids(http, backends[0], dialects, seed)
