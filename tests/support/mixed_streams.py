"""A load of all protocols at once, whose answers are compared with what they are undisturbed.

Greedy and seeded requests have one right answer. The others are looked at from end to end.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx

from tests.support.asks import (
    ANSWER_S,
    CHAT,
    COMPLETIONS,
    FORM,
    IDS,
    LENGTH,
    PIRATE,
    QUESTION,
    STORY,
    TEXT,
    TOOLS,
    Answer,
    Ask,
    Client,
    Wrong,
    chat,
    generate,
    message,
    over_grpc,
    respond,
)

_long: Final = {"max_tokens": LENGTH, "ignore_eos": True}
_stream: Final = {"stream": True, "stream_options": {"include_usage": True}}
_seeded: Final = {"temperature": 1.1, "seed": 7}
_databricks: Final = "/serving-endpoints/{model}/invocations"
_told: Final = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True}
_ids: Final = {"return_token_ids": True, "skip_special_tokens": False}

ASKS: Final[tuple[Ask, ...]] = (
    chat("openai chat, greedy", **STORY, **_long, **_stream, temperature=0),
    chat(
        "openai chat, two choices with logprobs",
        **STORY, **_long, **_stream, **_seeded, n=2, logprobs=True, top_logprobs=3,
    ),
    chat("openai chat, a schema", **QUESTION, **_stream, **_seeded, response_format=FORM, max_tokens=600),
    chat("openai chat, a tool", **QUESTION, **TOOLS, **_stream, temperature=0, max_tokens=600),
    chat("openai chat, whole", **STORY, **_long, **_seeded, n=2),
    chat("openai chat, an adapter", **STORY, **_long, **_stream, **_seeded, model=PIRATE),
    respond(
        "openai responses, log-probabilities",
        input="Tell me a story about a cat.", max_output_tokens=LENGTH, ignore_eos=True, **_seeded,
        top_logprobs=2,
    ),
    respond(
        "openai responses, a tool",
        input="What is the capital of France?", temperature=0, max_output_tokens=600, tool_choice="required",
        parallel_tool_calls=False,
        tools=[{"type": "function", **each["function"]} for each in TOOLS["tools"]],
    ),
    message("anthropic messages", **STORY, **_long, **_seeded),
    message(
        "anthropic messages, a tool",
        **QUESTION, temperature=0, max_tokens=600,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        tools=[
            {"name": each["function"]["name"], "input_schema": each["function"]["parameters"]}
            for each in TOOLS["tools"]
        ],
    ),
    respond(
        "ovms responses, a format",
        "/v3/responses", input="Give me a list.", max_output_tokens=600, response_format=FORM, **_seeded,
    ),
    chat(
        "openai completions, echo and logprobs",
        COMPLETIONS, prompt="Once upon a time", **_long, **_stream, temperature=0, echo=True, logprobs=2,
    ),
    chat("openai completions, a batch", COMPLETIONS, prompt=["One", "Two"], **_long, **_stream, **_seeded),
    chat(
        "openai completions, penalties and bias",
        COMPLETIONS, prompt="The sea", **_long, **_told, **_ids, **_seeded,
        repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.3, no_repeat_ngram_size=4,
        bad_words=["the"], logit_bias={"40": 2.5}, min_p=0.01, typical_p=0.95, min_tokens=20,
    ),
    chat(
        "openai completions, stop strings",
        COMPLETIONS, prompt="Count: 1, 2, 3", **_stream, **_seeded, max_tokens=LENGTH, min_tokens=60,
        stop=["qu", "zz", "the sea is"], include_stop_str_in_output=True,
    ),
    chat(
        "openai completions, a regex",
        COMPLETIONS, prompt="Numbers:", **_stream, **_seeded, max_tokens=400,
        guided_regex="([0-9]{2,5}, ){30}end",
    ),
    chat(
        "openai completions, best of three, whole",
        COMPLETIONS, prompt="Once", **_long, **_seeded, best_of=3, logprobs=1,
    ),
    chat(
        "openai completions, beams, whole",
        COMPLETIONS, prompt="The capital of", max_tokens=40, use_beam_search=True, n=2, temperature=0,
    ),
    chat(
        "databricks chat", _databricks, **STORY, temperature=0, max_tokens=LENGTH, stream=True,
    ),
    chat(
        "databricks completions", "/serving-endpoints/completions", model=TEXT, prompt="A list of words:",
        stream=True, **_seeded, max_tokens=LENGTH, logprobs=2, use_raw_prompt=True,
    ),
    chat("mindie chat", f"/mindie{CHAT}", **STORY, **_long, **_stream, **_seeded),
    generate(
        "mindie generate_stream",
        {
            "id": "m1", "text_input": "Once upon a time",
            "parameters": {"details": True, "perf_stat": True, "max_new_tokens": LENGTH},
        },
        counted=True,
    ),
    generate(
        "mindie generate_stream, watermark",
        {
            "text_input": "The story of the sea",
            "parameters": {
                "details": True, "do_sample": True, "seed": 5, "temperature": 1.2, "typical_p": 0.9,
                "watermark": True, "max_new_tokens": LENGTH,
            },
        },
        counted=True,
    ),
    chat("ovms chat", "/v3/chat/completions", **STORY, **_long, **_stream),
    generate(
        "triton generate_stream",
        {
            "input_ids": IDS, "request_output_len": LENGTH, "streaming": True, "return_log_probs": True,
            "runtime_top_p": 0.9, "runtime_top_p_decay": 0.99, "runtime_top_p_min": 0.5, "random_seed": 3,
        },
        counted=False,
    ),
    over_grpc("grpc, greedy with log-probabilities", return_log_probs=True),
    over_grpc(
        "grpc, two sequences", runtime_top_k=40, seed=11, num_return_sequences=2, return_log_probs=True,
        presence_penalty=0.5, no_repeat_ngram_size=3,
    ),
    over_grpc("grpc, whole with logits", stream=False, length=60, return_generation_logits=True),
    chat(
        "openai completions, unseeded",
        COMPLETIONS, prompt="Once upon a time", **_long, **_told, **_ids, temperature=1.0, is_exact=False,
    ),
    chat(
        "openai chat, an unseeded schema",
        **QUESTION, **_told, temperature=1.2, response_format=FORM, max_tokens=600, is_exact=False,
    ),
    chat(
        "openai chat, an unseeded tool",
        **QUESTION, **TOOLS, **_told, temperature=1.2, max_tokens=600, is_exact=False,
    ),
)  # fmt: skip


def long_asks(count: int, length: int) -> list[Ask]:
    """Streams of exactly `length` tokens, greedy and seeded, some with log-probabilities."""
    drawn = ({"temperature": 0}, {"temperature": 1.0}, {"temperature": 1.2, "top_p": 0.9, "logprobs": 2})
    return [
        chat(
            f"long {number}",
            COMPLETIONS,
            prompt=f"{number} and {number + 1}:",
            seed=number,
            max_tokens=length,
            ignore_eos=True,
            **_stream,
            **drawn[number % len(drawn)],
        )
        for number in range(count)
    ]


class MixedStreams:
    """The asks, each sent again and again; what is wrong with any answer ends the load."""

    def __init__(self, client: Client, asks: Sequence[Ask] = ASKS) -> None:
        self._client = client
        self._asks = asks
        self.expected: list[dict[str, Answer]] = []  # one a model: an answer is wholly of one of them
        self.answers: list[tuple[Ask, Answer]] = []
        self.compares = True  # while it runs
        self.longest_s, self.slowest = 0.0, ""  # of all answers while it runs, and whose it was

    @property
    def tokens(self) -> Counter[int]:
        """Answers by their tokens."""
        return Counter(answer.tokens for _, answer in self.answers)

    async def learn(self) -> None:
        """Send each ask once, undisturbed: what it is answered is right from now on."""
        found = await asyncio.gather(*(ask.send(self._client) for ask in self._asks))
        self.expected.append({ask.name: answer for ask, answer in zip(self._asks, found, strict=True)})
        self.answers += zip(self._asks, found, strict=True)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All asks at once and over again, until the block ends and each of them is answered."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for ask in self._asks:
                group.create_task(self._repeat(ask, stop))
            try:
                yield
            finally:
                stop.set()

    def check(self, ask: Ask, answer: Answer) -> None:
        """Raises Wrong for an answer that is not wholly one of those expected."""
        if ask.is_exact:
            different = [difference(answer, expected[ask.name]) for expected in self.expected]
            if all(different):
                raise Wrong(f"{ask.name}: {'; or '.join(map(str, different))}")

    async def _repeat(self, ask: Ask, stop: asyncio.Event) -> None:
        while not stop.is_set():
            began = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await ask.send(self._client)
            except (Wrong, httpx.HTTPError, TimeoutError) as error:
                raise Wrong(f"{ask.name}: {type(error).__name__}: {error}") from error
            self.longest_s, self.slowest = max(
                (self.longest_s, self.slowest), (time.monotonic() - began, ask.name)
            )
            self.answers.append((ask, answer))
            if self.compares:
                self.check(ask, answer)


def difference(answer: Answer, expected: Answer) -> str | None:
    """The first one; None: the answers are the same."""
    for choice, wanted in expected.events.items():
        found = answer.events.get(choice, [])
        for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
            if one != other:
                return f"choice {choice}: event {number} is {one} instead of {other}"
        if len(found) != len(wanted):
            return f"choice {choice}: {len(found)} events instead of {len(wanted)}"
    if answer.usage != expected.usage:
        return f"usage {answer.usage[-1:]} instead of {expected.usage[-1:]}"
    return None
