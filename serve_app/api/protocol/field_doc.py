"""What a field of a body does, in words, for the OpenAPI document and for the tables of fields."""

from __future__ import annotations

from typing import NamedTuple


class FieldDoc(NamedTuple):
    """The words of one field."""

    does: str = ""  # if it begins with one of ",:(", it goes on with the default's sentence
    accepts: str = ""  # what the range of its type leaves open; or all, where a range says nothing
    default: bool | int | float | None = None  # whatever the model is; None: it depends, or there is none

    @property
    def meaning(self) -> str:
        """What the field does, its default first."""
        if self.default is None:
            return self.does
        spelt = str(self.default).lower()
        between = "; " if self.does and self.does[0] not in ",:(" else ""
        return f"default {spelt}{between}{self.does}"

    def accepted(self, told_range: str) -> str:
        """What the field accepts; `told_range` is what its type says, or empty."""
        if self.accepts and self.accepts[0] not in ";, (":
            return self.accepts
        return told_range + self.accepts

    @property
    def text(self) -> str:
        """What the field does and accepts, without the range."""
        return ". ".join(word for word in (self.meaning, self.accepts.lstrip(";, ")) if word)
