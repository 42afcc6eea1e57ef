"""What the tests of Databricks' fields ask, and how a refusal looks."""

from __future__ import annotations

from typing import Any


def refused(answer: Any, *names: str) -> None:
    """A 400 of the protocol's shape, whose message has `names` in it."""
    body = answer.json()
    if answer.status_code != 400 or list(body) != ["error_code", "message", "error"]:
        raise AssertionError(f"{answer.status_code}: {answer.text}")
    if not all(name in body["message"] for name in names):
        raise AssertionError(f"{names} are not in {body['message']!r}")
