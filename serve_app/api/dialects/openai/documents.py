"""Documents that an answer is to draw on, for templates that show them to the model."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from serve_app.api.protocol.fields import checked, refusal
from serve_app.limits import MAX_DOCUMENTS


def _documents(value: Any) -> tuple[dict[str, str], ...]:
    texts = isinstance(value, list) and all(
        isinstance(each, dict) and all(isinstance(text, str) for text in each.values()) for each in value
    )
    if not texts or len(value) > MAX_DOCUMENTS:
        raise refusal(f"must be a list of up to {MAX_DOCUMENTS} objects of strings, such as title and text")
    return tuple(value)


Documents: Final = checked(_documents, Annotated[list[dict[str, str]], Field(max_length=MAX_DOCUMENTS)])
