"""The state of one sequence in its grammar: which tokens are allowed next, and which are forced.

llguidance parses the output token by token, within fixed limits. A mask may be computed in another thread,
with the interpreter lock released; a mask that takes too long ends the sequence that needs it. Works on token
ids, without logits, text or batches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from typing import Final

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from serve_app.errors import InvalidField
from serve_app.types import ErrorInfo

Bits = npt.NDArray[np.int32]  # [W]: bit i % 32 of word i // 32 is set where token i may come next

FIELD: Final = "response_format"  # the name of a grammar in errors; a dialect has its own

# By the library's own count, one mask costs at most about 10 ms and 50 MB within these limits.
LIMITS: Final = LLParserLimits(
    max_items_in_row=4_000,  # an object of about 1,000 optional properties
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=25_000,
    verbose_errors=False,  # an error goes to the client and holds nothing of the text
)
_TOO_LARGE: Final = re.compile("too (many|large|big)|max is|limits")
PATIENCE_S: Final = 0.02  # a step waits this long for a mask, once; then it leaves the row out
MASK_LIMIT_S: Final = 5.0  # a sequence whose mask takes longer ends; the thread runs on until it is done


def error_of(matcher: LLMatcher) -> str:
    """The error of a matcher, on one line for the client; "" if there is none."""
    lines = matcher.get_error().replace("<non-verbose/>", "").strip().splitlines()
    if not lines:
        return ""
    if lines[0].startswith("NoExtension"):
        return "no text matches it"
    # The library quotes a regex before it names the regex's error.
    named = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    if named.startswith("Parser Error") and not _TOO_LARGE.search(named):
        return "the parser cannot follow it"  # the rest is about the parser itself
    hint = "; use smaller counts and fewer alternatives" if _TOO_LARGE.search(named) else ""
    return named[:200] + hint


class Constraint:
    """The grammar of one sequence, and the output that it has consumed. Not thread-safe.

    Every method waits for a mask that is still being computed.
    """

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
        self.error: ErrorInfo | None = None  # why no token is allowed, when the grammar is the cause
        self.owed: tuple[int, ...] = ()  # forced tokens that still belong to the continued output
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._output: list[int] = []  # the tokens that the matcher has consumed
        self._bits: Bits = allocate_token_bitmask(1, tokenizer.vocab_size)[0]
        self._current = False  # whether `_bits` is the mask after `_output`
        self._pending: Future[None] | None = None  # the mask under way
        self._deadline = 0.0  # of the mask under way
        self._waited = False  # whether a step has waited for the mask under way

    @classmethod
    def compile(cls, grammar: str, tokenizer: LLTokenizer) -> Constraint:
        """The initial state of `grammar`, which is in llguidance's notation, with the first mask computed."""
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
        constraint = cls(matcher, tokenizer)
        constraint.mask(())  # often the slowest one: computed here, aside of the engine's thread
        return constraint

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

    def go_on(self, output: Sequence[int], *, forces: bool) -> Constraint:
        """A constraint that goes on after `output`, which another engine generated; its mask is computed.

        `forces`: whether forced tokens were appended in `output`. The client may have received only a part of
        a forced run; the rest of the run is then `owed`.
        """
        other = self.fork()
        other.owed = other._consume_runs(output) if forces else ()
        other.mask([*output, *other.owed])
        return other

    def _consume_runs(self, output: Sequence[int]) -> tuple[int, ...]:
        """Consume each sampled token and the run that it forces; returns the rest of the last run."""
        place = 0
        while place < len(output):
            self._consume(output[place : place + 1])
            place += 1
            run = self._next_run()
            told = list(output[place : place + len(run)])
            if told != run[: len(told)]:
                continue  # it was sampled, not forced, in the other engine
            if len(told) < len(run):
                self._consume(told)
                return tuple(run[len(told) :])
            self._consume(run)
            place += len(run)
        return ()

    def prepare(self, output: Sequence[int], threads: Executor) -> None:
        """Start to compute the mask for the token after `output`, in one of `threads`."""
        if self._pending is not None:
            return  # an earlier step left the row out, and the mask is still under way
        self._follow(output)
        if self.error is None and not self._current:
            self._waited = False
            self._deadline = time.monotonic() + MASK_LIMIT_S
            self._pending = threads.submit(self._fill)

    def late(self) -> bool:
        """Whether the mask that is being computed takes longer than a step should wait."""
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
        """The tokens that may follow `output`; none if the grammar failed, with the reason in `error`."""
        self._settle()
        self._follow(output)
        if self.error is None and not self._current:
            self._fill()
            self._check()
        if self.error is not None:
            self._bits = np.zeros_like(
                self._bits
            )  # a thread that is too late may still write to the old ones
        return self._bits

    def forced(self, output: Sequence[int]) -> list[int]:
        """The tokens that must follow `output`, split as the tokenizer would split their text; perhaps none.

        At its end, a grammar forces the end-of-sequence token.
        """
        self._settle()
        self._follow(output)
        return self._next_run()

    def allows_only(self, token_ids: Iterable[int]) -> bool:
        """Whether the last mask allows only tokens of `token_ids`."""
        left = self._bits.view(np.uint32).copy()
        for token_id in token_ids:
            if token_id // 32 < len(left):
                left[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return not left.any()

    def _follow(self, output: Sequence[int]) -> None:
        """Bring the matcher to the state after exactly `output`: roll back, then consume."""
        if self.error is not None or (len(output) == len(self._output) and list(output) == self._output):
            return
        known = len(self._output)
        if list(output[:known]) != self._output:
            known = next(
                (i for i, (a, b) in enumerate(zip(output, self._output, strict=False)) if a != b),
                min(len(output), known),
            )
            self._matcher.rollback(len(self._output) - known)
        self._output = list(output[:known])
        self._consume(output[known:])

    def _consume(self, token_ids: Sequence[int]) -> None:
        self._matcher.consume_tokens(list(token_ids))
        self._output += token_ids
        self._current = False
        self._check()

    def _next_run(self) -> list[int]:
        if self.error is not None:
            return []
        if self._matcher.is_stopped():
            return [self._tokenizer.eos_token]
        return list(self._matcher.compute_ff_tokens())

    def _fill(self) -> None:
        fill_next_token_bitmask(self._matcher, self._bits.reshape(1, -1))
        self._current = True

    def _settle(self) -> None:
        """Wait for the mask being computed, at most until its deadline."""
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


def _refusal(reason: str) -> ErrorInfo:
    return InvalidField(
        FIELD, f"the grammar became too complex while it was followed ({reason}); simplify it"
    ).info()
