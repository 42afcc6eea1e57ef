"""Which format of tool calls a model writes: set by the operator, or detected in the model's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app.text.answer.tools.format import ToolFormat
from serve_app.text.answer.tools.generic_json import JSON
from serve_app.text.answer.tools.hermes import HERMES
from serve_app.text.answer.tools.llama3 import LLAMA3
from serve_app.text.answer.tools.mistral import ARGS, MISTRAL, MISTRAL_ARGS
from serve_app.text.tokens.tokenizer import Tokenizer

FORMATS: Final[Mapping[str, ToolFormat]] = {each.name: each for each in (HERMES, LLAMA3, MISTRAL, JSON)}
# Templates that put something other than JSON between Hermes' markers: Qwen3-Coder, GLM.
_NOT_JSON: Final = ("<function=", "<arg_key>")


def find_tool_format(setting: str, tokenizer: Tokenizer) -> ToolFormat | None:
    """The format named by `setting`; with `auto`, the format detected in the model's template or tokens.

    None if calls should not be looked for: `none`, a template without tools, or a template whose syntax
    nothing here can read. If a template shows no syntax at all, generic JSON is used.
    """
    format = FORMATS.get(setting) if setting != "auto" else _shown_format(tokenizer)
    return MISTRAL_ARGS if format is MISTRAL and _writes_args(tokenizer) else format


def _writes_args(tokenizer: Tokenizer) -> bool:
    """Whether this is one of Mistral's newer models."""
    template = _template(tokenizer)
    return ARGS in template or (MISTRAL.marker not in template and tokenizer.token_id(ARGS) is not None)


def _template(tokenizer: Tokenizer) -> str:
    return "\n".join(tokenizer.templates.values())


def _shown_format(tokenizer: Tokenizer) -> ToolFormat | None:
    template = _template(tokenizer)
    if "tools" not in template or any(sign in template for sign in _NOT_JSON):
        return None
    for format in FORMATS.values():
        if format.marker and format.marker in template:
            return format
    for format in FORMATS.values():
        if format.marker and tokenizer.token_id(format.marker) is not None:
            return format
    return JSON
