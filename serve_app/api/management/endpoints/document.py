"""The OpenAPI document of one endpoint, with only the routes for querying it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Any, Final
from urllib.parse import quote

from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.dialects.databricks.routes import ERRORS, TAG, task_operation
from serve_app.api.openapi.document import About, document
from serve_app.api.openapi.operation import Parameter
from serve_app.api.protocol.family import Family
from serve_app.api.protocol.fields import words
from serve_app.api.route import Entry, paths_of
from serve_app.endpoints.endpoint import Task
from serve_app.types import Scope

_ROOT: Final = "/serving-endpoints"


def endpoint_document(name: str, task: Task, entities: Sequence[str]) -> dict[str, Any]:
    """The document of the endpoint `name`, whose served entities can also be queried by name."""
    base = f"{_ROOT}/{quote(name, safe='')}"
    whole = task_operation(task, names_model=False)
    entity = Parameter(
        name="entity",
        place="path",
        type=Annotated[str, words(entities)],
        what="Who answers.",
    )
    one = replace(whole, summary=f"{whole.summary}, by one served entity", parameters=(entity,))
    queried = {f"{base}/invocations": whole, f"{base}/served-models/{{entity}}/invocations": one}
    entries = [Entry("POST", path, _unasked, Scope.INFERENCE, None, each) for path, each in queried.items()]
    about = About(
        name, version("serve-app"), f"The endpoint {name}, whose task is {task}.", {TAG: "Queries."}
    )
    return document(paths_of(entries), about, {Family.DATABRICKS: ERRORS}, Family.DATABRICKS)


async def _unasked(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """A placeholder for a route's app: the document calls no app."""
