"""Questions that need no engine: the tokens of a prompt, the text of tokens, watermarks.

Long questions are answered in the tokenizer's threads. Does not depend on sequences.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from serve_app.engine.sampling.watermark import detect
from serve_app.errors import InvalidField, PromptTooLong, UnsupportedField
from serve_app.limits import MAX_PROMPT_CHARS, MAX_QUESTION_CHARS, MAX_QUESTION_TOKENS
from serve_app.replica.prompt import PromptEncoder
from serve_app.text.tokens.control_tokens import count_chars
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import (
    DetectRequest,
    Detokenized,
    DetokenizeRequest,
    GenerateRequest,
    Question,
    TokenizeRequest,
    Tokens,
    WatermarkScore,
)
from serve_app.types.question import ReplyT

_DECODED_AT_ONCE = 4_096  # tokens, between two checks of the length of the text


class Questions:
    """Answers questions about the text and tokens of one model that generates."""

    def __init__(self, encoder: PromptEncoder, *, vocab_size: int, watermark_key: int) -> None:
        self._encoder = encoder
        self._tokenizer = encoder.tokenizer
        self._vocab_size = vocab_size
        self._watermark_key = watermark_key

    async def answer(self, question: Question[ReplyT]) -> ReplyT:
        """Raises InvalidField, PromptTooLong, or, for any other question, UnsupportedField."""
        if isinstance(question, TokenizeRequest):
            return cast("ReplyT", await told_tokens(self._tokenizer, await self._ids(question), question))
        if isinstance(question, DetokenizeRequest):
            return cast("ReplyT", await told_text(self._tokenizer, self._vocab_size, question))
        if isinstance(question, DetectRequest):
            return cast("ReplyT", await self._watermark(question))
        raise UnsupportedField("model", "it generates text and does not embed")

    async def _ids(self, question: TokenizeRequest) -> list[int]:
        prompt, tokenizer = question.prompt, self._tokenizer
        if prompt.text is not None:
            check_answer(tokenizer.fewest(len(prompt.text)), "prompt", "at least ")
            return await tokenizer.encode(prompt.text, add_special_tokens=question.add_special_tokens)
        if count_chars(prompt.messages or ()) > MAX_QUESTION_CHARS:
            raise PromptTooLong("messages", f"at most {MAX_QUESTION_CHARS} characters")
        asked = GenerateRequest(id=question.id, model="", prompt=prompt)
        return await self._encoder.encode(asked, partial(check_answer, param="messages", about="at least "))

    async def _watermark(self, question: DetectRequest) -> WatermarkScore:
        ids = await self._tokenizer.encode(question.text, add_special_tokens=False)
        found = await self._tokenizer.off_loop(len(ids), lambda: detect(ids, key=self._watermark_key))
        return WatermarkScore(
            z_score=found.z_score, green_fraction=found.green_fraction, num_tokens=found.num_tokens
        )


def check_answer(tokens: int, param: str, about: str = "") -> None:
    """Raise PromptTooLong if there are more tokens than an answer may list. `about` is the text before the
    number in the message."""
    if tokens > MAX_QUESTION_TOKENS:
        raise PromptTooLong(
            param, f"has {about}{tokens} tokens; an answer holds at most {MAX_QUESTION_TOKENS}"
        )


async def told_tokens(tokenizer: Tokenizer, ids: list[int], question: TokenizeRequest) -> Tokens:
    """The answer to a question about a prompt with these ids. Raises PromptTooLong."""
    check_answer(len(ids), "messages" if question.prompt.text is None else "prompt")
    if question.longest is not None:
        ids = tokenizer.cut(ids, question.longest)
    texts = None
    if question.texts:
        texts = await tokenizer.off_loop(len(ids), lambda: tuple(map(tokenizer.token_text, ids)))
    return Tokens(token_ids=tuple(ids), texts=texts)


async def told_text(tokenizer: Tokenizer, vocab_size: int, question: DetokenizeRequest) -> Detokenized:
    """The answer to a question about these ids. Raises InvalidField."""
    ids = question.token_ids
    if max(ids, default=0) >= vocab_size:
        raise InvalidField("tokens", f"must hold ids below {vocab_size}, the size of the model's vocabulary")

    def work() -> str:
        detokenizer = tokenizer.detokenizer(skip_special_tokens=question.skip_special_tokens)
        parts: list[str] = []
        num_chars = 0
        for start in range(0, len(ids), _DECODED_AT_ONCE):
            parts.append(detokenizer.push(ids[start : start + _DECODED_AT_ONCE]))
            num_chars += len(parts[-1])
            if num_chars > MAX_PROMPT_CHARS:
                raise InvalidField("tokens", f"their text must have at most {MAX_PROMPT_CHARS} characters")
        return "".join(parts) + detokenizer.flush()

    return Detokenized(text=await tokenizer.off_loop(min(len(ids), MAX_PROMPT_CHARS), work))
