"""One request, as reported by several sources: its own gateway, and replicas that outlived that gateway.

`merge` gives the same result in any order and with repetitions. A gateway's record of a request that it
closed is final. For a request that was never closed, the larger of two numbers counts: the tokens that the
journal recorded as delivered, and the tokens that replicas report as generated. Neither exceeds the number
really generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any, Final

from serve_app.types import UsageRecord

LOST: Final = "lost"


@dataclass(frozen=True, slots=True)
class Used:
    """The usage reported by one source; each field also exists in `UsageRecord`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    discarded_tokens: int = 0
    total_s: float = 0.0
    cost: float | None = None

    @classmethod
    def of(cls, record: UsageRecord) -> Used:
        return cls(**{each.name: getattr(record, each.name) for each in fields(cls)})

    def __add__(self, other: Used) -> Used:
        """The sum of two prompts that ran side by side."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Used(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            self.discarded_tokens + other.discarded_tokens,
            max(self.total_s, other.total_s),
            sum(costs) if costs else None,
        )

    def __or__(self, other: Used) -> Used:
        """For each number, the larger of the two."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Used(*(a if b is None else b if a is None else max(a, b) for a, b in pairs))


@dataclass(frozen=True, slots=True)
class Known:
    """Everything known about one request."""

    record: UsageRecord
    is_ended: bool = False  # `record` is final, from its own gateway
    # For a request that did not end: prompt -> (moves of its answer, the last replica's report).
    parts: Mapping[str, tuple[int, Used]] = field(default_factory=dict)

    def total(self) -> UsageRecord:
        """The record of the request, from all sources together."""
        if self.is_ended:
            return self.record
        settled = sum((used for _, used in sorted_parts(self.parts)), Used())
        return replace(self.record, outcome=LOST, **asdict(Used.of(self.record) | settled))


def ended(record: UsageRecord) -> Known:
    """Its own gateway closed the request."""
    return Known(record, is_ended=True)


def lost(record: UsageRecord) -> Known:
    """This is the last record in the journal of a gateway that died."""
    return Known(replace(record, outcome=LOST))


def settled(record: UsageRecord, part: str) -> Known:
    """A replica reports what it generated for one prompt.

    Among `PROMPT`, `PROMPT~1`, `PROMPT~2` the last report counts, since a replica that continues an answer
    reports the whole answer from its beginning.
    """
    prompt, _, number = part.partition("~")
    moves = int(number) if number.isdecimal() else 0
    empty = replace(record, outcome=LOST, **asdict(Used()))
    return Known(empty, parts={prompt: (moves, Used.of(record))})


def merge(one: Known, other: Known) -> Known:
    """Merge what two sources report about the same request."""
    if one.is_ended or other.is_ended:
        return max((each for each in (one, other) if each.is_ended), key=lambda each: _order(each.record))
    parts = dict(one.parts)
    for prompt, part in other.parts.items():
        parts[prompt] = part if prompt not in parts else max(part, parts[prompt], key=_part_order)
    newest = max(one.record, other.record, key=_order)
    used = Used.of(one.record) | Used.of(other.record)
    return Known(replace(newest, **asdict(used)), parts=parts)


def sorted_parts(parts: Mapping[str, tuple[int, Used]]) -> list[tuple[int, Used]]:
    """`parts` in a fixed order, so that sums of floats do not depend on the order of arrival."""
    return [parts[prompt] for prompt in sorted(parts)]


def _part_order(part: tuple[int, Used]) -> tuple[Any, ...]:
    moves, used = part
    return moves, used.completion_tokens, used.prompt_tokens, _numbers(astuple(used))


def _order(record: UsageRecord) -> tuple[Any, ...]:
    """Sort key for a fixed order, in which later reports come after earlier ones."""
    return record.completion_tokens, record.status, record.total_s, repr(record)


def _numbers(values: tuple[Any, ...]) -> tuple[float, ...]:
    return tuple(-1.0 if value is None else float(value) for value in values)
