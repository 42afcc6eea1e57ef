"""Checks of plain JSON values: every string in a value is checked as a separate text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from serve_app.api.guard.guard import Rules


def texts_of(value: Any) -> Iterator[str]:
    """Every string in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from texts_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_of(each)


def checked(value: Any, whole: Callable[[str], str], *, numbers: bool = False) -> Any:
    """`value` with each string replaced by `whole(string)`; unchanged parts stay the same objects.

    `numbers`: a number that contains personal data is replaced by a string with the mask. Raises Blocked.
    """
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return {whole(str(key)): checked(each, whole, numbers=numbers) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(checked(each, whole, numbers=numbers) for each in value)
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        written = json.dumps(value)
        passed = whole(written)
        return value if passed == written else passed
    return value


def checked_arguments(arguments: str, rules: Rules, *, masks: bool = True) -> str:
    """The arguments of a tool call, a string of JSON, after `rules` were applied. Raises Blocked.

    If nothing is masked, the text stays as the model wrote it. Without `masks`, personal data is refused.
    """
    try:
        value = json.loads(arguments)
    except ValueError:  # cut at its length, or no JSON at all
        return rules.filter(masks=masks, is_json=True).whole(arguments)
    masked = False

    def whole(text: str) -> str:
        nonlocal masked
        once = rules.filter(masks=masks)
        passed = once.whole(text)
        masked |= once.has_masked
        return passed

    value = checked(value, whole, numbers=True)
    if not masked:
        return arguments
    # A lone half of a surrogate pair, which JSON can write and UTF-8 cannot, stays an escape.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
