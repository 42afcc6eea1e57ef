"""generate and generate_stream of MindIE, for a request that may be Triton's: its body tells.

Where neither header nor prefix names the protocol, the answer's protocol is known only once the
body is read.
"""

from __future__ import annotations

from functools import partial

from starlette.types import Scope

from serve_app.api.context import context_of, header
from serve_app.api.dialects.base import Call, Dialect, ErrorReply, Referring
from serve_app.api.dialects.known_model import Find, KnownModel
from serve_app.api.dialects.mindie.generate import TextDialect, TextTarget
from serve_app.api.dialects.triton.aliases import Meaning
from serve_app.api.dialects.triton.inference_routes import ValuesRoute
from serve_app.api.dialects.triton.role import Role
from serve_app.api.dialects.triton.stop import find_model
from serve_app.api.dialects.v2.whose_body import is_tritons
from serve_app.api.edge.body import check_type
from serve_app.errors import ServeError


class EitherDialect:
    """MindIE's dialect until a body shows that it is Triton's; for one request.

    Whatever is wrong with a request that could be read is told in the words of its body's protocol.
    """

    def __init__(self, mindie: Dialect, triton: Dialect, media: str | None, find: Find) -> None:
        """`media`: the Content-Type, which is not looked at before the body."""
        self._triton = triton
        self._chosen = mindie
        self._media = media
        self._find = find
        self.stream_type = mindie.stream_type

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call | Referring[Call]:
        """Raises ModelNotFound, InvalidBody for a type that is not JSON's, or as the dialect of the body."""
        if is_tritons(raw):
            self._chosen = self._triton
            self.stream_type = self._chosen.stream_type
        self._find()
        check_type(self._media)
        return self._chosen.parse(raw, endpoint)

    def render_error(self, error: ServeError) -> ErrorReply:
        return self._chosen.render_error(error)


class SharedRoute(ValuesRoute):
    """The same for a request that may be MindIE's, which its body tells.

    Unless the protocol is forced, or the model has a name that only Triton's clients know.
    """

    def meaning(self, scope: Scope) -> Meaning:
        """MindIE has no names but the endpoints'."""
        if context_of(scope).is_forced:
            return Meaning(scope["path_params"]["model"], Role.TENSORS)
        return super().meaning(scope)

    def read_as(self, scope: Scope, meant: Meaning) -> Scope:
        if context_of(scope).is_forced or meant.role is Role.ENSEMBLE:
            return scope
        return {**scope, "headers": [each for each in scope["headers"] if each[0] != b"content-type"]}

    def dialect(self, scope: Scope, meant: Meaning) -> Dialect:
        names, context = scope["path_params"], context_of(scope)
        if meant.role is Role.ENSEMBLE and not context.is_forced:
            return super().dialect(scope, meant)
        target = TextTarget(
            model=names["model"],
            version=names.get("version"),
            id=context.client_id or context.id,
            stream=self._stream,
        )
        text = TextDialect(self._services.config.mindie, target)
        find = partial(find_model, self._services, scope, meant.endpoint)
        if context.is_forced:
            return KnownModel(text, find)
        return EitherDialect(text, self.tritons(scope, meant), header(scope, b"content-type"), find)
