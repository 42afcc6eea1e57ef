"""The routes of questions, the same for all protocols."""

from __future__ import annotations

from collections.abc import Iterator

from serve_app.api.dialects.extensions.tokens import parse_detokenize, parse_tokenize
from serve_app.api.dialects.extensions.watermark import parse_detect
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope


def routes(services: Services) -> Iterator[Entry]:
    """All of them. vLLM has the first two at the root."""
    for base in ("", "/v1"):
        yield Entry("POST", f"{base}/tokenize", QuestionRoute(parse_tokenize, services), Scope.INFERENCE)
        yield Entry("POST", f"{base}/detokenize", QuestionRoute(parse_detokenize, services), Scope.INFERENCE)
    yield Entry("POST", "/v1/watermark/detect", QuestionRoute(parse_detect, services), Scope.INFERENCE)
