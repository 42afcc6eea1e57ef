"""Calls between `<tool_call>` and `</tool_call>`, each a JSON object: Hermes, Qwen, our demo-chat."""

from __future__ import annotations

from typing import Final

from serve_app.text.answer.source import Scan, Source
from serve_app.text.answer.tools.calls import Calls
from serve_app.text.answer.tools.format import Spelling, ToolFormat
from serve_app.text.answer.tools.json_call import call_object

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


def _scan(source: Source, calls: Calls) -> Scan[None]:
    yield from source.blank()
    yield from call_object(source, calls)
    yield from source.blank()
    yield from source.expect(CLOSE, or_end=True)
    source.release()


_SPELLING: Final = Spelling(first=f"{OPEN}\n", between=f"\n{CLOSE}\n{OPEN}\n", last=f"\n{CLOSE}")
HERMES: Final = ToolFormat("hermes", _scan, _SPELLING, marker=OPEN, tokens=(OPEN, CLOSE))
