"""The routes of the OpenAPI document and of the page that shows it. Their scope is `inference`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

from serve_app.api.openapi.operation import JSON, Answer, Operation, Parameter
from serve_app.api.openapi.pages import FILES, PAGE, DocsPage, DocumentPage, FilePage
from serve_app.api.protocol.fields import words
from serve_app.api.route import Entry
from serve_app.errors import RouteNotFound
from serve_app.types import Scope

TAG: Final = "Documents"

_DOCUMENT: Final = Operation(
    summary="This document",
    tag=TAG,
    answers=(Answer(what="The document.", type=dict[str, Any], media=JSON),),
)
_PAGE: Final = Operation(
    summary="A page that shows this document",
    tag=TAG,
    answers=(Answer(what="The page.", type=str, media="text/html"),),
)
_FILE: Final = Operation(
    summary="What the page loads",
    tag=TAG,
    parameters=(Parameter(name="file", place="path", type=Annotated[str, words(FILES)], what="Its name."),),
    answers=tuple(
        Answer(what="The file.", type=str, media=media)
        for media in sorted({media.partition(";")[0] for media in FILES.values()})
    ),
    conditions=(RouteNotFound,),
)


def routes(document: Callable[[], Mapping[str, Any]]) -> Iterator[Entry]:
    """All of them; `document` writes the document."""
    yield Entry("GET", "/openapi.json", DocumentPage(document), Scope.INFERENCE, operation=_DOCUMENT)
    yield Entry("GET", PAGE, DocsPage(), Scope.INFERENCE, operation=_PAGE)
    yield Entry("GET", f"{PAGE}/{{file}}", FilePage(), Scope.INFERENCE, operation=_FILE)
