"""Rules for the names, shares and traffic of an endpoint's configuration, wherever it comes from.

The slug of an application is reversible, so no two models share one. No code here converts a slug back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field

MAX_ENTITIES: Final = 10  # the limit of the Databricks API
RESERVED: Final = frozenset({"chat", "completions", "embeddings"})  # routes of /serving-endpoints
SYSTEM_APP: Final = "system"  # the gateway's own application

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/-]{0,254}[A-Za-z0-9])?")
_APP: Final = re.compile(r"([A-Za-z0-9._-]{1,512})?")


def check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            "must be 1 to 256 characters of A-Z a-z 0-9 . _ : / - beginning and ending with a letter or digit"
        )
    return value


def _app(value: str) -> str:
    if not _APP.fullmatch(value) or value == SYSTEM_APP:
        raise ValueError(f"must be the name of a model's application (not {SYSTEM_APP!r})")
    return value


Name = Annotated[str, AfterValidator(check_name)]
Percentage = Annotated[int, Field(ge=0, le=100, strict=True)]
App = Annotated[str, AfterValidator(_app)]


def entity_name(model: str, version: str = "") -> str:
    """The default name of a served entity."""
    return f"{model}-{version}" if version else model


class BrokenRule(ValueError):
    """An endpoint breaks a rule: names the field at fault, and what is wrong with it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def checked_traffic(traffic: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """The percentages of the served entities `names`; a single entity gets 100 %. Raises BrokenRule."""
    if (twice := repeated(names)) is not None:
        raise BrokenRule("served_entities", f"{twice!r} is there twice; give each a name of its own")
    if not traffic and len(names) == 1:
        return {names[0]: 100}
    unknown = sorted(set(traffic) - set(names))
    if unknown:
        raise BrokenRule("traffic", f"{unknown[0]!r} is no served entity; there is: {', '.join(names)}")
    if (total := sum(traffic.values())) != 100:
        raise BrokenRule("traffic", f"the percentages add up to {total}; they must add up to 100")
    return dict(traffic)


def repeated(names: Sequence[str]) -> str | None:
    """The alphabetically first name that occurs more than once; None if every name occurs once."""
    return min((name for name in names if names.count(name) > 1), default=None)


_APP_PREFIX: Final = "model-"  # keeps a model called "system" apart from the application of that name
_VERSION_MARK: Final = "_v_"  # cannot arise from escaping: v is not a hexadecimal digit


def app_name(model: str, version: str = "") -> str:
    """The Serve application of a model, of letters, digits, `-`, `.` and `_` only.

    Any other character is written as `_` and the hexadecimal digits of each of its bytes.

    >>> app_name("Qwen/Qwen3-0.6B", "2")
    'model-Qwen_2fQwen3-0.6B_v_2'
    """
    return _APP_PREFIX + _escape(model) + (_VERSION_MARK + _escape(version) if version else "")


def _escape(text: str) -> str:
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "-.") else f"_{byte:02x}"
        for byte in text.encode()
    )
