"""Whether the books of an engine agree: requests, queues and blocks. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Set

from serve_app.engine.cache.blocks import IntegrityError
from serve_app.engine.group import Group
from serve_app.engine.scheduler import Scheduler
from serve_app.engine.sequence import Status


def check_books(groups: Mapping[str, Group], unstarted: Set[str], scheduler: Scheduler) -> None:
    """Raise IntegrityError unless blocks, queues and `groups` agree; `unstarted` are ids of waiting ones."""
    queued = [*scheduler.running, *scheduler.waiting]
    every = (s for group in groups.values() for s in group.sequences.values())
    owned = [s for s in every if s.status is not Status.HELD]
    if set(map(id, queued)) != set(map(id, owned)) or len(queued) != len(owned):
        raise IntegrityError(f"{len(queued)} sequences are queued, but requests own {len(owned)}")
    scheduler.check_integrity()
    if any(not group.open or not group.sequences for group in groups.values()):
        raise IntegrityError("a request has nothing left to do, but is kept")
    if not unstarted <= groups.keys():
        raise IntegrityError("a request counts as waiting that is gone")
    scheduler.tables.check_integrity(owned)
