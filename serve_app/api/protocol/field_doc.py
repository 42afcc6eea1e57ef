"""Descriptions of body fields, for the OpenAPI document and the tables of docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """The description of one field. `doc` makes the description the field's value in the model; the range is
    in the annotation."""

    does: str = ""  # if it begins with one of ",:(", it goes on with the default's sentence
    accepts: str = ""  # what the range of its type leaves open; or all, where a range says nothing
    default: bool | int | float | None = None  # whatever the model is; None: it depends, or there is none
    required: bool = False
    members: Mapping[str, FieldDoc] = field(default_factory=dict, hash=False)  # of an object, by their names

    @property
    def meaning(self) -> str:
        """A description of the field, which begins with its default."""
        if self.default is None:
            return self.does
        spelt = str(self.default).lower()
        between = "; " if self.does and self.does[0] not in ",:(" else ""
        return f"default {spelt}{between}{self.does}"

    def accepted(self, known_range: str) -> str:
        """The values that the field accepts; `known_range` is the range from its type, or empty."""
        needed = "; required" if self.required and "required" not in self.accepts else ""
        if self.accepts and self.accepts[0] not in ";, (":
            return self.accepts + needed
        return known_range + self.accepts + needed

    @property
    def text(self) -> str:
        """What the field does and accepts, without the range."""
        return ". ".join(word for word in (self.meaning, self.accepts.lstrip(";, ")) if word)

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add the description to a field's JSON Schema, and the field's default if it is a single value."""
        if self.text:
            schema["description"] = self.text
        if self.default is not None:
            schema["default"] = self.default


def doc(
    does: str = "",
    accepts: str = "",
    default: float | None = None,
    *,
    required: bool = False,
    members: Mapping[str, FieldDoc] | None = None,
) -> Any:
    """A field that is None if it is absent, with a description: see `FieldDoc` for the arguments.

    Used as a field's value, or in the annotation of a shared type; the value takes precedence.
    """
    return Field(default=None, json_schema_extra=FieldDoc(does, accepts, default, required, members or {}))
