"""The endpoints of this gateway: looked up by name, replaced as a whole.

A running request keeps what it found; the next one sees the new catalogue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import ModelNotFound


class Directory:
    """Endpoint name -> endpoint."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self.replace(catalogue or Catalogue())

    def replace(self, catalogue: Catalogue) -> None:
        self.created = int(time.time())  # Unix seconds
        self.refused = False  # a newer catalogue was wrong, and this one stayed
        self._endpoints = {endpoint.name: endpoint for endpoint in catalogue.endpoints}

    def find(self, name: str) -> Endpoint:
        """Raises ModelNotFound."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            raise ModelNotFound("model: no such model", param="model")
        return endpoint

    def resolve(self, name: str) -> tuple[Endpoint, str | None]:
        """An endpoint, and the adapter that a name of the form ENDPOINT:ADAPTER asks for.

        Whether there is such an adapter its model knows. An endpoint whose own name has a
        colon comes first. Raises ModelNotFound.
        """
        base, colon, adapter = name.rpartition(":")
        if name in self._endpoints or not (base and colon and adapter):
            return self.find(name), None
        return self.find(base), adapter

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)
