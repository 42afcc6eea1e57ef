"""A decimal of a client's JSON that a float cannot hold."""

from __future__ import annotations


class Numeral(float):
    """A float in computations, and its own text where a schema is written."""

    text: str

    def __new__(cls, text: str) -> Numeral:
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __reduce__(self) -> tuple[type[Numeral], tuple[str]]:
        return Numeral, (self.text,)
