"""Logits -> one token for each row, each by the rules of its own sequence.

The order of operations: bias, penalties, processors, masks, watermark (logits.py); then the greedy
choice, or temperature, top-k, top-p, min-p, typical-p and one draw (filters.py) with noise keyed by
(seed, sequence, position) (noise.py). The token of a row depends only on the row's own logits and sequence.
Does not depend on scheduling, text or stopping.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch

from serve_app.config import WATERMARK_KEY
from serve_app.engine.grammar.constraint import FIELD
from serve_app.engine.request.tensors import row_bytes
from serve_app.engine.sampling.choice import NOT_FINITE, NOT_FINITE_ERROR, NOTHING_LEFT, Choice
from serve_app.engine.sampling.filters import (
    FilterParams,
    RowParams,
    distribution,
    draw_all,
    draw_top_k,
    draw_top_p,
)
from serve_app.engine.sampling.logits import Edits, apply_edits
from serve_app.engine.sampling.logprobs import RawLogprobs
from serve_app.engine.sampling.noise import uniform
from serve_app.engine.sampling.rejection import draw_by_rejection, draws_by_rejection
from serve_app.engine.sampling.sampled import Sampled, Scored
from serve_app.engine.sampling.topk import NEVER, highest
from serve_app.engine.sequence import Sequence
from serve_app.engine.torch_cpu import few_threads
from serve_app.engine.transfer import Parcel, send
from serve_app.errors import GenerationFailed, InvalidField
from serve_app.types import ErrorInfo, SamplingParams

_PROCESSOR_FAILED: Final = GenerationFailed("a logits processor of this request failed").info()

_SMALL_TOP_K: Final = (64, 1024)  # rows are grouped by width, so that none pays for a wider neighbour

Draw = abc.Callable[[torch.Tensor, FilterParams], torch.Tensor]


@dataclass(slots=True, frozen=True)
class _RowWork:
    """How the rows of one sequence are handled; worked out once per sequence."""

    edits: Edits
    draw: Draw | None  # None: greedy
    width: int  # rows with the same draw and width are drawn together


Place = abc.Callable[[], torch.Tensor | None]  # where some rows are, on the device; None: all rows, or none


@dataclass(slots=True, frozen=True)
class _DrawnTogether:
    """Rows that need the same work."""

    draw: Draw | None  # None: greedy
    at: Place
    params: abc.Sequence[RowParams]  # none if greedy
    sent: Place  # `params` on the device

    def tokens(self, logits: torch.Tensor) -> torch.Tensor:
        """The tokens [k] of the group's rows; logits [R, V] are the logits of all rows."""
        x, sent = _take(logits, self.at()), self.sent()
        if self.draw is None or sent is None:
            return highest(x)[1]
        return self.draw(x, FilterParams.of(self.params, sent))


