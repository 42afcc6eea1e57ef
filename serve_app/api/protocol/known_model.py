"""A dialect of routes whose path names the model: an unknown model is reported before errors of the body."""

from __future__ import annotations

from collections.abc import Callable

from serve_app.api.protocol.dialect import Call, Dialect, ErrorReply, Referring
from serve_app.errors import ServeError

Find = Callable[[], object]  # raises ModelNotFound


class KnownModel:
    """A dialect, for a request whose model is looked for before its body is."""

    def __init__(self, dialect: Dialect, find: Find) -> None:
        self._dialect = dialect
        self._find = find
        self.stream_type = dialect.stream_type

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call | Referring[Call]:
        """Raises ModelNotFound, or as the dialect."""
        self._find()
        return self._dialect.parse(raw, endpoint)

    def render_error(self, error: ServeError) -> ErrorReply:
        return self._dialect.render_error(error)
