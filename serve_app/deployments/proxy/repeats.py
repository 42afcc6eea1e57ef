"""Decides which requests a proxy may repeat at another gateway after theirs ended without an answer.

A request to a model changes nothing but usage, and an answer of which the client got nothing is free, so it
may be repeated. A request that manages something may have taken effect, so it may not
(docs/decisions/serving-repeated-requests.md). HAProxy can repeat what it holds whole, and it holds one
buffer: it waits for short bodies, and larger ones it passes on as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from serve_app.api.protocol.family import MANAGEMENT, WORDS, split_prefix
from serve_app.limits import BODY_READ_TIMEOUT_S

REPEATS: Final = 3  # as many as mark a server that refuses connections down, so that another is asked
SAFE: Final = ("GET", "HEAD", "OPTIONS")
CONSOLE: Final = "/console/"
CONSOLE_API: Final = "/console/api/"  # the public API for scripts of pages
CHANGE: Final = "txn.serve_app_change"  # HAProxy's variable, which only a change has: "-change"
MAX_BYTES: Final = 14_000  # of a body: with its headers it fits into HAProxy's buffer of 16,384 bytes

# What Ray writes into HAProxy's configuration.
ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": str(REPEATS),
    }
)


def is_change(method: str, path: str) -> bool:
    """Whether a request to `path` (decoded) may change something that is managed, such as a key."""
    inner = "/" + path.removeprefix(CONSOLE_API) if path.startswith(CONSOLE_API) else path
    is_managed = inner.startswith(CONSOLE) or split_prefix(inner)[1].startswith(MANAGEMENT)
    return is_managed and method not in SAFE


def request_rules() -> Iterator[str]:
    """Rules of a frontend: which requests are changes, and are repeated only where no gateway got them.

    A short body is awaited whole, as long as a gateway waits for a piece of one.
    """
    below = " ".join((CONSOLE, MANAGEMENT, *(f"/{word}{MANAGEMENT}" for word in WORDS)))
    inner = f"path,url_dec,regsub(^{CONSOLE_API},/)"
    changes = f"!{{ method {' '.join(SAFE)} }} {{ {inner} -m beg {below} }}"
    yield f"http-request set-var({CHANGE}) str(-change) if {changes}"
    yield f"http-request disable-l7-retry if {{ var({CHANGE}) -m found }}"
    short = f"{{ req.body_size le {MAX_BYTES} }}"
    yield f"http-request wait-for-body time {BODY_READ_TIMEOUT_S:.0f}s if {short}"
