"""Callers, what they may use, and what they used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What an API key may be allowed to do. Every route that is not open requires a scope."""

    INFERENCE = "inference"  # list models, generate
    METRICS = "metrics"  # read the server's metrics
    ROUTING = "routing"  # choose the served entity of a request, past the traffic split
    MANAGE = "manage"  # make, change and remove endpoints and keys; see all usage


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyBudget:
    """A key's budget for a calendar month (UTC), and its spending according to the ledger."""

    most: float
    currency: str
    spent: float = 0.0  # at least, in `month`
    month: str = ""  # 2026-03


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request, as far as the server knows."""

    key_id: str  # name of the key, safe for logs
    scopes: frozenset[Scope]  # what the key may do
    salt: str  # tenant salt of the prefix cache: from the key, never from the client's input
    anonymous: bool = False  # no key is configured, so every caller is this one
    user: str = ""  # the key's owner: a user or a service principal; "": the key's name
    is_service_principal: bool = False
    groups: frozenset[str] = frozenset()  # of the user
    endpoints: frozenset[str] = frozenset()  # that the key may use; empty: all
    over_budget: str = ""  # why its requests are refused now; "": they are not
    over_soft_budget: str = ""  # the warning in its answers
    budget: MonthlyBudget | None = None  # None: without a bound
    at_run_time: bool = False  # the key was made at run time, and may be revoked

    @property
    def owner(self) -> str:
        """The owner of the key. A key without a user is its own owner."""
        return self.user or self.key_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a request draws from one budget, which is a bucket that fills steadily and never overflows."""

    bucket: str  # names caller and unit: unique in the cluster, never shown
    unit: str  # "requests", "input-tokens", "output-tokens", "tokens" or "cost"
    amount: float  # >= 0
    capacity: float  # of the bucket: most that may come at once
    per_second: float  # at which it fills
    level: float | None = None  # of a new bucket; None: its capacity
    released: float = 0.0  # of a settlement: the part of earlier claims that it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The state of a bucket after a claim, for `x-ratelimit-*`."""

    unit: str
    limit: int  # its capacity
    remaining: int  # >= 0
    reset_s: float  # until it is full again


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to a claim: either all of its draws were made, or none."""

    granted: bool
    budgets: tuple[Budget, ...]  # in the order of the draws
    retry_after_s: float | None = None  # refused: until this claim could be granted; None: never
    refused: str | None = None  # the unit that refused it
    refused_draw: int | None = None  # the index of the draw that refused it


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one admitted request used. Each request has exactly one record, however it ended."""

    id: str  # ours, unique
    key_id: str
    endpoint: str
    entity: str  # the served entity that answered, or was tried last
    kind: str  # of the endpoint: pay_per_token, provisioned_throughput
    route: str  # template of the HTTP route
    started: float  # Unix seconds
    outcome: str  # "finished", "failed", "aborted" (the client left) or "lost" (its gateway died)
    status: int = 0  # HTTP; 0: nothing was sent
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0
    completion_tokens: int = 0  # all generated tokens, delivered or not
    discarded_tokens: int = 0  # generated for candidates and beams that lost, so in no answer
    first_token_s: float | None = None  # from arrival at the gateway
    queue_s: float | None = None  # in the engine, before its first step
    total_s: float = 0.0
    migrations: int = 0  # moves of the answer to another replica
    failed_over: tuple[str, ...] = ()  # entities that were tried before `entity`, and failed
    cost: float | None = None  # by the endpoint's price, in `currency`
    currency: str | None = None
    user: str = ""  # the owner of the key
    groups: tuple[str, ...] = ()  # of the user then, sorted
    shadow: bool = False  # a copy of another request, whose answer was dropped
