"""One inference and its answer, the same for every transport: named tensors and parameters.

HTTP bodies and protobuf messages are decoded to an `InferRequest` and encoded from `InferResponse`s;
between the two the transport does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from serve_app import limits
from serve_app.errors import InvalidField
from serve_app.types import Tensor

Parameter = bool | int | float | str

_HIGHEST: Final = 1  # Triton's priorities: 0 is the default, 1 the highest, larger ones lower
_LIKE_DEFAULT: Final = _HIGHEST + limits.MAX_PRIORITY


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """An inference request. Every tensor was checked by `datatype.checked`; names are the client's."""

    model: str  # as the path or the message names it
    version: str | None = None
    id: str | None = None  # the client's, any string; None: none was given
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...] | None = None  # wanted, in order; None: what the inputs ask for
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResponse:
    """One response of possibly several."""

    model: str  # as the request named it
    version: str  # that answered
    id: str | None  # the request's
    outputs: Mapping[str, Tensor]
    is_final: bool = True  # no other follows


def timeout_s(parameters: Mapping[str, Parameter]) -> float | None:
    """The parameter `timeout`, given in microseconds, as seconds; None if it is 0 or absent. Raises
    InvalidField."""
    asked = _integer(parameters, "timeout")
    return min(asked / 1e6, limits.MAX_TIMEOUT_S) if asked else None


def engine_priority(parameters: Mapping[str, Parameter]) -> int:
    """The parameter `priority`, converted to the replica's scale, on which larger numbers run earlier. Raises
    InvalidField."""
    asked = _integer(parameters, "priority")
    return max(-limits.MAX_PRIORITY, _LIKE_DEFAULT - asked) if asked else 0


def _integer(parameters: Mapping[str, Parameter], name: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**64:
        raise InvalidField(f"parameters.{name}", f"must be an integer from 0 to {2**64 - 1}")
    return value


def flag(parameters: Mapping[str, Parameter], name: str) -> bool | None:
    """The boolean parameter `name`; None if it is absent. Raises InvalidField."""
    value = parameters.get(name)
    if value is not None and type(value) is not bool:
        raise InvalidField(f"parameters.{name}", "must be true or false")
    return value
