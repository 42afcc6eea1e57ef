"""One served model as a Serve deployment: a thin shell around its server (see `replica/served_model.py`).

Its calls take and return the types of `serve_app.types` as msgpack bytes. Its server takes care of batching,
text and health; Serve takes care of queue limits, routing, draining and replacement.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import ray
from ray import serve
from ray.serve._private.replica import Replica

from serve_app.channel.calls import decode_question, encode_reply
from serve_app.channel.frames import DeltaFrame, Refused, encoder, request_decoder, ticket_decoder
from serve_app.channel.sender import Sender
from serve_app.config import ModelConfig
from serve_app.deployments import adapter_affinity
from serve_app.deployments.logs import log_as_json, to_terminal, warnings_shown
from serve_app.deployments.memory import MemoryGuard, be_expendable
from serve_app.deployments.model.gpu import with_gpu_share
from serve_app.deployments.model.ranks import actor_ranks, own_bundles
from serve_app.deployments.model.settler import Settler
from serve_app.deployments.model.workload import Workload
from serve_app.deployments.replica_port import keep_private
from serve_app.errors import GenerationFailed, ServeError, Unavailable
from serve_app.heap import collects_later
from serve_app.types import GenerateRequest, TokenDelta

if TYPE_CHECKING:  # a gateway builds applications without loading torch
    from serve_app.replica.served_model import ServedModel

logger = logging.getLogger(__name__)

Start = Callable[[ModelConfig, Callable[[str], None]], Awaitable["ServedModel"]]

STOPPING: Final = Unavailable("the model's replica is stopping; try again", retry_after_s=1.0)
INTERNAL: Final = GenerationFailed("generation failed; the request may be retried")
LOOK_S: Final = 0.25  # between looks whether the engine is dead
LAST_WORDS_S: Final = 1.0  # for the ends of its requests to reach the gateways

_stop = Replica._perform_graceful_shutdown


class ModelReplica:
    """Loads a model, then answers calls until Serve stops it."""

    async def __init__(self, config: ModelConfig, start: Start | None = None) -> None:  # type: ignore[misc]  # Serve awaits it
        """Returns when the model can answer. `start` makes the server; tests pass another function."""
        began = time.monotonic()

        def report(message: str) -> None:
            to_terminal(f"{message} ({time.monotonic() - began:.1f} s)")

        log_as_json()
        be_expendable()  # before there are children, which inherit it
        keep_private()
        if start is None:
            with collects_later():
                from serve_app.replica import served_model

            report("imported torch and transformers")
            start = partial(served_model.start, launcher=actor_ranks(config))
        assigned = ray.get_runtime_context().get_assigned_resources()
        config = with_gpu_share(config, assigned, own_bundles())
        with warnings_shown(to_terminal):
            self._server = await start(config, report)
        self._workload = Workload()
        self._memory = MemoryGuard(config.memory_reserve)
        self._settler = Settler()
        self._sender = Sender(
            replica=ray.get_runtime_context().get_actor_id(),
            app=serve.get_replica_context().app_name,  # by which gateways know the model
            weights=self._server.info.weights,
            stats=self._server.stats,
            on_gone=self._settler.take,
        )
        self._is_leaving = False
        threading.Thread(target=self._end_with_engine, name="end", daemon=True).start()
        if config.on_stop == "move":
            on_stop(self._leave)

    def _leave(self) -> None:
        """Hand this replica's requests to replicas that the gateways choose, since Serve is stopping it."""
        self._is_leaving = True
        self._sender.leave()

    def _end_with_engine(self) -> None:
        """In a thread: end this process if the engine is dead.

        Serve would end it after three health checks. Until then its queue would be the shortest one, so
        Serve would send it most of the requests, only for them to be refused.
        """
        while not self._server.is_dead:
            time.sleep(LOOK_S)
        logger.critical("the engine is dead, and its replica ends with it")
        time.sleep(LAST_WORDS_S)
        os._exit(1)

    async def generate(self, payload: bytes, ticket: bytes) -> bytes | None:
        """Answer one `GenerateRequest` through the channel that `ticket` opens.

        The call stays open until the last delta is sent, so that Serve counts, drains and cancels this
        request like any other. Returns None if everything was sent, or bytes: `Refused`.
        """
        try:
            self._memory.check()
            request = request_decoder.decode(payload)
            await adapter_affinity.arrived(request)
            outlet = await self._sender.to(ticket_decoder.decode(ticket))
            if self._is_leaving:  # its gateway knows only earlier requests
                return encoder.encode(Refused(STOPPING.info(), is_leaving=True))
            await outlet.run(request.id, self._server.generate(request, outlet), request.record)
        except ServeError as error:
            return encoder.encode(Refused(error.info(), is_leaving=self._server.is_dead))
        except Exception:
            logger.exception("a request failed")
            return _refused(INTERNAL)
        return None

    async def stream(self, payload: bytes) -> AsyncIterator[bytes]:
        """Answer one `GenerateRequest` as a stream: one `DeltaFrame` for each engine step, or `Refused`.

        For Python callers. For each step and request, a remote stream item is sent, whereas the channel of
        `generate` shares one frame per step between all requests of a gateway. The request is never moved: a
        replica that is stopping answers it to the end, and if the replica dies, the stream breaks.
        """
        sink = _Queue()
        try:
            self._memory.check()
            request: GenerateRequest = request_decoder.decode(payload)
            work = asyncio.ensure_future(self._server.generate(request, sink))
        except ServeError as error:
            yield _refused(error)
            return
        except Exception:
            logger.exception("a request could not be read")
            yield _refused(INTERNAL)
            return
        work.add_done_callback(lambda _: sink.send([]))
        try:
            while deltas := await sink.get():
                yield encoder.encode(DeltaFrame(deltas))
            await work
        except ServeError as error:
            yield _refused(error)
        finally:
            work.cancel()

    async def ask(self, payload: bytes, ticket: bytes | None = None) -> bytes:
        """Answer one `Question`: returns its reply, or `Refused`, as `channel.calls` writes them.

        `ticket`: the ticket of the gateway, which is informed that this replica has the question.
        """
        try:
            self._memory.check()
            question = decode_question(payload)
            if ticket is not None:
                (await self._sender.to(ticket_decoder.decode(ticket))).take(question.id)
            return encode_reply(await self._server.ask(question))
        except ServeError as error:
            return encode_reply(Refused(error.info()))
        except Exception:
            logger.exception("a question failed")
            return encode_reply(Refused(INTERNAL.info()))

    async def info(self) -> bytes:
        """The model's `ModelInfo`."""
        return encoder.encode(self._server.info)

    async def stats(self) -> bytes:
        """The engine's `EngineStats`, now."""
        return encoder.encode(self._server.stats())

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The report for `scaling.ByLoad`; called by Serve if the deployment autoscales."""
        return self._workload.report(self._server.stats())

    def check_health(self) -> None:
        """Raises an error if the engine's heartbeat has stopped; Serve then replaces this replica."""
        self._server.check_health()

    async def __del__(self) -> None:
        """Called by Serve after it drained the replica."""
        if hasattr(self, "_sender"):  # unless the constructor failed
            self._memory.close()
            await self._sender.close()
            await self._settler.close()
            await self._server.stop()


