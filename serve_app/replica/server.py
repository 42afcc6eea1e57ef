"""One model in one process: prompts in, text deltas out.

Wires the text layer to the engine. Everything here runs on one event loop; the engine steps in a thread of
its own (see `engine/loop.py`), and passes on the outputs of each step in one call. Does not depend on Ray,
HTTP or any protocol.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from serve_app.config import ModelConfig
from serve_app.engine.finish import EngineDead
from serve_app.engine.ranks.launcher import Launcher
from serve_app.errors import (
    DeadlineExceeded,
    GenerationFailed,
    InvalidField,
    Unavailable,
    UnsupportedField,
)
from serve_app.replica.adapters.slots import AdapterSlots
from serve_app.replica.build import LoadedReplica, load
from serve_app.replica.context_window import ContextWindow
from serve_app.replica.output.request_state import RequestState
from serve_app.replica.output.resumption import check_weights, going_on, replay
from serve_app.replica.prompt import PromptEncoder
from serve_app.text.answer.answer_format import AnswerReader
from serve_app.text.answer.output_text import OutputText
from serve_app.text.answer.stop import StopStrings
from serve_app.text.answer.tools.forcing import of_tool
from serve_app.types import (
    EngineOutput,
    EngineRequest,
    EngineStats,
    GenerateRequest,
    Grammar,
    ModelInfo,
    Question,
    TextLogprob,
    TokenDelta,
)
from serve_app.types.question import ReplyT

logger = logging.getLogger(__name__)

HEARTBEAT_LIMIT_S = 30.0  # a step that lasts longer means the engine hangs
STOP_TIMEOUT_S = 10.0

_FAILED: Final = GenerationFailed("generation failed; the request may be retried").info()
_NAMING_S: Final = 2.0  # to find which of a request's tools is refused


class DeltaSink(Protocol):
    """Receives the deltas of some requests: a gateway's connection, a queue, or a test's list."""

    def send(self, deltas: list[TokenDelta]) -> None:
        """Take all deltas of one step for this sink. Never blocks; called on the event loop."""
        ...


@dataclass(slots=True, eq=False)
class _OpenRequest:
    """A request between its admission to the engine and its last delta."""

    state: RequestState
    sink: DeltaSink
    done: asyncio.Future[None]


class ModelServer:
    """A loaded model that answers `GenerateRequest`s.

    >>> server = await ModelServer.start(ModelConfig(name="demo-chat"), print)
    >>> await server.generate(request, sink)  # returns when the last delta was sent
    """

    def __init__(self, loaded: LoadedReplica) -> None:
        self.info: ModelInfo = loaded.info
        self._encoder: PromptEncoder = loaded.encoder
        self._grammars = loaded.grammars
        self._questions = loaded.questions
        self._defaults = loaded.info.sampling_defaults
        self._window = ContextWindow(loaded.window, loaded.info.max_output_tokens, self._defaults.max_tokens)
        self._open: dict[str, _OpenRequest] = {}
        self._loop = asyncio.get_running_loop()
        self._driver = loaded.new_driver(self._from_engine)
        self._followers = loaded.followers
        if loaded.followers is not None:
            loaded.followers.when_lost(lambda reason: self._driver.call(partial(_end_engine, reason)))
        self._adapters = AdapterSlots(self._driver, loaded.max_adapters, loaded.info.adapters)
        self._stopping = False

    @classmethod
    async def start(
        cls, config: ModelConfig, progress: Callable[[str], None], launcher: Launcher | None = None
    ) -> ModelServer:
        """Load the model, warm it up and start stepping. `launcher`: as of `load`.

        Raises ModelLoadError; its message says what to do next.
        """
        loaded = await asyncio.to_thread(load, config, progress, launcher)
        server = cls(loaded)
        await asyncio.to_thread(server._driver.start)
        progress(f"{config.name}: ready")
        return server

    async def generate(self, request: GenerateRequest, sink: DeltaSink) -> None:
        """Send the deltas of `request` to `sink`; returns after the last one.

        With `resume`, the model continues an answer that another replica began: its first delta follows the
        last one that the client has. Raises ServeError only before the first delta, for example Unavailable
        if other weights began the answer; later failures are deltas with finish ERROR. Cancelling the call
        aborts the request and frees its blocks.
        """
        if self._stopping:
            raise Unavailable("the model is shutting down; try again", retry_after_s=1.0)
        if request.resume is not None:
            check_weights(request.resume, self.info.weights)
            if all(choice.finished for choice in request.resume.choices):
                return
        started = time.monotonic()
        async with self._adapters.hold(request) as adapter:
            await self._generate(request, sink, adapter, started)

    async def _generate(
        self, request: GenerateRequest, sink: DeltaSink, adapter: str | None, started: float
    ) -> None:
        """`generate` with the name of the adapter in the engine; `started` is when the request arrived."""
        if request.left_to_model:
            sampling = self._defaults.fill(request.sampling, request.left_to_model)
            request = replace(request, sampling=sampling)
        whole = await self._encoder.encode(request, partial(self._window.check_fewest, request))
        fitted = self._window.fit(request, whole)
        request, token_ids = fitted.request, fitted.token_ids
        engine_request = going_on(await self._encoder.engine_request(request, token_ids), request)
        if adapter is not None:
            engine_request = replace(engine_request, adapter=adapter)
        reader = AnswerReader(self._encoder.answers, request, token_ids, self._encoder.tokenizer)
        if (grammar := reader.grammar()) is not None:
            engine_request = await self._constrained(engine_request, grammar, reader)
        if request.timeout_s is not None:
            left = request.timeout_s - (time.monotonic() - started)
            if left <= 0:
                raise DeadlineExceeded("timeout: the deadline passed before the request was queued")
            engine_request = replace(engine_request, timeout_s=left)
        state = RequestState(
            request,
            token_ids,
            new_parser=reader.parser,
            new_output=partial(
                OutputText,
                self._encoder.tokenizer,
                stop=StopStrings(request.stop, include_stop=request.include_stop),
                min_tokens=request.sampling.min_tokens,
                skip_special_tokens=request.skip_special_tokens,
                # A grammar describes the text as the tokens spell it, with its first space.
                continues=request.prompt.messages is None
                or request.prompt.templating.continue_final_message
                or request.grammar is not None,
                shown_ids=reader.marker_ids,
            ),
            prompt_text=self._prompt_text(request, whole, token_ids) if request.echo else None,
            describe=self._encoder.tokenizer.describe,
            first_prompt_token=self._first_prompt_token(request, token_ids),
            clamped=fitted.clamped,
        )
        await replay(state)
        entry = _OpenRequest(state, sink, self._loop.create_future())
        self._open[request.id] = entry
        try:
            self._driver.add(engine_request)
            await entry.done
        finally:
            # A cancelled call comes here too. Aborting a request that has ended does no harm.
            self._open.pop(request.id, None)
            if not state.done:
                self._driver.abort(request.id)

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The answer to `question`. Raises ServeError, in particular UnsupportedField for a question that a
        generating model cannot answer."""
        if self._stopping:
            raise Unavailable("the model is shutting down; try again", retry_after_s=1.0)
        return await self._questions.answer(question)

    async def _constrained(
        self, request: EngineRequest, grammar: Grammar, reader: AnswerReader
    ) -> EngineRequest:
        """The request with its grammar compiled; the end token then ends the answer despite `ignore_eos`.

        Raises the errors of `GrammarCompiler.compile`, for the field that `reader` names.
        """
        try:
            compiled = await self._grammars.compile(grammar)
        except UnsupportedField as error:
            raise error.renamed(reader.grammar_field) from error
        except InvalidField as error:
            raise await self._refused_tool(reader) or error.renamed(reader.grammar_field) from error
        return replace(request, grammar=compiled, sampling=replace(request.sampling, ignore_eos=False))

    async def _refused_tool(self, reader: AnswerReader) -> InvalidField | None:
        """The error for the tool whose schema was refused, if that tool is found in time."""
        until = time.monotonic() + _NAMING_S
        for name, grammar in reader.call_grammars:
            if time.monotonic() > until:
                break
            try:
                await self._grammars.compile(grammar)
            except InvalidField as error:
                return of_tool(name, error)
        return None

    def _prompt_text(self, request: GenerateRequest, whole: list[int], token_ids: list[int]) -> str:
        """The text of the prompt as it is computed: if the prompt was shortened, only the rest of it."""
        if request.prompt.text is not None and len(token_ids) == len(whole):
            return request.prompt.text
        return self._encoder.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _first_prompt_token(self, request: GenerateRequest, token_ids: list[int]) -> TextLogprob | None:
        if request.prompt_logprobs is None:
            return None
        tokenizer = self._encoder.tokenizer
        first = token_ids[0]
        return TextLogprob(first, tokenizer.token_text(first), tokenizer.token_bytes(first), None)

    def _from_engine(self, outputs: list[EngineOutput]) -> None:
        """Take the outputs of one step, in the engine's thread."""
        # The event loop is closed when the process is going down; then outputs have no reader.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_outputs, outputs)

    def _on_outputs(self, outputs: list[EngineOutput]) -> None:
        by_sink: defaultdict[DeltaSink, list[TokenDelta]] = defaultdict(list)
        ended: list[_OpenRequest] = []
        for output in outputs:
            entry = self._open.get(output.request_id)
            if entry is None:
                continue
            try:
                step = entry.state.push(output)
            except Exception:
                # Text handling of one request must never stop the others.
                logger.exception("request %s: text handling failed", output.request_id)
                self._driver.abort(output.request_id)
                by_sink[entry.sink].append(entry.state.failed(output.index, _FAILED))
                ended.append(entry)
                continue
            if step.cut is not None:
                self._driver.finish(output.request_id, *step.cut)
            if step.deltas:
                by_sink[entry.sink] += step.deltas
            if entry.state.done:
                ended.append(entry)
        for sink, deltas in by_sink.items():
            sink.send(deltas)
        for entry in ended:
            self._open.pop(entry.state.request.id, None)
            if not entry.done.done():
                entry.done.set_result(None)

    def stats(self) -> EngineStats:
        return self._driver.stats()

    @property
    def is_dead(self) -> bool:
        """As of the engine's loop."""
        return self._driver.is_dead

    def check_health(self) -> None:
        """Raise Unavailable if the engine has died or its heartbeat has stopped."""
        self._driver.check_health(HEARTBEAT_LIMIT_S)

    async def stop(self) -> None:
        """Refuse new requests, and end the engine without waiting for open ones."""
        self._stopping = True
        self._grammars.close()
        self._adapters.close()
        await asyncio.to_thread(self._driver.stop, STOP_TIMEOUT_S)
        if self._followers is not None:
            await asyncio.to_thread(self._followers.close)


def _end_engine(reason: str) -> None:
    """Between two steps: end the engine, which ends all its requests."""
    raise EngineDead(reason, [])
