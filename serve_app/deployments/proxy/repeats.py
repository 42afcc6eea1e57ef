"""Decides which requests a proxy may repeat at another gateway if their gateway ended without answering.

A request to a model may be repeated: it changes only usage, and an answer of which nothing reached the client
is free. A management request may already have taken effect, so it may not be repeated
(docs/decisions/serving-repeated-requests.md). HAProxy can repeat a request only if the whole request fits
into its one buffer. HAProxy waits for the whole of a short body, and passes larger ones on as they arrive.
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
    """Whether a request to `path` (decoded) is a management request, which may change a key, for example."""
    inner = "/" + path.removeprefix(CONSOLE_API) if path.startswith(CONSOLE_API) else path
    is_managed = inner.startswith(CONSOLE) or split_prefix(inner)[1].startswith(MANAGEMENT)
    return is_managed and method not in SAFE


def request_rules() -> Iterator[str]:
    """Rules of a frontend that mark management requests, which are repeated only if no gateway got them.

    HAProxy waits for the whole of a short body, for as long as a gateway would wait for a part of a body.
    """
    below = " ".join((CONSOLE, MANAGEMENT, *(f"/{word}{MANAGEMENT}" for word in WORDS)))
    inner = f"path,url_dec,regsub(^{CONSOLE_API},/)"
    changes = f"!{{ method {' '.join(SAFE)} }} {{ {inner} -m beg {below} }}"
    yield f"http-request set-var({CHANGE}) str(-change) if {changes}"
    yield f"http-request disable-l7-retry if {{ var({CHANGE}) -m found }}"
    short = f"{{ req.body_size le {MAX_BYTES} }}"
    yield f"http-request wait-for-body time {BODY_READ_TIMEOUT_S:.0f}s if {short}"
