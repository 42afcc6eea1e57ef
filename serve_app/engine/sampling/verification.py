"""Verification of drafts: how one forward pass yields several tokens of a sequence.

A step may compute the rows of a sequence and those of a draft after it. `sample_tokens` walks along the draft
for as long as each draft token is the token that would have been sampled anyway. Every token is drawn by the
same sampler, in the same state and with the same noise, as without a draft. So a draft changes when tokens
are generated, but not which tokens. What a rejected draft left in the KV cache is overwritten later. If a
token depends only on its row and position, the rows of a whole draft are read at once.

Depends on rows and sequences, but not on blocks or scheduling.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from itertools import islice

from serve_app.engine.sampling.sampled import Sampled
from serve_app.engine.sequence import Sequence

# (rows of logits, their sequences, tokens between the end of each sequence and its row) -> one outcome a row
SampleRows = abc.Callable[[list[int], list[Sequence], list[int]], list[Sampled]]


@dataclass(slots=True, eq=False)
class SamplingTask:
    """The tokens that one sequence takes in a step.

    After `i` accepted tokens of the draft, row `first_row + i` gives the next token.
    """

    sequence: Sequence
    first_row: int
    draft: tuple[int, ...] = ()
    sampled: list[Sampled] = field(default_factory=list)  # the result: accepted draft tokens, then one more
    logits: list[bytes] = field(default_factory=list)  # the raw row of each sampled token, when asked for


def sample_tokens(
    tasks: abc.Sequence[SamplingTask], sample: SampleRows, by_row: abc.Callable[[Sequence], bool]
) -> None:
    """Fill `sampled` of every task: one token, and one more for each draft token that was right.

    `by_row`: whether each next token of a sequence depends only on its position and its own row of logits.
    The sequences are unchanged, whether this returns or raises.
    """
    lengths = [len(task.sequence.token_ids) for task in tasks]
    for task in tasks:
        task.sampled.clear()
    # How many rows of each task are read at once.
    widths = [1 + len(task.draft) if task.draft and by_row(task.sequence) else 1 for task in tasks]
    try:
        left = list(zip(tasks, widths, strict=True))
        while left:
            read = [(t.first_row + len(t.sampled) + i, t.sequence, i) for t, n in left for i in range(n)]
            rows, sequences, ahead = map(list, zip(*read, strict=True))
            outcomes = iter(sample(rows, sequences, ahead))
            followed = [(t, width, _follow(t, list(islice(outcomes, width)))) for t, width in left]
            left = [(task, 1) for task, width, on in followed if on and width == 1]
    finally:
        for task, length in zip(tasks, lengths, strict=True):
            del task.sequence.token_ids[length:]


def _follow(task: SamplingTask, outcomes: list[Sampled]) -> bool:
    """Record tokens up to the first one that differs from the draft; returns whether all were the draft's."""
    return all(_accept(task, outcome) for outcome in outcomes)


def _accept(task: SamplingTask, outcome: Sampled) -> bool:
    """Note a token; returns whether it equals the draft's, in which case the next row is valid, too."""
    place = len(task.sampled)
    if outcome.error is not None and place:
        return False  # the next step finds the same error in its first row, and reports it
    task.sampled.append(outcome)
    if outcome.error is not None or place >= len(task.draft) or outcome.token_id != task.draft[place]:
        return False
    task.sequence.token_ids.append(outcome.token_id)
    return True
