"""Moves a request away from a replica that is stopping: the new call begins before the old one ends.

Another replica is called while the old call goes on, with its deltas left unread. The first delta of the new
replica ends the old call. If the new replica refuses or takes too long, the gateway goes on reading the old
call and tries again later. So nothing is lost if no other replica has the same weights and free capacity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from serve_app.deployments.gateway.calls import Call
from serve_app.errors import ServeError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.25  # after a refusal
LAST_PAUSE_S: Final = 2.0
ASK_S: Final = 10.0  # for the other replica's first delta, while the client waits


class Handover:
    """One request that is moving away from a replica that is stopping."""

    def __init__(
        self,
        old: Call,
        ask: Callable[[], Call],
        adopt: Callable[[Call], None],
        is_worth: Callable[[], bool],
    ) -> None:
        """`ask` sends the rest of the request of `old`; `adopt` is called with the call that took over.

        `is_worth`: whether a handover is worthwhile, and another replica exists.
        """
        self._old = old
        self._ask = ask
        self._adopt = adopt
        self._is_worth = is_worth
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop asking other replicas, and let deltas of the old call be read again."""
        self._task.cancel()
        self._old.inbox.release()

    async def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            if self._is_worth() and await self._moved():
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_S)

    async def _moved(self) -> bool:
        """Whether another replica has taken over."""
        new = self._ask()
        # Before the stream is read again: the new call has to state what was read so far.
        self._old.inbox.hold(on_end=self.stop)
        is_taken = False
        try:
            async with asyncio.timeout(ASK_S):
                await new.inbox.begun()
            is_taken = True
        except (ServeError, TimeoutError) as error:
            logger.info("request %s stays for now: %s", new.inbox.key, type(error).__name__)
        finally:
            if not is_taken:
                new.close()
                self._old.inbox.release()
        if is_taken:
            self._old.hand_over()
            self._adopt(new)
        return is_taken
