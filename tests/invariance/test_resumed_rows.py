"""Sequences that one engine began and another goes on with get the tokens that they would have had.

Every request is answered alone first. Then each of its choices is cut anywhere, and a busy engine goes
on with all of them; some are cut again there. Exact in float32, whatever the rows ask for.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from serve_app.engine.engine import Engine
from serve_app.engine.kernels import native
from serve_app.types import (
    ChoiceSoFar,
    EngineOutput,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    Timing,
)
from tests.invariance.test_batch_invariance import VOCAB, Answer
from tests.invariance.test_mixed_rows import MIXES, ROUNDING, make, wanted
from tests.invariance.test_speculative_rows import guessed
from tests.invariance.test_speculative_rows import wanted as token_level
from tests.support.tiny_llama import make_tiny_llama

__all__ = ["make"]

NewEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@dataclass
class Row:
    """All that an engine says of one choice, in order."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    logits: bytes = b""
    prompt_logprobs: tuple[PositionLogprobs, ...] | None = None
    context_logits: bytes | None = None
    timing: Timing | None = None
    finish: FinishReason | None = None

    def take(self, output: EngineOutput) -> None:
        assert self.finish is None
        self.tokens += output.token_ids
        self.logprobs += output.logprobs
        if "generation_logits" in output.tensors:
            self.logits += output.tensors["generation_logits"].data
        if "context_logits" in output.tensors:
            self.context_logits = output.tensors["context_logits"].data
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.timing = self.timing or output.timing
        self.finish = output.finish

    def values(self) -> list[float]:
        """Every log-probability, in order."""
        positions = [*self.logprobs, *(self.prompt_logprobs or ())]
        return [value for at in positions for value in (at.logprob, *(other.logprob for other in at.top))]

    def head(self, count: int) -> ChoiceSoFar:
        """What a client has that got `count` tokens, and the end if it came with the last of them."""
        ended = count == len(self.tokens) and self.finish not in (None, FinishReason.ERROR)
        return ChoiceSoFar(
            token_ids=tuple(self.tokens[:count]), finished=ended, timing=self.timing if count else None
        )

    def tail(self, count: int) -> Row:
        """What such a client has not got."""
        told = count > 0
        return Row(
            tokens=self.tokens[count:],
            logprobs=self.logprobs[count:],
            logits=self.logits[4 * VOCAB * count :],
            prompt_logprobs=None if told else self.prompt_logprobs,
            context_logits=None if told else self.context_logits,
            finish=self.finish,
        )


def alone(engine: Engine, request: EngineRequest) -> list[Row]:
    engine.add(request)
    rows = [Row() for _ in range(request.n)]
    while engine.has_work():
        for output in engine.step():
            rows[output.index].take(output)
    return rows


def cut(request: EngineRequest, rows: list[Row], rng: random.Random) -> list[int]:
    """How many tokens of each choice a client has: any number, and something is left to do."""
    while True:
        counts = [rng.randint(0, len(row.tokens)) for row in rows]
        if not all(row.head(count).finished for row, count in zip(rows, counts, strict=True)):
            return counts
        if all(len(row.tokens) == 0 for row in rows):
            return counts


def resumed(request: EngineRequest, rows: list[Row], counts: list[int]) -> EngineRequest:
    begun = tuple(row.head(count) for row, count in zip(rows, counts, strict=True))
    return replace(request, begun=begun, age_s=2.5)


def check_same(found: Row, meant: Row, told: bool, exact: bool, what: object) -> None:
    assert (found.tokens, found.finish) == (meant.tokens, meant.finish), what
    assert found.values() == (meant.values() if exact else pytest.approx(meant.values(), abs=ROUNDING)), what
    assert (found.prompt_logprobs is None) == (meant.prompt_logprobs is None), what
    assert (found.context_logits is None) == (meant.context_logits is None), what
    if exact:
        assert found.logits == meant.logits, what
        assert found.context_logits == meant.context_logits, what
    assert (found.timing is None) == (told or not found.tokens), what
    assert found.timing is None or found.timing.first_token_s >= 2.5


