"""Why a sequence ends with a token. Knows tokens only: stop strings are found in the replica."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from serve_app.engine.sequence import Sequence
from serve_app.types import FinishReason, LoopRule, SamplingParams

Finish = FinishReason | None  # None: the sequence goes on


@dataclass(frozen=True, slots=True)
class EndRule:
    """When the sequences of one engine end."""

    eos_token_ids: Set[int]

    def reason(self, sequence: Sequence, token: int, room: int) -> Finish:
        """Why `sequence` ends if `token` comes next; None: it does not end.

        The context window has room for `room` tokens of output in all.
        """
        sampling, num_output = sequence.sampling, sequence.num_output + 1
        if token in self.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.EOS
        if token in sampling.stop_token_ids:
            return FinishReason.STOP
        if any(
            stop[-1] == token and sequence.output_ends_with(stop[:-1]) for stop in sampling.stop_sequences
        ):
            return FinishReason.STOP
        loop = sampling.loop if num_output >= sampling.min_tokens else None
        if loop is not None and ends_in_loop(sequence.token_ids, token, num_output, loop):
            return FinishReason.REPETITION
        if sampling.max_tokens is not None and num_output >= sampling.max_tokens:
            return FinishReason.LENGTH
        if num_output >= room:
            return FinishReason.CONTEXT
        return None

    def ends_pending(self, sequence: Sequence, window: int) -> bool:
        """Whether `sequence` ends with its pending tokens, whichever they are; `window` as in `append`."""
        num_output, most = sequence.num_tokens - sequence.prompt_len, sequence.sampling.max_tokens
        return sequence.num_tokens >= window or (most is not None and num_output >= most)

    def append(self, sequence: Sequence, tokens: Iterable[int], window: int) -> tuple[int, Finish]:
        """Append `tokens` up to the sequence's end; returns how many were appended, and why it ended.

        `window` is the most tokens that prompt and output have together.
        """
        room, count = window - sequence.prompt_len, 0
        for token in tokens:
            finish = self.reason(sequence, token, room)
            sequence.token_ids.append(token)
            count += 1
            if finish is not None:
                return count, finish
        return count, None

    def end_tokens(self, sampling: SamplingParams) -> set[int]:
        """All tokens that end a sequence by themselves, or as the last one of a stop sequence."""
        last = (stop[-1] for stop in sampling.stop_sequences)
        return {*sampling.stop_token_ids, *last, *(() if sampling.ignore_eos else self.eos_token_ids)}


def ends_in_loop(before: list[int], token: int, num_output: int, rule: LoopRule) -> bool:
    """Whether an output ends with a pattern as often in a row as `rule` allows at most.

    `before`: the prompt and the output without `token`, its last one; `num_output`: tokens of the output.
    """
    end = len(before)
    start = end - min(rule.most, num_output // rule.count)
    while True:
        # The pattern has one token at its end, so it can only be as long as that token is away.
        try:
            start = before.index(token, start, end - rule.least + 1)
        except ValueError:
            return False
        size = end - start
        repeats = before[end - (rule.count - 1) * size + 1 : end]
        if repeats == before[end - rule.count * size + 1 : end - size]:
            return True
        start += 1
