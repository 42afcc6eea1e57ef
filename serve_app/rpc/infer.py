"""ModelInfer and ModelStreamInfer: requests with tensors, one per call or many on one stream.

A stream's requests run concurrently, each with its own task and its own record. A request ends with its last
response, with a stop request (on this stream or elsewhere), or with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

from starlette.types import Scope

from serve_app.api.admission.stoppable import StopKey
from serve_app.api.context import RequestContext, context_of, open_context
from serve_app.api.dialects.triton.aliases import Meaning, endpoint_name, meaning
from serve_app.api.dialects.triton.answer.outputs import ResponseBuilder
from serve_app.api.dialects.triton.dialect import Inference, Stop, parse
from serve_app.api.dialects.triton.ensemble.step import EnsembleStep
from serve_app.api.dialects.triton.ensemble.text_step import PARSERS, answer_step
from serve_app.api.dialects.triton.errors import render_error
from serve_app.api.dialects.triton.stop import find_model, stopped
from serve_app.api.edge.body import ClientGone
from serve_app.api.edge.middleware import log_done
from serve_app.api.exchange.frame import admitted
from serve_app.api.exchange.generate import clamped_headers, under_way
from serve_app.api.exchange.stream import collect, follow
from serve_app.api.kserve.message import InferResponse
from serve_app.api.protocol.dialect import PromptDelta, Renderer
from serve_app.api.recording import record
from serve_app.api.services import Services
from serve_app.config import TrtllmConfig
from serve_app.errors import GenerationFailed, ServeError
from serve_app.limits import MAX_STREAM_REQUESTS
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.call import RpcCall, message_of, public, status_of
from serve_app.rpc.tensors import FINAL, RpcTensors, decoded, encoded, infer_message
from serve_app.types import FinishReason, ModelInfo

Emit = Callable[[InferResponse], Awaitable[None]]


async def model_infer(call: RpcCall, services: Services) -> None:
    """One request, one response. Raises ServeError."""

    context = context_of(call.scope)

    async def emit(response: InferResponse) -> None:
        message = encoded(response, in_stream=False)
        if context.recording is not None:
            context.recording.sent(pb.ModelStreamInferResponse(infer_response=message).SerializeToString())
        await call.write(message.SerializeToString())

    services.admission.check()
    with services.bodies.lease() as lease:
        raw = await call.read_only()
        lease.take(len(raw))
        message = await services.aside(len(raw), infer_message, raw)
        asked = await _inference(message, call.scope, services, emit, can_stream=False)
        del raw, message  # they would live as long as the answer takes
        if asked is not None:
            await answer(asked, call.scope, services, emit)


async def model_stream_infer(call: RpcCall, services: Services) -> None:
    """Serve requests until the client sends no more and all are answered. Raises ClientGone."""
    await Stream(call, services).run()


class Stream:
    """One call of ModelStreamInfer."""

    def __init__(self, call: RpcCall, services: Services) -> None:
        self._call = call
        self._services = services

    async def run(self) -> None:
        """Raises ClientGone. Aborts requests that are still running when the call is cancelled."""
        slots = asyncio.Semaphore(MAX_STREAM_REQUESTS)
        try:
            async with asyncio.TaskGroup() as tasks:
                await slots.acquire()
                while (raw := await self._call.read()) is not None:
                    task = tasks.create_task(self._one([raw]))
                    task.add_done_callback(lambda _: slots.release())
                    del raw
                    await slots.acquire()
        except ExceptionGroup:  # every other error is the answer to its own request
            raise ClientGone from None

    async def _one(self, inbox: list[bytes]) -> None:
        """Take the one message out of `inbox`, and answer it."""
        services, scope = self._services, {**self._call.scope}
        outer, context = context_of(scope), open_context(scope, render_error)
        context.caller, context.route = outer.caller, outer.route
        message = pb.ModelInferRequest()
        try:
            # Before any check of the load: even a full gateway accepts a stop, and a refusal names its id.
            with services.bodies.lease() as lease:
                raw = inbox.pop()
                message = await services.aside(len(raw), infer_message, raw)
                lease.take(len(raw))
                del raw
                await self._answer(message, scope)
        except (ClientGone, asyncio.CancelledError):
            context.outcome = "cancelled"
            raise
        except Exception as error:
            shown = public(error, context)
            context.status = status_of(shown)
            await self._fail(context, shown, message.id, message.model_name)
        finally:
            log_done(services.metrics, context, "gRPC", context.status)

    async def _answer(self, message: pb.ModelInferRequest, scope: Scope) -> None:
        services, context = self._services, context_of(scope)

        async def emit(response: InferResponse) -> None:
            message = encoded(response, in_stream=True)
            await self._send(context, pb.ModelStreamInferResponse(infer_response=message))

        asked = await _inference(message, scope, services, emit, can_stream=True)
        if asked is None:
            return
        # A stop that comes before the model has begun finds the request here, a later one in the backend.
        task, was_stopped = asyncio.current_task(), False

        def stop() -> None:
            nonlocal was_stopped
            was_stopped = True
            if task is not None:
                task.cancel()

        with ExitStack() as before:
            if asked.answer.id is not None:
                name = endpoint_name(services, scope, asked.answer.model)
                key = StopKey.of(context, name, asked.answer.id)
                before.enter_context(services.stoppable.entry(key, stop))
            try:
                await answer(asked, scope, services, emit, begun=before.close)
            except asyncio.CancelledError:
                if not was_stopped or task is None or task.uncancel() > 0:
                    raise
                context.status = 200
                await emit(_empty(asked, message.model_version or "1"))

    async def _fail(self, context: RequestContext, error: ServeError, id: str, model: str) -> None:
        """End a request of the stream with an error."""
        response = pb.ModelInferResponse(id=id[:1024], model_name=model[:256])
        response.parameters[FINAL].bool_param = True
        failed = pb.ModelStreamInferResponse(error_message=message_of(error), infer_response=response)
        await self._send(context, failed)

    async def _send(self, context: RequestContext, message: pb.ModelStreamInferResponse) -> None:
        raw = message.SerializeToString()
        if context.recording is not None:
            context.recording.sent(raw)
        await self._call.write(raw)


async def answer(
    asked: Inference, scope: Scope, services: Services, emit: Emit, begun: Callable[[], None] = lambda: None
) -> None:
    """Generate, and `emit` the response, or one response per token. Raises ServeError.

    `begun` is called when the model answers.
    """
    context = context_of(scope)
    name = endpoint_name(services, scope, asked.answer.model)
    call = asked.call(name, _no_bytes, stream=asked.streaming)
    with admitted(services, call):
        async with under_way(call, None, scope, services) as (attempt, deadline):
            begun()
            context.status = 200
            answers = ResponseBuilder(asked.answer, attempt.info)

            async def pass_on(deltas: list[PromptDelta]) -> None:
                for row, delta in deltas:
                    for response in answers.push(row, delta):
                        await emit(response)

            context.clamped = clamped_headers(call, attempt)
            if asked.streaming:
                failure = await follow(attempt, pass_on, context, services.metrics, deadline)
                if failure is not None:
                    raise failure
                return
            n = call.requests[0].n
            choices = await collect(attempt, n, context, services.metrics, deadline)
            context.clamped = clamped_headers(call, attempt)
            if any(choice.finish is FinishReason.ABORT for choice in choices):
                await emit(_empty(asked, attempt.info.version or "1"))
                return
            for response in answers.several(choices):
                await emit(response)


async def answer_text(step: EnsembleStep, model: str, scope: Scope, services: Services, emit: Emit) -> None:
    """Tokenize or detokenize, and `emit` the response. Raises ServeError."""
    with admitted(services, step):
        async with answer_step(step, endpoint_name(services, scope, model), scope, services) as (_, response):
            context_of(scope).status = 200
            await emit(response)


async def _inference(
    message: pb.ModelInferRequest, scope: Scope, services: Services, emit: Emit, *, can_stream: bool
) -> Inference | None:
    """The inference that a message requests, recorded if its endpoint has an inference table.

    None: the message was a stop request or was for the tokenizer, and has been answered. Raises
    ModelNotFound first, then InvalidField or UnsupportedField.
    """
    meant = meaning(services, scope, message.model_name)
    find_model(services, scope, meant.endpoint)
    understand = partial(_parsed, services.config.trtllm, meant, can_stream)
    asked = await services.aside(message.ByteSize(), understand, message)
    if isinstance(asked, Stop):
        await emit(_told(services, scope, asked, message))
        return None
    if isinstance(asked, EnsembleStep):
        await answer_text(asked, message.model_name, scope, services, emit)
        return None
    name = endpoint_name(services, scope, asked.answer.model)
    record(services, context_of(scope), name, message.SerializeToString, RpcTensors())
    return asked


def _parsed(
    config: TrtllmConfig, meant: Meaning, can_stream: bool, message: pb.ModelInferRequest
) -> Inference | Stop | EnsembleStep:
    request = decoded(message)
    if not meant.role.generates:
        return PARSERS[meant.role](request)
    return parse(request, config, can_stream=can_stream, role=meant.role)


def _told(services: Services, scope: Scope, stop: Stop, message: pb.ModelInferRequest) -> InferResponse:
    """Stop a request; returns the empty answer of the stop."""
    context = context_of(scope)
    reply = stopped(services, scope, stop, message.model_version or None)
    context.status = 200
    return InferResponse(model=stop.model, version=reply["model_version"], id=stop.id, outputs={})


def _empty(asked: Inference, version: str) -> InferResponse:
    """The final response of a stopped request."""
    return InferResponse(model=asked.answer.model, version=version, id=asked.answer.id, outputs={})


def _no_bytes(id: str, info: ModelInfo) -> Renderer:
    """A stub: gRPC renders messages, never bytes. Raises GenerationFailed."""
    raise GenerationFailed("gRPC has no such form of an answer")
