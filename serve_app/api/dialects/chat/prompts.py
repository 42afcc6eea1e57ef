"""The field `prompt` of completions: one prompt or many, as text or as token ids."""

from __future__ import annotations

from typing import Any

from serve_app import limits
from serve_app.api.protocol.fields import MAX_TOKEN_ID, as_integer
from serve_app.errors import InvalidField, PromptTooLong
from serve_app.types import Prompt


def parse_prompts(value: Any) -> list[Prompt]:
    """A string, token ids, or a list of either. Raises InvalidField or PromptTooLong."""
    if value is None:
        raise InvalidField("prompt", "is required")
    if isinstance(value, str):
        return [_text_prompt(value)]
    if isinstance(value, list) and value:
        if not isinstance(value[0], str | list):
            return [_id_prompt(value)]
        if len(value) > limits.MAX_PROMPTS:
            raise InvalidField("prompt", f"must hold at most {limits.MAX_PROMPTS} prompts")
        if all(isinstance(item, str) for item in value):
            return [_text_prompt(item) for item in value]
        if all(isinstance(item, list) for item in value):
            return [_id_prompt(item) for item in value]
    raise InvalidField(
        "prompt", "must be a string, a list of token ids, or a list of either, and not be empty"
    )


def _text_prompt(text: str) -> Prompt:
    if len(text) > limits.MAX_PROMPT_CHARS:
        raise PromptTooLong.of_chars("prompt", limits.MAX_PROMPT_CHARS)
    return Prompt(text=text)


def _id_prompt(items: list[Any]) -> Prompt:
    # A million ids are common enough to look at their types without a Python loop.
    ids: list[Any] = items if set(map(type, items)) == {int} else [as_integer(item) for item in items]
    if not ids or None in ids or min(ids) < 0 or max(ids) > MAX_TOKEN_ID:
        raise InvalidField("prompt", f"token ids must be integers from 0 to {MAX_TOKEN_ID}")
    return Prompt(token_ids=tuple(ids))
