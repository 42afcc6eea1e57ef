"""One choice of a request: engine outputs in, text deltas out.

Knows tokens and text of a single sequence; not its siblings, the engine or the wire.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from serve_app.replica.logits import of_tokens
from serve_app.text.answer.output_text import OutputText
from serve_app.text.answer.parser import AnswerParser, Parts
from serve_app.types import EngineOutput, FinishReason, Perf, Tensor, TextLogprob, Timing, ToolCallDelta


@dataclass(slots=True)
class ChoiceStep:
    """What one engine output meant for one choice."""

    text: str
    reasoning: str
    calls: tuple[ToolCallDelta, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TextLogprob, ...] | None
    finish: FinishReason | None
    stop: str | int | None
    cut: bool  # the engine must be told to end the sequence at `Choice.num_tokens`
    tensors: dict[str, Tensor]


@dataclass(slots=True, eq=False)
class Choice:
    """The running state of one sequence as its client sees it."""

    output: OutputText
    wants_logprobs: bool
    parser: AnswerParser | None = None  # none: the text is the answer
    num_tokens: int = 0  # tokens that count: shown, billed, or the end token
    cumulative_logprob: float = 0.0
    finish: FinishReason | None = None
    stop: str | int | None = None
    timing: Timing | None = None
    text: list[str] = field(default_factory=list)  # kept for choices that answer in one piece
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)
    tensors: list[dict[str, Tensor]] = field(default_factory=list)
    perf: Perf | None = None  # once it has ended

    def push(self, output: EngineOutput) -> ChoiceStep:
        """Take one step's tokens. Must not be called once `finish` is set."""
        ended = output.finish in (FinishReason.EOS, FinishReason.STOP) and not output.by_sequence
        step = self.output.push(output.token_ids, end_token=ended)
        used = output.token_ids[: step.num_tokens_used]
        positions = output.logprobs[: step.num_tokens_used]
        self.num_tokens += len(used)
        self.cumulative_logprob += sum(p.logprob for p in positions)
        tensors = of_tokens(output.tensors, 0, len(used)) if output.tensors else {}
        self.perf = output.perf
        if output.timing is not None:
            self.timing = output.timing
        text = step.text
        finish, cut = output.finish, False
        stop: str | int | None = None
        if step.stop is not None:
            # A stop string wins over whatever ended the sequence in the same step.
            cut = output.finish is None
            finish, stop = FinishReason.STOP, step.stop
        elif finish is not None:
            text += self.output.flush()
            if self.output.stop is not None:
                finish, stop = FinishReason.STOP, self.output.stop
            elif finish is FinishReason.STOP and used and not output.by_sequence:
                stop = used[-1]
        parts = Parts(text)
        if self.parser is not None:
            parts = self.parser.feed(text, last=finish is not None)
            if self.parser.complete and finish is not FinishReason.ERROR:
                # Whatever else ended it in the same step: the call it was to end with is there.
                cut = output.finish is None
                finish, stop = FinishReason.TOOL_CALLS, None
            elif finish is FinishReason.EOS and self.parser.has_calls:
                finish = FinishReason.TOOL_CALLS
        self.finish, self.stop = finish, stop
        described = tuple(self.output.describe(p) for p in positions) if self.wants_logprobs else None
        return ChoiceStep(
            parts.text, parts.reasoning, parts.calls, used, described, finish, stop, cut, tensors
        )

    def score(self, length_penalty: float | None) -> float:
        """How likely the choice is: its log-probability / tokens ** `length_penalty`, if there is one."""
        if length_penalty is None:
            return self.cumulative_logprob
        return self.cumulative_logprob / math.pow(max(1, self.num_tokens), length_penalty)

    def keep(self, step: ChoiceStep) -> None:
        """Remember a step's content, for a choice that is delivered whole."""
        self.text.append(step.text)
        self.reasoning.append(step.reasoning)
        self.calls.extend(step.calls)
        self.token_ids.extend(step.token_ids)
        self.logprobs.extend(step.logprobs or ())
        if step.tensors:
            self.tensors.append(step.tensors)
