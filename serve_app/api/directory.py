"""The endpoints of this gateway: looked up by name, replaced as a whole.

A running request keeps what it found; the next one sees the new catalogue.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from serve_app.api.backend import Backend
from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import ModelNotFound


class Directory:
    """Endpoint name -> endpoint."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self.replace(catalogue or Catalogue())

    def replace(self, catalogue: Catalogue) -> None:
        self.refused = False  # a newer catalogue was wrong, and this one stayed
        self.run_time: frozenset[str] = frozenset()  # names that no deploy file declares
        self.take(catalogue.endpoints)

    def take(self, endpoints: Iterable[Endpoint], waiting: Mapping[str, Sequence[str]] | None = None) -> None:
        """`endpoints` from now on. `waiting`: those that will change once these applications answer."""
        self.waiting = dict(waiting or {})
        self.created = int(time.time())  # Unix seconds
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}

    def find(self, name: str) -> Endpoint:
        """Raises ModelNotFound."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            raise ModelNotFound("model", "no such model")
        return endpoint

    def resolve(self, name: str, backend: Backend) -> tuple[Endpoint, str | None]:
        """An endpoint, and the adapter of its model that `name` asks for.

        In this order: an endpoint's own name; ENDPOINT:ADAPTER, where the model knows whether it
        has that; or an adapter's name alone (MindIE's `model` has no colon), if a model that is
        known has it, of the first endpoint. Raises ModelNotFound.
        """
        base, _, adapter = name.rpartition(":")
        if name not in self._endpoints:
            if base and adapter:
                return self.find(base), adapter
            for endpoint in self:
                if name in adapters_of(endpoint, backend):
                    return endpoint, name
        return self.find(name), None

    def find_known(self, name: str, backend: Backend) -> Endpoint:
        """The endpoint of a page about a model. ModelNotFound also for an adapter nobody knows."""
        endpoint, adapter = self.resolve(name, backend)
        if adapter is not None and adapter not in adapters_of(endpoint, backend):
            raise ModelNotFound("model", "the model has no such adapter")
        return endpoint

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)


def adapters_of(endpoint: Endpoint, backend: Backend) -> tuple[str, ...]:
    """The adapters of the models behind an endpoint, as far as they are known."""
    infos = [backend.info(entity.app) for entity in endpoint.served_entities]
    return tuple(dict.fromkeys(name for info in infos if info is not None for name in info.adapters))
