"""What the fields of a message's body do, in words: for the OpenAPI document and docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.dialects.chat.messages import MAX_NAME_CHARS
from serve_app.api.dialects.chat.told import ANSWER, TEMPLATING, THINKING_TOKENS
from serve_app.api.protocol.field_doc import FieldDoc

_CONTENT: Final = f"a string or a list of up to {limits.MAX_CONTENT_PARTS}"
_FORM: Final = "an object: `type` is json_schema, with `schema`"
# Of `MessageBody`, and of what is beside it.
FIELDS: Final[Mapping[str, FieldDoc]] = {
    "messages": FieldDoc(
        "turns of one role that follow each other are one; an assistant's last message goes on",
        accepts=f"a list of 1 to {limits.MAX_MESSAGES} messages; required",
    ),
    "messages.role": FieldDoc(
        "words of the system behind others stand in the user's turn", accepts="user, assistant or system"
    ),
    "messages.content": FieldDoc(
        "joined by line breaks; of the user `text`, `image` (a note stands in its place), `document`, "
        "`search_result`, `tool_result`; of the assistant `text`, `thinking`, `redacted_thinking`, "
        "`tool_use`",
        accepts=f"{_CONTENT} blocks",
    ),
    "messages.source": FieldDoc(
        "of a document", accepts="an object: `type` is text with `data`, or content with `content`"
    ),
    "messages.tool_use_id": FieldDoc(
        "of a result: the call that it answers", accepts=f"a string of 1 to {MAX_NAME_CHARS} characters"
    ),
    "messages.input": FieldDoc("of a call: its arguments", accepts="an object"),
    "messages.thinking": FieldDoc(
        "of thoughts: given to the template; a signature is not looked at", accepts="a string"
    ),
    "system": FieldDoc(
        "default none; the system's message, before the others", accepts=f"{_CONTENT} text blocks"
    ),
    "max_tokens": FieldDoc("at most so many; more than fits is clamped", accepts="; required"),
    "stop_sequences": FieldDoc("default none; ends the answer before the match"),
    "stop": FieldDoc("the same", accepts="; not beside `stop_sequences`"),
    "tools": FieldDoc(
        "default none; the model may call them",
        accepts=f"a list of up to {limits.MAX_AGENT_TOOLS} custom tools, each with `name` and "
        "`input_schema`, and of bash, text_editor, memory and computer by their dated types",
    ),
    "tool_choice": FieldDoc(
        "default auto; any and a tool force a call",
        accepts="an object: `type` is auto, any, none, or tool with `name`",
    ),
    "tool_choice.disable_parallel_tool_use": FieldDoc(
        "true allows one call", accepts="true or false", default=False
    ),
    "thinking": FieldDoc("see its members", accepts="an object"),
    "thinking.type": FieldDoc(
        "variable `enable_thinking` of the model's template: true for enabled, false for disabled, the "
        "template's own for the others"
    ),
    "thinking.budget_tokens": FieldDoc(THINKING_TOKENS),
    "thinking.display": FieldDoc("default summarized: thoughts are told in full; omitted leaves them empty"),
    "output_config": FieldDoc("see its members", accepts="an object"),
    "output_config.effort": FieldDoc("variable `reasoning_effort` of the model's template"),
    "output_config.format": FieldDoc("default none; the answer matches", accepts=_FORM),
    "output_format": FieldDoc("the same, by its name in betas", accepts=_FORM),
    "metadata": FieldDoc("see its member", accepts="an object"),
    "metadata.user_id": FieldDoc("a sticky key for A/B splits, where there is no `user`"),
    "service_tier": FieldDoc("the server has one"),
}

MESSAGES: Final[Mapping[str, FieldDoc]] = {**ANSWER, **TEMPLATING, **FIELDS}
