"""What errors of all protocols have in common: headers that follow from the condition, and a size limit.

Independent of the shape of the body.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from serve_app.errors import Condition, QuotaExceeded, ServeError
from serve_app.limits import MAX_ERROR_BYTES

SHOULD_RETRY: Final = "x-should-retry"  # OpenAI's clients obey it
_WAIT: Final = frozenset({429, 503, 529})  # that say when to come back; 529 is Anthropic's 503
_UNREAD_INPUT: Final = frozenset(
    {Condition.BODY_TOO_LARGE, Condition.READ_TIMEOUT}
)  # may remain, so the connection cannot be reused


def headers_of(error: ServeError, status: int) -> dict[str, str]:
    """Headers that say when, if ever, to retry, how to authenticate, and whether the connection is closed."""
    headers = {"content-type": "application/json"}
    if status in _WAIT and error.retryable:
        headers["retry-after"] = str(whole_seconds(error.retry_after_s or 1.0))
    if not error.retryable and (status == 429 or status >= 500 or isinstance(error, QuotaExceeded)):
        headers[SHOULD_RETRY] = "false"  # clients retry every 429 and 5xx otherwise
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.condition in _UNREAD_INPUT:
        headers["connection"] = "close"
    return headers


def whole_seconds(seconds: float) -> int:
    """A wait in whole seconds for `Retry-After`: at least one, rounded up from whole milliseconds."""
    return max(1, math.ceil(round(seconds, 3)))


def bounded(message: str, encode: Callable[[str], bytes]) -> bytes:
    """`encode(message)`, with the message cut if the result would reach MAX_ERROR_BYTES."""
    body = encode(message)
    # Cut by characters: one takes at most six bytes of JSON.
    return body if len(body) < MAX_ERROR_BYTES else encode(message[: MAX_ERROR_BYTES // 12])
