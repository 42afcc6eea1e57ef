"""Computes vectors of token sequences in a separate thread.

A step computes as many sequences as its token budget allows. A step takes one sequence of each waiting
request in turn, so that a short request never waits for the whole of a long one. If a step fails, each of its
sequences runs again alone, and only those that fail again count as failed. Does not depend on text, HTTP or
Ray.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from serve_app.config import EngineConfig
from serve_app.engine.embedding.encoder import Encoder
from serve_app.engine.embedding.pooling import Pooler, Vectors
from serve_app.engine.torch_cpu import is_out_of_memory
from serve_app.errors import (
    DeadlineExceeded,
    GenerationFailed,
    NumericalError,
    Overloaded,
    ServeError,
    Unavailable,
)
from serve_app.types import EngineStats

Ids = Sequence[int]

IDLE_BEAT_S: Final = 0.5  # an idle thread wakes this often to show that it lives
RETRY_AFTER_S: Final = 1.0
STARVED: Final = "The model ran out of memory with this input; send a shorter one, or try again later."
MAX_STRIKES: Final = 3  # steps in a row in which nothing ran, until the device counts as broken

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """One request: its sequences, and the vectors computed so far."""

    sequences: tuple[Ids, ...]
    deadline: float  # time.monotonic
    future: Future[Vectors] = field(default_factory=Future)
    taken: int = 0  # sequences that are, or were, in a step
    rows: dict[int, Vectors] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        return len(self.sequences) - self.taken


_Item = tuple[_Job, int]  # one sequence of a job


class Embedder:
    """Batches the sequences of many requests through one encoder."""

    def __init__(self, encoder: Encoder, pooler: Pooler, config: EngineConfig) -> None:
        self._encoder = encoder
        self._pooler = pooler
        self._config = config
        self._thread = threading.Thread(target=self._run, name="embedder", daemon=True)
        self._lock = threading.Condition()  # guards the jobs and the flags
        self._waiting: deque[_Job] = deque()  # with sequences that are in no step yet
        self._running: list[_Item] = []
        self._stopping = False
        self._dead = False
        self._strikes = 0
        self._beat = time.monotonic()
        self._steps = self._tokens = 0

    # --- from any thread --------------------------------------------------------------

    def start(self) -> None:
        self._beat = time.monotonic()
        self._thread.start()

    def submit(self, sequences: Sequence[Ids], timeout_s: float | None = None) -> Future[Vectors]:
        """The vectors [S, D] of `sequences`, in order; none may be empty. Cancelling dequeues them.

        Raises Overloaded when too many requests wait, or Unavailable when the thread has ended. The future
        fails with DeadlineExceeded, NumericalError, GenerationFailed or Unavailable.
        """
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        job = _Job(tuple(sequences), deadline)
        with self._lock:
            if self._stopping or self._dead:
                raise _unavailable()
            if len(self._waiting) >= self._config.max_waiting + self._config.max_sequences:
                raise Overloaded("The model's queue is full.", retry_after_s=RETRY_AFTER_S)
            self._waiting.append(job)
            self._lock.notify()
        return job.future

    def stats(self) -> EngineStats:
        """Counters, and the age of the thread's last sign of life. Sequences are inputs here."""
        with self._lock:
            waiting = [ids for job in self._waiting for ids in job.sequences[job.taken :]]
            return EngineStats(
                running=len(self._running),
                waiting=len(waiting),
                waiting_tokens=sum(map(len, waiting)),
                max_sequences=self._config.max_sequences,
                steps=self._steps,
                prompt_tokens=self._tokens,
                computed_tokens=self._tokens,
                heartbeat_age_s=time.monotonic() - self._beat,
            )

    @property
    def is_dead(self) -> bool:
        """Whether the thread has failed for good: every request is refused from now on."""
        return self._dead and not self._stopping

    def check_health(self, max_age_s: float) -> None:
        """Raise Unavailable if the thread is gone, or has work but has ended no step for `max_age_s`."""
        is_busy = bool(self._waiting or self._running)
        is_stuck = is_busy and time.monotonic() - self._beat > max_age_s
        if is_stuck or self._dead or not self._thread.is_alive():
            raise _unavailable()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current step; open requests end as Unavailable.

        Returns whether the thread ended within `timeout_s`.
        """
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- in the thread ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping and not self._dead:
                self._beat = time.monotonic()
                batch = self._next_batch()
                if batch:
                    self._step(batch)
                    self._running = []
        except Exception:
            log.critical("the embedder failed", exc_info=True)
        finally:
            with self._lock:
                self._dead = True
                left = {job for job, _ in self._running} | set(self._waiting)
                self._waiting.clear()
            for job in left:
                _fail(job, _unavailable())

    def _next_batch(self) -> list[_Item]:
        """One sequence of each waiting request in turn, as many as fit; waits a little for the first one."""
        budget, used = self._config.max_step_tokens, 0
        batch: list[_Item] = []
        with self._lock:
            if not self._waiting and not self._stopping:
                self._lock.wait(IDLE_BEAT_S)
            now = time.monotonic()
            while self._waiting and len(batch) < self._config.max_sequences:
                job = self._waiting.popleft()
                if job.future.done():  # cancelled, or another of its sequences failed
                    continue
                if job.deadline <= now:
                    _fail(job, DeadlineExceeded("The request did not finish within its deadline."))
                    continue
                size = len(job.sequences[job.taken])
                if batch and used + size > budget:
                    self._waiting.appendleft(job)
                    break
                batch.append((job, job.taken))
                used += size
                job.taken += 1
                if job.waiting:
                    self._waiting.append(job)
            self._running = batch
        return batch

    def _step(self, batch: list[_Item]) -> None:
        try:
            vectors = self._vectors(batch)
        except Exception:
            log.exception("a step of %d inputs failed", len(batch))
            self._one_by_one(batch)
        else:
            self._strikes = 0
            for item, vector in zip(batch, vectors, strict=True):
                _deliver(item, vector)
        self._steps += 1

    def _one_by_one(self, batch: list[_Item]) -> None:
        """Run sequences one by one; only those that fail when run alone get an error."""
        ran = broken = False
        for item in batch:
            self._beat = time.monotonic()
            try:
                vector = self._vectors([item])[0]
            except Exception as error:
                log.error("an input failed alone: %s", type(error).__name__)
                if is_out_of_memory(error):  # this does not mean a broken device
                    _fail(item[0], GenerationFailed(STARVED))
                else:
                    broken = True
                    _fail(item[0], GenerationFailed("the input could not be computed; it may be retried"))
            else:
                ran = True
                _deliver(item, vector)
        if ran or broken:
            self._strikes = 0 if ran else self._strikes + 1
        if self._strikes >= MAX_STRIKES:
            log.critical("no input ran in %d steps: the device counts as broken", MAX_STRIKES)
            self._dead = True

    def _vectors(self, batch: list[_Item]) -> Vectors:
        sequences = [job.sequences[number] for job, number in batch]
        vectors = self._pooler.pool(self._encoder.hidden(sequences))
        self._tokens += sum(map(len, sequences))
        return vectors


def _deliver(item: _Item, vector: Vectors) -> None:
    job, number = item
    if not np.isfinite(vector).all():
        _fail(job, NumericalError("the model gave numbers that are not finite for this input"))
        return
    job.rows[number] = vector
    if len(job.rows) == len(job.sequences) and not job.future.done():
        try:
            job.future.set_result(np.stack([job.rows[i] for i in range(len(job.sequences))]))
        except InvalidStateError:  # cancelled in this very moment
            return


def _fail(job: _Job, error: ServeError) -> None:
    if not job.future.done():
        try:
            job.future.set_exception(error)
        except InvalidStateError:
            return


def _unavailable() -> Unavailable:
    return Unavailable("The model is not available at the moment.", retry_after_s=RETRY_AFTER_S)
