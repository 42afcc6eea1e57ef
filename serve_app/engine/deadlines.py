"""When requests must end at the latest."""

from __future__ import annotations

import heapq


class Deadlines:
    """The deadlines of the requests of one engine, on its clock.

    A request that ends earlier is not taken out: its entry stays until it is due.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []  # (due, arrival, request id)

    def add(self, due: float, arrival: int, request_id: str) -> None:
        """Note that a request, with its serial number, must end at the time `due`."""
        heapq.heappush(self._heap, (due, arrival, request_id))

    def take_due(self, now: float) -> list[tuple[int, str]]:
        """(arrival, request id) of every deadline that has passed; each is returned once."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1:])
        return due
