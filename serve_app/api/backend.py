"""The HTTP layer's interfaces to the rest of the server.

Independent of Ray and databases: `deployments` provides a `Backend`, `accounts`
provides an `Accounts`, and tests provide fakes of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from starlette.types import Scope

from serve_app.types import (
    Caller,
    Draw,
    EngineStats,
    GenerateRequest,
    ModelInfo,
    Question,
    TokenDelta,
    UsageRecord,
    Verdict,
)
from serve_app.types.control.command import Command
from serve_app.types.control.command import ReplyT as CommandReplyT
from serve_app.types.control.live import LiveSlots
from serve_app.types.control.responses import KeptResponse
from serve_app.types.payload import Payload
from serve_app.types.question import ReplyT
from serve_app.types.request_log import LoggedRequests, LogPage

PeerOf = Callable[[Scope], str | None]  # the address of a request's sender; None if unknown


class DeltaStream(Protocol):
    """The deltas of one request or several, in order. Only one task reads them."""

    @property
    def migrations(self) -> int:
        """How often an answer was moved to another replica so far."""
        ...

    async def get(self) -> list[TokenDelta]:
        """All deltas since the last call; waits until there is at least one. [] means the end.

        After the end every call returns [] at once. Raises ServeError.
        """
        ...

    def close(self) -> None:
        """Abort running requests and end the stream: a waiting `get` returns []. May be repeated."""
        ...


class Backend(Protocol):
    """The models behind a gateway, each under the name of its Serve application."""

    def is_ready(self, app: str) -> bool:
        """Whether this application would answer a request, perhaps after waking up."""
        ...

    def missing(self, app: str) -> str | None:
        """The reason why a request to this application would not be answered; None if it would."""
        ...

    def lacks(self, app: str) -> str | None:
        """A problem with which the application can answer nevertheless; None: there is no problem."""
        ...

    async def recovery(self, apps: Sequence[str], within_s: float) -> bool:
        """Wait if none of these applications is ready and one is restarting; returns whether one is ready.

        Waits at most `within_s`. Returns False at once if waiting cannot help.
        """
        ...

    def info(self, app: str) -> ModelInfo | None:
        """The facts about an application's model, as far as this gateway knows them already."""
        ...

    async def model(self, app: str) -> ModelInfo:
        """The model of an application, waking it up if it has no replica. Raises Unavailable."""
        ...

    def generate(self, request: GenerateRequest) -> DeltaStream:
        """Send `request` to the application `request.model`. Raises ServeError.

        The caller closes the stream.
        """
        ...

    async def ask(self, app: str, question: Question[ReplyT]) -> ReplyT:
        """The answer of this application's model. Cancelling the task withdraws the question.

        Raises ServeError; UnsupportedField if the model cannot answer this kind of question.
        """
        ...

    def stats(self) -> dict[str, EngineStats]:
        """The latest engine statistics of each application, summed over its replicas."""
        ...

    def replicas(self) -> Mapping[str, Mapping[str, EngineStats]]:
        """As `stats`, but by the id of each replica that has answered this gateway."""
        ...

    def num_replicas(self, app: str) -> int:
        """The number of running replicas of an application, including idle ones."""
        ...

    def migrations(self) -> Mapping[tuple[str, str], int]:
        """The number of answers moved to another replica since the start, by application and cause."""
        ...


class Quota(Protocol):
    """Budgets that all gateways of a cluster share."""

    async def claim(self, draws: Sequence[Draw]) -> Verdict:
        """Take all of `draws`, or nothing. Raises Unavailable if the budgets cannot be reached."""
        ...

    def settle(self, draws: Sequence[Draw]) -> None:
        """Take `amount` more from each bucket; a negative amount is given back. Never waits or fails."""
        ...


class Journal(Protocol):
    """The usage journal. No call waits or fails."""

    @property
    def problem(self) -> str | None:
        """The reason why records are not written at present, for operators; None: they are."""
        ...

    @property
    def waiting(self) -> int:
        """The number of records in memory that wait to be written."""
        ...

    @property
    def dropped(self) -> int:
        """The number of records lost for lack of memory."""
        ...

    def opened(self, record: UsageRecord) -> None:
        """A request was admitted. If this process dies, `record` has the request's usage."""
        ...

    def progressed(self, record: UsageRecord) -> None:
        """An open request has used more. If this process dies, `record` has the request's usage."""
        ...

    def closed(self, record: UsageRecord) -> None:
        """A request ended. Called exactly once for each opened request."""
        ...


class Payloads(Protocol):
    """The writer of inference tables. No call waits or fails."""

    @property
    def waiting(self) -> int:
        """The number of rows in memory."""
        ...

    @property
    def dropped(self) -> int:
        """The number of rows lost for lack of memory."""
        ...

    def add(self, row: Payload) -> None:
        """A request ended."""
        ...

    def page(self, wanted: LoggedRequests) -> LogPage:
        """The newest rows of a table on disk. Reads files, so call it off the event loop.

        Raises InvalidField for a page token that no page returned.
        """
        ...

    def row(self, wanted: LoggedRequests, id: str) -> dict[str, Any] | None:
        """The row of one request with its bodies; None if it does not exist. Reads files, as `page` does."""
        ...


class Management(Protocol):
    """The control plane, as the routes of one gateway use it."""

    @property
    def problem(self) -> str | None:
        """The reason why commands fail at present; None: they work. Only for operators: it may name files."""
        ...

    async def do(self, command: Command[CommandReplyT], caller: Caller) -> CommandReplyT:
        """The reply to `command`, which `caller` sent. Raises ServeError.

        Unavailable means that the control plane or its database is down: either nothing was changed, or it is
        safe to send the same command again.
        """
        ...


class ResponseStore(Protocol):
    """The store of responses for later requests of the same key. All calls may raise Unavailable."""

    async def keep(self, response: KeptResponse, caller: Caller) -> None:
        """Keep `response` for the key of `caller`. Older responses of that key may be dropped."""
        ...

    async def recall(self, ids: Sequence[str], last: str, caller: Caller) -> dict[str, KeptResponse]:
        """By id: the caller's responses among `ids`, and `last` with all responses before it."""
        ...

    async def forget(self, id: str, caller: Caller) -> bool:
        """Remove a response. Returns whether the caller had such a response."""
        ...


class LiveCluster(Protocol):
    """The control plane as the source of live figures of all gateways."""

    def tell(self) -> None:
        """Report a new slot of this gateway. Never waits or fails."""
        ...

    async def read(self, after: int) -> LiveSlots:
        """The slots of all gateways after the number `after`. Raises Unavailable."""
        ...


class Accounts(Protocol):
    """Who may call."""

    @property
    def refused(self) -> bool:
        """Whether the newest list of keys was invalid, so that the former list is still in force."""
        ...

    @property
    def bad_keys(self) -> int:
        """The number of requests with an unknown key since the start."""
        ...

    @property
    def has_keys(self) -> bool:
        """Whether callers need a key."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether the keys that were made at run time have not arrived yet."""
        ...

    @property
    def is_stale(self) -> bool:
        """Whether keys that were made at run time are refused, because their snapshot is too old."""
        ...

    def declared(self) -> Iterable[Caller]:
        """The callers of the operator's own keys, which cannot be changed at run time."""
        ...

    def is_declared(self, name: str) -> bool:
        """Whether a key of the operator has this name, so that no key made at run time may take it."""
        ...

    def authenticate(self, authorization: str | None, peer: str | None) -> Caller:
        """The caller of a request with this Authorization header from this address.

        `peer` is None when the address is not known. Raises Unauthenticated or
        PermissionDenied.
        """
        ...
