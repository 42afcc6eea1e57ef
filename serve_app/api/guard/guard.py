"""The guardrails of one endpoint, ready for use, and the collection of all endpoints' guardrails.

Defines the rules; the modules `prompts` and `answers` apply them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from serve_app.endpoints.ai_gateway import GuardrailRules, Guardrails
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import GuardrailTriggered
from serve_app.guardrails.findings import Blocked, Check
from serve_app.guardrails.judging import SAFETY, Inquest, topics
from serve_app.guardrails.keywords import KeywordFilter, Keywords
from serve_app.guardrails.masking import PiiFilter
from serve_app.guardrails.pii import PiiFinder
from serve_app.guardrails.text_filter import TextFilter, masked

INPUT: Final = "input"
OUTPUT: Final = "output"

# (question, text) -> whether the text passes; raises Unavailable without a verdict
Judge = Callable[[Inquest, str], Awaitable[bool]]


class Rules:
    """The rules for the prompts, or for the answers, of an endpoint."""

    def __init__(self, rules: GuardrailRules, side: str) -> None:
        self.side = side
        self._keywords = Keywords(rules.invalid_keywords) if rules.invalid_keywords else None
        has_pii = rules.pii is not None and rules.pii.behavior != "NONE"
        self._finder = PiiFinder(rules.pii.phone_regions) if rules.pii is not None and has_pii else None
        self.masks = rules.masks
        self.safety = SAFETY if rules.safety else None
        self.topics = topics(rules.valid_topics) if rules.valid_topics else None

    @property
    def inquests(self) -> tuple[Inquest, ...]:
        """The questions for the judging model."""
        return tuple(each for each in (self.safety, self.topics) if each is not None)

    @property
    def reads(self) -> bool:
        """Whether there are any rules that can be checked without a model."""
        return self._keywords is not None or self._finder is not None

    @property
    def knows_pii(self) -> bool:
        """Whether the rules look for personal data."""
        return self._finder is not None

    def masked(self, text: str) -> str:
        """`text` with its personal data masked, even if the rules would block such a text."""
        return text if self._finder is None else masked(text, self._finder)

    def filter(self, *, masks: bool = True, is_json: bool = False) -> TextFilter:
        """A filter for one text. Without `masks`, personal data is refused instead of masked.

        `is_json`: whether the text is JSON, whose escapes may hide what the rules look for.
        """
        keywords = None if self._keywords is None else KeywordFilter(self._keywords)
        return TextFilter(keywords, self._pii(blocks=not (self.masks and masks)), is_json=is_json)

    def _pii(self, *, blocks: bool) -> PiiFilter | None:
        return None if self._finder is None else PiiFilter(self._finder, blocks=blocks)

    def triggered(self, check: Check) -> GuardrailTriggered:
        """The error for a finding, without quoting the text that was found."""
        what = "prompt" if self.side == INPUT else "answer"
        return GuardrailTriggered(
            f"the {what} {check.finding}, which the endpoint's {self.side} guardrail `{check}` does not let "
            "through",
            side=self.side,
            check=check,
        )


class Guard:
    """The rules for both sides, input and output, of one endpoint. None: nothing is checked."""

    def __init__(self, settings: Guardrails) -> None:
        self.settings = settings
        self.model = settings.model
        self.input = Rules(settings.input, INPUT) if settings.input else None
        self.output = Rules(settings.output, OUTPUT) if settings.output else None


class Guards:
    """The guards of all endpoints of a gateway, each made at its first use and when its settings change."""

    def __init__(self) -> None:
        self._guards: dict[str, Guard] = {}

    def of(self, endpoint: Endpoint) -> Guard | None:
        """The guard of `endpoint`; None if nothing is checked."""
        settings = endpoint.ai_gateway.guardrails
        if settings is None or not (settings.input or settings.output):
            return None
        guard = self._guards.get(endpoint.name)
        if guard is None or guard.settings is not settings:
            guard = self._guards[endpoint.name] = Guard(settings)
        return guard


__all__ = ["INPUT", "OUTPUT", "Blocked", "Check", "Guard", "Guards", "Judge", "Rules", "TextFilter"]
