"""`logits_processors` of a body: names of processors that the operator has registered.

A list of names, or of vLLM's objects `{"qualname": name, "kwargs": {...}}`. Only the model's
engine can tell whether a processor of that name exists, and whether its arguments are valid.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, NotRequired, TypeAlias

from pydantic import Field, with_config
from typing_extensions import TypedDict

from serve_app import limits
from serve_app.api.protocol.fields import checked, refusal
from serve_app.types import ProcessorCall

MAX_NAME_CHARS: Final = 256

_WORDS: Final = (
    f"must be a list of up to {limits.MAX_PROCESSORS} names of 1 to {MAX_NAME_CHARS} characters, or of "
    "objects with such a name as qualname and an object as kwargs, of up to "
    f"{limits.MAX_PROCESSOR_ARGUMENT_CHARS} characters of JSON; args must be empty"
)


def _calls(value: Any) -> tuple[ProcessorCall, ...]:
    if type(value) is not list or len(value) > limits.MAX_PROCESSORS:
        raise refusal(_WORDS)
    return tuple(map(_call, value))


def _call(item: Any) -> ProcessorCall:
    fields = {"qualname": item} if type(item) is str else item
    if type(fields) is not dict or not fields.keys() <= {"qualname", "args", "kwargs"}:
        raise refusal(_WORDS)
    name, arguments = fields.get("qualname"), fields.get("kwargs")
    if type(name) is not str or not 1 <= len(name) <= MAX_NAME_CHARS:
        raise refusal(_WORDS)
    if fields.get("args") not in (None, []) or (arguments is not None and type(arguments) is not dict):
        raise refusal(_WORDS)
    try:
        text = json.dumps(arguments or {}, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN or an infinity
        raise refusal(_WORDS) from None
    if len(text) > limits.MAX_PROCESSOR_ARGUMENT_CHARS:
        raise refusal(_WORDS)
    return ProcessorCall(name=name, arguments=text)


Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


@with_config(extra="forbid")
class Processor(TypedDict):
    """A processor and its keyword arguments."""

    qualname: Name
    args: NotRequired[Annotated[list[Any], Field(max_length=0)] | None]
    kwargs: NotRequired[dict[str, Any] | None]


Processors: Final = checked(
    _calls, Annotated[list[Name | Processor], Field(max_length=limits.MAX_PROCESSORS)]
)
