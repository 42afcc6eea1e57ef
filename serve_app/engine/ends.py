"""Why a sequence ends with a token, as far as tokens tell. Stop strings are the replica's."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from serve_app.types import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class EndRule:
    """When the sequences of one engine end."""

    eos_token_ids: Set[int]

    def reason(self, sampling: SamplingParams, token: int, num_output: int, room: int) -> FinishReason | None:
        """Of `token`, the `num_output`-th of the `room` tokens that the window leaves for the output."""
        if token in self.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.EOS
        if token in sampling.stop_token_ids:
            return FinishReason.STOP
        if sampling.max_tokens is not None and num_output >= sampling.max_tokens:
            return FinishReason.LENGTH
        if num_output >= room:
            return FinishReason.CONTEXT
        return None

    def end_tokens(self, sampling: SamplingParams) -> set[int]:
        """All tokens that end a sequence."""
        return {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.eos_token_ids)}
