"""Answers that one replica began and another goes on with: the client gets what it would have got.

Each feature of a request is answered by one server without a break. Then the client's deltas are cut
anywhere, and a second server, busy with other requests, gets the request with what the client has. Its
deltas are those that the first server would have sent, and some are cut and moved once more. Exact in
float32. Times, and the ids of calls, are new.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from msgspec import structs

from serve_app.config import EngineConfig, ModelConfig
from serve_app.replica.server import ModelServer
from serve_app.types import (
    Adapter,
    Beam,
    ChoiceSoFar,
    Draft,
    GenerateRequest,
    Grammar,
    GrammarKind,
    LoopRule,
    ProcessorCall,
    Prompt,
    PromptTable,
    Resume,
    SamplingParams,
    Tensor,
    TextLogprob,
    TokenDelta,
    ToolChoice,
    ToolMode,
)
from tests.invariance.test_mixed_rows import PROCESSORS
from tests.support.adapters import matrices, original, shapes_of, task
from tests.support.divisible import demo_path, demo_settings
from tests.support.sink import Sink

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCAB, WIDTH, WINDOW = 3072, 192, 384
ROUNDING = 1e-3  # of float32 logits where torch's own kernels compute them
_ids = itertools.count()
_numbers = np.random.default_rng(1)

IDS = Prompt(token_ids=tuple(range(300, 390)))
TEXT = Prompt(text="The capital of France is")


def chat(question: str, *tools: dict[str, Any]) -> Prompt:
    return Prompt(messages=({"role": "user", "content": question},), tools=tools)


def tensor(values: np.ndarray) -> Tensor:
    return Tensor(dtype="FP32", shape=values.shape, data=values.astype("<f4").tobytes())


def tool(name: str, *fields: str, strict: bool = True) -> dict[str, Any]:
    properties = {field: {"type": "string", "maxLength": 12} for field in fields}
    parameters = {"type": "object", "properties": properties, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


FREE = SamplingParams(temperature=1.2, seed=2**64 - 3, max_tokens=24, ignore_eos=True)
GREEDY = replace(FREE, temperature=0.0)
ENDS = replace(FREE, temperature=0.7, ignore_eos=False, max_tokens=60)
WEATHER, TIME = tool("get_weather", "city"), tool("get_time", "city", "zone", strict=False)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "sort": {"enum": ["large", "larger than"]}},
    "required": ["city", "sort"],
    "additionalProperties": False,
}
WANTED_JSON = chat("What is the capital of Spain? Answer in JSON.")


def under(kind: GrammarKind, text: str = "", **fields: Any) -> dict[str, Any]:
    return {"prompt": WANTED_JSON, "sampling": ENDS, "grammar": Grammar(kind=kind, text=text)} | fields


def sampled(**changes: Any) -> dict[str, Any]:
    return {"sampling": replace(FREE, **changes)}


LARK = 'start: "list:" item+\nitem: " " NAME\nNAME: /[a-z]{2,5}/'
JSON = under(GrammarKind.SCHEMA, json.dumps(SCHEMA))
LIFT = ProcessorCall(name="lift", arguments='{"tokens": [500, 501, 502], "by": 4}')
LOGITS = tensor(_numbers.normal(size=(9, VOCAB)))
FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "seeded": {},
    "top_k": sampled(top_k=40),
    "top_p": sampled(top_p=0.8),
    "top_p decay": sampled(top_p=0.95, top_p_decay=0.8, top_p_min=0.1),
    "top_p decay and reset": sampled(top_p=0.9, top_p_decay=0.7, top_p_min=0.1, top_p_reset_id=305),
    "min_p": sampled(min_p=0.05),
    "typical_p": sampled(typical_p=0.6),
    "repetition penalty": sampled(repetition_penalty=1.4),
    "penalties": sampled(presence_penalty=0.8, frequency_penalty=0.7, penalize_prompt=True),
    "logit bias": sampled(logit_bias=((310, 4.0), (311, -8.0))),
    "dense bias": {"bias": tensor(_numbers.normal(size=VOCAB))},
    "biased words": {"biased_words": (("Paris", 5.0), ("the", float("-inf")))},
    "bad words": {"bad_words": ("is", "of the"), "sampling": replace(FREE, bad_words=((310, 311),))},
    "allowed ids": sampled(allowed_token_ids=tuple(range(300, 330))),
    "loops": sampled(allowed_token_ids=(300, 301), loop=LoopRule(most=2, count=6)),
    "n-grams": sampled(no_repeat_ngram=2, allowed_token_ids=tuple(range(300, 306))),
    "min_tokens": {"sampling": replace(ENDS, min_tokens=20), "prompt": chat("What is 2 + 2?")},
    "end token": {"sampling": ENDS, "prompt": chat("What is the capital of France?")},
    "stop tokens": sampled(stop_token_ids=tuple(range(0, VOCAB, 29))),
    "stop sequences": sampled(
        allowed_token_ids=tuple(range(300, 306)), stop_sequences=((301, 302), (303, 303, 304))
    ),
    "stop strings": {"stop": ("a cat", "e ", "the ca"), "prompt": TEXT},
    "stop strings kept": {"stop": ("s t", "ing", "o"), "include_stop": True, "prompt": TEXT},
    "special tokens shown": {"skip_special_tokens": False, "prompt": TEXT},
    "watermark": sampled(watermark=True),
    "processors": sampled(processors=(LIFT,)),
    "choices": {"n": 3, "logprobs": 2, "echo": True, "prompt_logprobs": 1, "prompt_ids": True},
    "choices that end": {"n": 4, "sampling": ENDS, "prompt": chat("What is the capital of Italy?")},
    "choices, not streamed": {
        "n": 4,
        "sampling": ENDS,
        "prompt": chat("What is the capital of Italy?"),
        "stream": False,
        "logprobs": 0,
        "echo": True,
        "prompt_logprobs": 0,
    },
    "best of": {"n": 2, "best_of": 4, "stream": False, "prompt_logprobs": 0},
    "beams": {"n": 2, "beam": Beam(width=3), "logprobs": 1},
    "json": under(GrammarKind.JSON),
    "schema": JSON,
    "schema, told by token": JSON | {"per_token": True},
    "schema with logprobs": JSON | {"logprobs": 1},
    "schema, choices": JSON | {"n": 3},
    "schema, greedy": JSON | {"sampling": replace(ENDS, temperature=0.0), "per_token": True},
    "regex": under(GrammarKind.REGEX, "(one|two|three) (hundred|thousand) (and [0-9]{2,6})?"),
    "choice": under(GrammarKind.CHOICE, '["Madrid", "Madagascar is large", "Malta"]', per_token=True),
    "lark": under(GrammarKind.LARK, LARK),
    "tools": {"prompt": chat("What is the weather in Oslo?", WEATHER, TIME), "sampling": ENDS},
    "tools, per token": {
        "prompt": chat("What is the weather in Oslo?", WEATHER),
        "sampling": ENDS,
        "per_token": True,
        "tool_choice": ToolChoice(mode=ToolMode.REQUIRED),
    },
    "tool by name": {
        "prompt": chat("What is 1 + 1?", WEATHER, TIME),
        "sampling": replace(ENDS, temperature=1.1),
        "tool_choice": ToolChoice(mode=ToolMode.NAMED, name="get_time"),
    },
    "client's draft": {"sampling": GREEDY, "draft": Draft(token_ids=tuple(range(301, 311)))},
    "draft with logits": {"draft": Draft(token_ids=tuple(range(301, 310)), logits=LOGITS)},
    "draft, threshold": {
        "draft": Draft(token_ids=tuple(range(301, 310)), logits=LOGITS, acceptance_threshold=0.4)
    },
    "folder adapter": {"adapter": Adapter(name="pirate"), "prompt": chat("What is the capital of Italy?")},
    "prompt table": {
        "prompt": Prompt(token_ids=(VOCAB, *range(300, 360), VOCAB + 2)),
        "prompt_table": PromptTable(rows=tensor(0.2 * _numbers.normal(size=(3, WIDTH))), used=3),
    },
    "logits": {"generation_logits": True, "context_logits": True, "sampling": replace(FREE, max_tokens=9)},
    "logits of choices": {
        "generation_logits": True,
        "context_logits": True,
        "n": 2,
        "prompt_logprobs": 2,
        "sampling": replace(FREE, max_tokens=6),
    },
    "timings": {"per_token": True, "sampling": GREEDY},
    "progress": {"progress": True, "n": 2},
    "echo": {"echo": True, "prompt": TEXT, "logprobs": 3, "prompt_logprobs": 3},
    "echo alone": {"echo": True, "prompt": TEXT, "n": 2, "sampling": replace(FREE, max_tokens=0)},
    "priority": {"priority": 3},
    "left to the model": {
        "left_to_model": ("temperature", "top_p"),
        "sampling": replace(FREE, max_tokens=None),
    },
}


def settings(**engine: Any) -> ModelConfig:
    wanted = {"max_model_len": WINDOW, "num_blocks": 400, "block_size": 16, "logits_processors": PROCESSORS}
    return ModelConfig(
        name="demo-chat",
        dtype="float32",
        threads=1,
        max_output_tokens=70,
        engine=EngineConfig(**{**wanted, **engine}),
        **demo_settings(),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def first() -> AsyncIterator[ModelServer]:
    async for server in started():
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second() -> AsyncIterator[ModelServer]:
    async for server in started(max_step_tokens=70, max_sequences=12, num_blocks=150):
        yield server


async def started(**engine: Any) -> AsyncIterator[ModelServer]:
    """A server whose deltas hold a token each, unless told to guess: then time decides what a delta holds."""
    server = await ModelServer.start(settings(**{"ngram_draft": 0} | engine), lambda _: None)
    yield server
    async with asyncio.timeout(60):
        while server.stats().blocks_used or server.stats().waiting:  # an aborted request ends in a step
            await asyncio.sleep(0.01)
    await server.stop()


def request(**fields: Any) -> GenerateRequest:
    base = GenerateRequest(id=f"a{next(_ids)}", model="demo-chat", prompt=IDS, sampling=FREE)
    return replace(base, **fields)


async def ask(server: ModelServer, wanted: GenerateRequest) -> list[TokenDelta]:
    sink = Sink()
    await server.generate(wanted, sink)
    return sink.deltas


def so_far(deltas: Iterable[TokenDelta], index: int) -> ChoiceSoFar:
    own = [delta for delta in deltas if delta.index == index and not delta.is_progress]
    return ChoiceSoFar(
        token_ids=tuple(id for delta in own for id in delta.token_ids),
        finished=any(delta.finish is not None for delta in own),
        timing=next((delta.timing for delta in own if delta.timing is not None), None),
    )


def moved(
    wanted: GenerateRequest, weights: str, told: list[TokenDelta], age_s: float = 30.0
) -> GenerateRequest:
    """The request as another replica is sent it, for a client that has the deltas `told`."""
    choices = tuple(so_far(told, index) for index in range(wanted.n))
    resume = None
    if any(choice.token_ids or choice.finished for choice in choices):
        resume = Resume(weights=weights, choices=choices, usage=told[-1].usage, age_s=age_s)
    return replace(wanted, id=f"{wanted.id}~{next(_ids)}", resume=resume)


def logprobs(found: tuple[TextLogprob, ...] | None) -> list[Any] | None:
    """Log-probabilities with what may be rounded made comparable."""
    if found is None:
        return None
    return [(p.token_id, p.text, p.data, p.logprob and pytest.approx(p.logprob, abs=ROUNDING)) for p in found]


def content(deltas: list[TokenDelta], index: int, *, whole: bool) -> list[Any]:
    """What a client reads of one choice: delta by delta, or all together."""
    own = [delta for delta in deltas if delta.index == index and not delta.is_progress]
    pieces = [
        [
            *(delta.text, delta.reasoning, delta.token_ids),
            tuple(logprobs(delta.logprobs) or ()),
            *([(call.index, call.name, call.arguments)] for call in delta.tool_calls),
        ]
        for delta in own
    ]
    if whole:
        pieces = [
            [
                "".join(delta.text for delta in own),
                "".join(delta.reasoning for delta in own),
                [id for delta in own for id in delta.token_ids],
                [one for delta in own for one in logprobs(delta.logprobs) or ()],
                [call.name for delta in own for call in delta.tool_calls if call.name],
                "".join(call.arguments for delta in own for call in delta.tool_calls),
            ]
        ]
    first = own[0] if own else None
    ends = [(delta.finish, delta.stop, delta.error) for delta in own if delta.finish is not None]
    prompt = first and (first.prompt_text, first.prompt_token_ids, logprobs(first.prompt_logprobs))
    return [*pieces, ends, prompt]


def numbers(deltas: list[TokenDelta], index: int, name: str) -> np.ndarray:
    data = b"".join(d.tensors[name].data for d in deltas if d.index == index and name in d.tensors)
    return np.frombuffer(data, "<f4")


def check_rest(
    wanted: GenerateRequest, answer: list[TokenDelta], told: int, rest: list[TokenDelta], *, whole: bool
) -> None:
    missing = answer[told:]
    for index in range(wanted.n):
        assert content(rest, index, whole=whole) == content(missing, index, whole=whole), (told, index)
        for name in ("generation_logits", "context_logits"):
            found, meant = numbers(rest, index, name), numbers(missing, index, name)
            assert found.shape == meant.shape
            assert np.allclose(found, meant, atol=ROUNDING)
        own = [d for d in rest if d.index == index and not d.is_progress]
        begun = so_far(answer[:told], index)
        if begun.token_ids:
            assert all(d.timing is None for d in own)
        if wanted.per_token:
            steps = [d.step for d in own if d.step is not None]
            assert len(steps) == len(own) == sum(len(d.token_ids) for d in own)
            assert all(step.wait_s >= 0 and step.run_s >= 0 for step in steps)
        perfs = [d.perf for d in own if d.perf is not None]
        assert all(p.arrival_ns <= p.first_scheduled_ns <= p.first_token_ns <= p.last_token_ns for p in perfs)
    cached = (answer[told - 1] if told else rest[-1]).usage.cached_tokens
    assert rest[-1].usage == structs.replace(answer[-1].usage, cached_tokens=cached)
    if wanted.beam is None and wanted.best_of is None:  # those are counted whole, at the end
        made = [delta.usage.completion_tokens for delta in (*answer[:told], *rest)]
        assert made == sorted(made)


async def broken(server: ModelServer, wanted: GenerateRequest, deltas: int) -> list[TokenDelta]:
    """The first deltas of an answer whose replica is then lost."""
    sink = Sink()
    call = asyncio.ensure_future(server.generate(wanted, sink))
    while len(sink.deltas) < deltas and not call.done():
        await asyncio.wait([call], timeout=0.002)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    return sink.deltas[:deltas]


def places(answer: list[TokenDelta], count: int, rng: random.Random) -> list[int]:
    """How many deltas a client has: some numbers of all, with something left to come."""
    last = max(i for i, delta in enumerate(answer) if not delta.is_progress)
    return sorted(rng.sample(range(last + 1), min(count, last + 1)))


async def check(
    first: ModelServer,
    second: ModelServer,
    names: Iterable[str],
    cuts: int,
    seed: int,
    *,
    whole: bool = False,
) -> None:
    """Cut each feature's answer in `cuts` places, and once more where it goes on."""
    rng = random.Random(seed)
    weights = first.info.weights
    assert weights == second.info.weights
    wanted = {name: request(**FEATURES[name]) for name in names}
    answers = {name: await ask(first, each) for name, each in wanted.items()}
    noise = [
        asyncio.ensure_future(second.generate(replace(each, id=f"n{next(_ids)}"), Sink()))
        for each in rng.sample(list(wanted.values()), min(6, len(wanted)))
    ]

    async def one(name: str, told: int, again: int) -> None:
        each, answer = wanted[name], answers[name]
        head = answer[:told]
        if again:
            middle = await broken(second, moved(each, weights, head), again)
            rest = []
            if not all(so_far(head + middle, i).finished for i in range(each.n)):
                rest = await ask(second, moved(each, weights, head + middle, age_s=90.0))
            rest = middle + rest
        else:
            rest = await ask(second, moved(each, weights, head))
        try:
            check_rest(each, answer, told, rest, whole=whole)
        except AssertionError as error:
            raise AssertionError(
                f"{name}, cut after {told} of {len(answer)}, then {again}: {error}"
            ) from error

    work = [
        one(name, told, rng.choice([0, 0, 1, 3]))
        for name in wanted
        for told in places(answers[name], cuts, rng)
    ]
    rng.shuffle(work)
    failed = [e for e in await asyncio.gather(*work, return_exceptions=True) if e is not None]
    for call in noise:
        call.cancel()
    await asyncio.gather(*noise, return_exceptions=True)
    assert not failed, "\n".join(map(str, failed))


async def test_every_feature_goes_on_elsewhere(first: ModelServer, second: ModelServer) -> None:
    await check(first, second, FEATURES, cuts=1, seed=1)


@pytest.mark.full
@pytest.mark.parametrize("name", FEATURES)
async def test_a_feature_goes_on_after_every_delta(
    first: ModelServer, second: ModelServer, name: str
) -> None:
    await check(first, second, [name], cuts=1000, seed=2)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3, 9))
async def test_answers_go_on_where_more_is_guessed_ahead(first: ModelServer, seed: int) -> None:
    async for guessing in started(ngram_draft=6, num_blocks=120):
        await check(first, guessing, FEATURES, cuts=5, seed=seed, whole=True)


async def test_a_clients_own_adapter_comes_along(first: ModelServer, second: ModelServer) -> None:
    own = task(7, matrices(shapes_of(original(demo_path())), seed=4, rank=2, size=0.1))
    wanted = request(adapter=own, salt="tenant")
    answer = await ask(first, wanted)
    rest = await ask(second, moved(wanted, first.info.weights, answer[:5]))
    check_rest(wanted, answer, 5, rest, whole=False)
