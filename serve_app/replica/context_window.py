"""Fits a request into a model's context window and its limit of output.

Prompt or output is shortened only where the dialect allows it (`GenerateRequest.overflow`).
Everything else is refused, here or by the engine's own check, in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from serve_app.errors import InvalidField, PromptTooLong
from serve_app.types import GenerateRequest, Overflow


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The limits of a model, in tokens."""

    context: int  # prompt and output of one sequence
    output: int | None = None  # the operator's limit for the output of one sequence
    default_output: int | None = None  # the model's own limit, for a request that leaves it to the model

    def most_prompt(self, request: GenerateRequest) -> int | None:
        """The tokens of the longest prompt that fits; None where a longer prompt is shortened."""
        is_cut = request.truncate_prompt is not None or request.overflow is Overflow.TRUNCATE
        return None if is_cut else self.context - 1

    def fit(self, request: GenerateRequest, token_ids: list[int]) -> tuple[GenerateRequest, list[int]]:
        """The request and its prompt, shortened where allowed. Raises InvalidField or PromptTooLong."""
        token_ids = self._shortened(request, token_ids)
        return self._limited(request, len(token_ids)), token_ids

    def _shortened(self, request: GenerateRequest, token_ids: list[int]) -> list[int]:
        keep = request.truncate_prompt
        if keep is not None:
            token_ids = token_ids[-(self.context - 1 if keep == -1 else keep) :]
        if request.overflow is Overflow.TRUNCATE and len(token_ids) >= self.context:
            quarter = max(1, self.context // 4)
            room = min(request.sampling.max_tokens or quarter, quarter)
            token_ids = token_ids[-max(1, self.context - room) :]
        if request.overflow is Overflow.WINDOW and self.output is not None and self.output < self.context:
            most = self.context - self.output
            if len(token_ids) > most:
                raise PromptTooLong(
                    "prompt",
                    f"The prompt has {len(token_ids)} tokens, but at most {most} fit beside an output of "
                    f"{self.output}.",
                    joint=None,
                )
        return token_ids

    def _limited(self, request: GenerateRequest, prompt: int) -> GenerateRequest:
        asked, how = request.sampling.max_tokens, request.overflow
        if asked is not None and self.output is not None and asked > self.output:
            if how in (Overflow.ERROR, Overflow.WINDOW):
                raise InvalidField("max_tokens", f"must be from 1 to {self.output}.", joint=" ")
            asked = self.output
        most = self._default(request) if asked is None else asked
        room = self.context - prompt
        if most is not None and room >= 1 and (how is not Overflow.ERROR or asked is None):
            most = min(most, room)
        if most == request.sampling.max_tokens:
            return request
        return replace(request, sampling=replace(request.sampling, max_tokens=most))

    def _default(self, request: GenerateRequest) -> int | None:
        """The most output of a request that asks for no number of tokens."""
        own = self.default_output if "max_tokens" in request.left_to_model else None
        return min((most for most in (own, self.output) if most is not None), default=None)
