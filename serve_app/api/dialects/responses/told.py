"""What the fields of a response's body do, in words: for the OpenAPI document and docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.dialects.chat.messages import MAX_NAME_CHARS
from serve_app.api.dialects.chat.told import ANSWER, TEMPLATING, THINKING_TOKENS, chat_fields
from serve_app.api.dialects.responses.tools import UNASKED
from serve_app.api.protocol.field_doc import FieldDoc

_TEXTS: Final = f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts"
# Of `ResponseFields`.
FIELDS: Final[Mapping[str, FieldDoc]] = {
    **chat_fields("parallel_tool_calls", "user"),
    "input": FieldDoc(
        "a string is what the user says; the items of one turn of the assistant are one message",
        accepts=f"a string or a list of 1 to {limits.MAX_MESSAGES} items; required",
    ),
    "input.type": FieldDoc(
        "any order; an item with a role is a message",
        accepts="message, reasoning, item_reference, function_call, custom_tool_call, local_shell_call, "
        "shell_call or apply_patch_call, or one of these calls with _output",
    ),
    "input.role": FieldDoc(
        "of a message; developer counts as system", accepts="user, assistant, system or developer"
    ),
    "input.content": FieldDoc(
        "of a message; parts are joined by line breaks; a note stands in place of a picture", accepts=_TEXTS
    ),
    "input.call_id": FieldDoc(
        "of a call, and of its output", accepts=f"a string of 1 to {MAX_NAME_CHARS} characters"
    ),
    "input.arguments": FieldDoc("of a call: JSON as the model wrote it", accepts="a string"),
    "input.input": FieldDoc("of a call of a custom tool: its text", accepts="a string"),
    "input.output": FieldDoc("what the tool answered; a note stands in place of a picture", accepts=_TEXTS),
    "instructions": FieldDoc("default none; the system's message, before the input"),
    "max_output_tokens": FieldDoc("default the model's, else up to the window; more than fits is clamped"),
    "top_logprobs": FieldDoc("alternatives a token; above 0 also turns log-probabilities on", default=0),
    "include": FieldDoc(
        "`message.output_text.logprobs` tells log-probabilities; the other words are ignored and listed",
        accepts="a list of OpenAI's words",
    ),
    "tools": FieldDoc(
        "default none; the model may call them; a custom tool is called with a text; forced calls match its "
        "`format`, a regular expression or a Lark grammar, else the format is ignored and listed, as are "
        f"{', '.join(UNASKED)}",
        accepts=f"a list of up to {limits.MAX_TOOLS} function and custom tools, local_shell, shell and "
        "apply_patch, and namespaces of them",
    ),
    "tool_choice": FieldDoc(
        "default auto; required and a name force a call",
        accepts="none, auto, required, an object that names a tool, or one of type allowed_tools",
    ),
    "max_tool_calls": FieldDoc("ignored and listed: it counts calls of tools that the server runs"),
    "text": FieldDoc("see its members", accepts="an object"),
    "text.format": FieldDoc(
        "default text; the answer matches",
        accepts="an object: `type` is text, json_object, or json_schema with `name`, `schema`, `strict`, "
        "`description`",
    ),
    "text.verbosity": FieldDoc("ignored and listed", accepts="low, medium or high"),
    "reasoning": FieldDoc("see its members", accepts="an object"),
    "reasoning.effort": FieldDoc(
        "variable `reasoning_effort` of the model's template; none also sets `enable_thinking` to false"
    ),
    "reasoning.summary": FieldDoc(
        "default none: thoughts are the content of reasoning items; any word: their summary, in full"
    ),
    "stream_options": FieldDoc("see its member", accepts="an object; only with `stream: true`"),
    "stream_options.include_obfuscation": FieldDoc("nothing is padded", default=False),
    "truncation": FieldDoc("input that does not fit is an error; auto is ignored and listed"),
    "store": FieldDoc("nothing is kept; true is ignored and listed", default=False),
    "metadata": FieldDoc(
        "default none; told with the answer",
        accepts=f"up to {limits.MAX_METADATA} names of up to {limits.MAX_METADATA_KEY_CHARS} characters, "
        f"with strings of up to {limits.MAX_METADATA_VALUE_CHARS} characters",
    ),
    "safety_identifier": FieldDoc("a sticky key for A/B splits, where there is no `user`"),
    "prompt_cache_key": FieldDoc("a sticky key, where there is neither of the two"),
    "service_tier": FieldDoc("the server has one; flex, scale and priority are ignored and listed"),
}

RESPONSES: Final[Mapping[str, FieldDoc]] = {
    **ANSWER,
    **TEMPLATING,
    **FIELDS,
    "store": FieldDoc(
        "default true: kept for later requests of the same key; the answer says whether it is kept"
    ),
    "previous_response_id": FieldDoc(
        "default none; goes on from a kept response of the same key: its input and its output come before "
        "`input`; its instructions and its tools do not"
    ),
    "input.id": FieldDoc(
        "of an item_reference: an item of a kept response of the same key", accepts="a string"
    ),
    "thinking_token_budget": FieldDoc(THINKING_TOKENS),
}
