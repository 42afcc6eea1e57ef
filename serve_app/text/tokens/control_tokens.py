"""Keeps the text of users from becoming control tokens.

A control token is one that structures a prompt: every special token, and every
added token written like one (`<|...|>`), since some models do not flag their role tokens as special. A chat
template mixes control tokens with the strings of users; in the rendered prompt a user's `<|im_start|>` looks
like the template's. So, before rendering, a random mark is put *inside* each control token that a user
wrote. The token then no longer matches, however the template cuts, escapes or joins it. After rendering,
`split` finds the marks.

Covered: control tokens inside any one string or key of messages and tools.
Not covered: a token that a template puts together from two strings of a user.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, NamedTuple

import tokenizers

from serve_app.errors import InvalidField
from serve_app.limits import MAX_CONTROL_TOKENS_IN_CHAT

_MARK_CHARS = 20
_LOOKS_LIKE_CONTROL = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)


class PromptPiece(NamedTuple):
    """A stretch of a prompt; `plain`: a user's own words, never a control token."""

    text: str
    plain: bool


class ControlMarks:
    """The marks of one rendering: put into the strings before rendering, found in the prompt afterwards."""

    def __init__(self, controls: ControlTokens) -> None:
        self._controls = controls
        # Digits only, since no filter of a template (case, JSON, HTML) changes them. They cannot be guessed.
        self._mark = "".join(secrets.choice("0123456789") for _ in range(_MARK_CHARS))
        self.num_added_chars = 0  # by which the marks lengthen the strings

    def put(self, value: Any) -> Any:
        """`value` (plain JSON) with every control token in its strings and keys marked.

        Raises InvalidField if there are more than MAX_CONTROL_TOKENS_IN_CHAT control tokens, or if some text
        becomes a control token only through the tokenizer's normalisation.
        """
        if isinstance(value, str):
            return self._put_text(value)
        if isinstance(value, dict):
            return {self.put(key): self.put(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.put(item) for item in value]
        return value

    def split(self, rendered: str) -> list[PromptPiece]:
        """The rendered prompt without marks, as the pieces that must be encoded separately."""
        if not self.num_added_chars:
            return [PromptPiece(rendered, plain=False)]
        pieces: list[PromptPiece] = []
        text, *others = rendered.split(self._mark)
        for other in others:
            match = self._controls.pattern.match(text[-1:] + other)
            if match is None:  # the template cut the token; its parts must still not be joined
                pieces.append(PromptPiece(text, plain=False))
                text = other
                continue
            pieces += [PromptPiece(text[:-1], plain=False), PromptPiece(match[0], plain=True)]
            text = other[len(match[0]) - 1 :]
        pieces.append(PromptPiece(text, plain=False))
        return [piece for piece in pieces if piece.text]

    def _put_text(self, text: str) -> str:
        controls = self._controls
        if controls.hidden_in(text):
            raise InvalidField("messages", "a string holds a control token of this model in disguise")
        marked, count = controls.pattern.subn(self._insert, text)
        self.num_added_chars += count * _MARK_CHARS
        if self.num_added_chars > MAX_CONTROL_TOKENS_IN_CHAT * _MARK_CHARS:
            raise InvalidField(
                "messages", f"at most {MAX_CONTROL_TOKENS_IN_CHAT} control tokens of the model may be quoted"
            )
        return marked

    def _insert(self, match: re.Match[str]) -> str:
        return f"{match[0][0]}{self._mark}{match[0][1:]}"


def count_chars(value: Any) -> int:
    """Characters in all strings and keys of plain JSON."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(count_chars(key) + count_chars(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(count_chars, value))
    return 0


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        added = backend.get_added_tokens_decoder()
        tokens = {
            i: t
            for i, t in added.items()
            if i in special_ids or t.special or _LOOKS_LIKE_CONTROL.fullmatch(t.content)
        }
        self.ids = frozenset(tokens)
        longest_first = sorted((t.content for t in tokens.values() if t.content), key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        # Only these are looked for in normalised text, where other spellings may match too.
        self._normalizer = backend.normalizer if any(t.normalized for t in tokens.values()) else None

    def hidden_in(self, text: str) -> bool:
        """Whether normalising `text` yields control tokens that `text` itself does not contain."""
        if self._normalizer is None or not text:
            return False
        normalized = self._normalizer.normalize_str(text)
        return len(self.pattern.findall(normalized)) > len(self.pattern.findall(text))

    def split(self, text: str) -> list[PromptPiece]:
        """A user's raw string, in pieces that do not become control tokens when encoded."""
        pieces: list[PromptPiece] = []
        end = 0
        for match in self.pattern.finditer(text):
            pieces += [PromptPiece(text[end : match.start()], plain=False), PromptPiece(match[0], plain=True)]
            end = match.end()
        pieces.append(PromptPiece(text[end:], plain=False))
        return [piece for piece in pieces if piece.text]
