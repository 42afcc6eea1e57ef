"""Which tokens would repeat a sequence of n tokens: an index that grows with its sequence.

The result is that of transformers' NoRepeatNGramLogitsProcessor, which reads the whole text at each step;
this index reads each token once. Works on ids, not logits.
"""

from __future__ import annotations

from array import array
from copy import copy
from typing import Final

import numpy as np
import numpy.typing as npt

_TYPE: Final = "i"  # token ids are far below 2**31
_WIDTH: Final = array(_TYPE).itemsize


class NgramIndex:
    """For each run of n-1 tokens in one sequence, prompt included, the tokens that have followed it.

    Tokens may be appended, or cut off at the end; the remaining tokens are assumed to be unchanged.
    """

    def __init__(self, size: int) -> None:
        """`size` is n, at least 1."""
        self._size = size
        self._clear()

    def _clear(self) -> None:
        self._text = bytearray()  # of the tokens read
        self._read = 0
        self._last = -1
        self._followers: dict[bytes, set[int]] = {}
        self._own: set[bytes] = set()  # keys whose sets are not shared with a fork

    def copy(self) -> NgramIndex:
        """The index of a fork. Entries that both indexes have are shared until one index adds to an entry."""
        child = copy(self)
        child._text, child._followers = self._text[:], self._followers.copy()
        self._own, child._own = set(), set()
        return child

    def following(self, token_ids: list[int]) -> npt.NDArray[np.int64]:
        """The tokens [U], each listed once, that have already followed the last n-1 of `token_ids`."""
        self._update(token_ids)
        if len(token_ids) < self._size - 1:
            return np.empty(0, dtype=np.int64)
        found = self._followers.get(self._key(len(token_ids)), ())
        return np.fromiter(found, dtype=np.int64, count=len(found))

    def _update(self, token_ids: list[int]) -> None:
        shrunk = len(token_ids) < self._read
        if shrunk or (self._read and token_ids[self._read - 1] != self._last):
            self._clear()
        new = token_ids[self._read :]
        self._text += array(_TYPE, new).tobytes()
        for position, token in enumerate(new, self._read):
            if position >= self._size - 1:
                self._add(self._key(position), token)
        if new:
            self._read, self._last = len(token_ids), token_ids[-1]

    def _add(self, key: bytes, token: int) -> None:
        if key in self._own:
            self._followers[key].add(token)
        else:
            self._followers[key] = {*self._followers.get(key, ()), token}
            self._own.add(key)

    def _key(self, end: int) -> bytes:
        """The n-1 tokens before position `end`."""
        return bytes(self._text[(end - self._size + 1) * _WIDTH : end * _WIDTH])
