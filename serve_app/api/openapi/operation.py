"""The requests and answers of a route, as its protocol describes them: the data of one OpenAPI operation.

A protocol makes one `Operation` for each of its routes. Types stand for schemas: wire models for bodies,
typed dictionaries for answers. Independent of protocols, routes and documents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from serve_app.api.protocol.dialect import ErrorReply
from serve_app.errors import (
    BodyTooLarge,
    BudgetSpent,
    DeadlineExceeded,
    EngineRefused,
    InvalidBody,
    InvalidField,
    LargerThanQuota,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    QuotaExceeded,
    ReadTimeout,
    ServeError,
    Unavailable,
    VersionNotFound,
)

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
BINARY: Final = "application/octet-stream"

Conditions = tuple[type[ServeError], ...]

NAMES_MODEL: Final[Conditions] = (ModelNotFound, VersionNotFound)  # of a path that names a model
READS_BODY: Final[Conditions] = (InvalidBody, InvalidField, BodyTooLarge, ReadTimeout, Overloaded)
ASKS_MODEL: Final[Conditions] = (
    *READS_BODY,
    *NAMES_MODEL,
    PromptTooLong,
    QuotaExceeded,
    LargerThanQuota,
    BudgetSpent,
    Unavailable,
    DeadlineExceeded,
    EngineRefused,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One value in the path, the query or the headers."""

    name: str
    place: Literal["path", "query", "header"]
    type: Any = str  # any type that pydantic knows, with its bounds
    what: str = ""  # one sentence
    is_required: bool = False  # one in the path always is
    example: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of a request with a given Content-Type."""

    type: Any  # a wire model, or any type that pydantic knows
    media: str = JSON
    examples: Mapping[str, Any] = field(default_factory=dict)  # a name in a few words -> a whole body
    is_required: bool = True
    required: tuple[str, ...] = ()  # fields that this route needs, where others of the same body do not


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One shape of an answer. There may be several shapes for one status and Content-Type."""

    what: str  # one sentence
    type: Any = None  # of the whole body; of the data of each event in a stream; None: no body
    media: str = JSON
    status: int = 200
    example: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)  # of this answer alone: name -> what it says


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The errors of one protocol, before the first byte of an answer."""

    type: Any  # of the body
    render: Callable[[ServeError], ErrorReply]  # gives each condition's status and example


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route as one protocol describes it."""

    summary: str  # a few words, without a full stop
    tag: str  # under which the page lists it: the protocol's name
    what: str = ""  # a paragraph
    parameters: tuple[Parameter, ...] = ()  # those of the path only where more is known than the name
    bodies: tuple[Body, ...] = ()  # empty: the route reads none
    answers: tuple[Answer, ...]
    errors: Errors | None = None  # None: those of the path's protocol
    conditions: Conditions = ()  # besides those that every route may meet
    asks_model: bool = True  # where it reads a body


def asking(
    tag: str, errors: Errors | None, summary: str, what: str, body: Body, *answers: Answer
) -> Operation:
    """A route that calls a model. If `errors` is None, the errors are those of the path's protocol."""
    return Operation(
        summary=summary,
        tag=tag,
        what=what,
        bodies=(body,),
        answers=answers,
        errors=errors,
        conditions=ASKS_MODEL,
    )


def streamed(whole: Any, event: Any, *, what: str = "The whole answer.") -> tuple[Answer, Answer]:
    """The answers of a route that streams if the body has `stream`; the stream ends with `[DONE]`."""
    pieces = Answer(what="With `stream`: its pieces.", type=event | Literal["[DONE]"], media=EVENTS)
    return Answer(what=what, type=whole), pieces