class Sampler:
    """Chooses the next token of every row of a batch.

    Not thread-safe: logits are edited in place. There is state for each sequence, which is dropped together
    with the sequence.
    """

    def __init__(
        self, vocab_size: int, eos_token_ids: frozenset[int], *, watermark_key: int = WATERMARK_KEY
    ) -> None:
        """Ids from `vocab_size` on are padding of the model's output and are never chosen."""
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._watermark_key = watermark_key
        self._width = vocab_size
        self._plans: WeakKeyDictionary[Sequence, _RowWork] = WeakKeyDictionary()

    def sample(
        self, logits: torch.Tensor, sequences: abc.Sequence[Sequence], ahead: abc.Sequence[int] | None = None
    ) -> list[Sampled]:
        """One outcome for each row of logits [R, V] float32, which may be edited in place.

        Row r belongs to `sequences[r]`; its token comes after `ahead[r]` other tokens that are not yet in the
        sequence. If `ahead` is None, no row has such tokens; this is required unless sequences are drawn
        `by_row`. A row that contains NaN or +inf, or that leaves no token to choose, gets an error; the
        others are unaffected.
        """
        return self.choose(logits, sequences, ahead).read() if sequences else []

    def choose(
        self, logits: torch.Tensor, sequences: abc.Sequence[Sequence], ahead: abc.Sequence[int] | None = None
    ) -> Choice:
        """As `sample`, for at least one row, without waiting for the device.

        It does wait for rows with an operator's processors, and for drafts with probabilities.
        """
        plans = self._plans_of(sequences, logits.shape[1])
        spoilt = self._strip_padding(logits)
        if all(
            plan.draw is None and sequence.num_logprobs is None and not plan.edits.active(sequence)
            for plan, sequence in zip(plans, sequences, strict=True)
        ):
            value, ids = highest(logits)
            return Choice(ids, ids.masked_fill(_not_finite(value, spoilt), NOT_FINITE))

        with few_threads(logits.device, logits.numel()):
            return self._choose(logits, sequences, ahead or [0] * len(sequences), plans, spoilt)

    def _choose(
        self,
        logits: torch.Tensor,
        sequences: abc.Sequence[Sequence],
        ahead: abc.Sequence[int],
        plans: abc.Sequence[_RowWork],
        spoilt: torch.Tensor | None,
    ) -> Choice:
        """The tokens of rows, if some rows are edited, drawn, or need log-probabilities.

        A row that is not finite goes through all steps, and gets a meaningless token.
        """
        unusable = _not_finite(logits.amax(-1), spoilt)
        rows = range(len(sequences))
        edited = [r for r in rows if plans[r].edits.active(sequences[r])]
        drafted = [r for r in rows if plans[r].draw is not None and draws_by_rejection(sequences[r])]
        if drafted or any(sequences[r].processors for r in edited):  # their work is done on the host
            left_out: list[bool] = unusable.tolist()
            edited, drafted = ([r for r in some if not left_out[r]] for some in (edited, drafted))
        asking = {r: top for r in rows if (top := sequences[r].num_logprobs) is not None}
        parcel = Parcel(logits.device)
        at_edited, at_asking, at_drafted = (
            _place(parcel, some, len(sequences)) for some in (edited, list(asking), drafted)
        )
        drawn = self._drawn(parcel, sequences, ahead, plans, set(drafted), logits.shape[1])
        raw = RawLogprobs(_take(logits, at_asking()), list(asking.values())) if asking else None
        errors: dict[int, ErrorInfo] = {}
        nothing_left = torch.zeros_like(unusable)
        if edited:
            errors = dict.fromkeys(self._edit(logits, edited, plans, sequences), _PROCESSOR_FAILED)
            none_of_edited = _take(logits, at_edited()).amax(-1) == NEVER
            at = at_edited()
            nothing_left = none_of_edited if at is None else nothing_left.index_copy_(0, at, none_of_edited)
        parts = [(each.at(), each.tokens(logits)) for each in drawn]
        if drafted:
            at = at_drafted()
            parts.append((at, _draw_drafted(_take(logits, at), drafted, sequences)))
        tokens = _together(parts, len(sequences))
        marked = tokens.masked_fill(nothing_left, NOTHING_LEFT) if edited else tokens
        return Choice(
            tokens,
            marked.masked_fill(unusable, NOT_FINITE),
            asking=asking,
            logprobs=() if raw is None else raw.of(_take(tokens, at_asking())),
            errors=errors,
            nothing_left=lambda row: _nothing_left(sequences[row]),
        )

    @staticmethod
    def _drawn(
        parcel: Parcel,
        sequences: abc.Sequence[Sequence],
        ahead: abc.Sequence[int],
        plans: abc.Sequence[_RowWork],
        left_out: abc.Set[int],
        width: int,
    ) -> list[_DrawnTogether]:
        """All rows except `left_out`, in groups that are drawn together; their arrays go into `parcel`."""
        made = []
        for (draw, _), members in _groups(plans, (r for r in range(len(sequences)) if r not in left_out)):
            at = _place(parcel, members, len(sequences))
            if draw is None:
                made.append(_DrawnTogether(None, at, (), lambda: None))
                continue
            params = _row_params(sequences, ahead, members, width)
            made.append(_DrawnTogether(draw, at, params, parcel.add(np.array(params))))
        return made

    def by_row(self, sequence: Sequence) -> bool:
        """Whether each next token of a sequence depends only on its position and its own row of logits."""
        plan = self._plans_of((sequence,), self._width)[0]
        return not (
            plan.edits.follows(sequence) or _decays(sequence.sampling) or draws_by_rejection(sequence)
        )

    def score(self, logits: torch.Tensor, sequences: abc.Sequence[Sequence]) -> list[Scored]:
        """Log-probabilities of every next token, for beams: normalised, and then edited.

        `logits` [R, V] are as in `sample`; filters, temperature and noise are not used.
        A row with no token left to choose is all -inf.
        """
        plans = self._plans_of(sequences, logits.shape[1])
        wanted = {r: row_bytes(logits[r]) for r, sequence in enumerate(sequences) if sequence.wants_logits}
        spoilt = self._strip_padding(logits)
        unusable: list[bool] = _not_finite(logits.amax(-1), spoilt).tolist()
        rows = [r for r, bad in enumerate(unusable) if not bad]
        asking = [r for r in rows if sequences[r].num_logprobs is not None]
        raw = None
        if asking:
            raw = RawLogprobs(logits[asking], [sequences[r].num_logprobs or 0 for r in asking])
        log_probs = torch.log_softmax(logits, dim=-1)
        edited = [r for r in rows if plans[r].edits.active(sequences[r])]
        failed = self._edit(log_probs, edited, plans, sequences) if edited else ()
        places = {r: i for i, r in enumerate(asking)}
        return [
            Scored(
                log_probs[r],
                error=NOT_FINITE_ERROR if unusable[r] else _PROCESSOR_FAILED if r in failed else None,
                raw=raw if r in places else None,
                row=places.get(r, 0),
                logits=wanted.get(r),
            )
            for r in range(len(sequences))
        ]

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Copy the state of `parent` for `child`, which is equal to `parent` at this moment."""
        plan = self._plans.get(parent)
        if plan is not None:
            self._plans[child] = replace(plan, edits=plan.edits.copy())

    def _plans_of(self, sequences: abc.Sequence[Sequence], width: int) -> list[_RowWork]:
        if width != self._width:  # ids are checked against it
            self._plans.clear()
            self._width = width
        plans = []
        for sequence in sequences:
            plan = self._plans.get(sequence)
            if plan is None:
                plan = self._plans[sequence] = self._plan(sequence, min(self._vocab_size, width))
            plans.append(plan)
        return plans

    def _plan(self, sequence: Sequence, vocab_size: int) -> _RowWork:
        draw, width = _draw_of(sequence.sampling, vocab_size)
        return _RowWork(Edits(sequence, vocab_size, self._eos_token_ids, self._watermark_key), draw, width)

    def _strip_padding(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Rule out the padded ids; returns which rows [R] had NaN or +inf in the padding; None without it."""
        padding = logits[:, self._vocab_size :]
        if not padding.shape[1]:
            return None
        spoilt = (padding.amax(-1) < float("inf")).logical_not_()  # NaN compares false
        padding.fill_(NEVER)
        return spoilt

    @staticmethod
    def _edit(
        logits: torch.Tensor,
        rows: list[int],
        plans: abc.Sequence[_RowWork],
        sequences: abc.Sequence[Sequence],
    ) -> abc.Sequence[int]:
        """Apply the edits of some rows in place; returns the rows whose own processor failed."""
        return apply_edits(logits, rows, [plans[r].edits for r in rows], [sequences[r] for r in rows])


