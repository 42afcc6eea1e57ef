"""Dialects of routes whose path names the model: whether it exists is told before what a body lacks.

One of them stands for two protocols that share a route, until the body tells whose it is.
"""

from __future__ import annotations

from collections.abc import Callable

from serve_app.api.context import RequestContext
from serve_app.api.dialects.base import Call, Dialect, ErrorReply
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.triton.generate import is_tritons
from serve_app.api.edge.body import check_type
from serve_app.errors import ServeError

Find = Callable[[], object]  # raises ModelNotFound


class KnownModel:
    """A dialect, for a request whose model is looked for before its body is."""

    def __init__(self, dialect: Dialect, find: Find) -> None:
        self._dialect = dialect
        self._find = find
        self.stream_type = dialect.stream_type

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises ModelNotFound, or as the dialect."""
        self._find()
        return self._dialect.parse(raw, endpoint)

    def render_error(self, error: ServeError) -> ErrorReply:
        return self._dialect.render_error(error)


class EitherDialect:
    """MindIE's dialect until a body shows that it is Triton's; for one request.

    Whatever is wrong with a request that could be read is told in the words of its body's protocol.
    """

    def __init__(
        self, mindie: Dialect, triton: Dialect, context: RequestContext, media: str | None, find: Find
    ) -> None:
        """`media`: the Content-Type, which is not looked at before the body."""
        self._triton = triton
        self._chosen = mindie
        self._context = context
        self._media = media
        self._find = find
        self.stream_type = mindie.stream_type

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises ModelNotFound, InvalidBody for a type that is not JSON's, or as the dialect of the body."""
        if is_tritons(raw):
            self._chosen, self._context.family = self._triton, Family.TRITON
            self.stream_type = self._chosen.stream_type
        self._find()
        check_type(self._media)
        return self._chosen.parse(raw, endpoint)

    def render_error(self, error: ServeError) -> ErrorReply:
        return self._chosen.render_error(error)
