"""The HTTP layer's interfaces to the rest of the server.

Knows neither Ray nor databases: `deployments` provides a `Backend`, `accounts`
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
    """The deltas of one request, or of several, in order; read by one task."""

    @property
    def migrations(self) -> int:
        """The number of moves of an answer to another replica so far."""
        ...

    async def get(self) -> list[TokenDelta]:
        """All deltas that came since the last call, waiting for the first; [] is the end.

        After the end every call gives [] at once. Raises ServeError.
        """
        ...

    def close(self) -> None:
        """Abort what still runs, and end the stream: a waiting `get` returns []. May be repeated."""
        ...


class Backend(Protocol):
    """The models behind a gateway, each under the name of its Serve application."""

    def is_ready(self, app: str) -> bool:
        """Whether a request to this application would be answered, perhaps after it wakes up."""
        ...

    def missing(self, app: str) -> str | None:
        """The reason why a request to this application would not be answered; None if it would."""
        ...

    def lacks(self, app: str) -> str | None:
        """The problem of an application that answers anyway; None: there is none."""
        ...

    async def recovery(self, apps: Sequence[str], within_s: float) -> bool:
        """If one of these applications restarts and none is ready, wait; returns whether one is ready.

        Waits at most `within_s`. False at once if waiting cannot help.
        """
        ...

    def info(self, app: str) -> ModelInfo | None:
        """The facts about an application's model, without a call."""
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
        """The answer of the model of this application. Cancelling the task takes the question back.

        Raises ServeError; UnsupportedField from a model that has no answer to such a question.
        """
        ...

    def stats(self) -> dict[str, EngineStats]:
        """For each application the latest snapshot of its engines, summed over its replicas."""
        ...

    def replicas(self) -> Mapping[str, Mapping[str, EngineStats]]:
        """As `stats`, for each replica by its id: those that have answered this gateway."""
        ...

    def num_replicas(self, app: str) -> int:
        """The number of running replicas of an application, unused ones included."""
        ...

    def migrations(self) -> Mapping[tuple[str, str], int]:
        """The number of moved answers since the start, by application and cause."""
        ...


class Quota(Protocol):
    """Budgets that all gateways of a cluster share."""

    async def claim(self, draws: Sequence[Draw]) -> Verdict:
        """Take all of `draws`, or nothing. Raises Unavailable if there is no verdict."""
        ...

    def settle(self, draws: Sequence[Draw]) -> None:
        """Take `amount` more of each bucket, or give back what is negative. Never waits or fails."""
        ...


class Journal(Protocol):
    """The usage journal. No call waits or fails."""

    @property
    def problem(self) -> str | None:
        """The reason why records are not written at present, for operators; None: they are."""
        ...

    @property
    def waiting(self) -> int:
        """Records in memory, to be written when that is possible again."""
        ...

    @property
    def dropped(self) -> int:
        """Records that were lost for lack of memory."""
        ...

    def opened(self, record: UsageRecord) -> None:
        """A request was admitted; if this process dies, this is its record."""
        ...

    def progressed(self, record: UsageRecord) -> None:
        """An open request has used this much; if this process dies, this is its record."""
        ...

    def closed(self, record: UsageRecord) -> None:
        """A request ended: exactly once for each that was opened."""
        ...


class Payloads(Protocol):
    """The writer of inference tables. No call waits or fails."""

    @property
    def waiting(self) -> int:
        """Rows in memory."""
        ...

    @property
    def dropped(self) -> int:
        """Rows that were lost for lack of memory."""
        ...

    def add(self, row: Payload) -> None:
        """A request ended."""
        ...

    def page(self, wanted: LoggedRequests) -> LogPage:
        """The newest rows of a table that are on the disk. Reads files: call it off the event loop.

        Raises InvalidField for a token that no page had.
        """
        ...

    def row(self, wanted: LoggedRequests, id: str) -> dict[str, Any] | None:
        """The row of one request with its bodies; None where there is none. Reads files, as `page` does."""
        ...


class Management(Protocol):
    """The control plane, as the routes of one gateway reach it."""

    @property
    def problem(self) -> str | None:
        """The reason why commands fail at present; None: they do not. For operators: it may name files."""
        ...

    async def do(self, command: Command[CommandReplyT], caller: Caller) -> CommandReplyT:
        """The reply to `command`, which `caller` sent. Raises ServeError.

        Unavailable while the control plane or its database is away; then nothing was changed, or the same
        command may be sent again.
        """
        ...


class ResponseStore(Protocol):
    """The store of responses for later requests of the same key. All calls raise Unavailable."""

    async def keep(self, response: KeptResponse, caller: Caller) -> None:
        """Keep `response` for the key of `caller`. Older ones of that key may be dropped for it."""
        ...

    async def recall(self, ids: Sequence[str], last: str, caller: Caller) -> dict[str, KeptResponse]:
        """By id: the caller's responses among `ids`, and `last` with all earlier ones of its conversation."""
        ...

    async def forget(self, id: str, caller: Caller) -> bool:
        """Remove a response. Returns whether the caller had it."""
        ...


class LiveCluster(Protocol):
    """The control plane as the source of live figures of all gateways."""

    def tell(self) -> None:
        """This gateway has a new slot. Never waits or fails."""
        ...

    async def read(self, after: int) -> LiveSlots:
        """The slots of all gateways after the number `after`. Raises Unavailable."""
        ...


class Accounts(Protocol):
    """Who may call."""

    @property
    def refused(self) -> bool:
        """Whether the newest list of keys is wrong, so that the former one is in force."""
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
        """Whether keys that were made at run time are not known yet."""
        ...

    @property
    def is_stale(self) -> bool:
        """Whether keys that were made at run time are refused, because their snapshot is too old."""
        ...

    def declared(self) -> Iterable[Caller]:
        """The callers of the keys that the operator gave, which nothing at run time changes."""
        ...

    def is_declared(self, name: str) -> bool:
        """Whether the operator gave this name to a key, so that none that is made at run time may have it."""
        ...

    def authenticate(self, authorization: str | None, peer: str | None) -> Caller:
        """The caller of a request with this Authorization header from this address.

        `peer` is None when the address is not known. Raises Unauthenticated or
        PermissionDenied.
        """
        ...
