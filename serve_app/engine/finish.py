"""Why and when sequences, requests and the engine end. Stop strings are found in the replica, not here."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Set
from dataclasses import dataclass

from serve_app.engine.sequence import Sequence
from serve_app.types import EngineOutput, FinishReason, LoopRule, SamplingParams

Finish = FinishReason | None  # None: the sequence goes on


@dataclass(frozen=True, slots=True)
class EndRule:
    """Decides when the sequences of one engine end."""

    eos_token_ids: Set[int]

    def reason(self, sequence: Sequence, token: int, room: int) -> Finish:
        """The reason why `sequence` ends if its next token is `token`; None if `sequence` goes on.

        `room`: the most output tokens for which the context window has room.
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
        """Whether the pending tokens end `sequence`, whatever their values are; `window` as in `append`."""
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
        """All tokens that end a sequence by themselves, or as the last token of a stop sequence."""
        last = (stop[-1] for stop in sampling.stop_sequences)
        return {*sampling.stop_token_ids, *last, *(() if sampling.ignore_eos else self.eos_token_ids)}


def ends_in_loop(before: list[int], token: int, num_output: int, rule: LoopRule) -> bool:
    """Whether an output ends with a pattern that repeats as many times as `rule` allows.

    `before`: the prompt and the output up to its last token, `token`; `num_output`: the number of output
    tokens.
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


class Deadlines:
    """The deadlines of the requests of one engine, on its clock.

    When a request ends before its deadline, the entry stays until the deadline.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []  # (due, arrival, request id)

    def add(self, due: float, arrival: int, request_id: str) -> None:
        """Set the deadline `due` for a request; `arrival` is its serial number."""
        heapq.heappush(self._heap, (due, arrival, request_id))

    def take_due(self, now: float) -> list[tuple[int, str]]:
        """(arrival, request id) of every deadline that has passed; each is returned once."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1:])
        return due


class EngineDead(Exception):
    """The engine cannot run any more. `outputs` end every request that the engine had."""

    def __init__(self, message: str, outputs: list[EngineOutput]) -> None:
        super().__init__(message)
        self.outputs = outputs
