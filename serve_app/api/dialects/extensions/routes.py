"""The routes of questions, the same for all protocols."""

from __future__ import annotations

from collections.abc import Iterator

from serve_app.api.dialects.extensions import operations
from serve_app.api.dialects.extensions.tokens import parse_detokenize, parse_tokenize
from serve_app.api.dialects.extensions.watermark import parse_detect
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.openapi.operation import Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope


def routes(services: Services) -> Iterator[Entry]:
    """All of them. vLLM has the first two at the root."""
    tokenize, detokenize, detect = (
        QuestionRoute(parse, services) for parse in (parse_tokenize, parse_detokenize, parse_detect)
    )
    for base in ("", "/v1"):
        yield _entry(f"{base}/tokenize", tokenize, operations.TOKENIZE)
        yield _entry(f"{base}/detokenize", detokenize, operations.DETOKENIZE)
    yield _entry("/v1/watermark/detect", detect, operations.DETECT)


def _entry(path: str, app: QuestionRoute, operation: Operation) -> Entry:
    return Entry("POST", path, app, Scope.INFERENCE, operation=operation)
