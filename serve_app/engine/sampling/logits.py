"""The edits of logits that requests ask for before a token is chosen: bias, penalties, masks.

The order is fixed: additive bias, repetition penalty, presence then frequency penalty, the
operator's processors, hard masks, watermark. So a processor cannot allow a token that a mask
excludes. An edit touches only the ids it names, so a row without edits costs nothing.
Temperature, filters and draws are not handled here.
"""

from __future__ import annotations

import logging
from collections import abc
from copy import copy
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from serve_app.config import WATERMARK_KEY
from serve_app.engine.grammar.constraint import Bits
from serve_app.engine.sampling.ngrams import NgramIndex
from serve_app.engine.sampling.topk import NEVER
from serve_app.engine.sampling.watermark import DELTA, green
from serve_app.engine.sequence import Sequence
from serve_app.engine.transfer import send
from serve_app.types import SamplingParams

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]

_LARGEST: Final = float(np.finfo(np.float32).max)


class TokenCounts:
    """The distinct tokens of one sequence, and how often each occurs, kept up to date as the sequence grows.

    Only `repetition_sees_prompt` and `penalize_prompt` take the prompt into account. Tokens may be appended,
    or cut off at the end; the remaining tokens are assumed to be unchanged.
    """

    def __init__(self, sampling: SamplingParams, prompt_len: int, vocab_size: int) -> None:
        seen = sampling.repetition_penalty != 1.0 and sampling.repetition_sees_prompt
        whole = seen or sampling.penalize_prompt
        self._start = 0 if whole else prompt_len
        self._counted_from = 0 if sampling.penalize_prompt else prompt_len
        self._vocab_size = vocab_size
        self._clear()

    def _clear(self) -> None:
        self._read = self._start  # tokens of the sequence already counted
        self._last = -1
        self._slots: dict[int, int] = {}
        self._ids: Ids = np.empty(64, dtype=np.int64)
        self._counts: npt.NDArray[np.float32] = np.zeros(64, dtype=np.float32)

    def copy(self) -> TokenCounts:
        """The counts for a fork; they grow independently of these."""
        child = copy(self)
        child._slots = self._slots.copy()
        child._ids, child._counts = self._ids.copy(), self._counts.copy()
        return child

    def update(self, token_ids: list[int]) -> tuple[Ids, npt.NDArray[np.float32]]:
        """Distinct ids [U] and their counts [U]; only the repetition penalty applies to ids with count 0."""
        shrunk = len(token_ids) < self._read
        if shrunk or (self._read > self._start and token_ids[self._read - 1] != self._last):
            self._clear()
        for position in range(self._read, len(token_ids)):
            token_id = token_ids[position]
            if not 0 <= token_id < self._vocab_size:
                continue
            slot = self._slots.setdefault(token_id, len(self._slots))
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token_id
            self._counts[slot] += position >= self._counted_from
        if len(token_ids) > self._read:
            self._read, self._last = len(token_ids), token_ids[-1]
        used = len(self._slots)
        return self._ids[:used], self._counts[:used]


