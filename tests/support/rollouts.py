"""Rollouts over a real database, with endpoints of a dictionary and a clock that a test moves."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from serve_app.control.database.database import Database
from serve_app.control.handlers import joined
from serve_app.control.ledger.tables import Usage
from serve_app.control.rollouts.feedback import Feedback
from serve_app.control.rollouts.rollouts import Rollouts
from serve_app.control.rollouts.splits import Split
from serve_app.endpoints.ai_gateway import Shadow
from serve_app.errors import Conflict, ModelNotFound, ServeError
from serve_app.types import Caller, Scope
from serve_app.types.control import Command

T = TypeVar("T")

OPERATOR = Caller(key_id="operator", scopes=frozenset(Scope), salt="")


@dataclass
class DictSplits:
    """Endpoints in memory."""

    splits: dict[str, Split] = field(default_factory=dict)
    shadows: dict[str, Shadow | None] = field(default_factory=dict)
    refuse: ServeError | None = None  # raised by every change
    changes: int = 0

    def read(self, session: Session, endpoint: str) -> Split:
        if endpoint not in self.splits:
            raise ModelNotFound("name", f"there is no endpoint {endpoint!r}")
        return self.splits[endpoint]

    def set_traffic(self, session: Session, endpoint: str, traffic: Mapping[str, int]) -> None:
        if self.refuse is not None:
            raise self.refuse
        if sum(traffic.values()) != 100:
            raise AssertionError(f"the traffic does not add up: {traffic}")
        self.splits[endpoint] = replace(self.read(session, endpoint), traffic=dict(traffic))

    def set_shadow(self, session: Session, endpoint: str, shadow: Shadow | None) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.shadows[endpoint] = shadow

    def changed(self) -> None:
        self.changes += 1


class RolloutBench:
    """One endpoint `chat` with the entities `old` and `new`, and requests as a test wants them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = 1_000_000.0
        self.rng = random.Random(4)
        both = Split(endpoint_id="e-1", entities=("old", "new"), traffic={"old": 100}, configured=self.now)
        self.splits = DictSplits({"chat": both})
        self.restart()

    def restart(self) -> None:
        """As a control plane that died and came back: nothing is left but the database."""
        clock = lambda: self.now  # noqa: E731
        self.rollouts = Rollouts(self.database, self.splits, clock)
        self.handlers = joined([self.rollouts.handlers(), Feedback(self.database, clock).handlers()])

    async def do(self, command: Command[T]) -> T:
        found: T = await self.handlers[type(command)](command, OPERATOR)
        return found

    @property
    def traffic(self) -> Mapping[str, int]:
        return self.splits.splits["chat"].traffic

    async def serve(self, count: int, *, error_rate: Mapping[str, float], **fields: Any) -> None:
        """`count` requests now, divided as the traffic is."""
        names, weights = list(self.traffic), list(self.traffic.values())
        rows = []
        for entity in self.rng.choices(names, weights, k=count):
            fails = self.rng.random() < error_rate.get(entity, 0.0)
            outcome = {"outcome": "failed", "status": 500} if fails else {}
            rows.append(usage_row(self.now, entity=entity, **outcome, **fields))
        await self.add(*rows)

    async def add(self, *rows: Usage) -> None:
        await self.database.run(lambda session: session.add_all(rows))


def usage_row(started: float, **fields: Any) -> Usage:
    """A finished request to `chat`."""
    plain: dict[str, Any] = {"id": secrets.token_hex(16), "is_ended": True, "started": started}
    plain |= {"key_id": "alice", "user": "", "groups": "[]", "day": "2026-01-01", "parts": None}
    plain |= {"endpoint": "chat", "entity": "old", "kind": "pay_per_token", "route": "/v1/chat/completions"}
    plain |= {"outcome": "finished", "status": 200, "failed_over": "", "migrations": 0, "is_shadow": False}
    plain |= {"prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 20, "discarded_tokens": 0}
    plain |= {"first_token_s": 0.1, "queue_s": 0.0, "total_s": 1.0, "cost": None, "currency": None}
    return Usage(**{**plain, **fields})


def busy() -> ServeError:
    return Conflict("the endpoint is being updated")
