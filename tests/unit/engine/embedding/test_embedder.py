"""The embedder's thread: batches, turns, failures that stay alone, bounds and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
import pytest
import torch

from serve_app.config import EngineConfig
from serve_app.engine.embedding.embedder import MAX_STRIKES, Embedder
from serve_app.engine.embedding.pooling import Pooler, Vectors
from serve_app.errors import DeadlineExceeded, GenerationFailed, NumericalError, Overloaded, Unavailable

WAIT_S = 60.0
POISON, NOT_FINITE = 666, 777


class Recorder:
    """Each token's state is its own id. Steps can be held back, to let requests gather."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.broken = False
        self.error: Exception = RuntimeError("poison")

    def hidden(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        self.batches.append([list(ids) for ids in sequences])
        self.entered.set()
        if not self.gate.wait(WAIT_S):
            raise AssertionError("the gate stayed shut")
        if self.broken or any(POISON in ids for ids in sequences):
            raise self.error
        values = [[float("nan") if i == NOT_FINITE else float(i) for i in ids] for ids in sequences]
        return [torch.tensor(row)[:, None].expand(-1, 2) for row in values]


Rig = tuple[Embedder, Recorder]


def make(**settings: int) -> Rig:
    encoder = Recorder()
    return Embedder(encoder, Pooler(["mean"], normalized=False), EngineConfig(**settings)), encoder


@pytest.fixture
def rig() -> Iterator[Rig]:
    embedder, encoder = make(max_step_tokens=16, max_sequences=4, max_waiting=2)
    embedder.start()
    yield embedder, encoder
    encoder.gate.set()
    assert embedder.stop(WAIT_S)


def hold(rig: Rig) -> None:
    """Keep the thread in a step of a request of its own."""
    embedder, encoder = rig
    encoder.gate.clear()
    embedder.submit([(1,)])
    assert encoder.entered.wait(WAIT_S)
    encoder.batches.clear()


def values(vectors: Vectors) -> list[float]:
    return [float(row[0]) for row in vectors]


def test_vectors_come_in_the_order_of_the_inputs(rig: Rig) -> None:
    found = rig[0].submit([(5,), (1, 2, 3), (9, 9)]).result(WAIT_S)
    assert found.shape == (3, 2)
    assert values(found) == [5, 2, 9]


def test_requests_that_wait_are_computed_together_in_turn_and_within_the_budget(rig: Rig) -> None:
    embedder, encoder = rig
    hold(rig)
    long = embedder.submit([(i,) * 6 for i in range(1, 5)])
    short = embedder.submit([(50,), (60,)])
    encoder.gate.set()
    assert values(long.result(WAIT_S)) == [1, 2, 3, 4]
    assert values(short.result(WAIT_S)) == [50, 60]
    sizes = [[len(ids) for ids in batch] for batch in encoder.batches]
    assert sizes == [[6, 1, 6, 1], [6, 6]]


def test_an_input_above_the_budget_is_a_step_of_its_own(rig: Rig) -> None:
    embedder, encoder = rig
    hold(rig)
    found = embedder.submit([(2,), (3,) * 40, (4,)])
    encoder.gate.set()
    assert values(found.result(WAIT_S)) == [2, 3, 4]
    assert [len(batch) for batch in encoder.batches] == [1, 1, 1]


def test_what_fails_alone_fails_alone(rig: Rig) -> None:
    embedder, encoder = rig
    hold(rig)
    good, bad, odd = embedder.submit([(7,)]), embedder.submit([(POISON,)]), embedder.submit([(NOT_FINITE,)])
    encoder.gate.set()
    assert values(good.result(WAIT_S)) == [7]
    with pytest.raises(GenerationFailed):
        bad.result(WAIT_S)
    with pytest.raises(NumericalError):
        odd.result(WAIT_S)
    assert values(embedder.submit([(8,)]).result(WAIT_S)) == [8]
    embedder.check_health(WAIT_S)


def test_a_full_queue_refuses_at_once(rig: Rig) -> None:
    embedder, encoder = rig
    hold(rig)
    waiting = [embedder.submit([(i,)]) for i in range(6)]
    with pytest.raises(Overloaded):
        embedder.submit([(9,)])
    encoder.gate.set()
    assert [values(each.result(WAIT_S)) for each in waiting] == [[i] for i in range(6)]
    assert values(embedder.submit([(9,)]).result(WAIT_S)) == [9]


def test_what_is_cancelled_is_never_computed(rig: Rig) -> None:
    embedder, encoder = rig
    hold(rig)
    taken_back, kept = embedder.submit([(3,)]), embedder.submit([(4,)])
    assert taken_back.cancel()
    encoder.gate.set()
    assert values(kept.result(WAIT_S)) == [4]
    assert encoder.batches == [[[4]]]


def test_a_deadline_that_passes_in_the_queue_is_an_error(rig: Rig) -> None:
    embedder, encoder = rig
    hold(rig)
    late = embedder.submit([(3,)], timeout_s=0.0)
    encoder.gate.set()
    with pytest.raises(DeadlineExceeded):
        late.result(WAIT_S)
    assert encoder.batches == []


def test_stats_tell_what_waits_and_what_ran(rig: Rig) -> None:
    embedder, encoder = rig
    hold(rig)
    last = embedder.submit([(1, 2), (3,)])
    stats = embedder.stats()
    assert (stats.running, stats.waiting, stats.waiting_tokens, stats.max_sequences) == (1, 2, 3, 4)
    encoder.gate.set()
    last.result(WAIT_S)
    stats = embedder.stats()
    assert (stats.waiting, stats.prompt_tokens) == (0, 4)


def test_a_step_that_hangs_is_seen(rig: Rig) -> None:
    embedder, encoder = rig
    hold(rig)
    with pytest.raises(Unavailable):
        embedder.check_health(0.0)
    encoder.gate.set()


def test_a_device_on_which_nothing_runs_ends_the_embedder() -> None:
    embedder, encoder = make()
    encoder.broken = True
    embedder.start()
    for _ in range(MAX_STRIKES):
        with pytest.raises(GenerationFailed):
            embedder.submit([(1,)]).result(WAIT_S)
    embedder._thread.join(WAIT_S)
    with pytest.raises(Unavailable):
        embedder.check_health(WAIT_S)
    with pytest.raises(Unavailable):
        embedder.submit([(1,)])


def test_inputs_that_lack_memory_tell_nothing_of_the_device() -> None:
    embedder, encoder = make()
    encoder.error = torch.OutOfMemoryError("CUDA out of memory")
    embedder.start()
    for _ in range(MAX_STRIKES + 1):
        with pytest.raises(GenerationFailed, match="ran out of memory with this input"):
            embedder.submit([(POISON,)]).result(WAIT_S)
    assert embedder.submit([(1,)]).result(WAIT_S).tolist() == [[1.0, 1.0]]
    assert embedder.stop(WAIT_S)


def test_nor_do_they_hide_that_it_is_broken() -> None:
    embedder, encoder = make()
    failures = cycle([torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("broken")])

    def hidden(sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        raise next(failures)

    encoder.hidden = hidden  # type: ignore[method-assign]
    embedder.start()
    for _ in range(MAX_STRIKES):
        with pytest.raises((GenerationFailed, Unavailable)):
            embedder.submit([(1,), (2,)]).result(WAIT_S)
    embedder._thread.join(WAIT_S)
    with pytest.raises(Unavailable):
        embedder.check_health(WAIT_S)


def test_stopping_ends_every_open_request() -> None:
    rig = embedder, encoder = make(max_sequences=1)
    embedder.start()
    hold(rig)
    waiting = embedder.submit([(2,), (3,)])
    stopper = threading.Thread(target=embedder.stop, args=(WAIT_S,))
    stopper.start()
    while not embedder._stopping:
        stopper.join(0.005)
    encoder.gate.set()
    stopper.join(WAIT_S)
    with pytest.raises(Unavailable):
        waiting.result(WAIT_S)
    with pytest.raises(Unavailable):
        embedder.submit([(1,)])


def test_many_threads_get_their_own_vectors(rig: Rig) -> None:
    embedder, _ = rig
    found: dict[int, np.ndarray] = {}

    def ask(number: int) -> None:
        while True:
            try:
                found[number] = embedder.submit([(number, number), (number,)]).result(WAIT_S)
                return
            except Overloaded:
                threading.Event().wait(0.005)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert {n: values(v) for n, v in found.items()} == {n: [n, n] for n in range(32)}
