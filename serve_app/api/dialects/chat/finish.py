"""OpenAI's names for the reasons why answers end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from serve_app.types import FinishReason

CONTENT_FILTER: Final = "content_filter"  # of OpenAI's protocol alone: others end with an error
REPETITION: Final = "repetition"  # the same: vLLM's word, for its field `repetition_detection`
FINISH: Final[Mapping[FinishReason, str]] = MappingProxyType(
    {
        FinishReason.EOS: "stop",
        FinishReason.STOP: "stop",
        FinishReason.LENGTH: "length",
        FinishReason.CONTEXT: "length",
        FinishReason.ABORT: "stop",
        FinishReason.TOOL_CALLS: "tool_calls",
        FinishReason.FILTERED: CONTENT_FILTER,
        FinishReason.REPETITION: REPETITION,
    }
)
LEGACY_TOOL_CALLS: Final = "function_call"  # how an answer to `functions` ends that calls one
