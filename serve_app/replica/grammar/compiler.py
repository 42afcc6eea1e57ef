"""Clients' grammars, compiled in a sandbox and remembered.

The cache keeps replies, including refusals, up to a number of bytes. Does not depend on requests;
`text/answer/grammar.py` defines the meaning of a grammar.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from serve_app.errors import InvalidField, Overloaded, UnsupportedField
from serve_app.replica.grammar.messages import SandboxReply, SandboxSetup
from serve_app.replica.grammar.sandbox import LIMIT_S, RETRY_AFTER_S, GrammarSandbox, unavailable
from serve_app.text.answer.grammar import FIELD
from serve_app.types import Grammar

CACHE_BYTES: Final = 16 * 2**20
MAX_QUEUED: Final = 256  # grammars that wait for the sandbox; each takes LIMIT_S at worst
_ENTRY_BYTES: Final = 400  # of a cache entry, besides its text

_TOO_MUCH: Final = (
    f"it needs more than {LIMIT_S:g} seconds or too much memory to compile; "
    "use fewer alternatives, less nesting and smaller counts"
)


class GrammarCompiler:
    """Compiles the grammars of one model; equal grammars are compiled once.

    >>> compiled = await compiler.compile(Grammar(kind=GrammarKind.JSON))
    """

    def __init__(self, setup: SandboxSetup) -> None:
        self._cache = ReplyCache(CACHE_BYTES)
        self._sandbox = GrammarSandbox(setup)
        self._thread = ThreadPoolExecutor(1, "grammar-child")  # the sandbox compiles one grammar at a time
        self._queued = 0
        self._closed = False

    async def compile(self, grammar: Grammar) -> str:
        """The grammar in the notation of the engine's parser.

        Raises InvalidField for a wrong or too costly grammar. Raises UnsupportedField if the model allows no
        grammars, Overloaded if too many grammars wait, and Unavailable if the sandbox cannot be started.
        """
        key = _key(grammar)
        reply = self._cache.get(key)
        if reply is None:
            if self._closed:
                raise unavailable()
            if self._queued >= MAX_QUEUED:
                raise Overloaded("Too many grammars wait to be compiled.", retry_after_s=RETRY_AFTER_S)
            self._queued += 1
            try:
                loop = asyncio.get_running_loop()
                reply = await loop.run_in_executor(self._thread, self._compile, key, grammar)
            finally:
                self._queued -= 1
        if reply.unavailable is not None:
            raise UnsupportedField(FIELD, f"{reply.unavailable}")
        if reply.compiled is None:
            raise InvalidField(FIELD, reply.refused or "it cannot be used")
        return reply.compiled

    def close(self) -> None:
        """End the sandbox, even while it compiles a grammar; waiting calls raise Unavailable."""
        self._closed = True
        self._sandbox.end()
        self._thread.shutdown(wait=False)

    def _compile(self, key: bytes, grammar: Grammar) -> SandboxReply:
        """The work of `compile`, in the compiler's thread, with the cache."""
        reply = self._cache.get(key)  # an equal grammar may have been compiled while this one waited
        if reply is not None:
            return reply
        reply = self._sandbox.compile(grammar)
        if reply is None:  # not cached: perhaps the machine was slow
            return SandboxReply(refused=_TOO_MUCH)
        self._cache.put(key, reply)
        return reply


class ReplyCache:
    """The most recently used replies, up to a number of bytes. Many threads may read while one writes."""

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self.max_bytes = max_bytes
        self._replies: OrderedDict[bytes, SandboxReply] = OrderedDict()

    def get(self, key: bytes) -> SandboxReply | None:
        reply = self._replies.get(key)
        if reply is not None:
            try:
                self._replies.move_to_end(key)
            except KeyError:  # dropped by the writing thread at this moment
                return reply
        return reply

    def put(self, key: bytes, reply: SandboxReply) -> None:
        size = _size(reply)
        if size > self.max_bytes:
            return
        self._replies[key] = reply
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            _, oldest = self._replies.popitem(last=False)
            self.num_bytes -= _size(oldest)


def _key(grammar: Grammar) -> bytes:
    markers = json.dumps([(rule.name, rule.text, rule.opens) for rule in grammar.markers])
    spelled = f"{grammar.kind.value}\0{grammar.space}\0{markers}\0{grammar.text}"
    return hashlib.sha256(spelled.encode("utf-8", "surrogatepass")).digest()


def _size(reply: SandboxReply) -> int:
    return _ENTRY_BYTES + len(reply.compiled or "") * 4  # Python may keep four bytes a character
