"""Texts and an instruction -> the token ids that a model embeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from serve_app.errors import InvalidField, PromptTooLong, UnsupportedField
from serve_app.limits import MAX_PROMPT_CHARS
from serve_app.models.sentence import SentenceFormat
from serve_app.replica.questions import check_answer
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import EmbedRequest, TokenizeRequest

FIELD: Final = "input"


@dataclass(frozen=True, slots=True)
class EmbeddingPrompt:
    """How one model's texts become ids, within its window."""

    tokenizer: Tokenizer
    sentence: SentenceFormat
    template: str | None  # for an instruction and an input
    window: int  # tokens
    vocab_size: int

    async def encode(self, request: EmbedRequest) -> list[Sequence[int]]:
        """The ids of each input, at least one per input.

        Raises InvalidField or PromptTooLong; raises UnsupportedField for an instruction that the model's
        pooling would leave out.
        """
        if not request.inputs:
            raise InvalidField(FIELD, "must hold at least one text")
        if request.instruction and not self.sentence.pools_prompt:
            raise UnsupportedField("instruction", "this model's pooling has no place for one")
        size = sum(len(each) for each in request.inputs if isinstance(each, str))
        if size > MAX_PROMPT_CHARS:
            raise PromptTooLong.of_chars(FIELD, MAX_PROMPT_CHARS)
        return await self.tokenizer.off_loop(
            size, lambda: [self._ids(request, each) for each in request.inputs]
        )

    async def tokens(self, question: TokenizeRequest) -> list[int]:
        """The ids, of any number, of a text without an instruction.

        Raises UnsupportedField for a chat, and InvalidField or PromptTooLong for a text.
        """
        text = question.prompt.text
        if text is None:
            raise UnsupportedField("messages", "this model embeds texts and has no chats")
        check_answer(self.tokenizer.fewest(len(text)), "prompt", "at least ")
        if not question.add_special_tokens:
            return await self.tokenizer.encode(self._spelt(text), add_special_tokens=False)
        return await self.tokenizer.encode(self._spelt(self.sentence.prompt + text))

    def _spelt(self, text: str) -> str:
        return text.lower() if self.sentence.lower_case else text

    def _ids(self, request: EmbedRequest, text: str | tuple[int, ...]) -> Sequence[int]:
        if isinstance(text, str):
            most = None if request.truncate else self.window
            ids = self._encode(self._with_instruction(text, request.instruction), most)
        else:
            ids = text
        if not ids:
            raise InvalidField(FIELD, "every text must hold at least one token")
        if isinstance(text, tuple) and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            raise InvalidField(
                FIELD, f"token ids must be from 0 to {self.vocab_size - 1}, the model's vocabulary"
            )
        if len(ids) <= self.window:
            return ids
        if not request.truncate:
            raise PromptTooLong.for_window(self.window, len(ids), what="text", param=FIELD, joint=": ")
        return self.tokenizer.cut(ids, self.window) if isinstance(text, str) else ids[: self.window]

    def _encode(self, text: str, most: int | None) -> Sequence[int]:
        text = self._spelt(text)
        fewest = self.tokenizer.fewest(len(text))
        if most is not None and fewest > most:
            raise PromptTooLong.for_window(most, fewest, what="text", param=FIELD, at_least=True, joint=": ")
        try:
            return self.tokenizer.encode_now(text)
        except InvalidField as error:
            raise InvalidField(FIELD, "must be valid Unicode text") from error

    def _with_instruction(self, text: str, instruction: str | None) -> str:
        if not instruction:
            return self.sentence.prompt + text
        if self.template is not None:
            # One pass over the template: an instruction or input may contain the other's placeholder.
            head, _, tail = self.template.partition("{input}")
            return (
                head.replace("{instruction}", instruction) + text + tail.replace("{instruction}", instruction)
            )
        return instruction + text if instruction[-1].isspace() else f"{instruction} {text}"
