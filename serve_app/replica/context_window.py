"""Fits a request into a model's context window and its output limit.

The prompt or the output is shortened only where the request allows it (`GenerateRequest.overflow`,
`truncate_prompt`). Everything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from serve_app.errors import InvalidField, PromptTooLong
from serve_app.types import Beam, GenerateRequest, Overflow

_REFUSES = (Overflow.ERROR, Overflow.OPERATOR)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A request as its model runs it."""

    request: GenerateRequest
    token_ids: list[int]
    clamped: int | None = None  # the limit of output tokens, if lower than requested


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The limits of a model, in tokens."""

    context: Callable[[Beam | None], int]  # prompt and output of one sequence; a search may have less
    output: int | None = None  # the operator's limit for the output of one sequence
    default_output: int | None = None  # the model's own limit, for a request that leaves it to the model

    def check_fewest(self, request: GenerateRequest, tokens: int) -> None:
        """Raise PromptTooLong if a prompt of at least `tokens` tokens cannot fit."""
        is_cut = request.truncate_prompt is not None or request.overflow is Overflow.TRUNCATE
        window = self.context(request.beam)
        if not is_cut and tokens > window:
            raise PromptTooLong.for_window(window, tokens, what=_what(request), at_least=True)

    def fit(self, request: GenerateRequest, token_ids: list[int]) -> Fitted:
        """The request and its prompt, shortened where allowed. Raises InvalidField or PromptTooLong."""
        window = self.context(request.beam)
        most = self._output(request)
        kept = self._shortened(request, token_ids, window, most)
        what = _what(request)
        room = window - len(kept)
        if room < (0 if most == 0 else 1):
            raise PromptTooLong.for_window(window, len(kept), what=what)
        asked = request.sampling.max_tokens
        if most is not None and most > room:
            if asked is not None and request.overflow in _REFUSES:
                raise PromptTooLong.beside_output(window, len(kept), most, what=what)
            most = room
        if most == asked:
            return Fitted(request, kept)
        limited = replace(request, sampling=replace(request.sampling, max_tokens=most))
        return Fitted(limited, kept, clamped=None if asked is None else most)

    def _output(self, request: GenerateRequest) -> int | None:
        """The output limit from request, model and operator; None if only the window limits the output.

        Raises InvalidField.
        """
        asked = request.sampling.max_tokens
        if asked is None:
            own = self.default_output if "max_tokens" in request.left_to_model else None
            return min((most for most in (own, self.output) if most is not None), default=None)
        if self.output is None or asked <= self.output:
            return asked
        if request.overflow in (*_REFUSES, Overflow.WINDOW):
            raise InvalidField("max_tokens", f"must be from 1 to {self.output}.", joint=" ")
        return self.output

    def _shortened(
        self, request: GenerateRequest, token_ids: list[int], window: int, most: int | None
    ) -> list[int]:
        quarter = max(1, window // 4)
        keep = request.truncate_prompt
        if keep is not None:
            # A length that fills the whole window is cut to a quarter of it, to leave room for the prompt.
            beside = 1 if most is None else most if most < window else quarter
            token_ids = token_ids[-(window - beside if keep == -1 else keep) :]
        if request.overflow is Overflow.TRUNCATE and len(token_ids) >= window:
            room = min(request.sampling.max_tokens or quarter, quarter)
            token_ids = token_ids[-max(1, window - room) :]
        if request.overflow is Overflow.WINDOW and self.output is not None and self.output < window:
            fits = window - self.output
            if len(token_ids) > fits:
                raise PromptTooLong(
                    "prompt",
                    f"The prompt has {len(token_ids)} tokens, but at most {fits} fit beside an output of "
                    f"{self.output}.",
                    joint=None,
                )
        return token_ids


def _what(request: GenerateRequest) -> str:
    return "prompt" if request.prompt.messages is None else "messages"
