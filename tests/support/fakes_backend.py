"""A deterministic backend and accounts for tests of the HTTP layer.

The answer to every prompt is the word list below, one word a step, the same for each
choice but for the first word, which names the prompt and the choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from serve_app.endpoints.rules import app_name
from serve_app.errors import ModelNotFound, ServeError, Unavailable, UnsupportedField
from serve_app.types import (
    DetectRequest,
    Detokenized,
    DetokenizeRequest,
    Embeddings,
    EmbedRequest,
    EngineStats,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    Question,
    StepTiming,
    Tensor,
    TextLogprob,
    Timing,
    TokenDelta,
    TokenizeRequest,
    Tokens,
    Usage,
    WatermarkScore,
)
from serve_app.types.question import ReplyT
from tests.support.streams import streamed

WORDS = ("Grüße", " aus", ' "Köln"', " 😀", "\n", "end")
PROMPT_TOKENS = 5
CACHED_TOKENS = 3
DIMENSIONS = 8
STEP = StepTiming(batch_size=2, wait_s=0.000_015, run_s=0.003)


def model_info(name: str = "demo", version: str = "") -> ModelInfo:
    return ModelInfo(
        name=name,
        version=version,
        created=1_700_000_000,
        context_window=256,
        vocab_size=1000,
        has_chat_template=True,
        has_fim=False,
        dtype="float32",
        device="cpu",
        eos_token_ids=(15,),  # of the last word
        eos_tokens=("</s>",),
    )


def embedder_info(name: str = "embedder") -> ModelInfo:
    return replace(
        model_info(name), has_chat_template=False, eos_token_ids=(), eos_tokens=(), dimensions=DIMENSIONS
    )


def embeddings_of(request: EmbedRequest) -> Embeddings:
    """Vectors that name their input: its size, its place, and the dimensions' numbers."""
    width = request.dimensions or DIMENSIONS
    rows = [[len(each), place, *range(width)][:width] for place, each in enumerate(request.inputs)]
    vectors = np.asarray(rows, "<f4") / 3
    return Embeddings(
        vectors=Tensor(dtype="FP32", shape=vectors.shape, data=vectors.tobytes()),
        prompt_tokens=PROMPT_TOKENS * len(request.inputs),
    )


def logprob_of(text: str, num_top: int, value: float = -0.5) -> TextLogprob:
    """`text` as a token, with `num_top` alternatives of which it is the first."""
    others = [
        TextLogprob(100 + k, f"{text}~{k}", f"{text}~{k}".encode(), value - k) for k in range(1, num_top)
    ]
    own = [TextLogprob(99, text, text.encode(), value)][:num_top]
    return TextLogprob(99, text, text.encode(), value, tuple(own + others))


