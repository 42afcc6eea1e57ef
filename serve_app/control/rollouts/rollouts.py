"""Running rollouts: each check moves the traffic forward, leaves it, or moves it back.

All state is in the database, and a step and its traffic change in one transaction. So a control plane that
dies and restarts continues where it was. Does not deal with gateways: the registry notifies them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from serve_app.control.database.database import Database
from serve_app.control.handlers import Handlers
from serve_app.control.rollouts.comparison import ERROR_RATE, compare
from serve_app.control.rollouts.decision import Move, decide
from serve_app.control.rollouts.measured import METRICS, Measured, measured, step_seen
from serve_app.control.rollouts.splits import Split, Splits, present, with_share
from serve_app.control.rollouts.start import check_start
from serve_app.control.rollouts.tables import RolloutRow
from serve_app.endpoints.ai_gateway import Shadow
from serve_app.errors import Conflict, InvalidField, ModelNotFound, Unavailable
from serve_app.types import Caller, control

logger = logging.getLogger(__name__)

LOOK_S: Final = 2.0  # between two checks of the running rollouts
CONFIDENCES: Final = (0.5, 0.9999)  # the lowest and highest confidence of a report


class Rollouts:
    """The rollouts of all endpoints, their shadows, and the comparison of their entities."""

    def __init__(self, database: Database, splits: Splits, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix seconds, as in the ledger's rows."""
        self._database = database
        self._splits = splits
        self._clock = clock

    def handlers(self) -> Handlers:
        return {
            control.StartRollout: self._start,
            control.GetRollout: self._get,
            control.StopRollout: self._stop,
            control.PutShadow: self._put_shadow,
            control.CompareEntities: self._compare,
        }

    async def run(self) -> None:
        """Check all rollouts repeatedly, until cancelled."""
        while True:
            with contextlib.suppress(Unavailable):  # already logged by the database
                await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Check each running rollout once."""
        running = await self._database.run(_running)
        for rollout in running:
            try:
                is_changed = await self._database.run(partial(self._advance, id=rollout))
            except Unavailable:
                raise
            except Conflict as error:  # the endpoint is being updated; try again later
                logger.info("a rollout waits: %s", error)
            except Exception:  # the other rollouts go on
                logger.exception("a rollout could not be judged")
            else:
                if is_changed:
                    self._splits.changed()

    async def _start(self, command: control.StartRollout, caller: Caller) -> control.RolloutShown:
        now = self._clock()

        def work(session: Session) -> control.RolloutShown:
            split = self._splits.read(session, command.endpoint)
            check_start(command, split)
            newest = _newest(session, split)
            if newest is not None and self._goes_on(session, newest):
                raise Conflict(
                    f"a rollout to {newest.entity!r} runs already; stop or promote it before another starts"
                )
            former = present(split.traffic)
            row = RolloutRow(
                endpoint_id=split.endpoint_id,
                endpoint=command.endpoint,
                entity=command.entity,
                steps=list(command.steps),
                step=0,
                interval_s=command.interval_s,
                guards=asdict(command.guards),
                state=control.RolloutState.RUNNING.value,
                message="started",
                started=now,
                changed=now,
                step_started=now,
                traffic={},
                former_traffic=former,
            )
            self._take_step(session, row, 0, now)
            session.add(row)
            return _shown(row)

        return await self._changing(work)

    async def _get(self, command: control.GetRollout, caller: Caller) -> control.RolloutShown:
        def work(session: Session) -> control.RolloutShown:
            row = self._find(session, command.endpoint)
            self._goes_on(session, row)
            return _shown(row)

        return await self._database.run(work)

    async def _stop(self, command: control.StopRollout, caller: Caller) -> control.RolloutShown:
        def work(session: Session) -> control.RolloutShown:
            row = self._find(session, command.endpoint)
            if not self._goes_on(session, row):
                raise Conflict(f"the rollout to {row.entity!r} has ended: {row.state}")
            if command.promote:
                self._end(session, row, control.RolloutState.DONE, "promoted by its user", {row.entity: 100})
            else:
                self._end(
                    session, row, control.RolloutState.STOPPED, "stopped by its user", row.former_traffic
                )
            return _shown(row)

        return await self._changing(work)

    async def _put_shadow(self, command: control.PutShadow, caller: Caller) -> control.Done:
        try:
            shadow = None if command.shadow is None else Shadow.model_validate(command.shadow)
        except ValueError as error:  # the management API checks its fields one by one
            raise InvalidField("shadow", str(error)) from None
        await self._database.run(lambda session: self._splits.set_shadow(session, command.endpoint, shadow))
        self._splits.changed()
        return control.Done()

    async def _compare(self, command: control.CompareEntities, caller: Caller) -> control.ComparisonReport:
        low, high = CONFIDENCES
        if not low <= command.confidence <= high:
            raise InvalidField("confidence", f"must be from {low:g} to {high:g}")

        def work(session: Session) -> control.ComparisonReport:
            split = self._splits.read(session, command.endpoint)
            since = split.configured if command.since is None else command.since
            found = measured(session, command.endpoint, since)
            _check_metric(command.metric, found)
            return compare(
                command.endpoint,
                {entity: split.percentage(entity) for entity in split.entities},
                found,
                metric=command.metric,
                since=since,
                confidence=command.confidence,
            )

        return await self._database.run(work)

    async def _changing(self, work: Callable[[Session], control.RolloutShown]) -> control.RolloutShown:
        found = await self._database.run(work)
        self._splits.changed()
        return found

    def _find(self, session: Session, endpoint: str) -> RolloutRow:
        """The newest rollout of an endpoint. Raises ModelNotFound."""
        row = _newest(session, self._splits.read(session, endpoint))
        if row is None:
            raise ModelNotFound("name", f"the endpoint {endpoint!r} has had no rollout")
        return row

    def _advance(self, session: Session, id: int) -> bool:
        """Decide about one rollout. Returns whether its traffic changed. Raises Conflict."""
        row = session.get(RolloutRow, id)
        if row is None or not self._goes_on(session, row):
            return False
        now = self._clock()
        guards = control.Guards(**row.guards)
        seen = step_seen(session, row.endpoint, row.entity, row.step_started, now, guards)
        decision = decide(guards, len(row.steps), row.interval_s, seen)
        row.message = f"step {row.step + 1} of {len(row.steps)} ({row.steps[row.step]} %): {decision.reason}"
        if decision.move is Move.STAY:
            return False
        logger.info("the rollout of %s to %s: %s: %s", row.endpoint, row.entity, decision.move, row.message)
        if decision.move is Move.GO_BACK:
            self._end(session, row, control.RolloutState.ROLLED_BACK, row.message, row.former_traffic)
        elif row.step + 1 < len(row.steps):
            self._take_step(session, row, row.step + 1, now)
        else:
            row.state, row.changed = control.RolloutState.DONE.value, now
        return True

    def _goes_on(self, session: Session, row: RolloutRow) -> bool:
        """Whether a rollout still runs. Ends it if something else changed the endpoint."""
        if row.state != control.RolloutState.RUNNING:
            return False
        end = self._end_by_others(session, row)
        if end is None:
            return True
        state, why = end
        row.state, row.message, row.changed = state.value, why, self._clock()
        logger.warning("the rollout of %s to %s ends as %s: %s", row.endpoint, row.entity, state, why)
        return False

    def _end_by_others(self, session: Session, row: RolloutRow) -> tuple[control.RolloutState, str] | None:
        """How a change of the endpoint ended a rollout, and why; None if the rollout has not ended. Changes
        no traffic."""
        try:
            split = self._splits.read(session, row.endpoint)
        except ModelNotFound:
            return control.RolloutState.STOPPED, "the endpoint is gone"
        if split.endpoint_id != row.endpoint_id:
            return control.RolloutState.STOPPED, "the endpoint was made anew"
        if row.entity not in split.entities:
            return control.RolloutState.STOPPED, "the entity is served no more"
        if present(split.traffic) == row.traffic:
            return None
        if split.percentage(row.entity) == 100:
            return control.RolloutState.DONE, "an update of the endpoint gave the entity all traffic"
        return control.RolloutState.STOPPED, "somebody else changed the traffic, which stays as it is"

    def _take_step(self, session: Session, row: RolloutRow, step: int, now: float) -> None:
        self._set_traffic(session, row, with_share(row.former_traffic, row.entity, row.steps[step]))
        row.step, row.step_started, row.changed = step, now, now

    def _end(
        self,
        session: Session,
        row: RolloutRow,
        state: control.RolloutState,
        message: str,
        traffic: Mapping[str, int],
    ) -> None:
        self._set_traffic(session, row, traffic)
        row.state, row.message, row.changed = state.value, message, self._clock()

    def _set_traffic(self, session: Session, row: RolloutRow, traffic: Mapping[str, int]) -> None:
        row.traffic = present(traffic)
        self._splits.set_traffic(session, row.endpoint, row.traffic)


def _running(session: Session) -> list[int]:
    rows = select(RolloutRow.id).where(RolloutRow.state == control.RolloutState.RUNNING.value)
    return list(session.scalars(rows.order_by(RolloutRow.id)))


def _newest(session: Session, split: Split) -> RolloutRow | None:
    rows = select(RolloutRow).where(RolloutRow.endpoint_id == split.endpoint_id)
    return session.scalar(rows.order_by(RolloutRow.id.desc()).limit(1))


def _shown(row: RolloutRow) -> control.RolloutShown:
    return control.RolloutShown(
        endpoint=row.endpoint,
        entity=row.entity,
        steps=tuple(row.steps),
        step=row.step,
        interval_s=row.interval_s,
        guards=control.Guards(**row.guards),
        state=control.RolloutState(row.state),
        message=row.message,
        started=row.started,
        changed=row.changed,
        former_traffic=dict(row.former_traffic),
    )


def _check_metric(metric: str, found: Mapping[tuple[str, bool], Measured]) -> None:
    """Raises InvalidField for an unknown metric."""
    known = [ERROR_RATE, *METRICS, *sorted({name for each in found.values() for name in each.ratings})]
    if metric not in known:
        raise InvalidField(
            "metric", f"no request has the metric {metric!r} in this time; there is: {', '.join(known)}"
        )
