"""The engine's thread: commands in, outputs out, and what health means."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from serve_app.config import EngineConfig
from serve_app.engine import loop as loop_module
from serve_app.engine.engine import Engine
from serve_app.engine.loop import EngineLoop
from serve_app.errors import EngineRefused, InvalidField, Overloaded, Unavailable
from serve_app.types import EngineOutput, EngineRequest, FinishReason, SamplingParams
from tests.support.fakes import EvilRunner, Faults, greedy_tokens

WAIT_S = 60.0  # a bound on waiting, never a measurement


class Receiver:
    """Collects outputs and lets a test wait for what it needs."""

    def __init__(self) -> None:
        self.outputs: list[EngineOutput] = []
        self.sizes: list[int] = []
        self._changed = threading.Condition()

    def __call__(self, outputs: list[EngineOutput]) -> None:
        with self._changed:
            self.outputs += outputs
            self.sizes.append(len(outputs))
            self._changed.notify_all()

    def wait_end(self, request_id: str, index: int = 0) -> EngineOutput:
        def ends() -> list[EngineOutput]:
            return [o for o in self.outputs if (o.request_id, o.index) == (request_id, index) and o.finish]

        with self._changed:
            assert self._changed.wait_for(ends, WAIT_S), f"{request_id}/{index} did not end"
            (end,) = ends()
            return end

    def wait_tokens(self, request_id: str, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.tokens(request_id)) >= count, WAIT_S)

    def tokens(self, request_id: str) -> list[int]:
        return [t for o in self.outputs if o.request_id == request_id for t in o.token_ids]


@contextmanager
def running(faults: Faults | None = None, **settings: int) -> Iterator[tuple[EngineLoop, Receiver]]:
    config = EngineConfig.model_validate({"max_sequences": 4, "max_step_tokens": 16, **settings})
    faults = faults or Faults()
    engine = Engine(
        EvilRunner(faults, num_blocks=4096), config, eos_token_ids=frozenset(), max_model_len=16_000
    )
    receiver = Receiver()
    loop = EngineLoop(engine, receiver)
    loop.start()
    try:
        yield loop, receiver
    finally:
        if faults.hang is not None:
            faults.hang.set()
        assert loop.stop(WAIT_S)
        engine.check_integrity()
        assert engine.stats().blocks_used == 0


def request(request_id: str, max_tokens: int | None = 6, n: int = 1, **fields: object) -> EngineRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return EngineRequest(id=request_id, token_ids=(1, 2, 3), sampling=sampling, n=n, **fields)  # type: ignore[arg-type]


def test_a_request_comes_back_as_its_tokens() -> None:
    with running() as (loop, receiver):
        loop.add(request("a"))
        assert receiver.wait_end("a").finish is FinishReason.LENGTH
        assert receiver.tokens("a") == greedy_tokens((1, 2, 3), 6)


def test_requests_of_many_threads_all_come_back() -> None:
    with running(max_waiting=100) as (loop, receiver):
        threads = [threading.Thread(target=loop.add, args=(request(str(i)),)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        for i in range(32):
            receiver.wait_end(str(i))
            assert receiver.tokens(str(i)) == greedy_tokens((1, 2, 3), 6)


def test_one_call_brings_all_outputs_of_a_step() -> None:
    gate = threading.Event()
    with running(Faults(hang=gate)) as (loop, receiver):
        for name in ("a", "b", "c"):
            loop.add(request(name))
        gate.set()
        for name in ("a", "b", "c"):
            receiver.wait_end(name)
        assert max(receiver.sizes) >= 2
        assert len(receiver.sizes) < len(receiver.outputs)


def test_a_bad_request_is_refused_in_the_callers_thread() -> None:
    with running() as (loop, receiver):
        with pytest.raises(InvalidField):
            loop.add(request("a", max_tokens=-1))
        loop.add(request("a"))
        receiver.wait_end("a")


def test_a_full_queue_refuses_even_while_a_step_hangs() -> None:
    gate = threading.Event()
    with running(Faults(hang=gate), max_sequences=1, max_waiting=1) as (loop, receiver):
        loop.add(request("a"))
        pause = threading.Event()
        while loop.stats().steps == 0:
            pause.wait(0.005)
        loop.add(request("b"))
        with pytest.raises(Overloaded):
            loop.add(request("c"))
        gate.set()
        receiver.wait_end("a")
        receiver.wait_end("b")


def test_an_id_in_use_is_refused_and_free_again_after_its_end() -> None:
    with running() as (loop, receiver):
        loop.add(request("a", max_tokens=None))
        with pytest.raises(EngineRefused):
            loop.add(request("a"))
        loop.abort("a")
        assert receiver.wait_end("a").finish is FinishReason.ABORT
        receiver.outputs.clear()
        loop.add(request("a"))
        receiver.wait_end("a")


def test_abort_reaches_a_request_that_runs_and_none_that_does_not() -> None:
    with running() as (loop, receiver):
        loop.abort("never")
        loop.add(request("a", max_tokens=None, n=2))
        receiver.wait_tokens("a", 4)
        loop.abort("a")
        loop.abort("a")
        for index in range(2):
            assert receiver.wait_end("a", index).finish is FinishReason.ABORT


def test_a_finished_sequence_brings_no_end_and_its_id_is_free_again() -> None:
    with running() as (loop, receiver):
        loop.add(request("a", max_tokens=None))
        receiver.wait_tokens("a", 3)
        loop.finish("a", 0, 2)
        loop.add(request("b"))
        receiver.wait_end("b")
        assert not [o for o in receiver.outputs if o.request_id == "a" and o.finish]
        loop.add(request("a"))
        receiver.wait_end("a")


def test_a_receiver_that_raises_does_not_stop_the_loop() -> None:
    with running() as (loop, receiver):
        seen = threading.Event()

        def failing(outputs: list[EngineOutput]) -> None:
            seen.set()
            loop._on_outputs = receiver
            raise RuntimeError("scripted fault in the receiver")

        loop._on_outputs = failing
        loop.add(request("a"))
        assert seen.wait(WAIT_S)
        receiver.wait_end("a")
        loop.check_health(WAIT_S)


def test_a_hanging_step_makes_the_loop_unhealthy_until_it_returns() -> None:
    gate = threading.Event()
    with running(Faults(hang=gate)) as (loop, receiver):
        loop.check_health(WAIT_S)
        loop.add(request("a"))
        before = loop.stats().heartbeat_age_s
        assert before >= 0
        pause = threading.Event()
        while loop.stats().heartbeat_age_s < 0.05:
            pause.wait(0.01)
        with pytest.raises(Unavailable):
            loop.check_health(0.04)
        gate.set()
        receiver.wait_end("a")
        loop.check_health(WAIT_S)


def test_an_idle_loop_is_healthy_beats_without_spinning_and_checks_its_books_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_module, "IDLE_BEAT_S", 0.02)
    with running() as (loop, receiver):
        loop.add(request("a"))
        receiver.wait_end("a")
        checks: list[float] = []
        beats: set[float] = set()
        monkeypatch.setattr(loop._engine, "check_integrity", lambda: checks.append(loop._beat))
        loop._checked = False
        pause = threading.Event()
        while len(beats) < 5:
            beats.add(loop._beat)
            pause.wait(0.005)
        assert len(checks) <= 1
        assert min(b - a for a, b in pairwise(sorted(beats))) >= 0.015
        loop.check_health(0.0)
        while not checks:
            pause.wait(0.005)


def test_a_dead_device_ends_every_request_and_refuses_new_ones() -> None:
    faults = Faults()
    with running(faults) as (loop, receiver):
        for name in ("a", "b"):
            loop.add(request(name, max_tokens=None))
        receiver.wait_tokens("a", 2)
        faults.broken = True
        for name in ("a", "b"):
            error = receiver.wait_end(name).error
            assert error is not None
            assert error.kind == "Unavailable"
        loop._thread.join(WAIT_S)
        with pytest.raises(Unavailable):
            loop.check_health(WAIT_S)
        with pytest.raises(Unavailable):
            loop.add(request("c"))


def test_a_bug_in_a_step_ends_every_request_and_fails_health(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as (loop, receiver):

        def buggy() -> list[EngineOutput]:
            raise KeyError("scripted bug")

        monkeypatch.setattr(loop._engine, "step", buggy)
        loop.add(request("a", n=2))
        for index in range(2):
            error = receiver.wait_end("a", index).error
            assert error is not None
            assert error.kind == "Unavailable"
            assert "scripted" not in error.reason
        loop._thread.join(WAIT_S)
        with pytest.raises(Unavailable):
            loop.check_health(WAIT_S)


def test_stop_ends_what_is_open_even_what_is_still_in_the_inbox() -> None:
    gate = threading.Event()
    with running(Faults(hang=gate)) as (loop, receiver):
        loop.add(request("a", max_tokens=None))
        loop.add(request("b", max_tokens=None))
        assert not loop.stop(0.01)
        with pytest.raises(Unavailable):
            loop.add(request("c"))
        gate.set()
        for name in ("a", "b"):
            error = receiver.wait_end(name).error
            assert error is not None
            assert error.kind == "Unavailable"


def test_a_loop_that_never_started_is_unhealthy_and_stops() -> None:
    engine = Engine(EvilRunner(Faults()), EngineConfig(), eos_token_ids=frozenset(), max_model_len=64)
    loop = EngineLoop(engine, Receiver())
    with pytest.raises(Unavailable):
        loop.check_health(WAIT_S)
    assert loop.stop(1.0)
