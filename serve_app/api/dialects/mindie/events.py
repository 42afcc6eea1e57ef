"""The answers of MindIE's generate routes: an event for each token, or one object with lists.

The engine measures times. As in the protocol, times are in whole milliseconds, but waits are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from typing_extensions import TypedDict

from serve_app.api.dialects.chat.wire import encode
from serve_app.api.dialects.mindie import answers
from serve_app.api.dialects.mindie.errors import broken
from serve_app.api.dialects.mindie.wire import FINISH
from serve_app.api.protocol.dialect import Choice
from serve_app.errors import ServeError
from serve_app.types import FinishReason, ModelInfo, StepTiming, Timing, TokenDelta, Usage


class _Ended(TypedDict, total=False):
    finish_reason: str


class _Listed(TypedDict, total=False):
    perf_stat: list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The parts of a request that its answer repeats, and the details that it must report."""

    id: str
    model_name: str
    model_version: str | None
    details: bool
    perf_stat: bool  # only with details
    shows_end: bool  # the last event of a stream has the end token's own text


@dataclass(slots=True)
class TokenTimes:
    """The times of one sequence's tokens, in lists with an entry for each token."""

    token_ids: list[int] = field(default_factory=list)
    costs_ms: list[int] = field(default_factory=list)  # the first: from arrival; others: of their step
    batch_sizes: list[int] = field(default_factory=list)
    waits_us: list[int] = field(default_factory=list)  # before the step that made the token

    def add(self, token_id: int, step: StepTiming, first: Timing | None) -> None:
        """Add a token. `first` is given for the first token, which may have taken several steps."""
        cost_s, wait_s = (first.first_token_s, first.queue_s) if first else (step.run_s, step.wait_s)
        self.token_ids.append(token_id)
        self.costs_ms.append(round(cost_s * 1e3))
        self.batch_sizes.append(step.batch_size)
        self.waits_us.append(max(0, round(wait_s * 1e6)))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(token id, milliseconds) of each token."""
        return list(zip(self.token_ids, self.costs_ms, strict=True))


class TextRenderer:
    """Writes events, or the whole answer. Answers name the model as the path does."""

    def __init__(self, id: str, info: ModelInfo, answer: AnswerForm) -> None:
        self._answer = answer
        self._end_texts = dict(zip(info.eos_token_ids, info.eos_tokens, strict=False))
        self._times = TokenTimes()
        self._generated = 0
        head = {
            "id": answer.id,
            "model_name": answer.model_name,
            "model_version": answer.model_version,
        }
        self._head = encode(head)[:-1] + b',"text_output":'

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        if not delta.token_ids and delta.finish is None:
            return b""
        self._note(delta)
        text = delta.text
        if delta.finish is FinishReason.EOS and self._answer.shows_end and delta.token_ids:
            text += self._end_texts.get(delta.token_ids[-1], "")
        times = self._times
        # A request that was stopped ends without a token, hence without times of its own.
        cost = times.costs_ms[-1] if delta.step is not None else None
        prefill, decode = (cost, None) if self._generated <= 1 else (None, cost)
        details: answers.EventDetails = {
            **self._counted(delta.finish, decode),
            "batch_size": times.batch_sizes[-1] if times.batch_sizes else 0,
            "queue_wait_time": 0 if cost is None else times.waits_us[-1],
        }
        return b"data:" + self._object(text, details, prefill, decode) + b"\n\n"

    def end(self, usage: Usage) -> bytes:
        return b""

    def broken(self, error: ServeError) -> bytes:
        return b"data:" + broken(error) + b"\n\n"

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        """The answer, without the text of the end token; times of decoding are sums over all steps."""
        (choice,) = choices
        for delta in choice.timed:
            self._note(delta)
        self._generated = usage.completion_tokens
        decoding = sum(self._times.costs_ms[1:]) if len(self._times.costs_ms) > 1 else None
        details: answers.Details = {
            **self._counted(choice.finish, decoding),
            "batch_size": self._times.batch_sizes,
            "queue_wait_time": self._times.waits_us,
        }
        return self._object(choice.text, details, next(iter(self._times.costs_ms), None), decoding)

    def _note(self, delta: TokenDelta) -> None:
        self._generated += len(delta.token_ids)
        if delta.step is not None:
            self._times.add(delta.token_ids[-1], delta.step, delta.timing)

    def _object(
        self,
        text: str,
        details: answers.Details | answers.EventDetails,
        prefill: int | None,
        decode: int | None,
    ) -> bytes:
        body = self._head + encode(text)
        if self._answer.details:
            body += b',"details":' + encode(details)
        if self._answer.perf_stat:
            body += b',"prefill_time":' + encode(prefill) + b',"decode_time":' + encode(decode)
        return body + b"}"

    def _counted(self, finish: FinishReason | None, decode_cost: int | None) -> answers.Counted:
        perf_stat, costs = self._answer.perf_stat, self._times.costs_ms
        ended: _Ended = {} if finish is None else {"finish_reason": FINISH[finish]}
        listed: _Listed = {"perf_stat": self._times.pairs} if perf_stat else {}
        return {
            **ended,
            "generated_tokens": self._generated,
            "first_token_cost": costs[0] if perf_stat and costs else None,
            "decode_cost": decode_cost if perf_stat else None,
            **listed,
        }