class _Queue:
    """A sink that one task reads; an empty list marks its end."""

    def __init__(self) -> None:
        self._steps: asyncio.Queue[list[TokenDelta]] = asyncio.Queue()

    def send(self, deltas: list[TokenDelta]) -> None:
        self._steps.put_nowait(deltas)

    async def get(self) -> list[TokenDelta]:
        """All deltas since the last call; waits for the first of them."""
        deltas = await self._steps.get()
        while deltas and not self._steps.empty():
            more = self._steps.get_nowait()
            if not more:
                self._steps.put_nowait(more)
                break
            deltas = deltas + more
        return deltas


def _refused(error: ServeError) -> bytes:
    return encoder.encode(Refused(error.info()))


def on_stop(tell: Callable[[], None]) -> None:
    """Call `tell` on this event loop as soon as Serve stops the replica in this process, for any reason.

    To be called in a constructor. When Serve 2.60 stops a replica, Serve sends it no more requests and waits
    for the open ones. Serve has no hook for this moment, and the destructor runs later. All of this is left
    as it is. Serve may run this on another loop.
    """
    loop = asyncio.get_running_loop()

    async def stopping(self: Any) -> None:
        loop.call_soon_threadsafe(tell)
        await _stop(self)

    Replica._perform_graceful_shutdown = stopping
