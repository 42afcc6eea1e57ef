"""The bytes of each token, from the tokenizer's decoder.

Two families of decoders simply concatenate bytes: byte-level BPE
(each character of a token is one byte) and SentencePiece style (a mark stands
for the space, `<0xNN>` for a byte). For these two, the text of any ids is the UTF-8 decoding of the joined
bytes, which makes streaming exact. Any other decoder also looks at neighbouring tokens; `exact` is then
False, and a token's bytes are those of its text when decoded alone. Handles ids and bytes, not requests.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte.

    Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class TokenBytes:
    """A lazily filled table from token id to bytes.

    `leading_spaces` spaces are cut from the start of a text, and its first token has the bytes
    `opening(token_id)`.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.exact = True
        self.leading_spaces = 0
        self._byte_level = False
        self._byte_fallback = False
        self._opening_mark: str | None = None  # dropped from a text's first token
        self._spaces: list[tuple[str, str]] = []  # text replaced in every token
        self._added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
        self._alphabet = _byte_alphabet()
        self._table: dict[int, bytes] = {}
        self._read_decoder(_decoder_steps(backend))

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token, its spaces included; empty for an id that is no token."""
        data = self._table.get(token_id)
        if data is None:
            data = self._table[token_id] = self._bytes_of(token_id)
        return data

    def opening(self, token_id: int) -> bytes:
        """Bytes of the token when it is the first token of a text."""
        if self._opening_mark is None:
            return self[token_id]
        text = self._text_of(token_id)
        return b"" if text is None else self._decode(token_id, text.replace(self._opening_mark, ""))

    def _read_decoder(self, steps: list[dict[str, Any]]) -> None:
        fused = False
        if not steps:
            self.exact = False
        for step in steps:
            match step:
                case {"type": "ByteLevel"} if step is steps[0]:
                    self._byte_level = True
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if not (
                    self._byte_fallback or fused
                ):
                    self._spaces.append((old, new))
                case {"type": "Metaspace", "replacement": str(mark)} if not self._byte_fallback:
                    self._spaces.append((mark, " "))
                    if step.get("prepend_scheme", "always") != "never":
                        self._opening_mark = mark
                case {"type": "ByteFallback"} if not fused:
                    self._byte_fallback = True
                case {"type": "Fuse"}:
                    fused = True
                case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if fused:
                    self.leading_spaces += start
                case _:
                    self.exact = False
        if self._byte_level and (self._spaces or self._byte_fallback):
            self.exact = False

    def _text_of(self, token_id: int) -> str | None:
        if not 0 <= token_id < 2**32:
            return None
        return self.backend.id_to_token(token_id)

    def _bytes_of(self, token_id: int) -> bytes:
        text = self._text_of(token_id)
        if text is None:
            return b""
        if not self.exact:
            return self.backend.decode([token_id], skip_special_tokens=False).encode()
        return self._decode(token_id, text)

    def _decode(self, token_id: int, text: str) -> bytes:
        if self._byte_level:
            if token_id in self._added:
                return text.encode()
            try:
                return bytes(map(self._alphabet.__getitem__, text))
            except KeyError:  # a token outside the alphabet stands for its own text
                return text.encode()
        for old, new in self._spaces:
            text = text.replace(old, new)
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return text.encode()


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The decoder's steps in order, as the library itself describes them."""
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return [step for step in steps if isinstance(step, dict)]