def _place(parcel: Parcel, rows: abc.Sequence[int], count: int) -> Place:
    """The index that selects `rows` from `count` rows; it goes into `parcel` unless it selects all rows."""
    return parcel.add(np.array(rows)) if 0 < len(rows) < count else lambda: None


def _groups(
    plans: abc.Sequence[_RowWork], rows: abc.Iterable[int]
) -> list[tuple[tuple[Draw | None, int], list[int]]]:
    """The groups of rows that need the same work, so that each group is drawn together."""
    groups: dict[tuple[Draw | None, int], list[int]] = {}
    for r in rows:
        groups.setdefault((plans[r].draw, plans[r].width), []).append(r)
    return list(groups.items())


def _draw_drafted(
    logits: torch.Tensor, rows: abc.Sequence[int], sequences: abc.Sequence[Sequence]
) -> torch.Tensor:
    """The tokens [k] of `rows`, drawn against a client's draft; `logits` [k, V] are those of these rows."""
    known = _row_params(sequences, [0] * len(sequences), rows, logits.shape[1])
    probs = distribution(logits, FilterParams.of(known, *send(logits.device, np.array(known))))
    drawn = [draw_by_rejection(row, sequences[r]) for row, r in zip(probs, rows, strict=True)]
    return send(logits.device, np.array(drawn, dtype=np.int64))[0]


