"""Finds the block that has given tokens after a given prefix. References are counted in `blocks`, not here.

A block's key is a keyed hash of its own tokens and the key of the block before it, so one key stands for a
whole prefix. The chain starts at a key made of the tenant's salt and anything else that the cache depends on,
such as an adapter: equal prompts of two tenants have different keys throughout. The hash is keyed with a
secret of this index, so a client cannot prepare a collision; besides, tokens are compared on every hit.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

KEY_BYTES = 16


class PrefixIndex:
    """A map from prefix keys to block ids, with one block per key and one key per block."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._entries: dict[bytes, tuple[int, tuple[int, ...]]] = {}
        self._keys: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def root(self, salt: str, *others: str | None) -> bytes:
        """The key before the first block of any sequence with this salt; `others` are further values that the
        cache depends on."""
        data = repr((salt, *others)).encode("utf-8", "surrogatepass")  # unambiguous: strings are quoted
        return blake2b(data, digest_size=KEY_BYTES, key=self._secret, person=b"salt").digest()

    def extend(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The key of the full block `token_ids` that follows the prefix `parent`."""
        data = parent + array("q", token_ids).tobytes()
        return blake2b(data, digest_size=KEY_BYTES, key=self._secret, person=b"block").digest()

    def find(self, key: bytes, token_ids: Sequence[int]) -> int | None:
        """The block of this key, if its tokens really are `token_ids`."""
        entry = self._entries.get(key)
        if entry is None or entry[1] != tuple(token_ids):
            return None
        return entry[0]

    def put(self, key: bytes, block: int, token_ids: Sequence[int]) -> None:
        """Add `block` under `key`, unless the key or the block already has an entry."""
        if key not in self._entries and block not in self._keys:
            self._entries[key] = (block, tuple(token_ids))
            self._keys[block] = key

    def drop(self, block: int) -> None:
        """Forget a block, if it is known."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._entries[key]

    def inconsistencies(self) -> Iterable[str]:
        """Differences between the two maps; empty if each is the inverse of the other."""
        if len(self._entries) != len(self._keys):
            yield f"{len(self._entries)} prefix keys for {len(self._keys)} blocks"
        for key, (block, _) in self._entries.items():
            if self._keys.get(block) != key:
                yield f"block {block} is indexed under a key it does not have"
