"""An engine in a child process, behind the same interface as `EngineLoop`.

The interpreter lock of the replica, which handles text and connections, and that
of the engine are then two. Costs one encoded frame a step and a second process.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from serve_app.config import ModelConfig
from serve_app.engine.request import validation
from serve_app.errors import Overloaded, Unavailable, from_info
from serve_app.models.errors import ModelLoadError
from serve_app.replica.pipe import Command, EngineFacts, Event, Pipe
from serve_app.replica.steps import OnOutputs
from serve_app.types import Adapter, EngineOutput, EngineRequest, EngineStats, ErrorInfo, FinishReason

RETRY_AFTER_S = 1.0


class EngineProcess:
    """Starts the child at construction and returns when its model is loaded.

    Raises ModelLoadError with the child's own message.
    """

    def __init__(self, config: ModelConfig, progress: Callable[[str], None]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "serve_app.replica.engine_child", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                text=True,
            )
        self._pipe: Pipe[Event, Command] = Pipe(ours, Event)
        if self._child.stdin is None:
            raise ModelLoadError("the engine's process could not be started")
        self._child.stdin.write(config.model_dump_json() + "\n")
        self._child.stdin.close()
        self._config = config.engine
        self._lock = threading.Lock()  # guards the four below
        self._loads: dict[str, Future[str]] = {}  # of adapters, by key
        self._open: dict[str, set[int]] = {}  # request id -> choices that have not ended
        self._unstarted: set[str] = set()
        self._dead = False
        self._stats = EngineStats(max_sequences=config.engine.max_sequences)
        self._beat = time.monotonic()
        self._on_outputs: OnOutputs = lambda outputs: None
        self.facts = self._wait_until_ready(progress)
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)

    def _wait_until_ready(self, progress: Callable[[str], None]) -> EngineFacts:
        while (event := self._pipe.receive()) is not None:
            if event.progress is not None:
                progress(event.progress)
            if event.failed is not None:
                raise ModelLoadError(event.failed)
            if event.ready is not None:
                return event.ready
        raise ModelLoadError("the engine's process ended while it loaded; its last lines say why")

    def connect(self, on_outputs: OnOutputs) -> EngineProcess:
        """Send each step's outputs to `on_outputs`, which is called in the reader's thread."""
        self._on_outputs = on_outputs
        return self

    def start(self) -> None:
        self._beat = time.monotonic()
        self._reader.start()

    def add(self, request: EngineRequest) -> None:
        """Hand a request over. Raises InvalidField, PromptTooLong, Overloaded or Unavailable."""
        validation.validate(request, vocab_size=self.facts.vocab_size, window=self.facts.max_model_len)
        with self._lock:
            if self._dead:
                raise _unavailable()
            if len(self._unstarted) >= self._config.max_waiting + self._config.max_sequences:
                raise Overloaded("The model's queue is full.", retry_after_s=RETRY_AFTER_S)
            self._open[request.id] = set(range(request.n))
            self._unstarted.add(request.id)
        self._send(Command(add=request))

    def abort(self, request_id: str) -> None:
        with self._lock:
            self._forget(request_id)
        self._send(Command(abort=request_id))

    def finish(self, request_id: str, index: int, num_tokens: int) -> None:
        with self._lock:
            self._end(request_id, index)
        self._send(Command(finish=(request_id, index, num_tokens)))

    def load_adapter(self, key: str, adapter: Adapter) -> str:
        """As `AdaptingLoop.load_adapter`; Unavailable when the child is dead or dies."""
        done: Future[str] = Future()
        with self._lock:
            if self._dead:
                raise _unavailable()
            self._loads[key] = done
        self._send(Command(load_adapter=(key, adapter)))
        return done.result()

    def drop_adapter(self, name: str) -> None:
        self._send(Command(drop_adapter=name))

    def stats(self) -> EngineStats:
        """The child's last report; its heartbeat ages while no report comes."""
        age = self._stats.heartbeat_age_s + time.monotonic() - self._beat
        return replace(self._stats, heartbeat_age_s=age)

    def check_health(self, max_age_s: float) -> None:
        """Raise Unavailable if the child died, or has work and made no step for `max_age_s`."""
        if self._dead or self._child.poll() is not None:
            raise _unavailable()
        if self._open and self.stats().heartbeat_age_s > max_age_s:
            raise _unavailable()

    def stop(self, timeout_s: float) -> bool:
        """End the child; open requests end as Unavailable. Returns whether it went by itself."""
        self._pipe.close()
        try:
            self._child.wait(timeout_s)
            ended = True
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            ended = False
        if self._reader.ident is not None:
            self._reader.join(timeout_s)
        return ended

    # --- in the reader's thread -------------------------------------------------------

    def _read(self) -> None:
        while (event := self._pipe.receive()) is not None:
            if event.stats is not None:
                self._stats, self._beat = event.stats, time.monotonic()
            if event.adapter is not None:
                self._loaded(*event.adapter)
            if event.refused is not None:
                self._on_outputs(self._fail(*event.refused))
            if event.outputs:
                with self._lock:
                    for output in event.outputs:
                        self._unstarted.discard(output.request_id)
                        if output.finish is not None:
                            self._end(output.request_id, output.index)
                self._on_outputs(list(event.outputs))
        with self._lock:
            self._dead = True
            left, loads = list(self._open), list(self._loads)
        for key in loads:
            self._loaded(key, _unavailable().info())
        for request_id in left:
            self._on_outputs(self._fail(request_id, _unavailable().info()))

    def _loaded(self, key: str, answer: str | ErrorInfo) -> None:
        """Wake the thread that waits for this adapter."""
        with self._lock:
            done = self._loads.pop(key)
        if isinstance(answer, str):
            done.set_result(answer)
        else:
            done.set_exception(from_info(answer))

    def _fail(self, request_id: str, error: ErrorInfo) -> list[EngineOutput]:
        """The end of every open choice of a request, which is then forgotten."""
        with self._lock:
            indices = sorted(self._open.get(request_id, ()))
            self._forget(request_id)
        return [
            EngineOutput(request_id=request_id, index=i, finish=FinishReason.ERROR, error=error)
            for i in indices
        ]

    def _send(self, command: Command) -> None:
        try:
            self._pipe.send(command)
        except OSError:
            # The reader sees the same end and fails what is open.
            return

    def _end(self, request_id: str, index: int) -> None:
        choices = self._open.get(request_id)
        if choices is not None:
            choices.discard(index)
            if not choices:
                self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._unstarted.discard(request_id)


def _unavailable() -> Unavailable:
    return Unavailable("The model is not available at the moment.", retry_after_s=RETRY_AFTER_S)
