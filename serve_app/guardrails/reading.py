"""A text as the rules read it, alongside the text as it was written.

Rules read compatibility forms as plain characters (NFKC), skip invisible characters such as a zero-width
space, and read a JSON escape as the character that it stands for. Text that passes the rules is sent as it
was written. The result does not depend on where a stream is cut. Independent of the rules.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from dataclasses import dataclass
from typing import Final

_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"  # the first half of a pair of surrogates
_CODE_POINT: Final = re.compile(rf"{_HIGH}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}|\\u[0-9a-fA-F]{{4}}")
_SHORT: Final = re.compile(r'\\["\\/bfnrt]')
_SHORT_CHARS: Final = dict(zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True))
# The beginning of an escape at the end of a text, which may go on.
_OPEN: Final = re.compile(rf"(?:{_HIGH})?\\(?:u[0-9a-fA-F]{{0,3}})?\Z|{_HIGH}\Z")
_NO_BREAK: Final = "\u00a0"  # the rules tell it from a space
_PLAIN: Final = re.compile(r"[\x00-\x5b\x5d-\x7f]+")  # ASCII without the backslash: read as it is written


def normalised(text: str) -> str:
    """`text` as the rules read it."""
    reading = Reading()
    return reading.push(text) + reading.end()


@dataclass(slots=True)
class _Piece:
    """Written text that is read as `chars` characters; `is_plain`: it has as many, so it may be split."""

    written: str
    chars: int
    is_plain: bool = False


class Reading:
    """One text that arrives in parts."""

    def __init__(self, *, is_json: bool = False) -> None:
        """`is_json`: the text is JSON, so `\\n` and the like are escapes too."""
        self._is_json = is_json
        self._open = ""  # not read yet: what follows may belong to it
        self._unseen = ""  # written before the next character that is read, and read as nothing
        self._pieces: deque[_Piece] = deque()  # read, but not taken yet

    def push(self, text: str) -> str:
        """The text that can be read so far."""
        text, self._open = self._open + text, ""
        return self._read(text, is_end=False)

    def end(self) -> str:
        """The rest of the text, as the rules read it."""
        text, self._open = self._open, ""
        read = self._read(text, is_end=True)
        if self._unseen:
            self._pieces.append(_Piece(self._unseen, 0))
            self._unseen = ""
        return read

    def hidden(self, text: str) -> str:
        """`text` as the rules read it; `text` itself is never sent."""
        read = normalised(text)
        self._pieces.append(_Piece("", len(read)))
        return read

    def take(self, count: int) -> str:
        """The written text of the next `count` characters that were read."""
        taken = []
        while self._pieces and (count > 0 or self._pieces[0].chars == 0):
            piece = self._pieces[0]
            if piece.is_plain and piece.chars > count:
                taken.append(piece.written[:count])
                piece.written, piece.chars = piece.written[count:], piece.chars - count
                break
            if piece.chars > count:  # its text goes with its first character; the other characters follow
                taken.append(piece.written)
                piece.written, piece.chars = "", piece.chars - count
                break
            taken.append(self._pieces.popleft().written)
            count -= piece.chars
        return "".join(taken)

    def _read(self, text: str, *, is_end: bool) -> str:
        read, place = [], 0
        while place < len(text):
            plain = _PLAIN.match(text, place)
            if plain is not None:
                end = plain.end()
                if end < len(text) or (not is_end and text[end - 1].isalpha()):
                    end -= 1  # a mark that combines with the last character may follow
                if end > place:
                    read.append(self._plain(text[place:end]))
                    place = end
                    continue
            unit_end = self._unit_end(text, place, is_end=is_end)
            if unit_end is None:
                self._open = text[place:]
                break
            read.append(self._unit(text[place:unit_end]))
            place = unit_end
        return "".join(read)

    def _plain(self, text: str) -> str:
        written, self._unseen = self._unseen, ""
        if written:
            self._pieces.append(_Piece(written + text[0], 1))
        rest = text[1:] if written else text
        if rest:
            self._pieces.append(_Piece(rest, len(rest), is_plain=True))
        return text

    def _unit(self, written: str) -> str:
        read = _characters(written, is_json=self._is_json)
        if not read:
            self._unseen += written
            return ""
        written, self._unseen = self._unseen + written, ""
        self._pieces.append(_Piece(written, len(read)))
        return read

    def _unit_end(self, text: str, place: int, *, is_end: bool) -> int | None:
        """The end of the character at `place` with its combining marks; None if that is not known yet."""
        end = self._character_end(text, place, is_end=is_end)
        while end is not None and end < len(text) and unicodedata.combining(text[end]):
            end += 1
        if end == len(text) and not is_end and text[place].isalpha():
            return None
        return end

    def _character_end(self, text: str, place: int, *, is_end: bool) -> int | None:
        if text[place] != "\\":
            return place + 1
        escape = _CODE_POINT.match(text, place) or (_SHORT.match(text, place) if self._is_json else None)
        if not is_end and _OPEN.match(text, place):
            return None
        return place + 1 if escape is None else escape.end()


def _characters(written: str, *, is_json: bool) -> str:
    """The reading of one character with its combining marks; empty if the character is invisible."""
    found = _CODE_POINT.match(written)
    if found is not None:
        units = [int(each, 16) for each in found[0].split("\\u")[1:]]
        plain = b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be", "replace")
        written = plain + written[found.end() :]
    elif is_json and (found := _SHORT.match(written)) is not None:
        written = _SHORT_CHARS[written[1]] + written[2:]
    if written == _NO_BREAK:
        return written
    return "".join(each for each in unicodedata.normalize("NFKC", written) if not _has_no_shape(each))


def _has_no_shape(char: str) -> bool:
    """Format characters and variation selectors."""
    return unicodedata.category(char) == "Cf" or "\ufe00" <= char <= "\ufe0f" or char == "\u034f"
