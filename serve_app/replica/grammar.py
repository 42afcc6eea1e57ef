"""Checked grammars: each is tried out in a child process before an engine sees it.

One child, started with the first grammar and warm from then on; it has the time
of `LIMIT_S` for a grammar, and is ended and replaced when it needs more. Answers,
refusals too, are kept in a cache that is bounded in bytes. Knows nothing of
requests; `text/grammar.py` knows what a grammar means.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from serve_app.errors import InvalidField, Overloaded, Unavailable, UnsupportedField
from serve_app.replica.grammar_pipe import Answer, Command, Setup
from serve_app.replica.pipe import Pipe
from serve_app.text.answer.grammar import FIELD, refused
from serve_app.types import Grammar

log = logging.getLogger(__name__)

LIMIT_S: Final = 2.0  # for one grammar
START_LIMIT_S: Final = 120.0  # for the child to read the tokenizer: about a second per 100,000 tokens
CACHE_BYTES: Final = 16 * 2**20
MAX_QUEUED: Final = 256  # grammars that wait for the child; each takes LIMIT_S at worst
RETRY_AFTER_S: Final = 2.0
_ENTRY_BYTES: Final = 400  # of a cache entry, besides its text

_TOO_MUCH: Final = (
    f"it needs more than {LIMIT_S:g} seconds or too much memory to compile; "
    "use fewer alternatives, less nesting and smaller counts"
)


class GrammarCompiler:
    """Grammars of one model, by their text.

    >>> compiled = await compiler.compile(Grammar(kind=GrammarKind.JSON))
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._cache = AnswerCache(CACHE_BYTES)
        self._child = GrammarProcess(setup)
        self._thread = ThreadPoolExecutor(1, "grammar-child")  # the child does one thing at a time
        self._queued = 0
        self._closed = False

    async def compile(self, grammar: Grammar) -> str:
        """The grammar in the notation of the engine's parser.

        Raises InvalidField for one that is wrong or too costly, UnsupportedField when the model can
        have none, Overloaded when too many wait, Unavailable when no child can be had.
        """
        key = _key(grammar)
        answer = self._cache.get(key)
        if answer is None:
            if self._closed:
                raise _unavailable()
            if self._queued >= MAX_QUEUED:
                raise Overloaded("Too many grammars wait to be compiled.", retry_after_s=RETRY_AFTER_S)
            self._queued += 1
            try:
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._thread, self._ask, key, grammar)
            finally:
                self._queued -= 1
        if answer.unavailable is not None:
            raise UnsupportedField(f"{FIELD}: {answer.unavailable}", param=FIELD)
        if answer.compiled is None:
            raise InvalidField(answer.refused or refused("it cannot be used").message, param=FIELD)
        return answer.compiled

    def close(self) -> None:
        """End the child, also in the middle of a grammar; those that wait are told so."""
        self._closed = True
        self._child.end()
        self._thread.shutdown(wait=False)

    @property
    def cached_bytes(self) -> int:
        """Size of the cache, at most `CACHE_BYTES`."""
        return self._cache.num_bytes

    def _ask(self, key: bytes, grammar: Grammar) -> Answer:
        """In the compiler's thread."""
        answer = self._cache.get(key)  # the same may have been waiting before us
        if answer is not None:
            return answer
        tried = self._child.ask(grammar)
        if tried is None:  # not kept: it may have been the machine that was slow
            return Answer(refused=refused(_TOO_MUCH).message)
        self._cache.put(key, tried)
        return tried


class AnswerCache:
    """The answers used last, within a number of bytes. Safe to read beside one writing thread."""

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self.max_bytes = max_bytes
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()

    def get(self, key: bytes) -> Answer | None:
        answer = self._answers.get(key)
        if answer is not None:
            try:
                self._answers.move_to_end(key)
            except KeyError:  # dropped this moment
                return answer
        return answer

    def put(self, key: bytes, answer: Answer) -> None:
        size = _size(answer)
        if size > self.max_bytes:
            return
        self._answers[key] = answer
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            _, oldest = self._answers.popitem(last=False)
            self.num_bytes -= _size(oldest)


class GrammarProcess:
    """The child, as one thread sees it: started when needed, ended when it takes too long."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe[Answer, Command] | None = None
        self._socket: socket.socket | None = None
        self._ended = False

    def ask(self, grammar: Grammar) -> Answer | None:
        """The child's answer; None when the grammar was too much for it.

        Raises Unavailable when no child can be started.
        """
        if self._pipe is None:
            started = self._start()
            if started.unavailable is not None:
                return started
        answer = self._exchange(Command(grammar=grammar), LIMIT_S)
        if answer is not None:
            return answer
        self._kill()
        if self._ended:
            raise _unavailable()
        log.warning("a %s of %d characters was too much to compile", grammar.kind.value, len(grammar.text))
        return None

    def end(self) -> None:
        """End the child for good; callable from another thread, whose `ask` then raises."""
        self._ended = True
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _start(self) -> Answer:
        if self._ended:
            raise _unavailable()
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "serve_app.replica.grammar_child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._socket, self._pipe = ours, Pipe(ours, Answer)
        answer = self._exchange(Command(setup=self._setup), START_LIMIT_S)
        if answer is None or answer.unavailable is not None:
            self._kill()
        if answer is None:
            log.error("the grammar process could not be started")
            raise _unavailable()
        return answer

    def _exchange(self, command: Command, limit_s: float) -> Answer | None:
        """None when the child died or took longer."""
        if self._pipe is None or self._socket is None:
            return None
        self._socket.settimeout(limit_s)
        try:
            self._pipe.send(command)
        except OSError:
            return None
        return self._pipe.receive()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._child = self._pipe = self._socket = None


def _key(grammar: Grammar) -> bytes:
    spelled = f"{grammar.kind.value}\0{grammar.space}\0{grammar.text}"
    return hashlib.sha256(spelled.encode("utf-8", "surrogatepass")).digest()


def _size(answer: Answer) -> int:
    return _ENTRY_BYTES + len(answer.compiled or "") * 4  # Python may keep four bytes a character


def _unavailable() -> Unavailable:
    return Unavailable("Grammars are not available at the moment.", retry_after_s=RETRY_AFTER_S)
