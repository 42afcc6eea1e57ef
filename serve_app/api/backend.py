"""What the HTTP layer needs of the rest of the server, as two protocols.

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

PeerOf = Callable[[Scope], str | None]  # the address of who sent a request; None where nobody can tell it


class DeltaStream(Protocol):
    """The deltas of one request, or of several, in order; read by one task."""

    @property
    def migrations(self) -> int:
        """How often an answer went on in another replica so far."""
        ...

    async def get(self) -> list[TokenDelta]:
        """All deltas that came since the last call, waiting for the first; [] is the end.

        After the end every call gives [] at once. Raises ServeError.
        """
        ...

    def close(self) -> None:
        """Abort what still runs, and end the stream: who waits in `get` is given []. May be repeated."""
        ...


class Backend(Protocol):
    """The models behind a gateway, each under the name of its Serve application."""

    def is_ready(self, app: str) -> bool:
        """Whether a request to this application would be answered, if only after it woke up."""
        ...

    def missing(self, app: str) -> str | None:
        """Why a request to this application would not be answered; None where it would."""
        ...

    def lacks(self, app: str) -> str | None:
        """What is not as it should be of an application that answers; None: nothing."""
        ...

    async def recovery(self, apps: Sequence[str], within_s: float) -> bool:
        """Where one of these applications restarts and none is ready: wait until one is, and tell whether.

        At most `within_s`. False at once where nothing can be gained by waiting.
        """
        ...

    def info(self, app: str) -> ModelInfo | None:
        """What is known of the model of an application, without asking it."""
        ...

    async def model(self, app: str) -> ModelInfo:
        """The model of an application, waking it up if it has no replica. Raises Unavailable."""
        ...

    def generate(self, request: GenerateRequest) -> DeltaStream:
        """Send `request` to the application `request.model`. Raises ServeError.

        Whoever takes the stream closes it.
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
        """How many replicas of an application run, those included that were never asked."""
        ...

    def migrations(self) -> Mapping[tuple[str, str], int]:
        """How often answers went on in another replica since the start, by application and cause."""
        ...


class Quota(Protocol):
    """Budgets that all gateways of a cluster share."""

    async def claim(self, draws: Sequence[Draw]) -> Verdict:
        """Take all of `draws`, or nothing. Raises Unavailable when nobody can tell."""
        ...

    def settle(self, draws: Sequence[Draw]) -> None:
        """Take `amount` more of each bucket, or give back what is negative. Never waits or fails."""
        ...


class Journal(Protocol):
    """Where usage is written down. No call waits or fails."""

    @property
    def problem(self) -> str | None:
        """Why records are not written at present, for operators; None: they are."""
        ...

    @property
    def waiting(self) -> int:
        """Records in memory, to be written when that is possible again."""
        ...

    @property
    def dropped(self) -> int:
        """Records that are lost, as there was no room in memory either."""
        ...

    def opened(self, record: UsageRecord) -> None:
        """A request was admitted; should this process die, this is what is known of it."""
        ...

    def progressed(self, record: UsageRecord) -> None:
        """An open request has used this much; should this process die, that is known of it."""
        ...

    def closed(self, record: UsageRecord) -> None:
        """A request ended: exactly once for each that was opened."""
        ...


class Payloads(Protocol):
    """Where requests and answers are written to inference tables. No call waits or fails."""

    @property
    def waiting(self) -> int:
        """Rows in memory."""
        ...

    @property
    def dropped(self) -> int:
        """Rows that are lost, as there was no room in memory."""
        ...

    def add(self, row: Payload) -> None:
        """A request ended."""
        ...

    def page(self, wanted: LoggedRequests) -> LogPage:
        """The newest rows of a table that are on the disk. Reads files: call it beside the event loop.

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
        """Why it does no command at present; None: it does. For operators: it may name files."""
        ...

    async def do(self, command: Command[CommandReplyT], caller: Caller) -> CommandReplyT:
        """The reply to `command`, which `caller` sent. Raises ServeError.

        Unavailable while the control plane or its database is away; then nothing was changed, or the same
        command may be sent again.
        """
        ...


class ResponseStore(Protocol):
    """Where responses are kept for later requests of the same key. All calls raise Unavailable."""

    async def keep(self, response: KeptResponse, caller: Caller) -> None:
        """Keep `response` for the key of `caller`. Older ones of that key may go for it."""
        ...

    async def recall(self, ids: Sequence[str], last: str, caller: Caller) -> dict[str, KeptResponse]:
        """By their ids, those of `ids` that the caller has, and `last` with all that it goes on from."""
        ...

    async def forget(self, id: str, caller: Caller) -> bool:
        """Remove a response. Whether the caller had it."""
        ...


class LiveCluster(Protocol):
    """The control plane, which knows what happens now on all gateways."""

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
        """Whether the newest list of keys is wrong, and the one before it in force."""
        ...

    @property
    def bad_keys(self) -> int:
        """How many requests came with a key that does not exist, since the start."""
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
        """Whether keys that were made at run time are refused, as nobody has confirmed them for too long."""
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
