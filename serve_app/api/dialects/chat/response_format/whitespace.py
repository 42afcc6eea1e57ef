"""A client's regex for the whitespace between the tokens of JSON -> a regex that is safe and bounded.

The regex may match only blanks, as otherwise an answer would not be JSON. The number of blanks is bounded, as
otherwise an answer could consist of nothing but blanks.
"""

from __future__ import annotations

import re
from typing import Any, Final

from serve_app.errors import InvalidField

MAX_RUN: Final = 64  # blanks that a part may repeat
_MAX_PARTS: Final = 8
_BLANK: Final = r"(?: |\n|\t|\r|\\[ntrs])"
_PART: Final = re.compile(
    rf"(?P<blanks>{_BLANK}|\[{_BLANK}+\])(?P<times>[?*+]|\{{(?P<low>\d{{1,3}})(?P<comma>,)?(?P<high>\d{{0,3}})\}})?"
)
_CODES: Final = {" ": "20", "\n": "0A", "\t": "09", "\r": "0D", "\\n": "0A", "\\t": "09", "\\r": "0D"}
_ALL: Final = ("20", "0A", "09", "0D")


def parse_whitespace(value: Any, field: str, at: str = "") -> str:
    """The bounded regex for the client's regex `value`; `at`: its place in the field. Raises InvalidField."""
    parts: list[str] = []
    end = 0
    while isinstance(value, str) and end < len(value) and len(parts) < _MAX_PARTS:
        part = _PART.match(value, end)
        if part is None or (times := _times(part)) is None:
            break
        parts.append(_class(part["blanks"]) + times)
        end = part.end()
    if not isinstance(value, str) or end < len(value):
        raise InvalidField(
            field,
            f"{at + ' ' if at else ''}must be a regex of up to {_MAX_PARTS} blanks or classes of "
            f"blanks, each perhaps with ?, *, + or {{m,n}} up to {MAX_RUN}, such as [ \\n]{{0,8}}",
        )
    return "".join(parts)


def _class(blanks: str) -> str:
    found = re.findall(_BLANK, blanks)
    codes = [code for blank in found for code in (_ALL if blank == "\\s" else (_CODES[blank],))]
    return "[" + "".join(rf"\x{code}" for code in dict.fromkeys(codes)) + "]"


def _times(part: re.Match[str]) -> str | None:
    """The bounded quantifier of a part; `MAX_RUN` bounds * and +. None: its range is invalid."""
    times = part["times"]
    if times is None:
        return ""
    if times in "?*+":
        return {"?": "{0,1}", "*": f"{{0,{MAX_RUN}}}", "+": f"{{1,{MAX_RUN}}}"}[times]
    low = int(part["low"])
    high = low if part["comma"] is None else min(int(part["high"] or MAX_RUN), MAX_RUN)
    return f"{{{low},{high}}}" if low <= high <= MAX_RUN else None
