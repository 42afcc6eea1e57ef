"""Entities that left the catalogue, and when: their series end some time later."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

EntityName = tuple[str, str]  # endpoint and served entity

UNKNOWN: Final = "unknown"  # of a request that met no endpoint, or none of its entities
KEPT_S: Final = 3600.0  # so that each scrape sees the last counts, and the entity may come back


class Absent:
    """For each entity with series, remembers since when it has been missing from the catalogue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[EntityName, float] = {}  # when an entity was first missed

    def gone(self, known: Iterable[EntityName], catalogue: Mapping[str, Collection[str]]) -> list[EntityName]:
        """The entities of `known` that were in no catalogue of the last KEPT_S seconds, each returned once.

        `catalogue`: the entities of each endpoint.
        """
        now, missed = self._clock(), self._since
        self._since = {each: missed.get(each, now) for each in known if not _is_in(catalogue, each)}
        gone = [each for each, since in self._since.items() if now - since >= KEPT_S]
        for each in gone:
            del self._since[each]
        return gone


def _is_in(catalogue: Mapping[str, Collection[str]], who: EntityName) -> bool:
    endpoint, entity = who
    return endpoint == UNKNOWN or (endpoint in catalogue and entity in (UNKNOWN, *catalogue[endpoint]))
