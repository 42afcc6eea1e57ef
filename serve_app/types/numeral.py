"""A decimal number in a client's JSON that a float cannot represent exactly."""

from __future__ import annotations


class Numeral(float):
    """Computes as a float, but is written into schemas with its original text."""

    text: str

    def __new__(cls, text: str) -> Numeral:
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __reduce__(self) -> tuple[type[Numeral], tuple[str]]:
        return Numeral, (self.text,)
