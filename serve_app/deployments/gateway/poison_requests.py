"""Keeps a request that kills the process of its replica from killing every other replica too."""

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

BARREN_DEATHS: Final = 3  # replicas that died with a request and had made none of its tokens
UNLUCKY_DEATHS: Final = 2  # up to this many may be bad luck: the client may try again
DEATHS: Final = 4  # replicas that died with a request, with or without tokens of it
MOST_DEATHS: Final = 8  # the same, even if another request seems to be the cause
KEPT_S: Final = 600.0
MAX_SUSPECTS: Final = 1_024  # the oldest is forgotten first

Request = GenerateRequest | Question[Any]
_Deaths = dict[str, bool]  # by replica: whether it had made no token


class PoisonRequests:
    """Counts, by a request's content, the replicas that died while they served the request.

    Whatever a gateway adds to a request is left out: a client that retries gets a new id, and an answer that
    moves elsewhere is the same request. A request that ends well resets its count, so that unrelated crashes
    do not stop popular prompts. If a replica had already generated a token of the request, computing the
    request is possible, so it takes more deaths to suspect it. All requests that were in a replica when it
    died are equally suspect. So a suspect is tried alone. After two deaths, which may be bad luck, the
    suspect's client may try again. If two replicas died before they had generated a token of one and the same
    request, this request explains both deaths. Requests that had tokens there are then not blamed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deaths: OrderedDict[bytes, tuple[float, _Deaths]] = OrderedDict()
        self._explained: OrderedDict[str, None] = OrderedDict()  # replicas

    def check(self, request: Request) -> None:
        """Raises EngineRefused for a request that recently killed `BARREN_DEATHS` or `DEATHS` replicas."""
        deaths = self._recent(request)
        own = sum(is_barren or replica not in self._explained for replica, is_barren in deaths.items())
        if sum(deaths.values()) >= BARREN_DEATHS or own >= DEATHS or len(deaths) >= MOST_DEATHS:
            raise EngineRefused(
                "this request ended the model's process again and again; it is not tried any more"
            )

    def barren_deaths(self, request: Request) -> int:
        """The number of replicas that died with `request` recently, before generating a token for it."""
        return sum(self._recent(request).values())

    def _recent(self, request: Request) -> _Deaths:
        if not self._deaths:
            return {}
        since, deaths = self._deaths.get(_digest(request), (0.0, {}))
        return deaths if self._clock() - since < KEPT_S else {}

    def blame(self, request: Request, replica: str, *, is_barren: bool = True) -> None:
        """Record that `replica` died while it served `request`. `is_barren`: the replica had delivered no
        token for the request."""
        digest = _digest(request)
        since, deaths = self._deaths.pop(digest, (0.0, {}))
        if self._clock() - since >= KEPT_S:
            deaths = {}
        deaths[replica] = deaths.get(replica, True) and is_barren
        self._deaths[digest] = (self._clock(), deaths)
        if len(self._deaths) > MAX_SUSPECTS:
            self._deaths.popitem(last=False)
        barren = [each for each, made_nothing in deaths.items() if made_nothing]
        if len(barren) >= UNLUCKY_DEATHS:
            self._explained.update(dict.fromkeys(barren))
            while len(self._explained) > MAX_SUSPECTS:
                self._explained.popitem(last=False)

    def clear(self, request: Request) -> None:
        """`request` ended well."""
        if self._deaths:
            self._deaths.pop(_digest(request), None)


def _digest(request: Request) -> bytes:
    content: Request = replace(request, id="", timeout_s=None)
    if isinstance(content, GenerateRequest):
        sampling = replace(content.sampling, seed=None)
        content = replace(content, parent_id=None, record=None, resume=None, sampling=sampling)
    return hashlib.sha256(encoder.encode(content)).digest()
