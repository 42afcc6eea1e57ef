"""What usage records say of a mixed load, whatever happened to the replicas."""

from __future__ import annotations

from collections import Counter

from serve_app.types import UsageRecord
from tests.support.mixed_streams import MixedStreams
from tests.support.replica_pair import Pair


async def all_finished(pair: Pair, load: MixedStreams, since: float) -> list[UsageRecord]:
    """The one record of each answer of `load`, which began at `since`, once no request is in flight."""
    await pair.until_idle()
    records = await pair.records(len(load.answers), since)
    assert {record.outcome for record in records} == {"finished"}
    assert Counter(each.completion_tokens - each.discarded_tokens for each in records) == load.tokens
    return records


async def all_moved(pair: Pair, load: MixedStreams, since: float) -> int:
    """The same; returns how often answers have moved, which is at least once."""
    records = await all_finished(pair, load, since)
    moves = sum(record.migrations for record in records)
    assert moves > 0
    print(f"{len(records)} answers, {moves} moves: no client noticed", flush=True)
    return moves
