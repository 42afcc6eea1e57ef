"""The token budget for a model's thoughts, and whether the model thinks at all: fields of several protocols.

OpenAI's protocol has `thinking_token_budget`; Anthropic's and Databricks' have the object `thinking`.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from serve_app import limits
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Integer, OneOf, Sets

ENABLED: Final = "enabled"
DISABLED: Final = "disabled"
TYPES: Final = ("adaptive", "between_tools", DISABLED, ENABLED)

_BUDGET: Final = (
    "default none; after this many tokens of thoughts the model has to answer, if the marks around its "
    "thoughts are tokens; elsewhere ignored and listed"
)
ThinkingTokenBudget: TypeAlias = Annotated[
    int | None, Integer(0, limits.MAX_TOKENS), Sets("thinking_tokens"), doc(_BUDGET)
]


class ThinkingOptions(WireModel):
    """Whether the model is to think before it answers, and how much."""

    type: Annotated[str | None, OneOf(TYPES)] = doc(
        "variable `enable_thinking` of the model's template: true for enabled, false for disabled"
    )
    budget_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS), Sets("thinking_tokens")] = doc(
        _BUDGET
    )

    @property
    def is_on(self) -> bool | None:
        """Whether the model thinks; None: its template decides."""
        return self.type == ENABLED if self.type in (ENABLED, DISABLED) else None
