"""A request's prompt -> token ids, and the engine request that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from serve_app import limits
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.text.answer.answer_format import AnswerFormat
from serve_app.text.prompt.fim import FillInTheMiddle
from serve_app.text.prompt.template import ChatTemplate
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import EngineRequest, GenerateRequest, SamplingParams, ToolMode


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Everything that is needed to turn a model's prompts into ids."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    fim: FillInTheMiddle | None
    answers: AnswerFormat

    @classmethod
    def of(cls, tokenizer: Tokenizer, answers: AnswerFormat) -> PromptEncoder:
        """Made from the tokenizer's own files."""
        return cls(tokenizer, ChatTemplate.find(tokenizer), FillInTheMiddle.find(tokenizer), answers)

    async def encode(
        self, request: GenerateRequest, check_fewest: Callable[[int], None] = lambda tokens: None
    ) -> list[int]:
        """The token ids of the prompt; there is at least one.

        Raises InvalidField or PromptTooLong; raises UnsupportedField if the model lacks the chat template or
        the fill-in-the-middle tokens that the prompt needs. `check_fewest` is called before tokenisation with
        a lower bound of the number of prompt tokens, and raises if that is too many.
        """
        prompt = request.prompt
        if prompt.messages is not None:
            if self.template is None:
                raise UnsupportedField("messages", "this model has no chat template; use completions instead")
            return await self.template.render_ids(
                self._messages(request), _shown_tools(request), prompt.templating, check_fewest
            )
        if prompt.suffix is not None:
            if self.fim is None:
                raise UnsupportedField("suffix", "this model has no fill-in-the-middle tokens")
            if prompt.text is None:
                raise InvalidField("suffix", "needs a text prompt")
            check_fewest(self.tokenizer.fewest(len(prompt.text) + len(prompt.suffix)))
            return await self.fim.encode(prompt.text, prompt.suffix)
        if prompt.text is not None:
            check_fewest(self.tokenizer.fewest(len(prompt.text)))
            ids = await self.tokenizer.encode(prompt.text)
        else:
            ids = list(prompt.token_ids or ())
        if not ids:
            raise InvalidField("prompt", "must hold at least one token")
        return ids

    def _messages(self, request: GenerateRequest) -> list[dict[str, Any]]:
        messages = list(request.prompt.messages or ())
        return messages if self.answers.tools is None else list(map(self.answers.tools.to_template, messages))

    async def bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Token sequences that spell `words`, both at the start of a text and after a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, f" {word.lstrip()}"):
                ids = tuple(await self.tokenizer.encode(text, add_special_tokens=False))
                if ids:
                    found[ids] = None
        return tuple(found)

    async def biased(self, sampling: SamplingParams, words: tuple[tuple[str, float], ...]) -> SamplingParams:
        """`sampling`, with each word's number as the bias of the word's tokens; -inf excludes the tokens."""
        bias, banned = list(sampling.logit_bias), list(sampling.bad_words)
        for word, number in words:
            for token in await self.tokenizer.encode(word, add_special_tokens=False):
                if number == -math.inf:
                    banned.append((token,))
                else:
                    bias.append((token, number))
        return replace(sampling, logit_bias=tuple(bias), bad_words=tuple(banned))

    async def engine_request(self, request: GenerateRequest, token_ids: list[int]) -> EngineRequest:
        """The token-level request. The engine generates `best_of` sequences, of at least one token each.

        A beam search has a width instead of `best_of`, and does its own ranking. Raises InvalidField.
        """
        penalty, bound = request.rank_length_penalty, limits.MAX_LENGTH_PENALTY
        if penalty is not None and not -bound <= penalty <= bound:
            raise InvalidField("length_penalty", f"must be from {-bound:g} to {bound:g}.", joint=" ")
        sampling = request.sampling
        if request.bad_words:
            sampling = replace(
                sampling, bad_words=sampling.bad_words + await self.bad_words(request.bad_words)
            )
        if request.biased_words:
            sampling = await self.biased(sampling, request.biased_words)
        sequences = num_sequences(request)
        return EngineRequest(
            id=request.id,
            token_ids=tuple(token_ids),
            sampling=sampling,
            n=sequences,
            logprobs=0 if request.logprobs is None and is_ranked(request) else request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            context_logits=request.context_logits,
            generation_logits=request.generation_logits,
            bias=request.bias,
            prompt_table=request.prompt_table,
            draft=request.draft,
            beam=request.beam,
            timings=request.per_token,
            progress=request.progress,
            priority=request.priority,
            timeout_s=request.timeout_s,
            salt=request.salt,
        )


def is_ranked(request: GenerateRequest) -> bool:
    """Whether the choices are ranked by likelihood, so that all sequences must end before any is known.

    True if there are more candidates than choices, or if a request that does not stream has a length penalty.
    """
    if num_sequences(request) > request.n:
        return True
    return request.rank_length_penalty is not None and not request.stream and request.n > 1


def num_sequences(request: GenerateRequest) -> int:
    """The number of sequences that the engine reports: hypotheses of a search, otherwise all candidates."""
    return request.n if request.beam is not None else request.best_of or request.n


def _shown_tools(request: GenerateRequest) -> list[dict[str, Any]]:
    """The tools for the template, without their `strict`; none if calls are forbidden."""
    if request.tool_choice.mode is ToolMode.NONE:
        return []
    functions = [tool["function"] for tool in request.prompt.tools]
    return [
        {"type": "function", "function": {key: function[key] for key in function if key != "strict"}}
        for function in functions
    ]
