"""The text of an answer -> the model's thoughts, and its text.

A model thinks first, between two markers; some templates write the first marker
themselves. Markers, and whitespace after them, belong to neither part. Independent of tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serve_app.text.answer.source import BLANK, Malformed, Scan, Source, find_marker
from serve_app.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The markers around a model's thoughts."""

    name: str
    open: str
    close: str

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that must not be skipped even if they are special."""
        return (self.open, self.close)

    def opened_by(self, prompt: str) -> bool:
        """Whether the answer to `prompt` begins between the markers; only its last characters are needed."""
        return prompt.rstrip(BLANK).endswith(self.open)


_FORMATS: Final = (
    ReasoningFormat("think", "<think>", "</think>"),  # DeepSeek-R1, Qwen3 and most others
    ReasoningFormat("magistral", "[THINK]", "[/THINK]"),
)
FORMATS: Final[Mapping[str, ReasoningFormat]] = {each.name: each for each in _FORMATS}


def find_reasoning_format(setting: str, tokenizer: Tokenizer) -> ReasoningFormat | None:
    """The format named by `setting`; with `auto`, the format detected in the model's files."""
    if setting != "auto":
        return FORMATS.get(setting)
    template = "\n".join(tokenizer.templates.values())
    for format in FORMATS.values():
        if format.close in template or tokenizer.token_id(format.close) is not None:
            return format
    return None


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A piece of an answer; the reasoning comes before the text."""

    reasoning: str
    text: str


class ReasoningParser:
    """Reads one answer. Takes linear time; holds back less than a marker, and whitespace at the start.

    >>> thought = parser.feed(text)  # until the answer ends
    >>> tail = parser.end()
    """

    def __init__(self, format: ReasoningFormat, *, opened: bool) -> None:
        """`opened`: the prompt ended with the opening marker."""
        self._format = format
        self._opened = opened
        self.ended = False  # everything from here on is text
        self._source = Source()
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._run = self._parse()
        next(self._run)

    def feed(self, text: str) -> ReasoningPart:
        """Take more text, and return the parts that are certain."""
        if text:
            self._source.push(text)
            next(self._run)
        return self._take()

    def end(self) -> ReasoningPart:
        """The held text, at the end of the answer. Call it once."""
        self._source.end()
        for _ in self._run:
            pass
        return self._take()

    def _take(self) -> ReasoningPart:
        thought = ReasoningPart("".join(self._reasoning), "".join(self._text))
        self._reasoning.clear()
        self._text.clear()
        return thought

    def _parse(self) -> Scan[None]:
        source = self._source
        if (yield from self._opens()):
            yield from self._skip_blank()
            yield from self._reason()
            yield from self._skip_blank()
        self.ended = True
        while True:
            self._text.append(source.pass_on(len(source.text)))
            if not (yield from source.more()):
                return

    def _opens(self) -> Scan[bool]:
        """Whether the answer begins with reasoning. Some models repeat the template's marker."""
        source = self._source
        try:
            yield from source.blank()
            yield from source.expect(self._format.open)
        except Malformed:
            source.put_back()
            return self._opened
        source.release()
        return True

    def _reason(self) -> Scan[None]:
        source, marker = self._source, self._format.close
        while True:
            count, found = find_marker(source, marker)
            self._reasoning.append(source.pass_on(count))
            if found:
                source.pass_on(len(marker))
                return
            if not (yield from source.more()):
                self._reasoning.append(source.pass_on(len(source.text)))
                return

    def _skip_blank(self) -> Scan[None]:
        while (char := (yield from self._source.peek())) and char in BLANK:
            self._source.pass_on(1)
