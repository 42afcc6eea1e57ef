"""Grammar rules for the thoughts that may begin an answer, and for the token budget that ends them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from serve_app.text.answer.grammar import ANY_TEXT, terms
from serve_app.text.answer.reasoning import ReasoningFormat
from serve_app.text.tokens.tokenizer import Tokenizer

FIELD: Final = "thinking_tokens"  # as the replica calls it
_BLANKS: Final = r"/[ \n]{0,4}/"
_PROMPT_END_TOKENS: Final = 16  # enough for an opening marker and whitespace after it


@dataclass(frozen=True, slots=True)
class ThinkingRules:
    """The thoughts of an answer; `opened`: the prompt has already opened them."""

    format: ReasoningFormat
    opened: bool
    most: int | None = None  # tokens; None: no limit

    @classmethod
    def after(
        cls, prompt_ids: Sequence[int], tokenizer: Tokenizer, format: ReasoningFormat, most: int | None
    ) -> ThinkingRules:
        """The rules for an answer to this prompt."""
        end = tokenizer.decode(prompt_ids[-_PROMPT_END_TOKENS:], skip_special_tokens=False)
        return cls(format, format.opened_by(end), most)

    def can_be_limited(self, token_ids: Mapping[str, int]) -> bool:
        """Whether a grammar can see where the thoughts begin and end. `token_ids`: ids of marker tokens."""
        return self.format.close in token_ids and (self.opened or self.format.open in token_ids)

    def rules(self, token_ids: Mapping[str, int]) -> list[str]:
        """The rule `thoughts`, and the rules that it needs."""
        open, close = self.format.open, self.format.close
        if close not in token_ids:
            inside, ends = "thought", f"suffix={json.dumps(close)}"
        elif self.most is None:
            inside, ends = f"TEXT {terms(close, token_ids)}", ""
        else:
            inside = ("thought " if self.most else "") + terms(close, token_ids)
            ends = f"max_tokens={self.most}" if self.most else ""
        rule = f"{inside} {_BLANKS}" if self.opened else f"({terms(open, token_ids)} {inside} {_BLANKS})?"
        return [f"thoughts: {rule}", *([f"thought[{ends}]: {ANY_TEXT}"] if ends else [])]

    def free(self, token_ids: Mapping[str, int]) -> str:
        """Any tokens except the one that would open thoughts again."""
        open = self.format.open
        return f"<[^{token_ids[open]}]>*" if open in token_ids else "<[*]>*"
