"""Why a sequence ends with a token, as far as tokens tell. Stop strings are the replica's."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from serve_app.engine.sequence import Sequence
from serve_app.types import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class EndRule:
    """When the sequences of one engine end."""

    eos_token_ids: Set[int]

    def reason(self, line: Sequence, token: int, room: int) -> FinishReason | None:
        """Of `token`, the next one of `line`; the window leaves `room` tokens for the whole output."""
        sampling, num_output = line.sampling, line.num_output + 1
        if token in self.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.EOS
        if token in sampling.stop_token_ids:
            return FinishReason.STOP
        if any(stop[-1] == token and line.output_ends_with(stop[:-1]) for stop in sampling.stop_sequences):
            return FinishReason.STOP
        if sampling.max_tokens is not None and num_output >= sampling.max_tokens:
            return FinishReason.LENGTH
        if num_output >= room:
            return FinishReason.CONTEXT
        return None

    def end_tokens(self, sampling: SamplingParams) -> set[int]:
        """All tokens that end a sequence, or may end it after others."""
        last = (stop[-1] for stop in sampling.stop_sequences)
        return {*sampling.stop_token_ids, *last, *(() if sampling.ignore_eos else self.eos_token_ids)}
