"""generate and generate_stream, whose paths MindIE shares with Triton: the body's keys decide.

If neither header nor prefix names the protocol, the answer's protocol is known only once the body has
been read.
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
    """For one request: MindIE's dialect, unless the body turns out to be Triton's.

    Once the body has been read, errors have the form of the body's protocol.
    """

    def __init__(self, mindie: Dialect, triton: Dialect, media: str | None, find: Find) -> None:
        """`media`: the Content-Type, which is checked only after the body has been read."""
        super().__init__(mindie, find)
        self._triton = triton
        self._media = media

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call | Referring[Call]:
        """Raises ModelNotFound or errors of the dialect; InvalidBody if the Content-Type is not JSON."""
        if is_tritons(raw):
            self._chosen = self._triton
        self._find()
        check_type(self._media)
        return self._chosen.parse(raw, endpoint)


class SharedRoute(ValuesRoute):
    """Triton's route for requests that may also be MindIE's: the body decides.

    The body does not matter if the request selects a protocol, or if the model's name is a Triton alias.
    """

    def meaning(self, scope: AsgiScope) -> Meaning:
        """In MindIE's protocol, a model's name is always an endpoint's, never an alias."""
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
    """The routes that answer unless a header or a prefix marks the request as Triton's."""
    for model in MODELS:
        for name, stream in (("generate", False), ("generate_stream", True)):
            app = SharedRoute(services, stream=stream)
            yield Entry(
                "POST", f"{model}/{name}", app, Scope.INFERENCE, Family.MINDIE, text_operation(stream=stream)
            )


def is_tritons(raw: bytes) -> bool:
    """Whether a body on the shared route is Triton's, rather than MindIE's.

    A body is Triton's if it has a key that MindIE's bodies never have, at the top or among the parameters.
    Malformed JSON counts as MindIE's, unless it contains a key that only Triton's bodies have.
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
