"""Grammars over a model's tokens: what may come next in one sequence, and what must.

llguidance parses while the tokens come. A `Constraint` stands somewhere in the
grammar of one sequence; it is compiled, and its masks are computed, in threads of
their own, with the interpreter lock released. So a grammar that is slow somewhere
costs its own request and no step. Knows token ids; no logits, no text, no batch.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from serve_app.engine.sequence import Sequence as Line
from serve_app.engine.sequence import Status
from serve_app.errors import InvalidField
from serve_app.types import ErrorInfo

Bits = npt.NDArray[np.int32]  # [W]: bit i % 32 of word i // 32 is set where token i may come next

FIELD: Final = "response_format"  # what errors call a grammar; a dialect has its own name for it

# About 10 ms and 50 MB at worst for one mask, as far as the library counts.
LIMITS: Final = LLParserLimits(
    max_items_in_row=4_000,  # an object of about 1,000 optional properties
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=25_000,
    verbose_errors=False,  # an error goes to the client and holds nothing of the text
)
_TOO_LARGE: Final = re.compile("too (many|large|big)|max is|limits")
PATIENCE_S: Final = 0.02  # that a step waits for a mask, once; then the row is left out of the step
MASK_LIMIT_S: Final = 5.0  # after which the sequence of a mask ends; its thread goes on until it is done
MASK_THREADS: Final = min(8, os.cpu_count() or 1)


class GrammarsUnavailable(Exception):
    """Grammars cannot be had over this tokenizer; the message says why."""


def grammar_tokenizer(
    tokenizer_json: str, *, vocab_size: int, eos_token_ids: Sequence[int], own_vocab_size: int
) -> LLTokenizer:
    """The tokens of a model as grammars see them, of its tokenizer.json.

    `own_vocab_size` is the tokenizer's, which may be larger or smaller than the model's. Holds the
    interpreter lock for about 15 us a token. Raises GrammarsUnavailable.
    """
    if not eos_token_ids:
        raise GrammarsUnavailable("the model has no end-of-sequence token")
    try:
        return LLTokenizer(
            tokenizer_json, n_vocab=max(vocab_size, own_vocab_size), eos_token=list(eos_token_ids)
        )
    except Exception as error:  # the library raises many kinds
        raise GrammarsUnavailable(
            "the model's tokenizer is of a kind that grammars cannot be laid over"
        ) from error


def error_of(matcher: LLMatcher) -> str:
    """What is wrong with a matcher, in one line for the client; "" when nothing is."""
    lines = matcher.get_error().replace("<non-verbose/>", "").strip().splitlines()
    if not lines:
        return ""
    if lines[0].startswith("NoExtension"):
        return "no text matches it"
    # A regex is quoted before its error is named.
    named = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    hint = "; use smaller counts and fewer alternatives" if _TOO_LARGE.search(named) else ""
    return named[:200] + hint


class Constraint:
    """Where one sequence stands in its grammar. Not thread-safe; a mask under way is waited for."""

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
        self.error: ErrorInfo | None = None  # why no token is allowed, when the grammar is the cause
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._output: list[int] = []  # what the matcher has consumed
        self._bits: Bits = allocate_token_bitmask(1, tokenizer.vocab_size)[0]
        self._current = False  # `_bits` are those after `_output`
        self._pending: Future[None] | None = None
        self._deadline = 0.0  # of the pending mask
        self._waited = False  # a step has waited for the pending mask

    def fork(self) -> Constraint:
        """The constraint of another sequence with the same output."""
        self._settle()
        other = Constraint(
            self._matcher.deep_copy() if self.error is None else self._matcher, self._tokenizer
        )
        other.error = self.error
        other._output = list(self._output)
        np.copyto(other._bits, self._bits)
        other._current = self._current
        return other

    def prepare(self, output: Sequence[int], pool: ThreadPoolExecutor) -> None:
        """Begin with the mask of what may follow `output`, in a thread of `pool`."""
        if self._pending is not None:
            return  # left out of an earlier step
        self._follow(output)
        if self.error is None and not self._current:
            self._waited = False
            self._deadline = time.monotonic() + MASK_LIMIT_S
            self._pending = pool.submit(self._fill)

    def late(self) -> bool:
        """Whether the mask under way needs longer than a step should wait."""
        if self._pending is None:
            return False
        if not self._waited:
            wait([self._pending], PATIENCE_S)
            self._waited = True
        if not self._pending.done() and time.monotonic() < self._deadline:
            return True
        self._settle()
        return False

    def mask(self, output: Sequence[int]) -> Bits:
        """What may follow `output`; nothing when the grammar failed, and `error` then says how."""
        self._settle()
        self._follow(output)
        if self.error is None and not self._current:
            self._fill()
            self._check()
        if self.error is not None:
            self._bits = np.zeros_like(self._bits)  # a mask that came too late may still be written to
        return self._bits

    def forced(self, output: Sequence[int]) -> list[int]:
        """The tokens that must follow `output`, in the tokenizer's own spelling; perhaps none.

        The end of a grammar forces the end-of-sequence token.
        """
        self._settle()
        self._follow(output)
        if self.error is not None:
            return []
        if self._matcher.is_stopped():
            return [self._tokenizer.eos_token]
        return list(self._matcher.compute_ff_tokens())

    def allows_only(self, token_ids: Iterable[int]) -> bool:
        """Whether the last mask leaves nothing but some of these."""
        left = self._bits.view(np.uint32).copy()
        for token_id in token_ids:
            if token_id // 32 < len(left):
                left[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return not left.any()

    def _follow(self, output: Sequence[int]) -> None:
        """Bring the matcher behind `output`, whatever it has consumed."""
        if self.error is not None or (len(output) == len(self._output) and list(output) == self._output):
            return
        known = len(self._output)
        if list(output[:known]) != self._output:
            known = next(
                (i for i, (a, b) in enumerate(zip(output, self._output, strict=False)) if a != b),
                min(len(output), known),
            )
            self._matcher.rollback(len(self._output) - known)
        self._matcher.consume_tokens(list(output[known:]))
        self._output = list(output)
        self._current = False
        self._check()

    def _fill(self) -> None:
        fill_next_token_bitmask(self._matcher, self._bits.reshape(1, -1))
        self._current = True

    def _settle(self) -> None:
        """Wait for the mask under way, up to its limit."""
        if self._pending is None:
            return
        wait([self._pending], max(0.0, self._deadline - time.monotonic()))
        if self._pending.done():
            self._check()
        else:
            self.error = _refusal("its next step takes too long to compute")
        self._pending = None

    def _check(self) -> None:
        if self.error is None and self._matcher.is_error():
            self.error = _refusal(error_of(self._matcher))


class Grammars:
    """Compiles grammars and computes masks, both aside of the engine's thread."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiling = ThreadPoolExecutor(1, "grammar")
        self._masks = ThreadPoolExecutor(MASK_THREADS, "mask")
        self._held: dict[Line, Future[Constraint]] = {}

    def hold(self, line: Line, grammar: str) -> None:
        """Keep a new sequence until `grammar`, in the library's own notation, is compiled for it."""
        line.status = Status.HELD
        self._held[line] = self._compiling.submit(self._compile, grammar)

    def release(self, wait_s: float) -> list[Line]:
        """Sequences that have got their constraint; waits for the first one if there is none.

        The ones that have ended meanwhile are dropped.
        """
        if not self._held:
            return []
        wait(self._held.values(), wait_s, FIRST_COMPLETED)
        ready = [line for line, future in self._held.items() if future.done()]
        for line in ready:
            line.constraint = self._held.pop(line).result()
        return [line for line in ready if line.status is Status.HELD]

    def prepare(self, lines: Iterable[Line]) -> None:
        """Begin with the masks of what may come next in these sequences."""
        for line in lines:
            if line.constraint is not None:
                line.constraint.prepare(line.output_ids, self._masks)

    def _compile(self, grammar: str) -> Constraint:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        constraint = Constraint(matcher, self._tokenizer)
        constraint.mask(())  # the first one may be slow, and the prompt has been computed once it is wanted
        return constraint


def forced_tokens(line: Line) -> Iterator[int]:
    """The tokens that must come next in a sequence, which need no sampling; asked when the first is taken.

    None where each token is looked at by itself: log-probabilities, logits, and masks besides the grammar's.
    """
    constraint, sampling = line.constraint, line.sampling
    if constraint is None or line.gang is not None or line.num_logprobs is not None or line.processors:
        return
    if line.wants_logits:
        return
    if not (sampling.bad_words or sampling.allowed_token_ids or sampling.no_repeat_ngram):
        yield from constraint.forced(line.output_ids)


def _refusal(reason: str) -> ErrorInfo:
    return InvalidField(
        f"{FIELD}: the grammar became too complex while it was followed ({reason}); simplify it", param=FIELD
    ).info()
