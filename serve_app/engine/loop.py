"""An engine with a thread of its own.

Other threads talk to it through an inbox, which is emptied before every step. The outputs of every step go to
one callback. Only plain values of the types package cross threads. Does not depend on asyncio, text or Ray.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from serve_app.engine.engine import RETRY_AFTER_S, Engine
from serve_app.engine.finish import EngineDead
from serve_app.errors import EngineRefused, ServeError, Unavailable
from serve_app.types import EngineOutput, EngineRequest, EngineStats, FinishReason

IDLE_BEAT_S = 0.5  # an idle loop wakes this often to show that it lives

log = logging.getLogger(__name__)

OnOutputs = Callable[[list[EngineOutput]], None]
Command = Callable[[], None]


class EngineLoop:
    """Runs the steps of an engine while there is work, and waits without spinning while there is none."""

    def __init__(self, engine: Engine, on_outputs: OnOutputs) -> None:
        """`on_outputs` is called in the loop's thread, once a step, with all outputs of the step."""
        self._engine = engine
        self._on_outputs = on_outputs
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._lock = threading.Lock()  # guards the three below
        self._open: dict[str, set[int]] = {}  # request id -> sequences that have not ended
        self._arriving = 0  # requests in the inbox
        self._accepting = True
        self._stopping = False
        self._dead = False
        self._checked = False  # whether the bookkeeping was checked since the last work
        self._beat = time.monotonic()

    # --- from any thread --------------------------------------------------------------

    def start(self) -> None:
        self._beat = time.monotonic()
        self._thread.start()

    def add(self, request: EngineRequest) -> None:
        """Hand a request to the engine.

        Raises InvalidField or PromptTooLong for a bad request, Overloaded when the queue is full, and
        Unavailable when the loop has stopped or died.
        """
        self._engine.validate(request)
        with self._lock:
            if not self._accepting:
                raise self._unavailable()
            if request.id in self._open:
                raise EngineRefused("A request with this id is already running.")
            if not request.begun:
                self._engine.check_capacity(self._arriving)
            self._open[request.id] = _indices(request)
            self._arriving += 1
            self._inbox.put(lambda: self._add(request))

    def abort(self, request_id: str) -> None:
        """End a request with reason ABORT; legal at any time, any number of times."""
        self._inbox.put(lambda: self._engine.abort(request_id))

    def finish(self, request_id: str, index: int, num_tokens: int) -> None:
        """End one sequence after `num_tokens` output tokens; see `Engine.finish`."""
        self._inbox.put(lambda: self._finish(request_id, index, num_tokens))

    def call(self, command: Command) -> None:
        """Let the engine's thread call `command` between two steps, after all earlier calls to this loop."""
        self._inbox.put(command)

    def stats(self) -> EngineStats:
        """The engine's counters and the age of the loop's last sign of life."""
        return replace(self._engine.stats(), heartbeat_age_s=time.monotonic() - self._beat)

    @property
    def is_dead(self) -> bool:
        """Whether the engine has failed for good: every request is refused from now on."""
        return self._dead

    def check_health(self, max_age_s: float) -> None:
        """Raise Unavailable if the thread is gone, or if it has work but made no step for `max_age_s`."""
        if self._dead or not self._thread.is_alive():
            raise self._unavailable()
        if self._open and time.monotonic() - self._beat > max_age_s:
            raise self._unavailable()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current step; open requests end as Unavailable.

        Returns whether the thread ended within `timeout_s`.
        """
        with self._lock:
            self._accepting = False
        self._stopping = True
        self._inbox.put(lambda: None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- in the loop's thread ---------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._beat = time.monotonic()
                self._take_commands()
                if self._engine.has_work():
                    self._checked = False
                    self._deliver(self._engine.step())
        except EngineDead as dead:
            log.critical("the engine is dead: %s", dead)
            self._dead = True
            self._deliver(dead.outputs)
        except Exception:
            # A bug of ours: the engine's state can no longer be trusted.
            log.critical("the engine loop failed", exc_info=True)
            self._dead = True
        finally:
            self._close()

    def _take_commands(self) -> None:
        if not self._engine.has_work():
            try:
                self._inbox.get(timeout=IDLE_BEAT_S)()
            except queue.Empty:
                if not self._checked:
                    self._engine.check_integrity()
                    self._checked = True
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _add(self, request: EngineRequest) -> None:
        with self._lock:
            self._arriving -= 1
        try:
            self._engine.add(request)
        except ServeError as error:  # the state has changed since the caller's check
            self._deliver(_end(request.id, _indices(request), error))

    def _finish(self, request_id: str, index: int, num_tokens: int) -> None:
        if self._engine.finish(request_id, index, num_tokens):
            self._count_end(request_id, index)

    def _deliver(self, outputs: list[EngineOutput]) -> None:
        if not outputs:
            return
        for output in outputs:
            if output.finish is not None:
                self._count_end(output.request_id, output.index)
        try:
            self._on_outputs(outputs)
        except Exception:
            log.exception("the receiver of %d engine outputs failed", len(outputs))

    def _count_end(self, request_id: str, index: int) -> None:
        with self._lock:
            left = self._open.get(request_id, set())
            left.discard(index)
            if not left:
                self._open.pop(request_id, None)

    def _close(self) -> None:
        """End every open request, including those still in the inbox."""
        with self._lock:
            self._accepting = False
        try:
            self._deliver(self._engine.fail_all(self._unavailable()))
        except Exception:
            log.critical("the engine could not end its requests", exc_info=True)
        # Requests that are still open were never in the engine, or are lost to a bug in it.
        for request_id, indices in list(self._open.items()):
            self._deliver(_end(request_id, indices, self._unavailable()))

    def _unavailable(self) -> Unavailable:
        return Unavailable("The model is not available at the moment.", retry_after_s=RETRY_AFTER_S)


def _indices(request: EngineRequest) -> set[int]:
    """The sequences of a request that have not ended yet."""
    return {i for i in range(request.n) if not request.begun or not request.begun[i].finished}


def _end(request_id: str, indices: Iterable[int], error: ServeError) -> list[EngineOutput]:
    return [
        EngineOutput(request_id=request_id, index=i, finish=FinishReason.ERROR, error=error.info())
        for i in sorted(indices)
    ]
