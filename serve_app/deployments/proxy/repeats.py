"""Which requests HAProxy may send to another gateway, when theirs ended before it answered.

No answer changes anything but usage, and an answer of which the client got nothing costs it nothing, so
every request may be repeated (docs/decisions/serving-repeated-requests.md). HAProxy can repeat what it
holds whole, and it holds one buffer: it waits for short bodies, and larger ones it passes on as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from serve_app.limits import BODY_READ_TIMEOUT_S

REPEATS: Final = 3  # as many as mark a server that refuses connections down, so that another is asked
MAX_BYTES: Final = 14_000  # of a body: with its headers it fits into HAProxy's buffer of 16,384 bytes

# What Ray writes into HAProxy's configuration.
ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": str(REPEATS),
    }
)


def request_rules() -> Iterator[str]:
    """Rules of a frontend: a short body is awaited whole, as long as a gateway waits for a piece of one."""
    short = f"{{ req.body_size le {MAX_BYTES} }}"
    yield f"http-request wait-for-body time {BODY_READ_TIMEOUT_S:.0f}s if {short}"
