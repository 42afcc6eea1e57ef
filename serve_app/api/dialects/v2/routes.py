"""MindIE's generate and generate_stream, whose paths are Triton's too."""

from __future__ import annotations

from collections.abc import Iterator

from serve_app.api.dialects.family import Family
from serve_app.api.dialects.mindie.operations import text
from serve_app.api.dialects.v2.either import SharedRoute
from serve_app.api.kserve.paths import MODELS
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope


def routes(services: Services) -> Iterator[Entry]:
    """What answers there unless header or prefix say that a request is Triton's."""
    for model in MODELS:
        for name, stream in (("generate", False), ("generate_stream", True)):
            app = SharedRoute(services, stream=stream)
            yield Entry("POST", f"{model}/{name}", app, Scope.INFERENCE, Family.MINDIE, text(stream=stream))
