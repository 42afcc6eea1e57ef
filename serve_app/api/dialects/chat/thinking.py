"""What a client says of thoughts in the object `thinking`, as Anthropic has it and Databricks after it."""

from __future__ import annotations

from typing import Annotated, Final

from serve_app import limits
from serve_app.api.dialects.chat.field_types import THINKING_TOKENS
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Integer, OneOf, Sets

ENABLED: Final = "enabled"
DISABLED: Final = "disabled"
TYPES: Final = ("adaptive", "between_tools", DISABLED, ENABLED)


class ThinkingOptions(WireModel):
    """Whether the model is to think before it answers, and how much."""

    type: Annotated[str | None, OneOf(TYPES)] = doc(
        "variable `enable_thinking` of the model's template: true for enabled, false for disabled"
    )
    budget_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS), Sets("thinking_tokens")] = doc(
        THINKING_TOKENS
    )

    @property
    def is_on(self) -> bool | None:
        """Whether the model thinks; None: its template decides."""
        return self.type == ENABLED if self.type in (ENABLED, DISABLED) else None