def _nothing_left(sequence: Sequence) -> ErrorInfo:
    """The reason why no token is left: the grammar failed, or the request excludes every token."""
    if sequence.constraint is not None and sequence.constraint.error is not None:
        return sequence.constraint.error
    sampling = sequence.sampling
    masks = {
        "allowed_token_ids": sampling.allowed_token_ids,
        "bad_words": sampling.bad_words,
        "no_repeat_ngram": sampling.no_repeat_ngram,
        "min_tokens": sampling.min_tokens,
        "bias": sequence.bias is not None,
        "logits_processors": sampling.processors,
        FIELD: sequence.constraint is not None,
    }
    given = [name for name, value in masks.items() if value]
    others = f" beside {', '.join(given[1:])}" if given[1:] else ""
    return InvalidField(
        given[0] if given else None, f"leaves no token to choose from{others}.", joint=" "
    ).info()


def _draw_of(sampling: SamplingParams, vocab_size: int) -> tuple[Draw | None, int]:
    """How tokens are drawn for a sequence with these parameters, and the width of the sequence's group."""
    if sampling.greedy:
        return None, 0
    if 0 < sampling.top_k < vocab_size:
        return draw_top_k, next((w for w in _SMALL_TOP_K if sampling.top_k <= w), vocab_size)
    if sampling.top_p < 1.0 or sampling.top_p_decay < 1.0:
        return draw_top_p, 0
    if sampling.typical_p < 1.0:
        return draw_top_k, vocab_size  # needs the whole vocabulary in order
    return draw_all, int(sampling.min_p > 0.0)


def _row_params(
    sequences: abc.Sequence[Sequence], ahead: abc.Sequence[int], rows: abc.Iterable[int], width: int
) -> list[RowParams]:
    """The sampling parameters of `rows`, in that order."""
    return [
        RowParams(
            p.temperature,
            p.top_k if p.top_k > 0 else width,
            _top_p(sequence),
            p.min_p,
            p.typical_p,
            uniform(sequence.seed, sequence.index, sequence.num_output + more),
        )
        for sequence, p, more in ((sequences[r], sequences[r].sampling, ahead[r]) for r in rows)
    ]


def _top_p(sequence: Sequence) -> float:
    """`top_p` for the next token of a sequence, reduced by its decay as in TensorRT-LLM's runtime.

    Every token multiplies `top_p` by the decay, down to a minimum; the reset token restores `top_p`.
    """
    p = sequence.sampling
    if not _decays(p):
        return p.top_p
    tokens = sequence.num_output  # since `top_p` had its first value
    if p.top_p_reset_id >= 0:
        backwards = sequence.output_ids[::-1]
        tokens = backwards.index(p.top_p_reset_id) if p.top_p_reset_id in backwards else tokens
    return p.top_p if tokens == 0 else max(p.top_p * p.top_p_decay**tokens, p.top_p_min)


def _decays(sampling: SamplingParams) -> bool:
    """Whether `top_p` changes from token to token."""
    return sampling.top_p_decay != 1.0 or sampling.top_p_min > sampling.top_p


def _take(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """Some rows [k] of x [R, ...], in order; None stands for x itself, with all rows."""
    return x if rows is None else x[rows]


def _together(parts: abc.Sequence[tuple[torch.Tensor | None, torch.Tensor]], count: int) -> torch.Tensor:
    """The tokens [count] of all rows, put together from groups of rows; a group None means all rows."""
    if parts[0][0] is None:
        return parts[0][1]
    tokens = torch.empty(count, dtype=torch.int64, device=parts[0][1].device)
    for at, ids in parts:
        if at is not None:
            tokens.index_copy_(0, at, ids)
    return tokens


def _not_finite(peaks: torch.Tensor, spoilt: torch.Tensor | None) -> torch.Tensor:
    """Which rows [R] are `spoilt` or not finite, judging by their largest numbers `peaks`."""
    bad = peaks - peaks != 0  # NaN, unless the peak is a number
    return bad if spoilt is None else bad | spoilt
