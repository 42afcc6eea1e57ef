"""Which format of tool calls a model writes: the operator's setting, or what its files show."""

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
# Templates that put something else than JSON between Hermes' markers: Qwen3-Coder, GLM.
_NOT_JSON: Final = ("<function=", "<arg_key>")


def find_tool_format(setting: str, tokenizer: Tokenizer) -> ToolFormat | None:
    """The format named by `setting`; with `auto` the one that the model's template or tokens show.

    None when calls are not to be looked for: `none`, a template without tools, or one of a
    syntax that nothing here reads. A template that shows no syntax at all gets generic JSON.
    """
    format = FORMATS.get(setting) if setting != "auto" else _shown_format(tokenizer)
    return MISTRAL_ARGS if format is MISTRAL and _writes_args(tokenizer) else format


def _writes_args(tokenizer: Tokenizer) -> bool:
    """Whether this model of Mistral's is a newer one."""
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
