"""The frame of every exchange: the steps from a body to its answer, and the permits held meanwhile.

Independent of protocols and kinds of answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, TypeVar

from starlette.types import Receive, Scope, Send

from serve_app.api.context import RequestContext, context_of
from serve_app.api.edge.body import read_body
from serve_app.api.edge.connection import while_connected
from serve_app.api.exchange.keeping import completed
from serve_app.api.protocol.dialect import Parser, Referring, Work
from serve_app.api.recording import record
from serve_app.api.services import Services
from serve_app.errors import FieldError
from serve_app.limits import MAX_BODY_BYTES
from serve_app.types.payload import BodyForm, TextBodies

TEXT: Final = TextBodies()


WorkT = TypeVar("WorkT", bound=Work)


class Exchange(ABC, Generic[WorkT]):
    """One request whose body a dialect reads, and its answer."""

    def __init__(
        self,
        dialect: Parser[WorkT],
        services: Services,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        max_bytes: int = MAX_BODY_BYTES,
        form: BodyForm = TEXT,
    ) -> None:
        """`max_bytes`: the body's limit. `form`: how bodies are written as text for an inference table."""
        self._max_bytes = max_bytes
        self._form = form
        self._dialect = dialect
        self._services = services
        self._scope = scope
        self._receive = receive
        self._send = send
        self._context: RequestContext = context_of(scope)
        self._context.render_error = dialect.render_error

    async def run(self, endpoint: str | None = None, entity: str | None = None) -> None:
        """Read, answer and account for the request. `endpoint` and `entity` are set if the path names them.

        Raises ServeError only before the answer's first byte, but ClientGone at any time.
        """
        parse = partial(self._dialect.parse, endpoint=endpoint)
        answer = partial(self._answer, entity=entity)
        await exchange(
            *(self._services, self._scope, self._receive, parse, answer),
            max_bytes=self._max_bytes,
            form=self._form,
        )

    @abstractmethod
    async def _answer(self, work: WorkT, entity: str | None) -> None:
        """Answer the body, while its permits are held."""


async def exchange(
    services: Services,
    scope: Scope,
    receive: Receive,
    parse: Callable[[bytes], WorkT | Referring[WorkT]],
    answer: Callable[[WorkT], Coroutine[Any, Any, None]],
    *,
    max_bytes: int = MAX_BODY_BYTES,
    form: BodyForm = TEXT,
) -> None:
    """Read a body of at most `max_bytes`, parse it, and answer it while its client is connected.

    Raises ServeError only before the answer's first byte, but ClientGone at any time.
    """
    services.admission.check()  # a flood is refused before its bodies are read
    with services.bodies.lease() as lease:
        raw = await read_body(scope, receive, lease.take, max_bytes=max_bytes)
        work = await services.aside(len(raw), parse, raw)
        model = getattr(work, "model", None)
        if services.payloads is not None and isinstance(model, str):
            record(services, context_of(scope), model, partial(bytes, raw), form)
        del raw  # it would live as long as the answer takes

        async def answered() -> None:
            await answer(await completed(services, context_of(scope), work))

        with admitted(services, work):
            await while_connected(receive, answered())


@contextmanager
def admitted(services: Services, work: Work) -> Iterator[None]:
    """Hold the permits of `work`. Errors in the block use the client's names of fields."""
    with in_words_of(work.names), services.admission.permits(work.num_prompts):
        yield


@contextmanager
def in_words_of(names: Mapping[str, str]) -> Iterator[None]:
    """In errors raised in the block, replace the names of fields by the client's, which `names` has."""
    try:
        yield
    except FieldError as error:
        if error.param is None or error.param not in names:
            raise
        raise error.renamed(names[error.param]) from error