class Edits:
    """The edits of one sequence. Whatever does not change from step to step is worked out once."""

    def __init__(
        self,
        sequence: Sequence,
        vocab_size: int,
        eos_token_ids: abc.Iterable[int],
        watermark_key: int = WATERMARK_KEY,
    ) -> None:
        sampling = sequence.sampling
        bias: dict[int, float] = {}
        for token_id, value in sampling.logit_bias:
            if 0 <= token_id < vocab_size:
                bias[token_id] = bias.get(token_id, 0.0) + value
        self.bias_ids: Ids = np.fromiter(bias, dtype=np.int64, count=len(bias))
        self.bias = np.clip(np.array(list(bias.values())), -_LARGEST, _LARGEST).astype(np.float32)

        penalties = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
        self.penalties: tuple[float, float, float] = penalties
        self.counts: TokenCounts | None = None
        if penalties != (1.0, 0.0, 0.0):
            self.counts = TokenCounts(sampling, sequence.prompt_len, vocab_size)

        def known(ids: abc.Iterable[int]) -> Ids:
            return np.array(sorted({i for i in ids if 0 <= i < vocab_size}), dtype=np.int64)

        self.allowed = known(sampling.allowed_token_ids) if sampling.allowed_token_ids else None
        self.banned = known(word[0] for word in sampling.bad_words if len(word) == 1)
        # The last token of a prefix -> the rest of the prefix, and the token that would complete the word.
        self._words: dict[int, list[tuple[list[int], int]]] = {}
        for word in sampling.bad_words:
            if len(word) > 1 and 0 <= word[-1] < vocab_size:
                self._words.setdefault(word[-2], []).append((list(word[:-2]), word[-1]))
        self._ngrams = NgramIndex(sampling.no_repeat_ngram) if sampling.no_repeat_ngram else None
        self._vocab_size = vocab_size
        self.watermark_key = watermark_key if sampling.watermark else None
        self._min_tokens = sampling.min_tokens
        ends = (*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids))
        ends += tuple(stop[0] for stop in sampling.stop_sequences if len(stop) == 1)
        self._end_ids = known(ends) if sampling.min_tokens > 0 else None
        self._stop_sequences = [stop for stop in sampling.stop_sequences if len(stop) > 1]
        self.dense = sequence.bias
        # Edits that look at the tokens so far, and all of those that last.
        self._following = bool(
            self.counts or sequence.processors or self._words or self._ngrams or sampling.watermark
        )
        fixed = len(bias) or self.dense is not None or self.allowed is not None or len(self.banned)
        self._lasting = self._following or bool(fixed)

    def dense_on(self, device: torch.device) -> torch.Tensor:
        """The bias [V] of the whole vocabulary, which stays on the device of the logits."""
        if self.dense is None:
            raise ValueError("the sequence has no bias of its whole vocabulary")
        if self.dense.device != device:
            self.dense = send(device, self.dense.numpy())[0]
        return self.dense

    def copy(self) -> Edits:
        """The edits for a fork, which share everything that does not change."""
        child = copy(self)
        child.counts = None if self.counts is None else self.counts.copy()
        child._ngrams = None if self._ngrams is None else self._ngrams.copy()
        return child

    def active(self, sequence: Sequence) -> bool:
        """Whether the logits of the sequence's next token are edited at all."""
        return self._lasting or sequence.constraint is not None or sequence.num_output < self._min_tokens

    def follows(self, sequence: Sequence) -> bool:
        """Whether the edits of the next token depend on the tokens before it, or on their number."""
        waits = sequence.constraint is not None or sequence.num_output < self._min_tokens
        return self._following or waits

    def masked(self, sequence: Sequence) -> Ids:
        """The ids that must not come next, besides those excluded by `allowed`."""
        parts = [self.banned]
        tokens = sequence.token_ids
        completing = [
            last
            for prefix, last in self._words.get(tokens[-1], ())
            if tokens[max(len(tokens) - 1 - len(prefix), 0) : -1] == prefix
        ]
        if completing:
            parts.append(np.array(completing, dtype=np.int64))
        if self._ngrams is not None:
            repeating = self._ngrams.following(tokens)
            parts.append(repeating[repeating < self._vocab_size])
        if self._end_ids is not None and sequence.num_output < self._min_tokens:
            grammar = sequence.constraint
            if grammar is None or not grammar.allows_only(self._end_ids.tolist()):  # a whole answer ends
                parts.append(self._end_ids)
                last = [s[-1] for s in self._stop_sequences if sequence.output_ends_with(s[:-1])]
                parts.append(np.array(last, dtype=np.int64))
        return np.concatenate(parts)


def apply_edits(
    logits: torch.Tensor,
    rows: abc.Sequence[int],
    edits: abc.Sequence[Edits],
    sequences: abc.Sequence[Sequence],
) -> list[int]:
    """Edit `rows` of logits [R, V] in place: row `rows[i]` by `edits[i]`, for `sequences[i]`.

    Raw logits must be finite or -inf. A finite logit stays finite, whatever the penalty. Returns the rows
    whose own processor failed; the logits of these rows are then meaningless.
    """
    work = list(zip(rows, edits, sequences, strict=True))

    for row, e in ((row, e) for row, e, _ in work if e.dense is not None):
        raw, added = logits[row], e.dense_on(logits.device)
        excluded = (raw == NEVER) | (added == NEVER)
        logits[row] = _bounded(raw + added).masked_fill_(excluded, NEVER)

    biased = [(row, e.bias_ids, e.bias) for row, e, _ in work if len(e.bias_ids)]
    if biased:
        parts = [(row, ids) for row, ids, _ in biased]
        *places, added = send(logits.device, *_index(parts), np.concatenate([bias for _, _, bias in biased]))
        at = (places[0], places[1])
        _put(logits, at, logits[at], logits[at] + added)

    penalised = [
        (row, e.penalties, e.counts.update(sequence.token_ids)) for row, e, sequence in work if e.counts
    ]
    if penalised:
        _penalise(logits, penalised)

    failed = [row for row, _, sequence in work if sequence.processors and not _process(logits[row], sequence)]

    allowed = [(row, e.allowed) for row, e, _ in work if e.allowed is not None]
    if allowed:
        rows_at, ids_at = send(logits.device, *_index(allowed))
        kept = logits[rows_at, ids_at]
        for row, _ in allowed:
            logits[row].fill_(NEVER)
        logits[rows_at, ids_at] = kept

    constrained = [
        (row, sequence.constraint.mask(sequence.output_ids))
        for row, _, sequence in work
        if sequence.constraint
    ]
    if constrained:
        _constrain(logits, [row for row, _ in constrained], np.stack([bits for _, bits in constrained]))

    masked = [(row, e.masked(sequence)) for row, e, sequence in work]
    if any(len(ids) for _, ids in masked):
        rows_at, ids_at = send(logits.device, *_index(masked))
        # A Python number would be copied to the device, and torch 2.11 waits for such a copy.
        logits[rows_at, ids_at] = logits.new_full((), NEVER)

    marked = [(row, sequence.token_ids[-1], e.watermark_key) for row, e, sequence in work if e.watermark_key]
    if marked:
        _mark(logits, marked)
    return failed


