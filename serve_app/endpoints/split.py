"""Which served entity answers a request: weighted rendezvous hashing over a routing key.

Every entity draws a number from (salt, endpoint, entity, key), raised by its weight; the
highest wins. So a key stays with its entity as long as weights stay, weights need not
divide anything, and moving 10 % of traffic moves only the keys of those 10 %.
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

    The first is drawn by weight among those with traffic that are ready (of all with
    traffic when none is). Where the endpoint falls back, the others follow in the order of the
    file, those that are ready first, also those without traffic of their own.
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
