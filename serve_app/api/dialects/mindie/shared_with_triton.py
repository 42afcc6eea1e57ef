"""generate and generate_stream, whose paths MindIE shares with Triton: the keys of a body tell whose it is.

Where neither header nor prefix names the protocol, the answer's protocol is known only once the
body is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec
from starlette.types import Scope as AsgiScope

from serve_app.api.context import context_of, header
from serve_app.api.dialects.mindie.generate import Parameters as MindieParameters
from serve_app.api.dialects.mindie.generate import TextDialect, TextTarget
from serve_app.api.dialects.mindie.routes import text_operation
from serve_app.api.dialects.triton.aliases import Meaning
from serve_app.api.dialects.triton.inference_routes import ValuesRoute
from serve_app.api.dialects.triton.request.inputs import ACCEPTED, RENAMED, TEXT_INPUT
from serve_app.api.dialects.triton.role import Role
from serve_app.api.dialects.triton.stop import find_model
from serve_app.api.edge.body import check_type
from serve_app.api.kserve.paths import MODELS
from serve_app.api.protocol.dialect import Call, Dialect, Find, KnownModel, Referring
from serve_app.api.protocol.family import Family
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope

_SHARED: Final = frozenset({"id", TEXT_INPUT, "parameters"})  # top-level keys of both protocols
_TRITONS: Final = frozenset((*ACCEPTED, *RENAMED)) - {TEXT_INPUT} - MindieParameters.model_fields.keys()

_KEY: Final = re.compile(rb'"([a-z_]{1,64})"\s*:')


class EitherDialect(KnownModel):
    """MindIE's dialect until a body shows that it is Triton's; for one request.

    Errors of a request that could be read have the form of its body's protocol.
    """

    def __init__(self, mindie: Dialect, triton: Dialect, media: str | None, find: Find) -> None:
        """`media`: the Content-Type, which is not looked at before the body."""
        super().__init__(mindie, find)
        self._triton = triton
        self._media = media

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call | Referring[Call]:
        """Raises ModelNotFound, InvalidBody for a type that is not JSON's, or as the dialect of the body."""
        if is_tritons(raw):
            self._chosen = self._triton
        self._find()
        check_type(self._media)
        return self._chosen.parse(raw, endpoint)


class SharedRoute(ValuesRoute):
    """The same for a request that may be MindIE's, which its body tells.

    Unless the protocol is forced, or the model has a name that only Triton's clients know.
    """

    def meaning(self, scope: AsgiScope) -> Meaning:
        """MindIE has no names but the endpoints'."""
        if context_of(scope).is_forced:
            return Meaning(scope["path_params"]["model"], Role.TENSORS)
        return super().meaning(scope)

    def read_as(self, scope: AsgiScope, meant: Meaning) -> AsgiScope:
        if context_of(scope).is_forced or meant.role is Role.ENSEMBLE:
            return scope
        return {**scope, "headers": [each for each in scope["headers"] if each[0] != b"content-type"]}

    def dialect(self, scope: AsgiScope, meant: Meaning) -> Dialect:
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


def routes(services: Services) -> Iterator[Entry]:
    """What answers there unless header or prefix say that a request is Triton's."""
    for model in MODELS:
        for name, stream in (("generate", False), ("generate_stream", True)):
            app = SharedRoute(services, stream=stream)
            yield Entry(
                "POST", f"{model}/{name}", app, Scope.INFERENCE, Family.MINDIE, text_operation(stream=stream)
            )


def is_tritons(raw: bytes) -> bool:
    """Whether a body is Triton's and not MindIE's, whose route it shares.

    It is when it has a key that MindIE's never have, at the top or among the parameters. What
    is no JSON object is MindIE's, unless it has, written like a key, a name that is Triton's alone.
    """
    try:
        body = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if not body.keys() <= _SHARED:
            return True
        nested = body.get("parameters")
        return nested is not None and not _TRITONS.isdisjoint(
            msgspec.json.decode(nested, type=dict[str, msgspec.Raw])
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw.lstrip()[:1] == b"{" and any(key.decode() in _TRITONS for key in _KEY.findall(raw))