def _process(logits: torch.Tensor, sequence: Sequence) -> bool:
    """Run the processors of a sequence on its row [V] in place; returns whether the row is still usable."""
    prompt, output = tuple(sequence.token_ids[: sequence.prompt_len]), tuple(sequence.output_ids)
    try:
        for processor in sequence.processors:
            processor(prompt, output, logits)
        if not bool((logits < torch.inf).all()):  # NaN compares false
            raise ValueError("a logits processor left NaN or +inf")
    except Exception:
        log.exception("a logits processor of request %s failed", sequence.request_id)
        return False
    return True


def _mark(logits: torch.Tensor, marked: list[tuple[int, int, int]]) -> None:
    """Add the watermark to rows of logits [R, V]; `marked` has (row, previous token, key)."""
    key = marked[0][2]  # one engine has one key
    masks = green([token for _, token, _ in marked], logits.shape[1], key)
    for (row, _, _), mask in zip(marked, send(logits.device, masks)[0], strict=True):
        logits[row].add_(mask, alpha=DELTA)


def _constrain(logits: torch.Tensor, rows: list[int], bits: Bits) -> None:
    """Mask `rows` of logits [R, V], leaving only the tokens whose bits [len(rows), W] are set."""
    packed, at = send(logits.device, bits.view(np.uint8), np.array(rows, dtype=np.int64))
    places = torch.arange(8, dtype=torch.uint8, device=logits.device)
    excluded = ((packed.unsqueeze(-1) >> places) & 1).eq(0).flatten(1)  # [len(rows), 32 * W]
    width = min(excluded.shape[1], logits.shape[1])
    if logits.is_cpu:  # in place, row by row: nothing is copied
        for row, mask in zip(rows, excluded[:, :width], strict=True):
            logits[row, :width].masked_fill_(mask, NEVER)
            logits[row, width:] = NEVER
        return
    excluded = torch.nn.functional.pad(excluded[:, :width], (0, logits.shape[1] - width), value=True)
    logits.index_copy_(0, at, logits.index_select(0, at).masked_fill_(excluded, NEVER))


def _penalise(
    logits: torch.Tensor,
    penalised: list[tuple[int, tuple[float, float, float], tuple[Ids, npt.NDArray[np.float32]]]],
) -> None:
    sizes = [len(ids) for _, _, (ids, _) in penalised]
    per_row = np.array([penalties for _, penalties, _ in penalised])
    per_entry = np.repeat(np.clip(per_row, -_LARGEST, _LARGEST).astype(np.float32), sizes, axis=0)
    rows, ids, entries, counts = send(
        logits.device,
        *_index([(row, ids) for row, _, (ids, _) in penalised]),
        per_entry,
        np.concatenate([counts for _, _, (_, counts) in penalised]),
    )
    repetition, presence, frequency = entries.unbind(1)  # [E] each
    raw = logits[rows, ids]  # [E]
    value = _bounded(torch.where(raw > 0, raw / repetition, raw * repetition))
    value = _bounded(value - presence * (counts > 0))
    _put(logits, (rows, ids), raw, value - _bounded(frequency * counts))


def _index(parts: abc.Sequence[tuple[int, Ids]]) -> tuple[Ids, Ids]:
    """(row, ids) pairs, flattened into one pair of indices [E]."""
    rows = np.repeat([row for row, _ in parts], [len(ids) for _, ids in parts]).astype(np.int64)
    return rows, np.concatenate([ids for _, ids in parts])


def _bounded(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-_LARGEST, _LARGEST)


def _put(
    logits: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor], raw: torch.Tensor, value: torch.Tensor
) -> None:
    """Store `value`, bounded, except where the model itself has ruled a token out."""
    logits[at] = torch.where(raw == NEVER, raw, _bounded(value))
