"""The child process of `GrammarCompiler`: tries grammars out where they can do no harm.

Run as `python -m serve_app.replica.grammar_child FD`. A hostile grammar may take
minutes, gigabytes or the stack. Here it costs a process with a memory limit and
a clock; what comes through is known to compile, and to take its first steps, in
the time and the memory that an engine has for it.
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
from serve_app.engine.grammar.tokenizer import GrammarsUnavailable, grammar_tokenizer
from serve_app.errors import InvalidField
from serve_app.replica.grammar_pipe import Answer, Command, Setup
from serve_app.replica.pipe import Pipe
from serve_app.text.answer.grammar import refused, serialise
from serve_app.types import Grammar

MEMORY_BYTES: Final = 512 * 2**20  # that one grammar may take; beyond it the process dies
CPU_S: Final = 4  # of one grammar, should the parent be gone that would end it earlier
# A native stack overflow cannot be caught, so what needs more than a part of an engine's stack ends here.
STACK_BYTES: Final = 2**20
STEPS: Final = 12  # of a random answer, to find out what the first masks cost
STEP_LIMIT_S: Final = 0.1  # of CPU, for one of them


def main(fd: int) -> int:
    pipe: Pipe[Command, Answer] = Pipe(socket.socket(fileno=fd), Command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the parent decides when to end
    first = pipe.receive()
    if first is None or first.setup is None:
        return 1
    try:
        tokenizer = _tokenizer(first.setup)
    except GrammarsUnavailable as error:
        pipe.send(Answer(unavailable=str(error)))
        return 1
    os.nice(5)
    _limit(resource.RLIMIT_AS, _memory_in_use() + MEMORY_BYTES)
    pipe.send(Answer())
    threading.stack_size(STACK_BYTES)
    while (command := pipe.receive()) is not None:
        if command.grammar is not None:
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + CPU_S)
            pipe.send(_in_thread(tokenizer, command.grammar))
    return 0


def _tokenizer(setup: Setup) -> LLTokenizer:
    return grammar_tokenizer(
        setup.tokenizer_json,
        vocab_size=setup.vocab_size,
        eos_token_ids=setup.eos_token_ids,
        own_vocab_size=setup.own_vocab_size,
    )


def _in_thread(tokenizer: LLTokenizer, grammar: Grammar) -> Answer:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(answer(tokenizer, grammar)))
    thread.start()
    thread.join()
    return answers[0] if answers else Answer(refused=refused("it cannot be used").message)


def answer(tokenizer: LLTokenizer, grammar: Grammar) -> Answer:
    """The grammar in the parser's notation, or why it is refused."""
    try:
        text = serialise(grammar)
        _try(tokenizer, text)
    except InvalidField as error:
        return Answer(refused=error.message)
    except (ValueError, RecursionError, MemoryError):
        return Answer(refused=refused("it cannot be read; check its form").message)
    return Answer(compiled=text)


def _try(tokenizer: LLTokenizer, text: str) -> None:
    """Compile, and write the beginning of a random answer. Raises InvalidField."""
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


def _memory_in_use() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _limit(kind: int, soft: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
