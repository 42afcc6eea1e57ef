"""One request in a replica: engine outputs of its sequences -> deltas of its choices.

Decides what a client gets: text cut at stop strings; a delta for each step if streaming, or else for each
choice; the `n` best of `best_of`; and cumulative usage. A beam search returns nothing before its end; then
its hypotheses come whole and best first, streamed or not. A stop string cuts the text of a hypothesis, but
not the search. Pure: no clock, no I/O, no engine; `StepOutput.cut` says what the engine must end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from serve_app.replica.output.choice_state import ChoiceDelta, ChoiceState
from serve_app.replica.output.tensor_rows import joined, of_tokens
from serve_app.replica.prompt import is_ranked, num_sequences
from serve_app.text.answer.output_text import OutputText
from serve_app.text.answer.parser import AnswerParser
from serve_app.types import (
    ChoiceSoFar,
    EngineOutput,
    ErrorInfo,
    FinishReason,
    GenerateRequest,
    PositionLogprobs,
    Resume,
    TextLogprob,
    TokenDelta,
    Usage,
)

# Tokens between two deltas of progress. A client that hangs up is not billed for more than these.
PROGRESS_TOKENS: Final = 16


@dataclass(slots=True)
class StepOutput:
    """The effect of one engine output: deltas to send, and possibly a sequence to end early."""

    deltas: list[TokenDelta] = field(default_factory=list)
    cut: tuple[int, int] | None = None  # (index, tokens to keep)


class RequestState:
    """The state of one request, from its first engine output to its last delta."""

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
        clamped: int | None = None,
    ) -> None:
        """`first_prompt_token` is the token before the first prompt log-probability.

        `clamped`: the limit of output tokens, if it is lower than the requested limit.
        """
        self.request = request
        self._prompt_ids = tuple(token_ids)
        self._prompt_text = prompt_text
        self._describe = describe
        self._first_prompt_token = first_prompt_token
        self._clamped = clamped
        self._sequences = num_sequences(request)
        self._ranked = is_ranked(request)
        self._whole = self._ranked or not request.stream
        self._choices = [
            ChoiceState(new_output(), wants_logprobs=request.logprobs is not None, parser=new_parser())
            for _ in range(self._sequences)
        ]
        self._cached_tokens = 0
        self._computed = 0  # prompt tokens
        self._made = 0  # tokens of all choices
        self._searched = 0  # tokens of all beams
        self._told = Usage()  # the usage in the last delta
        self._counted = 0  # tokens that another replica counted, also of undelivered choices
        self._thought = 0  # of those, the tokens of thoughts
        self._prompt_logprobs: tuple[TextLogprob, ...] | None = None
        self._prompt_sent: set[int] = set()
        self._open = self._sequences
        self._resumes = False  # another replica has reported the cached tokens
        self._delivered: frozenset[int] = frozenset()  # choices that start over, but whose end was delivered

    @property
    def done(self) -> bool:
        return self._open == 0

    @property
    def usage(self) -> Usage:
        """Tokens so far. At the end, the candidates of `best_of` that are not returned count as discarded."""
        chosen = self._best() if self._ranked and self.done else self._choices
        completion = max(sum([c.num_tokens for c in chosen]), self._counted)
        generated = max(self._searched, self._made, completion)
        return Usage(
            prompt_tokens=self._computed,
            completion_tokens=completion,
            cached_tokens=self._cached_tokens,
            discarded_tokens=generated - completion,
            reasoning_tokens=max(sum([c.num_reasoning for c in chosen]), self._thought),
        )

    def go_on(self, resume: Resume, begun: Sequence[ChoiceSoFar]) -> None:
        """Take over an answer that another replica began; `begun` is empty if all choices start over.

        `replay` then takes the tokens of unfinished choices.
        """
        usage = resume.usage
        self._resumes, self._cached_tokens = True, usage.cached_tokens
        self._delivered = frozenset(i for i, choice in enumerate(resume.choices) if choice.finished)
        if not begun:
            return
        self._computed, self._counted, self._told = usage.prompt_tokens, usage.completion_tokens, usage
        self._thought = usage.reasoning_tokens
        for index, begun_choice in enumerate(begun):
            choice = self._choices[index]
            choice.timing = begun_choice.timing
            if begun_choice.finished or begun_choice.token_ids:
                self._prompt_sent.add(index)
            if begun_choice.finished:
                choice.finish, choice.num_tokens = FinishReason.STOP, len(begun_choice.token_ids)
                self._made += choice.num_tokens
                self._open -= 1

    def replay(self, index: int, token_ids: Sequence[int]) -> bool:
        """Read the tokens of a choice that the client already has; returns False if they cannot belong to the
        choice."""
        choice = self._choices[index]
        before = choice.num_tokens
        sound = choice.replay(token_ids)
        self._made += choice.num_tokens - before
        return sound

    def push(self, output: EngineOutput) -> StepOutput:
        """Take the output of one sequence in one step. Outputs after the end of a choice are ignored."""
        self._note_work(output)
        if output.computed is not None:
            step = StepOutput()
        elif not self.request.per_token or len(output.token_ids) < 2:
            step = self._push(output)
        else:
            step = self._push_one_by_one(output)
        if self._delivered:
            step.deltas = [delta for delta in step.deltas if delta.index not in self._delivered]
        if step.deltas:
            self._told = step.deltas[-1].usage
        elif self.request.progress and not self.done and self._has_progress():
            self._told = self.usage
            step.deltas.append(
                TokenDelta(request_id=self.request.id, index=0, usage=self._told, is_progress=True)
            )
        return step

    def _note_work(self, output: EngineOutput) -> None:
        whole = bool(output.token_ids)  # with the first token, the whole prompt is computed
        self._computed = max(self._computed, len(self._prompt_ids) if whole else output.computed or 0)
        self._searched = max(self._searched, output.searched)
        if self._computed and not self._resumes:
            self._cached_tokens = max(self._cached_tokens, output.cached_tokens)

    def _has_progress(self) -> bool:
        """Whether enough work was done since the last delta to justify a progress delta."""
        more = max(self._made, self._searched) - self._told.generated_tokens
        return self._computed > self._told.prompt_tokens or more >= PROGRESS_TOKENS

    def _push_one_by_one(self, output: EngineOutput) -> StepOutput:
        result = StepOutput()
        for single in one_by_one(output):
            step = self._push(single)
            result.deltas += step.deltas
            result.cut = step.cut or result.cut
        return result

    def _push(self, output: EngineOutput) -> StepOutput:
        choice = self._choices[output.index]
        if choice.finish is not None:
            return StepOutput()
        if output.prompt_logprobs is not None and self._prompt_logprobs is None:
            head = (self._first_prompt_token,) if self._first_prompt_token is not None else ()
            self._prompt_logprobs = head + tuple(self._describe(p) for p in output.prompt_logprobs)
        if output.finish is FinishReason.ERROR:
            return self._fail(output)
        if self.request.sampling.max_tokens == 0:
            return self._echo_only(output)
        before = choice.num_tokens
        step = choice.push(output)
        self._made += choice.num_tokens - before
        if step.finish is not None:
            self._open -= 1
        result = StepOutput(cut=(output.index, choice.num_tokens) if step.cut else None)
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

    def _echo_only(self, output: EngineOutput) -> StepOutput:
        """If `max_tokens` is 0, the prompt is the answer, and the sampled token is dropped."""
        choice = self._choices[output.index]
        choice.finish, choice.timing = FinishReason.LENGTH, output.timing
        self._open -= 1
        cut = (output.index, 0) if output.finish is None else None
        return StepOutput([self._final(output.index, choice)] if output.index < self.request.n else [], cut)

    def _fail(self, output: EngineOutput) -> StepOutput:
        self._choices[output.index].finish = FinishReason.ERROR
        self._open -= 1
        return StepOutput([self.failed(output.index, output.error)])

    def failed(self, index: int, error: ErrorInfo | None) -> TokenDelta:
        """The delta that ends the choice of the sequence `index` with `error`."""
        return TokenDelta(
            request_id=self.request.id,
            index=min(index, self.request.n - 1),
            finish=FinishReason.ERROR,
            error=error,
            usage=self.usage,
        )

    def _best(self) -> list[ChoiceState]:
        """The `n` likeliest candidates; on a tie, the earlier one."""
        penalty = self.request.rank_length_penalty
        ranked = sorted(self._choices, key=lambda c: -c.score(penalty))
        return ranked[: self.request.n]

    def _delta(self, output: EngineOutput, choice: ChoiceState, step: ChoiceDelta) -> TokenDelta:
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

    def _final(self, index: int, choice: ChoiceState) -> TokenDelta:
        delta = TokenDelta(
            request_id=self.request.id,
            index=index,
            text="".join(choice.text),
            reasoning="".join(choice.reasoning),
            tool_calls=choice.whole_calls(),
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
        """Add the fields about prompt and length to the first delta of a choice."""
        if delta.index in self._prompt_sent:
            return delta
        self._prompt_sent.add(delta.index)
        request = self.request
        if (
            not request.echo
            and not request.prompt_ids
            and self._prompt_logprobs is None
            and self._clamped is None
        ):
            return delta
        return replace(
            delta,
            prompt_text=self._prompt_text if request.echo else None,
            prompt_token_ids=self._prompt_ids,
            prompt_logprobs=self._prompt_logprobs,
            clamped=self._clamped,
        )


def one_by_one(output: EngineOutput) -> Iterator[EngineOutput]:
    """Split an output of several tokens into outputs of one token each; only the last one can be final."""
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
