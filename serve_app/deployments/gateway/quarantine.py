"""Keeps a request that ends the process of its replica from ending every other replica too."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from serve_app.channel.frames import encoder
from serve_app.errors import EngineRefused
from serve_app.types import GenerateRequest, Question

DEATHS: Final = 2  # replicas that died with a request before it is refused
KEPT_S: Final = 600.0
MAX_SUSPECTS: Final = 1_024  # the oldest is forgotten first

Request = GenerateRequest | Question[Any]


class Quarantine:
    """Counts the replicas that died while they served a request, by the request's content.

    The request's id does not matter: a client that retries gets a new one. A request that ends well
    resets its count, so that popular prompts survive unrelated crashes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deaths: OrderedDict[bytes, tuple[float, set[str]]] = OrderedDict()

    def check(self, request: Request) -> None:
        """Raises EngineRefused for a request that ended `DEATHS` replicas recently."""
        if not self._deaths:
            return
        since, replicas = self._deaths.get(_digest(request), (0.0, set()))
        if len(replicas) >= DEATHS and self._clock() - since < KEPT_S:
            raise EngineRefused("this request ended the model's process twice; it is not tried again")

    def blame(self, request: Request, replica: str) -> None:
        """`replica` died while it served `request`."""
        digest = _digest(request)
        since, replicas = self._deaths.pop(digest, (0.0, set()))
        if self._clock() - since >= KEPT_S:
            replicas = set()
        self._deaths[digest] = (self._clock(), replicas | {replica})
        if len(self._deaths) > MAX_SUSPECTS:
            self._deaths.popitem(last=False)

    def clear(self, request: Request) -> None:
        """`request` ended well."""
        if self._deaths:
            self._deaths.pop(_digest(request), None)


def _digest(request: Request) -> bytes:
    nameless = replace(request, id="")
    if isinstance(nameless, GenerateRequest):
        nameless = replace(nameless, parent_id=None)
    return hashlib.sha256(encoder.encode(nameless)).digest()
