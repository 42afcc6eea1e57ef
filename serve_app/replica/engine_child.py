"""The child process of `EngineProcess`: loads an engine, steps it, talks over one socket.

Run as `python -m serve_app.replica.engine_child FD`; the first line read is the
ModelConfig as JSON. It ends when the parent does, which closes the socket.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from serve_app.config import ModelConfig
from serve_app.errors import ServeError, Unavailable
from serve_app.models.errors import ModelLoadError
from serve_app.replica.adapter_loader import AdaptingLoop, make_loader
from serve_app.replica.build import engine_facts, load_engine
from serve_app.replica.pipe import Command, Event, Pipe
from serve_app.types import Adapter, EngineOutput, ErrorInfo

STATS_PERIOD_S = 0.5
STOP_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


def main(fd: int, config: ModelConfig) -> int:
    pipe: Pipe[Command, Event] = Pipe(socket.socket(fileno=fd), Command)
    try:
        engine, model = load_engine(config, lambda line: pipe.send(Event(progress=line)))
        loader = make_loader(engine, config)
    except ModelLoadError as error:
        pipe.send(Event(failed=str(error)))
        return 1

    def on_outputs(outputs: list[EngineOutput]) -> None:
        pipe.send(Event(outputs=tuple(outputs)))

    loop = AdaptingLoop(engine, loader, on_outputs)
    loop.start()
    pipe.send(Event(ready=engine_facts(engine, model)))
    stopped = threading.Event()
    threading.Thread(target=_report, args=(pipe, loop, stopped), daemon=True).start()
    with ThreadPoolExecutor(1, thread_name_prefix="adapters") as loading:
        while (command := pipe.receive()) is not None:
            if command.load_adapter is not None:
                loading.submit(_load, *command.load_adapter, loop, pipe)
            else:
                _obey(command, loop, pipe)
    stopped.set()
    loop.stop(STOP_TIMEOUT_S)
    return 0


def _obey(command: Command, loop: AdaptingLoop, pipe: Pipe[Command, Event]) -> None:
    if command.add is not None:
        try:
            loop.add(command.add)
        except ServeError as error:
            pipe.send(Event(refused=(command.add.id, error.info())))
    elif command.abort is not None:
        loop.abort(command.abort)
    elif command.finish is not None:
        loop.finish(*command.finish)
    elif command.drop_adapter is not None:
        loop.drop_adapter(command.drop_adapter)


def _load(key: str, adapter: Adapter, loop: AdaptingLoop, pipe: Pipe[Command, Event]) -> None:
    """Answer a load, whatever happens: somebody waits for it."""
    answer: str | ErrorInfo
    try:
        answer = loop.load_adapter(key, adapter)
    except ServeError as error:
        answer = error.info()
    except Exception:
        log.exception("an adapter could not be loaded")
        answer = Unavailable("the adapter cannot be loaded", retry_after_s=10.0).info()
    with suppress(OSError):  # the parent is gone
        pipe.send(Event(adapter=(key, answer)))


def _report(pipe: Pipe[Command, Event], loop: AdaptingLoop, stopped: threading.Event) -> None:
    """Send the engine's statistics, and with them a sign of life, until the end."""
    while not stopped.wait(STATS_PERIOD_S):
        try:
            pipe.send(Event(stats=loop.stats()))
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), ModelConfig.model_validate_json(sys.stdin.readline())))
