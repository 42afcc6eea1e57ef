"""What a field of a body does, in words, for the OpenAPI document and for the tables of fields."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_DEFAULT: Final = re.compile(r"default (?P<word>true|false|-?[0-9]+(?:\.[0-9]+)?)\b(?!, with)")


class Told(NamedTuple):
    """The words of one field."""

    does: str  # its default first
    accepts: str = ""  # what the range of its type leaves open; or all, where a range says nothing

    def accepted(self, told_range: str) -> str:
        """What the field accepts; `told_range` is what its type says, or empty."""
        if self.accepts and self.accepts[0] not in ";, (":
            return self.accepts
        return told_range + self.accepts

    @property
    def text(self) -> str:
        """What it does and accepts, without the range."""
        return ". ".join(word for word in (self.does, self.accepts.lstrip(";, ")) if word)

    @property
    def default(self) -> bool | int | float | None:
        """The default, where it is one value whatever the model; None: it depends, or there is none."""
        found = _DEFAULT.match(self.does)
        if found is None:
            return None
        word = found["word"]
        if word in ("true", "false"):
            return word == "true"
        return float(word) if "." in word else int(word)
