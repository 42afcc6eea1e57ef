"""Random histories of an engine with states: every answer has the bits that it has alone.

A history is a list of events: requests that share beginnings, choices that part, beams, drafts right and
wrong, adapters, answers that another replica began, aborts, and steps in between. Hypothesis shrinks one that
fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.engine.engine import Engine
from serve_app.types import Beam, ChoiceSoFar, Draft, EngineRequest
from tests.invariance.test_states import alike, new_engine
from tests.support.engine_answers import BLOCK, GREEDY, OUTPUT, VOCAB, Told, answers, prompt, request
from tests.support.low_rank import random_updates
from tests.support.tiny_states import KIN, KINDS

# Lengths of prompts and of the beginnings that they share: within blocks, at their ends, and beyond.
SHARED: Final = (0, 3, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1)
OWN: Final = (1, 2, 5, BLOCK, 31)
SAMPLED: Final = replace(GREEDY, temperature=1.5, seed=5)  # so that choices part


@dataclass(frozen=True)
class Asked:
    """A request, whose prompt has a shared and an own part, and how its answer is asked for."""

    shared: int
    own: int
    n: int = 1
    beams: int | None = None  # None: no beam search
    sampled: bool = False
    adapter: bool = False
    begun: int = 0  # tokens that another replica told; none of a beam search
    draft: int | None = None  # the first wrong token; None: no draft, as of a beam search
    aborted: bool = False  # after a few steps
    steps: int = 0  # of the engine before the next event

    @property
    def plain(self) -> Asked:
        """The same question, without what must not change its answer."""
        return replace(self, begun=0, draft=None, aborted=False, steps=0)

    def request(self, name: str, kind: str) -> EngineRequest:
        tokens = (*prompt(100)[: self.shared], *prompt(self.own, seed=1 + self.own % 2))
        fields: dict[str, object] = {"n": self.n, "sampling": SAMPLED if self.sampled else GREEDY}
        if self.adapter:
            fields |= {"adapter": "a", "salt": "a"}
        if self.beams is not None:
            fields["beam"] = Beam(width=self.beams)
        elif self.begun:
            told = (alone(kind, self.plain)[index].tokens[: self.begun] for index in range(self.n))
            fields["begun"] = tuple(ChoiceSoFar(token_ids=tuple(each)) for each in told)
        elif self.draft is not None:
            right = alone(kind, self.plain)[0].tokens[:-1]
            wrong = [(token + (place >= self.draft)) % VOCAB for place, token in enumerate(right)]
            fields["draft"] = Draft(token_ids=tuple(wrong))
        return request(name, tokens, **fields)


@dataclass(frozen=True)
class History:
    """The settings of an engine, and what is asked of it."""

    asked: tuple[Asked, ...]
    pieces: int  # max_step_tokens
    blocks: int
    sequences: int
    prefix_cache: bool
    overlap: bool


ASKED = st.builds(
    Asked,
    shared=st.sampled_from(SHARED),
    own=st.sampled_from(OWN),
    n=st.sampled_from((1, 1, 3)),
    beams=st.sampled_from((None, None, 3)),
    sampled=st.booleans(),
    adapter=st.booleans(),
    begun=st.sampled_from((0, 0, 1, OUTPUT - 1)),
    draft=st.sampled_from((None, None, 0, 3, OUTPUT)),
    aborted=st.sampled_from((False, False, True)),
    steps=st.integers(0, 6),
)
HISTORIES = st.builds(
    History,
    asked=st.lists(ASKED, min_size=1, max_size=6).map(tuple),
    pieces=st.sampled_from((17, 40, 512)),
    blocks=st.sampled_from((20, 128)),
    sequences=st.sampled_from((3, 16)),
    prefix_cache=st.booleans(),
    overlap=st.booleans(),
)


def engine_of(kind: str, **options: object) -> Engine:
    engine = new_engine(kind, **options)
    table = engine.adapters
    assert table is not None
    table.put("a", table.compile(random_updates(table.shapes, seed=1, rank=4, scale=0.3)))
    return engine


@cache
def alone(kind: str, asked: Asked) -> list[Told]:
    """The choices of an engine that has nothing else to do."""
    told = answers(fresh(kind), [asked.request("one", kind)])
    return [told["one", index] for index in range(asked.n)]


@cache
def fresh(kind: str) -> Engine:
    return engine_of(kind, prefix_cache=False)


def check(kind: str, history: History) -> None:
    engine = engine_of(
        kind,
        max_step_tokens=history.pieces,
        num_blocks=history.blocks,
        max_sequences=history.sequences,
        prefix_cache=history.prefix_cache,
        overlap=history.overlap,
    )
    told: dict[tuple[str, int], Told] = {}
    for number, asked in enumerate(history.asked):
        engine.add(asked.request(str(number), kind))
        run(engine, asked.steps, told)
        if asked.aborted:
            engine.abort(str(number))
    run(engine, None, told)
    engine.check_integrity()
    for (name, index), got in told.items():
        asked = history.asked[int(name)]
        want, begun = alone(kind, asked.plain)[index], 0 if asked.beams else asked.begun
        tokens, logits = want.tokens[begun:], want.logits[begun * 4 * VOCAB :]
        if asked.aborted:
            tokens, logits = tokens[: len(got.tokens)], logits[: len(got.logits)]
        assert got.tokens == tokens, (asked, index)
        assert alike(kind, got.logits, logits), (asked, index)
    whole = [i for i, asked in enumerate(history.asked) if not asked.aborted]
    assert {(str(i), k) for i in whole for k in range(history.asked[i].n)} <= told.keys()


def run(engine: Engine, steps: int | None, told: dict[tuple[str, int], Told]) -> None:
    """Take this many steps, or all that are left."""
    while engine.has_work() and steps != 0:
        steps = None if steps is None else steps - 1
        for output in engine.step():
            assert output.error is None
            one = told.setdefault((output.request_id, output.index), Told())
            one.tokens += output.token_ids
            if "generation_logits" in output.tensors:
                one.logits += output.tensors["generation_logits"].data


@pytest.mark.parametrize("kind", ["qwen3_5_text"])
@settings(max_examples=6)
@given(history=HISTORIES)
def test_a_few_histories(kind: str, history: History) -> None:
    check(kind, history)


@pytest.mark.full
@pytest.mark.parametrize("kind", [*KINDS, *KIN])
@settings(max_examples=60)
@given(history=HISTORIES)
def test_many_histories(kind: str, history: History) -> None:
    check(kind, history)
