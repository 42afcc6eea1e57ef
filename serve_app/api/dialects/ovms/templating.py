"""`chat_template_kwargs` of OpenVINO Model Server, where the end of the prompt is one of the variables."""

from __future__ import annotations

from typing import Any

from serve_app.api.dialects.chat.templating import FIELD, parse_variables
from serve_app.errors import InvalidField
from serve_app.types import Templating


def templating_of(variables: Any) -> Templating:
    """The variables of the template, by the field's value. Raises InvalidField."""
    given = dict(variables) if isinstance(variables, dict) else variables
    begins = given.pop("add_generation_prompt", True) if isinstance(given, dict) else True
    if not isinstance(begins, bool):
        raise InvalidField(FIELD, "add_generation_prompt must be true or false")
    return Templating(variables=parse_variables(given), add_generation_prompt=begins)
