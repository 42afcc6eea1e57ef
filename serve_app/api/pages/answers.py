"""The shapes of the pages that no protocol owns, for the OpenAPI document."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class Live(TypedDict):
    """The process answers."""

    status: Literal["live"]


class Ready(TypedDict):
    """Every endpoint can be answered; the reasons why it is degraded are for those who may list models."""

    status: Literal["ready", "degraded"]
    reasons: NotRequired[list[str]]


class NotReady(TypedDict):
    """An endpoint has nobody who can answer, or the gateway shuts down."""

    status: Literal["not ready"]
    reasons: NotRequired[list[str]]