def go_on(
    engine: Engine, given: list[EngineRequest], noise: list[EngineRequest], seed: int
) -> dict[str, list[Row]]:
    """The rest of each request; noise arrives too and is aborted, and some requests are cut once more."""
    rng = random.Random(f"cut {seed}")
    arriving = [*given, *noise]
    rng.shuffle(arriving)
    again = {request.id for request in given if rng.random() < 0.4}
    silent = {request.id for request in noise}
    alive: dict[str, EngineRequest] = {}
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    while arriving or engine.has_work():
        for _ in range(min(len(arriving), rng.choice([0, 0, 1, 3, 8]))):
            request = arriving.pop()
            engine.add(replace(request, priority=rng.choice([0, 0, 1])))
            alive[request.id] = request
            if request.id not in rows:
                rows[request.id] = [Row() for _ in range(request.n)]
        for output in engine.step() if engine.has_work() else ():
            rows[output.request_id.removesuffix("~")][output.index].take(output)
        engine.check_integrity()
        if silent and rng.random() < 0.3:
            engine.abort(silent.pop())
        if again and rng.random() < 0.3:
            moved = again.pop()
            if moved in alive and any(row.finish is None for row in _open(alive[moved], rows[moved])):
                engine.abort(moved)
                for output in engine.step():  # the end by the abort is told to nobody
                    if output.request_id != moved:
                        rows[output.request_id.removesuffix("~")][output.index].take(output)
                    elif output.finish is not FinishReason.ABORT:
                        rows[moved][output.index].take(output)
                if any(row.finish is None for row in _open(alive[moved], rows[moved])):
                    arriving.append(_once_more(alive[moved], rows[moved]))
    return rows


def _open(request: EngineRequest, rows: list[Row]) -> list[Row]:
    return [row for row, told in zip(rows, request.begun, strict=True) if not told.finished]


def _once_more(request: EngineRequest, rows: list[Row]) -> EngineRequest:
    begun = tuple(
        ChoiceSoFar(
            token_ids=(*told.token_ids, *row.tokens),
            finished=told.finished or row.finish is not None,
            timing=told.timing or row.timing,
        )
        for told, row in zip(request.begun, rows, strict=True)
    )
    return replace(request, id=f"{request.id}~", begun=begun, age_s=5.0)


def everything(make: NewEngine, seed: int, count: int, *, tiny: bool) -> list[EngineRequest]:
    """The requests of the other suites that are no beam search, drafts included."""
    requests = wanted(count, seed)
    if tiny:
        plain = [r for r in token_level(count, seed) if r.beam is None]
        lone = make(prefix_cache=False)
        rows = {r.id: alone(lone, r) for r in plain}
        answers = {key: Answer((tuple(found[0].tokens),), ()) for key, found in rows.items()}
        drafted = [guessed(r, answers[r.id], seed, with_logits=True) for r in plain]
        requests += [replace(r, id=f"t{r.id}") for r in drafted]
    return [r for r in requests if r.beam is None]


def check(make: NewEngine, mix: str, count: int, seed: int, **settings: object) -> Engine:
    exact = native() is not None
    rng = random.Random(f"resumed {seed}")
    lone = make(prefix_cache=False)
    requests = everything(make, seed, count, tiny=lone.vocab_size == VOCAB)
    whole = {request.id: alone(lone, request) for request in requests}
    counts = {request.id: cut(request, whole[request.id], rng) for request in requests}
    given = [resumed(r, whole[r.id], counts[r.id]) for r in requests]
    given = [r for r in given if not all(choice.finished for choice in r.begun)]
    engine = make(**{**MIXES[mix], **settings})
    noise = [replace(r, id=f"noise-{r.id}") for r in requests[: count // 2]]
    found = go_on(engine, given, noise, seed)
    for request in given:
        for index, told in enumerate(request.begun):
            rest = found[request.id][index]
            if told.finished:
                assert rest == Row(), request
            else:
                meant = whole[request.id][index].tail(len(told.token_ids))
                check_same(rest, meant, bool(told.token_ids), exact, (request, index))
    assert engine.stats().blocks_used == 0
    return engine


@pytest.mark.parametrize("mix", ["few blocks, odd chunks"])
def test_rows_go_on_in_another_engine(make: NewEngine, mix: str) -> None:
    check(make, mix, 12, seed=1, ngram_draft=3)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 22))
@pytest.mark.parametrize("mix", MIXES)
def test_many_rows_go_on_in_another_engine(make: NewEngine, mix: str, seed: int) -> None:
    check(make, mix, 40, seed, ngram_draft=seed % 3 * 3)
