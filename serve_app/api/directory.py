"""The endpoints of this gateway: looked up by name, replaced as a whole.

After a change, running requests keep their endpoints; later requests see the new catalogue. Requests look
endpoints up through the view of their caller, so that no route can forget a key's permissions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from serve_app.api.backend import Backend
from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Endpoint, Task
from serve_app.endpoints.permissions import Level, level_of
from serve_app.errors import ModelNotFound, PermissionDenied, Unavailable
from serve_app.types import Caller, Scope
from serve_app.types.control.endpoints import Grant

UNSEEN: Final = "no such model that the API key may use"  # also of one that does not exist
UNREADY_S: Final = 5.0  # `Retry-After`: a model takes seconds to load, or minutes
QUERY: Final = Level.CAN_QUERY.name


class Directory:
    """Endpoint name -> endpoint."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._grants: dict[str, Sequence[Grant]] = {}
        self._unready: Mapping[str, str] = {}
        self.replace(catalogue or Catalogue())

    def replace(self, catalogue: Catalogue) -> None:
        self.refused = False  # a newer catalogue was wrong, and this one stayed
        self.run_time: frozenset[str] = frozenset()  # names that no deploy file declares
        self.take(catalogue.endpoints)

    def take(self, endpoints: Iterable[Endpoint], waiting: Mapping[str, Sequence[str]] | None = None) -> None:
        """Replace the endpoints. `waiting`: endpoints that change once certain applications answer."""
        self._hold({endpoint.name: endpoint for endpoint in endpoints}, waiting or {})

    def change(
        self, changes: Mapping[str, Endpoint | None], waiting: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """As `take`, for changed endpoints only. None means that the endpoint is gone."""
        # A copy: views of requests under way keep what they have.
        changed = self._endpoints | {name: each for name, each in changes.items() if each is not None}
        for name in changes.keys() & changed.keys():
            if changes[name] is None:
                del changed[name]
        self._hold(changed, waiting or {})

    def _hold(self, endpoints: dict[str, Endpoint], waiting: Mapping[str, Sequence[str]]) -> None:
        self.waiting = dict(waiting)
        self.created = int(time.time())  # Unix seconds
        self._endpoints = endpoints
        self.has_v1_dialects = any(each.v1_dialect is not None for each in endpoints.values())

    def permit(self, grants: Mapping[str, Sequence[Grant]]) -> None:
        """Replace the grants, by endpoint name. An endpoint without grants is open to every key."""
        self._grants = dict(grants)

    def expect(self, unready: Mapping[str, str]) -> None:
        """Replace the list of endpoints without a serving model, each with the reason."""
        self._unready = unready

    def seen_by(self, caller: Caller | None) -> CallerView:
        """The endpoints that `caller` may use. None: an unknown caller, who sees nothing."""
        endpoints = {} if caller is None else self._endpoints
        return CallerView(endpoints, self._grants, self.created, caller, self._unready)

    def named(self, name: str) -> Endpoint | None:
        """Look up an endpoint for the server's own use, never for a caller's request."""
        return self._endpoints.get(name)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)


class CallerView:
    """The endpoints that one caller may use. An endpoint that the caller may not see looks as if it did not
    exist."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        grants: Mapping[str, Sequence[Grant]],
        created: int,
        caller: Caller | None,
        unready: Mapping[str, str],
    ) -> None:
        self.created = created  # Unix seconds
        self._endpoints = endpoints
        self._grants = grants
        self._caller = caller
        self._unready = unready

    def find(self, name: str) -> Endpoint:
        """Raises ModelNotFound; raises PermissionDenied if the caller may see the endpoint but not query it.

        Raises Unavailable if none of the endpoint's models is serving yet.
        """
        level = self._level(name)
        if level is None:
            raise ModelNotFound("model", "no such model" if self._is_whole else UNSEEN)
        if level < Level.CAN_QUERY:
            raise PermissionDenied(f"the API key's user may see this endpoint and lacks {QUERY} on it")
        if name not in self._endpoints:
            raise Unavailable(f"the endpoint {name!r} {self._unready[name]}", retry_after_s=UNREADY_S)
        return self._endpoints[name]

    def shows(self, name: str) -> bool:
        """Whether the caller may see the endpoint of this name, even if it is not up."""
        caller = self._caller
        return caller is not None and level_of(caller, name, self._grants.get(name, ())) is not None

    def resolve(self, name: str, backend: Backend) -> tuple[Endpoint, str | None]:
        """The endpoint that `name` refers to, and the adapter of its model, if `name` includes one.

        `name` may be an endpoint's own name; else ENDPOINT:ADAPTER, without checking that the model has the
        adapter; else an adapter's name alone (MindIE's `model` has no colon), for the first endpoint whose
        model has it. Same errors as `find`.
        """
        base, _, adapter = name.rpartition(":")
        if self._level(name) is None:
            if base and adapter:
                return self.find(base), adapter
            for endpoint in self:
                if name in adapters_of(endpoint, backend):
                    return endpoint, name
        return self.find(name), None

    def find_known(self, name: str, backend: Backend) -> Endpoint:
        """The endpoint for a page about a model. Raises ModelNotFound for an unknown adapter, too."""
        endpoint, adapter = self.resolve(name, backend)
        if adapter is not None and adapter not in adapters_of(endpoint, backend):
            raise ModelNotFound("model", "the model has no such adapter")
        return endpoint

    def first_generating(self) -> str | None:
        """The first endpoint that generates text, for protocols whose requests do not name an endpoint."""
        return next((each.name for each in self if each.task is not Task.EMBEDDINGS), None)

    def __iter__(self) -> Iterator[Endpoint]:
        """The endpoints that may be queried."""
        for name, endpoint in self._endpoints.items():
            level = self._level(name)
            if level is not None and level >= Level.CAN_QUERY:
                yield endpoint

    def _level(self, name: str) -> Level | None:
        if self._caller is None or not (name in self._endpoints or name in self._unready):
            return None
        return level_of(self._caller, name, self._grants.get(name, ()))

    @property
    def _is_whole(self) -> bool:
        """Whether the caller sees every endpoint, so that an error may list names."""
        if self._caller is None or self._caller.endpoints:
            return False
        return not self._grants or Scope.MANAGE in self._caller.scopes


def adapters_of(endpoint: Endpoint, backend: Backend) -> tuple[str, ...]:
    """The adapters of the models behind an endpoint, as far as they are known."""
    infos = [backend.info(entity.app) for entity in endpoint.served_entities]
    return tuple(dict.fromkeys(name for info in infos if info is not None for name in info.adapters))