@dataclass
class FakeBackend:
    """Answers with WORDS. What it is asked and what goes wrong can be read and set."""

    infos: list[ModelInfo] = field(default_factory=lambda: [model_info(), model_info("org/other")])
    loading: set[str] = field(default_factory=set)
    lacking: dict[str, str] = field(default_factory=dict)  # see `lacks`
    returning: float | None = None  # seconds until what loads is there: it restarts
    words: tuple[str, ...] = WORDS
    refuse: ServeError | None = None  # raised before the first delta
    fail_after: int | None = None  # words delivered before `failure`
    failure: Exception | None = None  # None: the stream just ends
    error_delta: ServeError | None = None  # delivered as a delta after `fail_after` words
    hang_after: int | None = None  # words delivered before it waits for ever
    pauses: dict[int, float] = field(default_factory=dict)  # words delivered -> seconds it waits then
    burst: bool = False  # all words in one list
    finish: FinishReason = FinishReason.LENGTH
    stop: str | int | None = None  # what matched, beside `finish`
    usage: Usage | None = None  # told with every delta, instead of what was delivered
    clamped: int | None = None  # told with the first delta: a length that is less than was asked for
    progress: Usage | None = None  # told before everything else
    requests: list[GenerateRequest] = field(default_factory=list)
    questions: list[Any] = field(default_factory=list)
    loads: dict[str, dict[str, EngineStats]] = field(default_factory=dict)  # see `replicas`
    running: int = 0
    aborted: list[str] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last(self) -> GenerateRequest:
        return self.requests[-1]

    def is_ready(self, app: str) -> bool:
        return (info := self.info(app)) is not None and info.name not in self.loading

    def info(self, app: str) -> ModelInfo | None:
        return next((info for info in self.infos if app_name(info.name, info.version) == app), None)

    async def model(self, app: str) -> ModelInfo:
        info = self.info(app)
        if info is None or info.name in self.loading:
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        return info

    def missing(self, app: str) -> str | None:
        return None if self.is_ready(app) else "loading"

    def lacks(self, app: str) -> str | None:
        return self.lacking.get(app)

    async def recovery(self, apps: Sequence[str], within_s: float) -> bool:
        if self.returning is None or any(map(self.is_ready, apps)):
            return False
        if self.returning <= within_s:
            self.loading.clear()
        return self.returning <= within_s

    def stats(self) -> dict[str, EngineStats]:
        return {
            "model-demo": EngineStats(running=2, waiting=1, blocks_total=10, blocks_used=4, cached_tokens=7)
        }

    def replicas(self) -> dict[str, dict[str, EngineStats]]:
        return self.loads

    def num_replicas(self, app: str) -> int:
        return int(self.is_ready(app))

    def migrations(self) -> dict[tuple[str, str], int]:
        return {("model-demo", "killed"): 2}

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        self.requests.append(request)
        if self.refuse is not None:
            raise self.refuse
        adapter, info = request.adapter, self.info(request.model)
        if (
            adapter is not None
            and not adapter.is_task
            and info is not None
            and adapter.name not in info.adapters
        ):
            raise ModelNotFound("model", "the model has no such adapter")
        self.running += 1
        done = False
        try:
            async for deltas in self._deltas(request):
                yield deltas
            done = True
        finally:
            self.running -= 1
            if not done:
                self.aborted.append(request.id)
            self.closed.set()

    async def ask(self, app: str, question: Question[ReplyT]) -> ReplyT:
        self.questions.append(question)
        if self.refuse is not None:
            raise self.refuse
        self.running += 1
        try:
            if self.hang_after is not None:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if isinstance(question, EmbedRequest):
                return cast("ReplyT", embeddings_of(question))
            if isinstance(question, TokenizeRequest):
                texts = WORDS[:2] if question.texts else None
                return cast("ReplyT", Tokens(token_ids=(10, 11), texts=texts))
            if isinstance(question, DetokenizeRequest):
                return cast("ReplyT", Detokenized(text="".join(WORDS)))
            if isinstance(question, DetectRequest):
                return cast("ReplyT", WatermarkScore(z_score=4.0, green_fraction=0.75, num_tokens=64))
            raise UnsupportedField(None, "model: it has no answer to this question")
        except asyncio.CancelledError:
            self.aborted.append(question.id)
            raise
        finally:
            self.running -= 1
            self.closed.set()

    async def _deltas(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        steps = [self._step(request, k) for k in range(len(self.words))]
        if self.progress is not None:
            yield [TokenDelta(request_id=request.id, index=0, usage=self.progress, is_progress=True)]
        if self.burst:
            yield [delta for step in steps for delta in step]
            return
        if not request.stream:
            steps = [[_merge([step[i] for step in steps]) for i in range(request.n)]]
        hang_after = self.hang_after  # as it is now, whatever a test sets for later requests
        for k, step in enumerate(steps):
            if hang_after is not None and k >= hang_after:
                await asyncio.Event().wait()
            await asyncio.sleep(self.pauses.get(k, 0))
            if self.fail_after is not None and k >= self.fail_after:
                if self.error_delta is not None:
                    info = self.error_delta.info()
                    yield [TokenDelta(request_id=request.id, index=0, finish=FinishReason.ERROR, error=info)]
                if self.failure is not None:
                    raise self.failure
                return
            yield step

    def _step(self, request: GenerateRequest, k: int) -> list[TokenDelta]:
        last = k == len(self.words) - 1
        deltas = []
        for index in range(request.n):
            word = self.words[k] if index == 0 or k else f"{self.words[k]}{index}"
            listed = None if request.logprobs is None else (logprob_of(word, request.logprobs),)
            prompt = ("The", " question")
            prompt_logprobs = None
            if k == 0 and request.prompt_logprobs is not None:
                first = TextLogprob(1, prompt[0], prompt[0].encode(), None)
                prompt_logprobs = (first, logprob_of(prompt[1], request.prompt_logprobs))
            deltas.append(
                TokenDelta(
                    request_id=request.id,
                    index=index,
                    text=word,
                    token_ids=(10 + k,),
                    logprobs=listed,
                    prompt_text="".join(prompt) if k == 0 and request.echo else None,
                    prompt_logprobs=prompt_logprobs,
                    finish=self.finish if last else None,
                    stop=self.stop if last else None,
                    clamped=self.clamped if k == 0 else None,
                    usage=self.usage
                    or Usage(
                        prompt_tokens=PROMPT_TOKENS,
                        completion_tokens=(k + 1) * request.n,
                        cached_tokens=CACHED_TOKENS,
                    ),
                    timing=Timing(queue_s=0.01, first_token_s=0.02) if k == 0 else None,
                    step=STEP if request.per_token else None,
                )
            )
        return deltas


def _merge(deltas: list[TokenDelta]) -> TokenDelta:
    first, last = deltas[0], deltas[-1]
    return TokenDelta(
        request_id=first.request_id,
        index=first.index,
        text="".join(d.text for d in deltas),
        token_ids=tuple(t for d in deltas for t in d.token_ids),
        logprobs=None if first.logprobs is None else tuple(p for d in deltas for p in d.logprobs or ()),
        prompt_text=first.prompt_text,
        prompt_logprobs=first.prompt_logprobs,
        finish=last.finish,
        stop=last.stop,
        clamped=first.clamped,
        usage=last.usage,
        timing=first.timing,
    )
