"""One model's application as a gateway sees it: missing, loading, restarting, asleep or answering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_app.channel.frames import info_decoder
from serve_app.deployments.gateway.presence import Presence, choices, presence
from serve_app.deployments.gateway.route import Route
from serve_app.deployments.gateway.silent_replicas import SilentReplicas
from serve_app.endpoints.endpoint import ServedEntity
from serve_app.errors import Unavailable
from serve_app.types import ModelInfo

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.25  # between checks of a model; for one that answers they make no call
REFRESH_S: Final = 5.0  # between questions to a model that answers: it may have been deployed anew
ASK_S: Final = 10.0  # for the answer to such a question
RESTARTING: Final = "restarting"
SILENT: Final = "not answering"


class RemoteModel:
    """Looks for its model and fetches the `ModelInfo` in the background; models do not delay each other.

    A model that is scaled to zero is asleep: it counts as ready, and the next request wakes it up.
    If a model's replicas are gone for any other reason, the model stops being ready at that moment, and the
    requests that wait for a replica are released.
    """

    def __init__(
        self,
        entity: ServedEntity,
        new_route: Callable[[DeploymentHandle, RemoteModel], Route],
    ) -> None:
        self._app = entity.app
        self._expected = (entity.model, entity.version)
        self._new_route = new_route
        self._handle: DeploymentHandle | None = None
        self._silent: SilentReplicas | None = None
        self._waking: asyncio.Task[ModelInfo] | None = None
        self._missing: str | None = "not deployed yet"
        self._asleep = False
        self._retired = False
        self._asked = 0.0  # when the model last answered; the event loop's time
        self.info: ModelInfo | None = None
        self.route: Route | None = None
        self.looked = asyncio.Event()  # set once it is known whether the model can answer
        self._watching = asyncio.ensure_future(self._watch())

    @property
    def missing(self) -> str | None:
        """The reason why the model cannot answer; None if it can answer."""
        if self._missing is None and not self._asleep and self._handle is not None:
            running = choices(self._handle)
            if running == 0:
                return RESTARTING
            return SILENT if running is not None and self._num_silent >= running else None
        return self._missing

    @property
    def lacks(self) -> str | None:
        """A problem that the model has although it can answer; None if there is no problem."""
        if not (silent := self._num_silent):
            return None
        does = "does" if silent == 1 else "do"
        return f"{silent} of {self.num_replicas + silent} replicas {does} not answer"

    @property
    def _num_silent(self) -> int:
        return 0 if self._silent is None else len(self._silent)

    @property
    def is_restarting(self) -> bool:
        """Whether the model has answered before and may soon answer again."""
        return self.info is not None and self.missing is not None

    @property
    def num_replicas(self) -> int:
        """The number of replicas that a request may go to."""
        return 0 if self._handle is None else (choices(self._handle) or 0) - self._num_silent

    @property
    def is_waited_for(self) -> bool:
        """Whether requests are waiting because no replica has taken them yet."""
        return self.route is not None and self.route.is_waited_for

    def suspect(self) -> None:
        """Find the replica that does not answer, and keep requests away from it until it answers again."""
        if self._silent is not None:
            self._silent.suspect()

    def _silence_changed(self) -> None:
        if self.route is not None and self.missing == SILENT:
            self.route.let_go()

    def retire(self) -> None:
        """Check the model only while a request waits for it, since no endpoint names it any more."""
        self._retired = True

    def close(self) -> None:
        """Stop looking."""
        self._watching.cancel()
        if self._silent is not None:
            self._silent.close()
        if self._waking is not None:
            self._waking.cancel()

    async def wake(self) -> ModelInfo:
        """The model's `ModelInfo`, once the model can answer. Raises Unavailable or Overloaded."""
        if (missing := self.missing) is not None or self._handle is None:
            word = missing if missing in (RESTARTING, SILENT) else "loading"
            raise Unavailable(f"the model is {word}; try again", retry_after_s=2.0)
        if self.info is not None:
            return self.info
        if self._waking is None or self._waking.done():
            logger.info("application %s: waking up", self._app)
            self._waking = asyncio.ensure_future(self._ask())
        # Shielded: the request that asked first may leave while others wait for the answer.
        return await asyncio.shield(self._waking)

    async def _ask(self) -> ModelInfo:
        if self.route is None:
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        info = info_decoder.decode(await self.route.info())
        if (info.name, info.version) != self._expected:
            self._lost(f"it serves {_words(info.name, info.version)}, not {_words(*self._expected)}")
            raise Unavailable("the model is not the one that is configured", retry_after_s=10.0)
        self.info = info
        self._asked = asyncio.get_running_loop().time()
        return info

    async def _watch(self) -> None:
        """Keep `missing`, `info` and `route` up to date."""
        while not self._retired or self.is_waited_for:
            try:
                await self._look()
            except Exception as error:
                # Any failure is tried again: a cluster that starts fails in many ways.
                logger.debug("application %s: %s", self._app, type(error).__name__)
                if not isinstance(error, TimeoutError):
                    self.looked.set()
            await asyncio.sleep(RETRY_S)

    async def _look(self) -> None:
        if self._handle is None:
            # In a thread, since it waits for the controller. A handle is made once.
            self._handle = await asyncio.to_thread(serve.get_app_handle, self._app)
            self._silent = SilentReplicas(self._handle, self._silence_changed)
            self.route = self._new_route(self._handle, self)
        is_due = asyncio.get_running_loop().time() >= self._asked + REFRESH_S
        if not choices(self._handle):
            if (self._asleep and not is_due) or not await self._is_up(self._handle):
                return
        elif self._missing is None and not self._asleep and not is_due:
            return
        await asyncio.wait_for(self._ask(), ASK_S)
        self._ready(asleep=False)

    async def _is_up(self, handle: DeploymentHandle) -> bool:
        """Whether the model has a replica that the router does not know of."""
        found = await asyncio.to_thread(presence, self._app)
        self._asked = asyncio.get_running_loop().time()
        if choices(handle):
            return True
        if found is Presence.ASLEEP or (found is Presence.LOADING and self._asleep):
            self._ready(asleep=True)
            return False
        if found is Presence.UP and choices(handle) is None:
            return True  # the first call makes the router ask
        # A controller that still counts a replica has not heard yet that it is gone.
        self._lost(found.value if self.info is None or found is Presence.ABSENT else RESTARTING)
        return False

    def _ready(self, *, asleep: bool) -> None:
        self._asleep = asleep
        if self._missing is not None:
            self._missing = None
            logger.info("application %s is ready", self._app)
        self.looked.set()

    def _lost(self, why: str) -> None:
        self._asleep = False
        if self._missing != why:
            self._missing = why
            logger.info("application %s cannot answer: %s", self._app, why)
        self.looked.set()
        if self.route is not None:
            self.route.let_go()


def _words(model: str, version: str) -> str:
    return f"{model} version {version}" if version else model
