"""An endpoint's tags in request bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from serve_app.api.management.fields import ListOf
from serve_app.api.management.strict_body import StrictBody
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Text, Texts
from serve_app.errors import InvalidField
from serve_app.limits import MAX_TAG_CHARS, MAX_TAGS


class TagBody(StrictBody):
    """A tag that the user gave an endpoint."""

    key: Annotated[str | None, Text(1, MAX_TAG_CHARS)] = doc(required=True)
    value: Annotated[str | None, Text(0, MAX_TAG_CHARS)] = None


class PatchTagsBody(StrictBody):
    """PATCH /api/2.0/serving-endpoints/{endpoint}/tags."""

    add_tags: Annotated[Annotated[list[TagBody], Field(max_length=MAX_TAGS)] | None, ListOf(0, MAX_TAGS)] = (
        None
    )
    delete_tags: Annotated[tuple[str, ...] | None, Texts(MAX_TAGS, MAX_TAG_CHARS)] = None


def tags_of(listed: Iterable[TagBody], where: str = "tags") -> dict[str, str]:
    """Key -> value. Raises InvalidField."""
    found: dict[str, str] = {}
    for number, tag in enumerate(listed):
        if tag.key is None:
            raise InvalidField(
                f"{where}.{number}.key", f"is required: a string of 1 to {MAX_TAG_CHARS} characters"
            )
        if tag.key in found:
            raise InvalidField(f"{where}.{number}.key", f"{tag.key} is there twice")
        found[tag.key] = tag.value or ""
    return found
