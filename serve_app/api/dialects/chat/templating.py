"""The settings of the chat template that clients may choose: its variables, and where the prompt ends.

The template itself is the operator's. Only the model's own files show which variables the template reads
(`enable_thinking` is a common one). Other variables have no effect.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from serve_app import limits
from serve_app.api.dialects.chat.field_types import TemplateKwargs
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Flag
from serve_app.errors import InvalidField
from serve_app.types import Templating
from serve_app.types.request import RESERVED_VARIABLES

FIELD: Final = "chat_template_kwargs"

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # to think; OpenAI's words

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def parse_variables(value: Any) -> dict[str, Any]:
    """The variables in `chat_template_kwargs`. Raises InvalidField."""
    if value is None:
        return {}
    most = limits.MAX_TEMPLATE_VARIABLES
    if not isinstance(value, dict) or len(value) > most or not all(map(_NAME.fullmatch, value)):
        raise InvalidField(
            FIELD,
            f"must be an object of up to {most} names, of 1 to 64 characters A-Z a-z 0-9 _ and "
            "beginning with a letter",
        )
    reserved = sorted(RESERVED_VARIABLES & value.keys())
    if reserved:
        raise InvalidField(FIELD, f"must not hold {reserved[0]}, which the server sets")
    if len(json.dumps(value, ensure_ascii=False)) > limits.MAX_TEMPLATE_VARIABLES_CHARS:
        raise InvalidField(
            FIELD, f"must hold at most {limits.MAX_TEMPLATE_VARIABLES_CHARS} characters of JSON"
        )
    return dict(value)


def with_effort(templating: Templating, effort: str | None) -> Templating:
    """`templating` with the thinking effort put into the usual variables, unless the client set them."""
    if effort is None:
        return templating
    thinks = {"enable_thinking": False} if effort == "none" else {}
    return replace(templating, variables={"reasoning_effort": effort, **thinks, **templating.variables})


def with_thinking(templating: Templating, is_on: bool | None) -> Templating:
    """`templating` with thinking switched on or off by the usual variable, unless the client set it.

    None: the template decides.
    """
    if is_on is None:
        return templating
    return replace(templating, variables={"enable_thinking": is_on, **templating.variables})


class TemplatingFields(WireModel):
    """The fields of a chat that concern its template. None: absent."""

    chat_template_kwargs: TemplateKwargs = None
    add_generation_prompt: Flag = doc("the prompt ends where the assistant begins", default=True)
    continue_final_message: Flag = doc(
        "the answer continues the last message", accepts="; not beside `add_generation_prompt`", default=False
    )

    def templating(self) -> Templating:
        """Raises InvalidField."""
        goes_on = bool(self.continue_final_message)
        if goes_on and self.add_generation_prompt:
            raise InvalidField("continue_final_message", "must not be true beside add_generation_prompt")
        return Templating(
            variables=parse_variables(self.chat_template_kwargs),
            add_generation_prompt=self.add_generation_prompt is not False and not goes_on,
            continue_final_message=goes_on,
        )
