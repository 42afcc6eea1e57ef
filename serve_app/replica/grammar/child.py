"""The child process of `GrammarCompiler`: tries grammars out where they can do no harm.

It is run as `python -m serve_app.replica.grammar.child FD`. A hostile grammar may take minutes or gigabytes,
or overflow the stack. Here it can damage only a process that has a memory limit and a time limit. A grammar
passes if it compiles, and takes its first steps, within an engine's limits of time and memory.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from serve_app.engine.grammar.constraint import LIMITS, error_of
from serve_app.engine.grammar.tokenizer import GrammarsUnavailable, control_tokens, grammar_tokenizer
from serve_app.engine.pipe import Pipe
from serve_app.errors import InvalidField
from serve_app.replica.grammar.messages import SandboxCommand, SandboxReply, SandboxSetup
from serve_app.text.answer.grammar import fault, refused, serialise
from serve_app.types import Grammar

MEMORY_BYTES: Final = 512 * 2**20  # for one grammar; with more the process dies
CPU_S: Final = 4  # for one grammar; the parent ends the process earlier, unless it has died
# A part of an engine's stack: a native stack overflow cannot be caught, so it must happen here.
STACK_BYTES: Final = 2**20
STEPS: Final = 12  # tokens of a random answer, which show what the first masks cost
PLACING_S: Final = 0.2  # CPU time to find the place of a fault
STEP_LIMIT_S: Final = 0.1  # CPU time for one of those tokens


def main(fd: int) -> int:
    pipe: Pipe[SandboxCommand, SandboxReply] = Pipe(socket.socket(fileno=fd), SandboxCommand)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent decides when to end
    first = pipe.receive()
    if first is None or first.setup is None:
        return 1
    try:
        trial = Trial(first.setup)
    except GrammarsUnavailable as error:
        pipe.send(SandboxReply(unavailable=str(error)))
        return 1
    os.nice(5)
    _limit_memory()
    pipe.send(SandboxReply())
    threading.stack_size(STACK_BYTES)
    while (command := pipe.receive()) is not None:
        if command.grammar is not None:
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + CPU_S)
            pipe.send(_in_thread(trial, command.grammar))
    return 0


def _in_thread(trial: Trial, grammar: Grammar) -> SandboxReply:
    replies: list[SandboxReply] = []
    thread = threading.Thread(target=lambda: replies.append(trial.of(grammar)))
    thread.start()
    thread.join()
    return replies[0] if replies else SandboxReply(refused="it cannot be used")


class Trial:
    """Tries grammars with the tokens of one model."""

    def __init__(self, setup: SandboxSetup) -> None:
        """Raises GrammarsUnavailable."""
        self._ends = frozenset(setup.eos_token_ids)
        self._tokenizer = grammar_tokenizer(
            setup.tokenizer_json,
            vocab_size=setup.vocab_size,
            eos_token_ids=setup.eos_token_ids,
            own_vocab_size=setup.own_vocab_size,
        )
        self._controls = control_tokens(setup.tokenizer_json)

    def of(self, grammar: Grammar) -> SandboxReply:
        """A reply with the grammar in the parser's notation, or with the reason why it is refused."""
        started = time.thread_time()
        try:
            text = serialise(grammar, self._controls, self._ends)
            _try(self._tokenizer, text)
        except InvalidField as error:
            was_quick = time.thread_time() - started < PLACING_S
            return SandboxReply(refused=(was_quick and self._placed(grammar)) or error.reason)
        except (ValueError, RecursionError, MemoryError):
            return SandboxReply(refused="it cannot be read; check its form")
        return SandboxReply(compiled=text)

    def _placed(self, grammar: Grammar) -> str | None:
        """The part of a schema that the parser refuses, and its place, if that part is found in time."""
        until = time.thread_time() + PLACING_S

        def refusal(text: str) -> str | None:
            if time.thread_time() > until:
                return None
            matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)
            return error_of(matcher) if matcher.is_error() else None

        try:
            return fault(grammar, refusal)
        except (InvalidField, ValueError, RecursionError, MemoryError):
            return None


def _try(tokenizer: LLTokenizer, text: str) -> None:
    """Compile a grammar, and write the beginning of a random answer that follows it. Raises InvalidField."""
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
    bits = allocate_token_bitmask(1, tokenizer.vocab_size)
    rng = random.Random(0)
    for step in range(STEPS):
        if matcher.is_error():
            raise refused(error_of(matcher) or "it cannot be compiled")
        if matcher.is_stopped() and step:
            return
        started = time.thread_time()
        fill_next_token_bitmask(matcher, bits)
        if matcher.is_error():
            raise refused(error_of(matcher) or "its first tokens cannot be computed")
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if not len(allowed):
            raise refused("no text matches it")
        matcher.consume_token(int(rng.choice(allowed)))
        matcher.compute_ff_tokens()
        if time.thread_time() - started > STEP_LIMIT_S:
            raise refused("a single token takes too long to find; use smaller counts and fewer alternatives")


def _limit_memory() -> None:
    """Limit this process's memory to MEMORY_BYTES more than it uses now. Works only on Linux, which reports
    memory use and enforces the limit."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return  # elsewhere the limits of time alone end a grammar
    _limit(resource.RLIMIT_AS, in_use + MEMORY_BYTES)


def _limit(kind: int, soft: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
