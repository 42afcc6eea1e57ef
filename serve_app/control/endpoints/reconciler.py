"""Brings the cluster to the state of the registry: reads, plans, acts, and reads again.

All its state is in the database, so a control plane that dies at any point continues after a restart
where it stopped. An action is taken only if the endpoint has not changed since the plan was made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from sqlalchemy.orm import Session

from serve_app.control.database.database import Database
from serve_app.control.endpoints import registry
from serve_app.control.endpoints.cluster import AppSeen, AppStatus, Cluster
from serve_app.control.endpoints.known import KnownEndpoint, KnownEndpoints
from serve_app.control.endpoints.plan import Action, Delete, Deploy, Fail, Promote, Seen, Settle, Wanted, plan
from serve_app.control.endpoints.state import RUN_TIME
from serve_app.control.endpoints.tables import EndpointRow
from serve_app.control.endpoints.tasks import TaskProblem, task_of
from serve_app.control.gateways import Gateways
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import InvalidField, ServeError, Unavailable
from serve_app.types.control import UpdateState

logger = logging.getLogger(__name__)

BUSY_S: Final = 0.5  # between turns while something changes
CALM_S: Final = 5.0  # between turns otherwise: an application may fail by itself
EMPTY_S: Final = 15.0  # if there are no endpoints: an earlier database may have left orphans
# A gateway may have sent a request just before its routes changed; that request arrives within this time.
SETTLE_S: Final = 2.0
RESTART_S: Final = 30.0  # before an application that failed while serving is restarted; doubles each time
MAX_RESTART_S: Final = 600.0
STILL: Final = "what served before still does"


class Reconciler:
    """Runs as one task."""

    def __init__(
        self,
        database: Database,
        cluster: Cluster,
        gateways: Gateways,
        changed: Callable[[], None],
        known: KnownEndpoints,
        *,
        start_timeout_s: float,
        declared: Callable[[], Mapping[str, Endpoint]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed`: see `Snapshots.changed`. `declared`: the endpoints of the deploy file by name."""
        self._database = database
        self._cluster = cluster
        self._gateways = gateways
        self._changed = changed
        self._known = known
        self._start_timeout_s = start_timeout_s
        self._declared = declared
        self._clock = clock
        self._awake = asyncio.Event()
        self._unrouted: dict[str, float] = {}  # application -> since when no gateway routes to it
        self._changing: dict[str, tuple[float, float]] = {}  # endpoint -> its `pending_since`, and when seen
        self._restarts: dict[
            str, tuple[float, float]
        ] = {}  # failed application -> time of the next restart, and the wait before it
        self.apps: Mapping[str, AppSeen] = {}  # as last read

    def wake(self) -> None:
        """Start a turn now, because something changed."""
        self._awake.set()

    async def run(self) -> None:
        """Run turns until cancelled."""
        while True:
            self._awake.clear()
            pause = BUSY_S
            try:
                pause = await self.turn()
            except Unavailable as error:
                logger.warning("endpoints stay as they are: %s", error.message)
            except Exception:
                logger.exception("endpoints stay as they are")
            try:
                async with asyncio.timeout(pause):
                    await self._awake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(BUSY_S / 10)  # wake-ups come in bursts

    async def turn(self) -> float:
        """Read, plan and act once. Returns the seconds until the next turn."""
        rows = await self._database.run(self._known.read)
        self.apps = await self._cluster.apps()
        self._changing = {id: known for id, known in self._changing.items() if id in rows}
        wanted = [self._wanted(each) for each in rows.values()]
        actions = plan(wanted, await self._seen(wanted))
        for action in actions:
            try:
                await self._act(action, rows)
            except ServeError as error:
                logger.warning("%s: %s", type(action).__name__, error.message)
            except Exception:  # such as a stored model that this version rejects: other endpoints go on
                logger.exception("%s failed", type(action).__name__)
        busy = any(each.pending is not None or each.is_followed is not None for each in wanted)
        strays = [app for app in self.apps if app.startswith(RUN_TIME)]
        if actions or busy or len(strays) > sum(len(each.serving) for each in wanted):
            return BUSY_S
        return CALM_S if wanted else EMPTY_S

    def _wanted(self, known: KnownEndpoint) -> Wanted:
        row, serving, pending = known.row, known.serving, known.pending
        is_busy = row.update_state == UpdateState.IN_PROGRESS.value
        is_late = (is_busy or row.switch_version > 0) and self._is_late(row)
        is_followed: bool | None = None
        if row.switch_version:
            own = frozenset(spec.name for spec in serving.specs) if serving is not None else frozenset()
            is_followed = is_late or self._gateways.follow(row.switch_version, row.name, own)
        return Wanted(
            id=row.id,
            serving=() if serving is None else serving.specs,
            pending=pending.specs if pending is not None and is_busy else None,
            is_late=is_late,
            is_followed=is_followed,
        )

    def _is_late(self, row: EndpointRow) -> bool:
        """Whether the update of `row` takes too long, by the monotonic clock.

        When the control plane restarts, the update gets its full time again.
        """
        now = self._clock()
        known = self._changing.get(row.id)
        if known is None or known[0] != row.pending_since:
            known = self._changing[row.id] = row.pending_since, now
        return now > known[1] + self._start_timeout_s

    async def _seen(self, wanted: list[Wanted]) -> Seen:
        used = {spec.name for each in wanted for spec in (*each.serving, *(each.pending or ()))}
        now = self._clock()
        ready = self._gateways.ready  # an application that could not grow may still answer
        failed = {
            name for name in used - ready if (app := self.apps.get(name)) and app.status is AppStatus.FAILED
        }
        self._restarts = {name: known for name, known in self._restarts.items() if name in used}
        again = frozenset(name for name in failed if self._is_due(name, now))
        strays = {
            name
            for name, app in self.apps.items()
            if name.startswith(RUN_TIME) and name not in used and app.status is not AppStatus.GOING
        }
        if not strays:
            self._unrouted = {}
            return Seen(self.apps, None, again)
        routed = await self._cluster.routed()
        if routed is None:
            return Seen(self.apps, None, again)
        self._unrouted = {name: self._unrouted.get(name, now) for name in strays - routed}
        settled = {name for name, since in self._unrouted.items() if now >= since + SETTLE_S}
        return Seen(self.apps, routed | (strays - settled), again)

    def _is_due(self, app: str, now: float) -> bool:
        """Whether a failed application may be started again by now. The wait doubles after each failure."""
        if app not in self._restarts:
            self._restarts[app] = (now + RESTART_S, RESTART_S)
        at, wait = self._restarts[app]
        if now < at:
            return False
        longer = min(2 * wait, MAX_RESTART_S)
        self._restarts[app] = (now + longer, longer)
        return True

    async def _act(self, action: Action, rows: Mapping[str, KnownEndpoint]) -> None:
        match action:
            case Deploy(spec):
                logger.info("application %s: %d to %d replicas", spec.name, *spec.size)
                await self._cluster.deploy(spec)
            case Delete(app):
                logger.info("application %s goes", app)
                await self._cluster.delete(app)
            case Promote(endpoint):
                await self._promote(rows[endpoint])
            case Fail(endpoint, app, reason):
                row = rows[endpoint].row
                await self._fail(row, self._explained(rows[endpoint], app, reason))
            case Settle(endpoint):
                await self._change(rows[endpoint].row, registry.settle)

    async def _promote(self, known: KnownEndpoint) -> None:
        row, pending = known.row, known.pending
        if pending is None:
            return
        infos = {spec.name: await self._cluster.info(spec.name) for spec in pending.specs}
        try:
            task = task_of(row, pending, infos, self._declared())
            await self._change(row, lambda session, fresh: registry.promote(session, fresh, task=task))
        except (TaskProblem, InvalidField) as problem:
            await self._fail(row, f"{problem}; {self._stays(row)}")
            return
        self._changed()

    async def _fail(self, row: EndpointRow, message: str) -> None:
        logger.warning("endpoint %s: %s", row.name, message)
        await self._change(row, lambda session, fresh: registry.fail(session, fresh, message))
        self._changed()

    async def _change(self, row: EndpointRow, work: Callable[[Session, EndpointRow], None]) -> None:
        """Do `work` on the row, unless the row was changed after the plan was made."""
        seen = (row.id, row.config_version, row.update_state)

        def checked(session: Session) -> None:
            fresh = registry.by_id(session, row.id)
            if fresh is not None and (fresh.id, fresh.config_version, fresh.update_state) == seen:
                work(session, fresh)

        await self._database.run(checked)

    def _explained(self, known: KnownEndpoint, app: str | None, reason: str) -> str:
        row, pending = known.row, known.pending
        said = f": {reason.strip()}" if reason.strip() else ""
        if app is None:
            return (
                f"the replicas did not come up within {self._start_timeout_s:g} s{said}; {self._stays(row)}. "
                "Free resources or ask for less, and update again"
            )
        entities = pending.entities if pending is not None else ()
        name = next((each.wanted.name for each in entities if each.app == app), app)
        return f"served entity {name!r} failed{said}; {self._stays(row)}. Correct it, and update again"

    def _stays(self, row: EndpointRow) -> str:
        return STILL if row.serving is not None else "nothing serves yet: update or delete the endpoint"
