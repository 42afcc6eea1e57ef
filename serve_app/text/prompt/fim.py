"""Fill-in-the-middle prompts: the text before and after a gap -> a prompt for the gap.

Contains the token names of the common model families; does not handle requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.text.tokens.tokenizer import Tokenizer, check_prompt_chars

# (before the prefix, before the suffix, before the middle), by family
_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)


@dataclass(frozen=True, slots=True)
class FillInTheMiddle:
    """The three tokens that ask a model to fill in a gap."""

    tokenizer: Tokenizer
    prefix_id: int
    suffix_id: int
    middle_id: int

    @classmethod
    def find(cls, tokenizer: Tokenizer) -> FillInTheMiddle | None:
        """The tokenizer's own tokens, or None if it has no tokens that we recognise."""
        for names in _FAMILIES:
            prefix, suffix, middle = map(tokenizer.token_id, names)
            if prefix is not None and suffix is not None and middle is not None:
                return cls(tokenizer, prefix, suffix, middle)
        return None

    async def encode(self, prefix: str, suffix: str) -> list[int]:
        """BOS if the model wants it, then the prefix and the suffix, each after its token.

        Control tokens in either text become plain text. Raises PromptTooLong and InvalidField.
        """
        return await self.tokenizer.off_loop(len(prefix) + len(suffix), lambda: self._encode(prefix, suffix))

    def _encode(self, prefix: str, suffix: str) -> list[int]:
        tokenizer = self.tokenizer
        check_prompt_chars(len(prefix) + len(suffix), param="prompt")
        opening = tokenizer.encode_now("")[:1]
        bos = opening if opening == [tokenizer.bos_token_id] else []
        before = tokenizer.encode_pieces(tokenizer.controls.split(prefix))
        after = tokenizer.encode_pieces(tokenizer.controls.split(suffix), continues=True)
        return [*bos, self.prefix_id, *before, self.suffix_id, *after, self.middle_id]
