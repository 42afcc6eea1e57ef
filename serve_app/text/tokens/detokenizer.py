"""Token ids of one text, as they arrive -> complete characters.

Handles the bytes of tokens, but not stop strings or requests.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TypeAlias

from serve_app.text.tokens.token_bytes import TokenBytes

# A decoder that looks at neighbours may keep answering U+FFFD; no character has more tokens than this.
_MAX_PENDING_TOKENS = 8


class ByteDetokenizer:
    """For tokenizers whose tokens are bytes: exact, at most 3 bytes withheld, O(1) per token.

    Invalid bytes become U+FFFD, as if `bytes.decode(errors="replace")` was applied to the whole text.
    """

    def __init__(self, table: TokenBytes, skipped: frozenset[int], *, continues: bool = False) -> None:
        self._table = table
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._opening = not continues
        self._leading_spaces = 0 if continues else table.leading_spaces

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that these ids complete."""
        table, skipped = self._table, self._skipped
        ids = [i for i in token_ids if i not in skipped] if skipped else list(token_ids)
        if self._opening and ids:
            self._opening = False
            data = table.opening(ids[0]) + b"".join([table[i] for i in ids[1:]])
        else:
            data = b"".join([table[i] for i in ids])
        if self._leading_spaces and data:
            data = self._strip(data)
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The withheld characters, at the end of the text."""
        return self._utf8.decode(b"", final=True)

    def _strip(self, data: bytes) -> bytes:
        limit = self._leading_spaces
        spaces = len(data) - len(data.lstrip(b" "))
        cut = min(limit, spaces)
        self._leading_spaces = limit - cut if cut == len(data) else 0
        return data[cut:]


class WindowDetokenizer:
    """For decoders that look at neighbouring tokens: decodes the last tokens again and emits new text.

    Withholds at most 8 tokens, while the text ends with an unfinished character.
    """

    def __init__(self, table: TokenBytes, skipped: frozenset[int]) -> None:
        self._table = table
        self._skipped = skipped
        self._done: list[int] = []  # the context: ids already shown
        self._pending: list[int] = []

    def push(self, token_ids: Iterable[int]) -> str:
        return "".join([self._push_one(i) for i in token_ids if i not in self._skipped])

    def flush(self) -> str:
        return self._emit() if self._pending else ""

    def _push_one(self, token_id: int) -> str:
        self._pending.append(token_id)
        if len(self._pending) < _MAX_PENDING_TOKENS and self._grown().endswith("�"):
            return ""
        return self._emit()

    def _emit(self) -> str:
        text = self._grown()
        self._done, self._pending = self._pending, []
        return text

    def _grown(self) -> str:
        decode = self._table.backend.decode
        before = decode(self._done, skip_special_tokens=False)
        return decode(self._done + self._pending, skip_special_tokens=False)[len(before) :]


# The text of a growing list of ids. What all pushes and `flush` return is the text of all ids.
Detokenizer: TypeAlias = ByteDetokenizer | WindowDetokenizer
