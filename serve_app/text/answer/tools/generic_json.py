"""An answer that is a JSON object for a call or a list of them, for models without a syntax of their own."""

from __future__ import annotations

from typing import Final

from serve_app.text.answer.source import Scan, Source
from serve_app.text.answer.tools.calls import Calls
from serve_app.text.answer.tools.format import Spelling, ToolFormat
from serve_app.text.answer.tools.json_call import call_list, call_object


def _scan(source: Source, calls: Calls) -> Scan[None]:
    if (yield from source.peek()) == "[":
        yield from call_list(source, calls)
    else:
        yield from call_object(source, calls)


JSON: Final = ToolFormat("json", _scan, Spelling(first="[", between=", ", last="]"), bare="{[")
