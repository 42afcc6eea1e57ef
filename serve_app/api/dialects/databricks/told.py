"""What the fields of Databricks's bodies do, in words: for the OpenAPI document and docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.dialects.chat.told import THINKING_TOKENS, chat_fields, embedding_fields
from serve_app.api.protocol.field_doc import FieldDoc
from serve_app.endpoints.endpoint import Databricks

_DATABRICKS: Final = Databricks()

SHARED: Final[Mapping[str, FieldDoc]] = {
    **chat_fields("user", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    "model": FieldDoc(
        "names the endpoint; ignored where the path does",
        accepts=(
            f"a string of 1 to {limits.MAX_MODEL_NAME_CHARS} characters; required below "
            "`/serving-endpoints/chat/completions` and its like"
        ),
    ),
    "client_request_id": FieldDoc("accepted, no effect"),
    "usage_context": FieldDoc("accepted, no effect"),
    "extra_params": FieldDoc(
        "each value is JSON, or else text, and counts as a field of its name; not one that is there already",
    ),
    "temperature": FieldDoc("0 is greedy", default=1.0),
    "top_p": FieldDoc("nucleus", default=1.0),
    "top_k": FieldDoc("default off; 1 is greedy, 0 is an error"),
    "min_p": FieldDoc(", off", default=0),
    "max_tokens": FieldDoc(
        "default up to the window; more than fits is clamped, unless `error_behavior` is error"
    ),
    "n": FieldDoc(
        "choices of one prompt",
        accepts="; above 1 on provisioned endpoints only (settings `max_n`, `allow_n_everywhere`)",
        default=1,
    ),
    "seed": FieldDoc("default drawn anew"),
    "logit_bias": FieldDoc("default none"),
    "stream": FieldDoc(
        ", or true where `Accept` names text/event-stream and not "
        "application/json (setting `stream_default`)",
        default=False,
    ),
    "stream_options": FieldDoc(
        "see its member",
        accepts="an object; only in a stream",
    ),
    "stream_options.include_usage": FieldDoc(
        "absent: `usage` comes with the last choice's end; true: in a chunk of its own; false: not at all",
    ),
}

CHAT: Final[Mapping[str, FieldDoc]] = {
    **chat_fields("max_completion_tokens", "parallel_tool_calls", "response_format", "logprobs"),
    "messages": FieldDoc(
        "[system] user, then user and assistant in turn, tool answers behind their "
        "calls; the last is user or tool",
        accepts=f"a list of 1 to {limits.MAX_MESSAGES} messages; required",
    ),
    "messages.role": FieldDoc(
        "decides what may follow",
        accepts="system, user, assistant or tool",
    ),
    "messages.content": FieldDoc(
        "parts are joined by line breaks",
        accepts="a string or text parts; beside `tool_calls` it may be absent or empty",
    ),
    "messages.tool_calls": FieldDoc(
        "`arguments` may be text or an object",
        accepts="a list of calls {`id`, `type`, `function`}, all required; of an assistant",
    ),
    "messages.tool_call_id": FieldDoc(
        "pairs an answer with its call",
        accepts="an id of the calls before; required of role tool, of no other",
    ),
    "tools": FieldDoc(
        "default none",
        accepts=(
            f"a list of up to {_DATABRICKS.max_tools} function tools, of up to "
            f"{_DATABRICKS.max_tool_properties} properties (settings "
            "`max_tools`, `max_tool_properties`)"
        ),
    ),
    "tools.description": FieldDoc(
        "may be absent, unless the setting `strict_tools` is on",
        accepts="a string",
    ),
    "tools.strict": FieldDoc(
        "true forces arguments into the schema; a keyword that cannot be guaranteed is a 400",
        accepts="true or false",
        default=False,
    ),
    "tool_choice": FieldDoc(
        "default auto",
        accepts="none, auto, required or an object that names a tool; only with `tools`, but for none",
    ),
    "top_logprobs": FieldDoc(
        "default none",
        accepts="; only with `logprobs: true`",
    ),
    "reasoning_effort": FieldDoc(
        "variable `reasoning_effort` of the model's template; none also sets `enable_thinking` to false",
        accepts="none, minimal, low, medium, high or xhigh",
    ),
    "thinking": FieldDoc(
        "see its members; with a type but disabled, thoughts are parts of type `reasoning` in the content",
        accepts="an object",
    ),
    "thinking.type": FieldDoc(
        "variable `enable_thinking` of the model's template: true for enabled, false for disabled"
    ),
    "thinking.budget_tokens": FieldDoc(THINKING_TOKENS),
    "service_tier": FieldDoc("the server has one; flex and priority are ignored and listed"),
    "metadata": FieldDoc(
        "accepted, no effect",
        accepts="an object",
    ),
}

COMPLETIONS: Final[Mapping[str, FieldDoc]] = {
    "prompt": FieldDoc(
        "a list is a batch; choice `index` is prompt × n + i",
        accepts=f"a string or a list of 1 to {limits.MAX_PROMPTS} strings; required",
    ),
    "error_behavior": FieldDoc(
        "default error; truncate shortens what does not fit and answers what there is at the deadline",
        accepts="truncate or error; on pay-per-token endpoints only",
    ),
    "suffix": FieldDoc("default empty; literal text after every completion"),
    "echo": FieldDoc("the prompt goes before the completion", default=False),
    "use_raw_prompt": FieldDoc(": the prompt is a user's message of the template; true: raw", default=False),
    "logprobs": FieldDoc("default none; four lists, so many alternatives a token"),
}

EMBEDDINGS: Final[Mapping[str, FieldDoc]] = {
    **embedding_fields("user", "encoding_format"),
    "model": FieldDoc(
        "names the endpoint; ignored where the path does",
        accepts=(
            f"a string of 1 to {limits.MAX_MODEL_NAME_CHARS} characters; required below "
            "`/serving-endpoints/embeddings`"
        ),
    ),
    "client_request_id": FieldDoc("accepted, no effect"),
    "usage_context": FieldDoc("accepted, no effect"),
    "extra_params": FieldDoc("as in chat"),
    "input": FieldDoc(
        "a vector each, which depends on its own text alone",
        accepts=f"a string or a list of 1 to {limits.MAX_EMBED_INPUTS} strings, none empty; required",
    ),
    "instruction": FieldDoc("default none; goes before every input, with a space"),
    "dimensions": FieldDoc(
        "default all",
        accepts=", up to the model's own",
    ),
}
