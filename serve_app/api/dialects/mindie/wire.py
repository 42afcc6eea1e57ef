"""Pieces of MindIE's answers: content type and finish reasons."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from serve_app.types import FinishReason

STREAM_TYPE: Final = "text/event-stream"

FINISH: Final[Mapping[FinishReason, str]] = MappingProxyType(
    {
        FinishReason.EOS: "eos_token",
        FinishReason.STOP: "stop_sequence",
        FinishReason.LENGTH: "length",
        FinishReason.CONTEXT: "length",
        FinishReason.ABORT: "stop_sequence",
        FinishReason.TOOL_CALLS: "tool_calls",
    }
)
