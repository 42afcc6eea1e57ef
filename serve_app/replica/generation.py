"""One request in a replica: engine outputs of its sequences -> deltas of its choices.

Decides what a client gets: text cut at stop strings, one delta a step when
streaming and one a choice when not, the `n` best of `best_of`, cumulative usage.
Of a beam search nothing is known before its end: its hypotheses come whole and best
first, streamed or not; a stop string cuts the text of one, but not the search.
Pure: no clock, no I/O, no engine; what the engine must do is returned as `cuts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from serve_app.replica.choice import Choice, ChoiceStep
from serve_app.replica.logits import joined, of_tokens
from serve_app.replica.prompt import is_ranked, num_sequences
from serve_app.text.answer import AnswerParser
from serve_app.text.output import OutputText
from serve_app.types import (
    EngineOutput,
    FinishReason,
    GenerateRequest,
    PositionLogprobs,
    TextLogprob,
    TokenDelta,
    Usage,
)


@dataclass(slots=True)
class Step:
    """What one engine output gives: deltas to send, and a sequence to end early."""

    deltas: list[TokenDelta] = field(default_factory=list)
    cut: tuple[int, int] | None = None  # (index, tokens to keep)


class Generation:
    """The state of one request between its first engine output and its last delta."""

    def __init__(
        self,
        request: GenerateRequest,
        token_ids: list[int],
        *,
        new_output: Callable[[], OutputText],
        new_parser: Callable[[], AnswerParser | None],
        prompt_text: str | None,
        describe: Callable[[PositionLogprobs], TextLogprob],
        first_prompt_token: TextLogprob | None,
    ) -> None:
        """`first_prompt_token` is what stands before the first prompt log-probability."""
        self.request = request
        self._prompt_ids = tuple(token_ids)
        self._prompt_text = prompt_text
        self._describe = describe
        self._first_prompt_token = first_prompt_token
        self._sequences = num_sequences(request)
        self._ranked = is_ranked(request)
        self._whole = self._ranked or not request.stream
        self._choices = [
            Choice(new_output(), wants_logprobs=request.logprobs is not None, parser=new_parser())
            for _ in range(self._sequences)
        ]
        self._cached_tokens = 0
        self._prompt_logprobs: tuple[TextLogprob, ...] | None = None
        self._prompt_sent: set[int] = set()
        self._open = self._sequences

    @property
    def done(self) -> bool:
        return self._open == 0

    @property
    def usage(self) -> Usage:
        """Tokens so far. Of `best_of` candidates only the returned ones count."""
        chosen = self._best() if self._ranked and self.done else self._choices
        return Usage(
            prompt_tokens=len(self._prompt_ids),
            completion_tokens=sum(c.num_tokens for c in chosen),
            cached_tokens=self._cached_tokens,
        )

    def push(self, output: EngineOutput) -> Step:
        """Take one sequence's output of one step. What follows a choice's end is ignored."""
        if not self.request.per_token or len(output.token_ids) < 2:
            return self._push(output)
        result = Step()
        for single in one_by_one(output):
            step = self._push(single)
            result.deltas += step.deltas
            result.cut = step.cut or result.cut
        return result

    def _push(self, output: EngineOutput) -> Step:
        choice = self._choices[output.index]
        if choice.finish is not None:
            return Step()
        self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
        if output.prompt_logprobs is not None and self._prompt_logprobs is None:
            head = (self._first_prompt_token,) if self._first_prompt_token is not None else ()
            self._prompt_logprobs = head + tuple(self._describe(p) for p in output.prompt_logprobs)
        if output.finish is FinishReason.ERROR:
            return self._fail(output)
        if self.request.sampling.max_tokens == 0:
            return self._echo_only(output)
        step = choice.push(output)
        if step.finish is not None:
            self._open -= 1
        result = Step(cut=(output.index, choice.num_tokens) if step.cut else None)
        if not self._whole:
            result.deltas.append(self._delta(output, choice, step))
            return result
        choice.keep(step)
        if self._ranked:
            if self.done:
                result.deltas += [self._final(i, c) for i, c in enumerate(self._best())]
        elif step.finish is not None:
            result.deltas.append(self._final(output.index, choice))
        return result

    def _echo_only(self, output: EngineOutput) -> Step:
        """`max_tokens` 0: the prompt is the answer, the sampled token is nobody's."""
        choice = self._choices[output.index]
        choice.finish, choice.timing = FinishReason.LENGTH, output.timing
        self._open -= 1
        cut = (output.index, 0) if output.finish is None else None
        return Step([self._final(output.index, choice)] if output.index < self.request.n else [], cut)

    def _fail(self, output: EngineOutput) -> Step:
        choice = self._choices[output.index]
        choice.finish = FinishReason.ERROR
        self._open -= 1
        index = min(output.index, self.request.n - 1)
        delta = TokenDelta(
            request_id=self.request.id,
            index=index,
            finish=FinishReason.ERROR,
            error=output.error,
            usage=self.usage,
        )
        return Step([delta])

    def _best(self) -> list[Choice]:
        """The `n` likeliest candidates; the earlier one wins a tie."""
        penalty = self.request.rank_length_penalty
        ranked = sorted(self._choices, key=lambda c: -c.score(penalty))
        return ranked[: self.request.n]

    def _delta(self, output: EngineOutput, choice: Choice, step: ChoiceStep) -> TokenDelta:
        delta = TokenDelta(
            request_id=self.request.id,
            index=output.index,
            text=step.text,
            reasoning=step.reasoning,
            tool_calls=step.calls,
            token_ids=step.token_ids,
            logprobs=step.logprobs,
            finish=step.finish,
            stop=step.stop,
            usage=self.usage,
            timing=choice.timing if choice.num_tokens == len(step.token_ids) else None,
            step=output.steps[-1] if output.steps and self.request.per_token else None,
            tensors=step.tensors,
            perf=choice.perf,
        )
        return self._with_prompt(delta)

    def _final(self, index: int, choice: Choice) -> TokenDelta:
        delta = TokenDelta(
            request_id=self.request.id,
            index=index,
            text="".join(choice.text),
            reasoning="".join(choice.reasoning),
            tool_calls=tuple(choice.calls),
            token_ids=tuple(choice.token_ids),
            logprobs=tuple(choice.logprobs) if choice.wants_logprobs else None,
            finish=choice.finish,
            stop=choice.stop,
            usage=self.usage,
            timing=choice.timing,
            tensors=joined(choice.tensors),
            perf=choice.perf,
        )
        return self._with_prompt(delta)

    def _with_prompt(self, delta: TokenDelta) -> TokenDelta:
        """Add the prompt's own text, ids and log-probabilities to a choice's first delta."""
        if delta.index in self._prompt_sent:
            return delta
        self._prompt_sent.add(delta.index)
        request = self.request
        if not request.echo and not request.prompt_ids and self._prompt_logprobs is None:
            return delta
        return replace(
            delta,
            prompt_text=self._prompt_text if request.echo else None,
            prompt_token_ids=self._prompt_ids,
            prompt_logprobs=self._prompt_logprobs,
        )


def one_by_one(output: EngineOutput) -> Iterator[EngineOutput]:
    """An output of several tokens as outputs of one; the end comes with the last."""
    for i in range(len(output.token_ids)):
        first, last = i == 0, i == len(output.token_ids) - 1
        yield replace(
            output,
            token_ids=output.token_ids[i : i + 1],
            logprobs=output.logprobs[i : i + 1],
            steps=output.steps[i : i + 1],
            prompt_logprobs=output.prompt_logprobs if first else None,
            timing=output.timing if first else None,
            finish=output.finish if last else None,
            tensors=of_tokens(output.tensors, i, i + 1),
            perf=output.perf if last else None,
            error=output.error if last else None,
        )
