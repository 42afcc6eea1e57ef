"""Which steps are launched before others are committed: one on one device, and one for each stage of a model.

Steps are committed in the order of their launches. The model also runs them in this order: a block that a
sequence leaves while its step is in flight is written by its next owner later. Does not decide what is in a
step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from serve_app.engine.launched import LaunchedStep
from serve_app.engine.model.isolation import IsolatingRunner, StepResult
from serve_app.engine.scheduler import Plan, Scheduler
from serve_app.engine.sequence import Chunk

Begin: TypeAlias = Callable[[Plan], float]


class Flights(Protocol):
    """The steps in flight of one engine."""

    def step(self, begin: Begin) -> Iterator[LaunchedStep]:
        """Launch steps, and yield those to commit now; each before the next one is asked for.

        `begin` is called with the plan of a step before its launch, and returns the time.
        """
        ...

    @property
    def chunks(self) -> list[Chunk]:
        """Those of all steps in flight."""
        ...

    def clear(self) -> None:
        """Forget all steps in flight."""
        ...


class OnOneDevice:
    """With overlap, a step is launched before the one before it is committed; its tokens are chosen later."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: IsolatingRunner,
        run_ahead: Callable[[LaunchedStep], None] | None,
        prepare: Callable[[list[Chunk]], None],
    ) -> None:
        """`run_ahead`: as of `LaunchedStep`; None: no overlap. `prepare` is called with chunks whose
        sequences had pending tokens, once these are known."""
        self._scheduler, self._runner = scheduler, runner
        self._run_ahead, self._prepare = run_ahead, prepare
        self._launched: LaunchedStep | None = None

    def step(self, begin: Begin) -> Iterator[LaunchedStep]:
        earlier, self._launched = self._launched, None
        if earlier and self._scheduler.may_preempt:  # perhaps a sequence that is in the step
            yield earlier
            earlier = None
        plan = self._scheduler.schedule((earlier.plan,) if earlier else ())
        launched = None
        if plan.chunks:
            began = begin(plan)
            outcome = self._runner.run(plan.chunks, plan.copies, earlier.fed if earlier else None)
            launched = LaunchedStep(plan, outcome, began)  # on a device, it may still run
        if earlier:
            yield earlier
            self._prepare(plan.chunks)
        if launched and self._run_ahead is not None:
            self._run_ahead(launched)
        if launched and launched.chosen:
            self._launched = launched
        elif launched:
            yield launched

    @property
    def chunks(self) -> list[Chunk]:
        return self._launched.plan.chunks if self._launched else []

    def clear(self) -> None:
        self._launched = None


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that the last stage has not run yet."""

    plan: Plan
    wait: Callable[[], StepResult]
    began: float  # clock, seconds


class InStages:
    """As many steps as stages, with no sequence in common, so that no stage waits for another one."""

    def __init__(self, scheduler: Scheduler, runner: IsolatingRunner, stages: int) -> None:
        self._scheduler, self._runner, self._stages = scheduler, runner, stages
        self._flights: deque[_Flight] = deque()

    def step(self, begin: Begin) -> Iterator[LaunchedStep]:
        if self._scheduler.may_preempt:  # perhaps a sequence that is in flight
            while self._flights:
                yield self._land()
        while len(self._flights) < self._stages and not (self._flights and self._scheduler.may_preempt):
            plan = self._scheduler.schedule([flight.plan for flight in self._flights])
            if not plan.chunks:
                break
            began = begin(plan)
            for chunk in plan.chunks:
                chunk.sequence.in_flight = True
            self._flights.append(_Flight(plan, self._runner.launch(plan.chunks, plan.copies), began))
        if self._flights:
            yield self._land()

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for flight in self._flights for chunk in flight.plan.chunks]

    def clear(self) -> None:
        self._flights.clear()

    def _land(self) -> LaunchedStep:
        """Wait for the oldest step."""
        flight = self._flights.popleft()
        for chunk in flight.plan.chunks:
            chunk.sequence.in_flight = False
        return LaunchedStep(flight.plan, flight.wait(), flight.began)
