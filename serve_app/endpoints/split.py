"""Which served entity answers a request: weighted rendezvous hashing over a routing key.

Each entity gets a number derived from (salt, endpoint, entity, key) and raised by its weight; the highest
wins. A key therefore stays with its entity while the weights stay the same, the weights need not add up to a
round number, and moving 10 % of the traffic moves only the keys in that 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b

from serve_app.endpoints.endpoint import Endpoint, ServedEntity


def candidates(
    endpoint: Endpoint, key: str, is_ready: Callable[[ServedEntity], bool] = lambda entity: True
) -> tuple[ServedEntity, ...]:
    """The entities to try for a routing key, best first; never empty.

    The first is drawn by weight among the ready entities with traffic, or, if none is ready, among all with
    traffic. If the endpoint has a fallback, the other entities follow in the order of the file, ready ones
    first, including those without traffic of their own.
    """
    ready = [entity for entity in endpoint.weighted if is_ready(entity)]
    chosen = max(ready or endpoint.weighted, key=lambda entity: _score(endpoint, entity, key))
    if not endpoint.falls_back:
        return (chosen,)
    others = [entity for entity in endpoint.served_entities if entity is not chosen]
    return (chosen, *sorted(others, key=lambda entity: not is_ready(entity)))


def _score(endpoint: Endpoint, entity: ServedEntity, key: str) -> float:
    """Exponential race: P(an entity has the highest score) is its share of the weights."""
    digest = blake2b(digest_size=8)
    for part in (endpoint.salt, endpoint.name, entity.name, key):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    uniform = (int.from_bytes(digest.digest(), "little") + 0.5) / 2**64  # in (0, 1)
    return endpoint.traffic[entity.name] / -math.log(uniform)
