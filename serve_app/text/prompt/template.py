"""Chat messages -> token ids, by the operator's chat template.

The template is the model's own or the operator's file, never the client's, and runs in transformers'
immutable sandbox, so that it renders as in transformers.

Covered: a template cannot reach Python's internals or change its input; its output
is bounded; control tokens in the strings of users become plain text (see control_tokens.py).
Not covered: a template that loops for a long time without output, since the operator chose the template.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import jinja2
from transformers.utils import chat_template_utils

from serve_app.errors import InvalidField, ServeError, UnsupportedField
from serve_app.text.tokens.control_tokens import ControlMarks, count_chars
from serve_app.text.tokens.tokenizer import Tokenizer, check_prompt_chars
from serve_app.types import Templating
from serve_app.types.request import RESERVED_VARIABLES

# The names under which clients send a message's reasoning; templates read the first, or some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")

VARIABLES: Final = "chat_template_kwargs"  # as clients call them

DEFAULT: Final = Templating()

_REFUSED = "the model's chat template does not accept these messages"


class ChatTemplate:
    """The chat template of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UnsupportedField when the model has no template, jinja2.TemplateError for a broken one."""
        if not tokenizer.templates:
            raise UnsupportedField("messages", "this model has no chat template")
        self._tokenizer = tokenizer
        self._sources = tokenizer.templates
        self._compiled: dict[str, jinja2.Template] = {
            name: chat_template_utils._compile_jinja_template(source)
            for name, source in self._sources.items()
        }

    @classmethod
    def find(cls, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The tokenizer's template, or None when it has none."""
        return cls(tokenizer) if tokenizer.templates else None

    @property
    def has_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return "tool_use" in self._sources or any("tools" in source for source in self._sources.values())

    @property
    def has_documents(self) -> bool:
        """Whether the template shows documents to the model."""
        return any("documents" in source for source in self._sources.values())

    async def render_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        templating: Templating = DEFAULT,
        check_fewest: Callable[[int], None] = lambda tokens: None,
    ) -> list[int]:
        """Ids of the conversation, ending where `templating` says.

        `messages`, `tools` and the variables are plain JSON. Long conversations are rendered in a thread.
        Raises InvalidField when the template refuses the messages, UnsupportedField when it supports no tools
        or documents, PromptTooLong beyond MAX_PROMPT_CHARS before or after rendering. `check_fewest` gets a
        lower bound of the number of tokens, before they are counted, and raises if that number is too high.
        """
        if tools and not self.has_tools:
            raise UnsupportedField("tools", "this model's chat template has no tools")
        if templating.documents and not self.has_documents:
            raise UnsupportedField("documents", "this model's chat template has no documents")
        readable = [_readable(message) for message in _checked(messages)]
        variables = self._free(templating.variables)
        shown_beside = (tools, templating.documents, variables)
        num_chars = count_chars(messages) + sum(map(count_chars, shown_beside))
        check_prompt_chars(num_chars, param="messages")

        def work() -> list[int]:
            marking = ControlMarks(self._tokenizer.controls)
            shown = marking.put(readable)
            end = _mark_end(shown[-1]) if templating.continue_final_message else ""
            inputs = {
                **marking.put(variables),
                "messages": shown,
                "tools": marking.put(tools) or None,
                "documents": marking.put(list(templating.documents)) or None,
                "add_generation_prompt": templating.add_generation_prompt and not end,
            }
            rendered = self._render(inputs, marking.num_added_chars + len(end))
            if end:
                rendered = _until(end, rendered)
            pieces = marking.split(rendered)
            check_fewest(self._tokenizer.fewest(sum(len(piece.text) for piece in pieces)))
            try:
                return self._tokenizer.encode_pieces(pieces)
            except InvalidField as error:
                raise InvalidField("messages", "must be valid Unicode text") from error

        return await self._tokenizer.off_loop(num_chars, work)

    def _free(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns `variables`; raises InvalidField if one of them has a reserved name."""
        for name in variables:
            if name in RESERVED_VARIABLES or name in self._tokenizer.named_tokens:
                raise InvalidField(VARIABLES, f"{name} must not be given; it is set by the server")
        return variables

    def _render(self, inputs: dict[str, Any], num_added_chars: int) -> str:
        """The rendered template; the limit does not count the `num_added_chars` characters that we added."""
        name = "tool_use" if inputs["tools"] and "tool_use" in self._compiled else "default"
        if name not in self._compiled:
            raise UnsupportedField("messages", "this model's chat template serves only tools")
        try:
            parts = self._compiled[name].generate(**self._tokenizer.named_tokens, **inputs)
            return _bounded(parts, num_added_chars)
        except ServeError:
            raise
        except jinja2.TemplateError as error:
            raise InvalidField("messages", self._refusal(name, error)) from error
        except Exception as error:  # a template may fail in any way over input it did not expect
            raise InvalidField("messages", _REFUSED) from error

    def _refusal(self, name: str, error: jinja2.TemplateError) -> str:
        """The template's own message, if it is a constant of the template."""
        said = error.message or ""
        if type(error) is jinja2.TemplateError and 0 < len(said) <= 300 and said in self._sources[name]:
            return said
        return _REFUSED


def _checked(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if not messages:
        raise InvalidField("messages", "must hold at least one message")
    if any(not isinstance(message.get("role"), str) for message in messages):
        raise InvalidField("messages", "every message needs a role")
    return messages


def _readable(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as templates expect it: without null fields, with the reasoning in the fields they use."""
    fields = {key: value for key, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    return fields


def _mark_end(message: dict[str, Any]) -> str:
    """Append a random mark to the text of `message`, and return the mark. Raises InvalidField."""
    text = message.get("content")
    if not isinstance(text, str) or not text:
        raise InvalidField("continue_final_message", "the last message must have a text")
    mark = "".join(secrets.choice("0123456789") for _ in range(20))
    message["content"] = text + mark
    return mark


def _until(mark: str, rendered: str) -> str:
    """The text before the mark. Raises InvalidField if the template does not show the mark."""
    found = rendered.rfind(mark)
    if found < 0:
        raise InvalidField(
            "continue_final_message", "the model's chat template does not show the last message as it is"
        )
    return rendered[:found]


def _bounded(parts: Iterator[str], num_added_chars: int) -> str:
    found: list[str] = []
    num_chars = -num_added_chars
    for part in parts:
        num_chars += len(part)
        check_prompt_chars(num_chars, param="messages")
        found.append(part)
    return "".join(found)
