"""Steps of several stages: which are in flight at once, and in which order rank 0 runs its part of them."""

from __future__ import annotations

import pytest

from serve_app.config import EngineConfig
from serve_app.engine.engine import Engine
from serve_app.engine.ranks.commands import CopyBlocks, Step
from serve_app.types import EngineRequest, SamplingParams
from tests.support.fakes import HashRunner, greedy_tokens
from tests.support.ranks import SilentRanks, leading

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def made(stages: int, **settings: object) -> tuple[Engine, HashRunner, SilentRanks]:
    own = HashRunner(num_blocks=200)
    runner, others = leading(own, stages)
    config = EngineConfig.model_validate({"max_sequences": 12, "max_step_tokens": 64, **settings})
    return Engine(runner, config, eos_token_ids=frozenset(), max_model_len=100), own, others


def ask(name: str, length: int = 3, **settings: object) -> EngineRequest:
    ids = tuple(range(int(name), int(name) + length))
    return EngineRequest(id=name, token_ids=ids, sampling=GREEDY, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_stage_has_a_step_before_the_last_one_runs(stages: int) -> None:
    engine, own, others = made(stages)
    for number in range(12):
        engine.add(ask(str(number)))
    tokens: dict[str, list[int]] = {}
    steps = 0
    while engine.has_work():
        outputs = engine.step()
        engine.check_integrity()
        steps += 1
        assert len(own.batches) == steps
        flying = [each.sequence.request_id for each in engine._flights.chunks]
        assert len(flying) == len(set(flying)) <= 12 - 12 // stages
        if steps <= 4 * stages:
            assert len(others.sent) == steps + stages - 1  # a step in each stage
            assert len(own.batches[-1]) == 12 // stages
        for each in outputs:
            tokens.setdefault(each.request_id, []).extend(each.token_ids)
    assert tokens == {str(n): greedy_tokens(range(n, n + 3), 6) for n in range(12)}
    assert steps == 6 * stages


def test_one_sequence_is_in_one_step_at_a_time() -> None:
    engine, own, others = made(4)
    engine.add(ask("1", length=20))
    while engine.has_work():
        engine.step()
        assert len(own.batches) == len(others.sent)
        assert not engine._flights.chunks
    assert sum(length for batch in own.batches for _, _, length in batch) == 25


def test_a_copy_waits_for_the_steps_before_it() -> None:
    """A block that is copied to may be written by a step of its former owner that rank 0 has not run yet."""
    engine, own, others = made(2)
    engine.add(ask("1", n=3))
    for number in (2, 3, 4):
        engine.add(ask(str(number)))
    copied = False
    while engine.has_work():
        before = len(others.sent)
        engine.step()
        new = others.sent[before:]
        if any(isinstance(each, CopyBlocks) for each in new):
            copied = True
            assert sum(isinstance(each, Step) for each in others.sent) - len(own.batches) <= 1
    assert copied
    engine.check_integrity()


def test_an_aborted_request_leaves_its_step_to_the_others() -> None:
    engine, _, _ = made(3)
    for number in range(6):
        engine.add(ask(str(number)))
    engine.step()
    engine.abort("3")  # whose step is in flight
    engine.add(ask("7"))
    tokens: dict[str, list[int]] = {}
    while engine.has_work():
        for each in engine.step():
            tokens.setdefault(each.request_id, []).extend(each.token_ids)
        engine.check_integrity()
    assert tokens["7"] == greedy_tokens(range(7, 10), 6)
    assert tokens["5"] == greedy_tokens(range(5, 8), 6)
