"""Combines run-time endpoints with those of a deploy file; the deploy file's take precedence. Pure logic.

The cost of a change depends on what changes, not on the number of endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from serve_app.endpoints.catalogue import MAX_ENDPOINTS, check_app
from serve_app.endpoints.endpoint import Endpoint

Changes: TypeAlias = dict[str, Endpoint | None]  # by name; None: there is no such endpoint any more


class Beside:
    """The declared endpoints, and all run-time endpoints that fit. If two conflict, the first is kept."""

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}  # run-time endpoints that do not fit, and why
        self._declared: dict[str, Endpoint] = {}
        self._run_time: dict[str, Endpoint] = {}  # those that fit and those that do not
        self._taken: dict[str, Endpoint] = {}
        self._users: dict[str, dict[str, Endpoint]] = {}  # application -> those of `_taken` that use it

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """All endpoints that fit, by name."""
        return self._taken

    @property
    def run_time(self) -> frozenset[str]:
        """Names of the run-time endpoints that fit."""
        return frozenset(self._taken.keys() - self._declared.keys())

    def declare(self, endpoints: Iterable[Endpoint]) -> Changes:
        """Replace the declared endpoints. Returns all resulting changes, even to run-time endpoints."""
        before, self._taken, self._users, self.left_out = self._taken, {}, {}, {}
        self._declared = {endpoint.name: endpoint for endpoint in endpoints}
        for endpoint in self._declared.values():
            self._take(endpoint)
        for endpoint in self._run_time.values():
            self._try(endpoint)
        found: Changes = dict.fromkeys(before.keys() - self._taken.keys())
        return found | {
            name: endpoint for name, endpoint in self._taken.items() if before.get(name) != endpoint
        }

    def change(self, run_time: Mapping[str, Endpoint | None]) -> Changes:
        """Apply changes at run time. Returns all resulting changes."""
        before = {name: self._taken.get(name) for name in run_time}
        for name, endpoint in run_time.items():
            self._run_time.pop(name, None)
            self.left_out.pop(name, None)
            if name not in self._declared:
                self._drop(name)
            if endpoint is not None:
                self._run_time[name] = endpoint
        again = [name for name in self.left_out if name not in run_time]  # there may be room for them now
        before |= dict.fromkeys(again)
        for name in (*run_time, *again):
            if (wanted := self._run_time.get(name)) is not None:
                self.left_out.pop(name, None)
                self._try(wanted)
        return {name: now for name in before if (now := self._taken.get(name)) != before[name]}

    def _try(self, endpoint: Endpoint) -> None:
        try:
            self._check(endpoint)
        except ValueError as error:
            self.left_out[endpoint.name] = str(error)
        else:
            self._take(endpoint)

    def _check(self, endpoint: Endpoint) -> None:
        """Raises ValueError with the reason if the endpoint does not fit."""
        if endpoint.name in self._declared:
            raise ValueError("the deploy file declares an endpoint of this name")
        if len(self._taken) >= MAX_ENDPOINTS:
            raise ValueError(f"a gateway has at most {MAX_ENDPOINTS} endpoints")
        for app in {entity.app for entity in endpoint.served_entities}:
            # All users of an application agree, so any of them stands for all.
            user = next(iter(self._users.get(app, {}).values()), None)
            uses = [(each, entity) for each in (user, endpoint) if each for entity in each.served_entities]
            check_app(app, [(each, entity) for each, entity in uses if entity.app == app])

    def _take(self, endpoint: Endpoint) -> None:
        self._taken[endpoint.name] = endpoint
        for entity in endpoint.served_entities:
            self._users.setdefault(entity.app, {})[endpoint.name] = endpoint

    def _drop(self, name: str) -> None:
        endpoint = self._taken.pop(name, None)
        for entity in () if endpoint is None else endpoint.served_entities:
            users = self._users.get(entity.app, {})
            users.pop(name, None)
            if not users:
                self._users.pop(entity.app, None)
