"""What a check found in a text."""

from __future__ import annotations

from enum import StrEnum


class Check(StrEnum):
    """What was checked, in Databricks' words."""

    PII = "pii"
    KEYWORDS = "invalid_keywords"
    SAFETY = "safety"
    TOPICS = "valid_topics"

    @property
    def finding(self) -> str:
        """The message about a text that does not pass."""
        return _FINDINGS[self]


_FINDINGS = {
    Check.PII: "holds personal data",
    Check.KEYWORDS: "holds a word that is not allowed",
    Check.SAFETY: "is not safe",
    Check.TOPICS: "is about something else than the allowed topics",
}


class Blocked(Exception):
    """A text does not pass. The message never quotes the text."""

    def __init__(self, check: Check) -> None:
        super().__init__(check.value)
        self.check = check
