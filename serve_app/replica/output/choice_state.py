"""One choice of a request: engine outputs in, text deltas out.

Handles the tokens and text of a single sequence; does not depend on its siblings, the engine or the wire.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from serve_app.replica.output.tensor_rows import of_tokens
from serve_app.text.answer.output_text import OutputText, TextStep
from serve_app.text.answer.parser import AnswerParser, AnswerPart
from serve_app.types import EngineOutput, FinishReason, Perf, Tensor, TextLogprob, Timing, ToolCallDelta


class ChoiceDelta(NamedTuple):
    """What one engine output adds to one choice."""

    text: str
    reasoning: str
    calls: tuple[ToolCallDelta, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TextLogprob, ...] | None
    finish: FinishReason | None
    stop: str | int | None
    cut: bool  # the engine must end the sequence at `ChoiceState.num_tokens`
    tensors: dict[str, Tensor]


@dataclass(slots=True, eq=False)
class ChoiceState:
    """The running state of one sequence as its client sees it."""

    output: OutputText
    wants_logprobs: bool
    parser: AnswerParser | None = None  # None: the text itself is the answer
    num_tokens: int = 0  # tokens that are shown or billed, and the end token
    num_reasoning: int = 0  # of those, up to the last token with thoughts
    cumulative_logprob: float = 0.0
    finish: FinishReason | None = None
    stop: str | int | None = None
    timing: Timing | None = None
    text: list[str] = field(
        default_factory=list
    )  # this and the lists below: kept for a choice that is delivered whole
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)
    tensors: list[dict[str, Tensor]] = field(default_factory=list)
    perf: Perf | None = None  # once the choice has ended

    def push(self, output: EngineOutput) -> ChoiceDelta:
        """Take one step's tokens. Must not be called once `finish` is set."""
        ended = output.finish in (FinishReason.EOS, FinishReason.STOP) and not output.by_sequence
        step, parts = self._read(output.token_ids, end_token=ended)
        used = output.token_ids[: step.num_tokens_used]
        positions = output.logprobs[: step.num_tokens_used]
        self.num_tokens += len(used)
        for position in positions:  # one by one: the sum must not depend on how the tokens came
            self.cumulative_logprob += position.logprob
        tensors = of_tokens(output.tensors, 0, len(used)) if output.tensors else {}
        self.perf = output.perf
        if output.timing is not None:
            self.timing = output.timing
        tail = ""
        finish, cut = output.finish, False
        stop: str | int | None = None
        if step.stop is not None:
            # A stop string comes before any other end in the same step.
            cut = output.finish is None
            finish, stop = FinishReason.STOP, step.stop
        elif finish is not None:
            tail = self.output.flush()
            if self.output.stop is not None:
                finish, stop = FinishReason.STOP, self.output.stop
            elif finish is FinishReason.STOP and used and not output.by_sequence:
                stop = used[-1]
        if self.parser is None:
            parts = AnswerPart(step.text + tail)
        else:
            cut_off = finish is not FinishReason.EOS
            rest = self.parser.feed(tail, last=finish is not None, cut=cut_off)
            if rest.reasoning:
                self.num_reasoning = self.num_tokens
            parts = parts.followed_by(rest)
            if self.parser.complete and finish is not FinishReason.ERROR:
                # All calls are complete, even if something else ended the sequence in the same step.
                cut = output.finish is None
                finish, stop = FinishReason.TOOL_CALLS if self.parser.calls_well else FinishReason.EOS, None
            elif finish is FinishReason.EOS and self.parser.calls_well:
                finish = FinishReason.TOOL_CALLS
        self.finish, self.stop = finish, stop
        described = tuple(self.output.describe(p) for p in positions) if self.wants_logprobs else None
        return ChoiceDelta(
            parts.text, parts.reasoning, parts.calls, used, described, finish, stop, cut, tensors
        )

    def _read(self, token_ids: Sequence[int], *, end_token: bool) -> tuple[TextStep, AnswerPart]:
        """The parts of new tokens, up to the one that ends the answer; without a parser, the step's text.

        Several tokens are read one by one if thoughts are counted, if there are stop strings (which are not
        looked for in calls), or if a call may end the answer. In the last case, tokens that a draft or
        grammar adds after the call are not part of the answer.
        """
        parser = self.parser
        if parser is None:
            return self.output.push(token_ids, end_token=end_token), AnswerPart()
        one_by_one = parser.ends_itself or parser.thinks or self.output.has_stops
        size = 1 if one_by_one else max(1, len(token_ids))
        text, used, stop, parts = "", 0, None, AnswerPart()
        for start in range(0, len(token_ids), size):
            piece = token_ids[start : start + size]
            ends = end_token and start + size >= len(token_ids)
            step = self.output.push(piece, end_token=ends, searched=not parser.in_call)
            text, used, stop = text + step.text, used + step.num_tokens_used, step.stop
            part = parser.feed(step.text, last=False)
            if part.reasoning:
                self.num_reasoning = self.num_tokens + used
            parts = parts.followed_by(part)
            if stop is not None or parser.complete:
                break
        return TextStep(text, used, stop), parts

    def replay(self, token_ids: Sequence[int]) -> bool:
        """Read tokens that the client has; returns False if they end the choice, and so are not its own."""
        step, _ = self._read(token_ids, end_token=False)
        self.num_tokens += step.num_tokens_used
        return step.stop is None and not (self.parser is not None and self.parser.complete)

    def score(self, length_penalty: float | None) -> float:
        """The log-probability of the choice; divided by tokens ** `length_penalty` if a penalty is set."""
        if length_penalty is None:
            return self.cumulative_logprob
        return self.cumulative_logprob / math.pow(max(1, self.num_tokens), length_penalty)

    def whole_calls(self) -> tuple[ToolCallDelta, ...]:
        """The calls, with complete arguments, of a choice that is delivered whole."""
        whole = sorted(self.parser.whole_calls) if self.parser is not None else []
        places = {index: place for place, index in enumerate(whole)}
        return tuple(replace(call, index=places[call.index]) for call in self.calls if call.index in places)

    def keep(self, delta: ChoiceDelta) -> None:
        """Keep the content of a delta, for a choice that is delivered whole."""
        self.text.append(delta.text)
        self.reasoning.append(delta.reasoning)
        self.calls.extend(delta.calls)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs or ())
        if delta.tensors:
            self.tensors.append(delta.tensors)
