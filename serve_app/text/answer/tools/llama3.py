"""Calls as bare JSON objects that are the whole answer, or follow `<|python_tag|>`: Llama 3.1 and later.

Several calls are separated by semicolons.
"""

from __future__ import annotations

from typing import Final

from serve_app.text.answer.source import Scan, Source
from serve_app.text.answer.tools.calls import Calls
from serve_app.text.answer.tools.format import Spelling, ToolFormat
from serve_app.text.answer.tools.json_call import call_object

TAG: Final = "<|python_tag|>"


def _scan(source: Source, calls: Calls) -> Scan[None]:
    while True:
        yield from source.blank()
        yield from call_object(source, calls)
        if (yield from source.blank()) != ";":
            return
        source.take()


LLAMA3: Final = ToolFormat(
    "llama3",
    _scan,
    Spelling(between="; ", arguments='", "parameters": '),
    marker=TAG,
    bare="{",
    tokens=(TAG,),
)
