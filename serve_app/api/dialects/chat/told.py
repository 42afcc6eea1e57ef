"""What fields of chats, completions and embeddings do where protocols agree on it, in words.

A protocol names the fields that it takes from here, and tells the others by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.protocol.field_doc import FieldDoc

TEMPLATE_VARIABLES: Final = (
    f"an object of up to {limits.MAX_TEMPLATE_VARIABLES} names, "
    f"{limits.MAX_TEMPLATE_VARIABLES_CHARS} characters of JSON"
)

_CHATS: Final[Mapping[str, FieldDoc]] = {
    "stream": FieldDoc("true answers with server-sent events", default=False),
    "stream_options": FieldDoc(
        "see its member",
        accepts="an object; only with `stream: true`",
    ),
    "stream_options.include_usage": FieldDoc("a last chunk with `usage`, null in the others", default=False),
    "n": FieldDoc("choices of one prompt", default=1),
    "stop": FieldDoc("default none; ends the answer before the match"),
    "repetition_penalty": FieldDoc("sees prompt and output", default=1.0),
    "presence_penalty": FieldDoc("sees the output", default=0),
    "frequency_penalty": FieldDoc("sees the output", default=0),
    "response_format": FieldDoc(
        "default text; the answer matches",
        accepts=(
            "an object: `type` is text, json_object, or json_schema with `json_schema` "
            "{`name`, `schema`, `strict`, `description`}"
        ),
    ),
    "user": FieldDoc("a sticky key for A/B splits"),
    "max_completion_tokens": FieldDoc(
        "the same",
        accepts="; equal to `max_tokens` if both are given",
    ),
    "logprobs": FieldDoc("log-probabilities of the output's tokens", default=False),
    "top_logprobs": FieldDoc(accepts="; above 0 needs `logprobs: true`", default=0),
    "tools": FieldDoc(
        "default none",
        accepts=f"a list of up to {limits.MAX_TOOLS} function tools",
    ),
    "tool_choice": FieldDoc(
        "default auto",
        accepts="none, auto, required or an object that names a tool",
    ),
    "parallel_tool_calls": FieldDoc("false allows one call", default=True),
    "functions": FieldDoc(
        "deprecated form of `tools`, answered with `function_call`",
        accepts=f"a list of up to {limits.MAX_TOOLS} functions; not beside `tools`",
    ),
    "function_call": FieldDoc(
        "deprecated form of `tool_choice`",
        accepts="none, auto or an object that names a function",
    ),
    "chat_template_kwargs": FieldDoc(
        "variables for the model's template",
        accepts=TEMPLATE_VARIABLES,
    ),
    "messages.tool_calls": FieldDoc(
        "earlier calls, given to the template",
        accepts="a list of calls; of an assistant",
    ),
}
_EMBEDDINGS: Final[Mapping[str, FieldDoc]] = {
    "model": FieldDoc(
        "the endpoint that answers",
        accepts="; required",
    ),
    "input": FieldDoc(
        "a vector each",
        accepts=(
            f"a string, token ids, or a list of 1 to {limits.MAX_EMBED_INPUTS} of either; no empty "
            "text; required"
        ),
    ),
    "encoding_format": FieldDoc(
        "default float; base64 is little-endian float32",
        accepts="float or base64",
    ),
    "dimensions": FieldDoc(
        "default all; shortened and normalised anew",
        accepts=", up to the model's own",
    ),
    "user": _CHATS["user"],
}


def chat_fields(*names: str) -> dict[str, FieldDoc]:
    """The words of these fields of chats and completions."""
    return {name: _CHATS[name] for name in names}


def embedding_fields(*names: str) -> dict[str, FieldDoc]:
    """The words of these fields of embeddings."""
    return {name: _EMBEDDINGS[name] for name in names}


# Of `AnswerFields`.
ANSWER: Final[Mapping[str, FieldDoc]] = {
    **chat_fields("presence_penalty", "frequency_penalty", "stop", "user", "stream"),
    "model": FieldDoc(
        "the endpoint that answers",
        accepts="; required unless the path names the endpoint",
    ),
    "temperature": FieldDoc("default the model's, else 1.0; 0 is greedy"),
    "top_p": FieldDoc("default the model's, else 1.0; nucleus"),
    "top_k": FieldDoc("default the model's, else off; −1 and 0 are off, 1 is greedy"),
    "min_p": FieldDoc("default the model's, else 0, off"),
    "typical_p": FieldDoc(", off", default=1.0),
    "repetition_penalty": FieldDoc("default the model's, else 1.0; sees prompt and output"),
    "logit_bias": FieldDoc("default none; added to the logits first of all"),
    "seed": FieldDoc("default drawn anew; the same seed gives the same tokens, alone or among others"),
    "stop_token_ids": FieldDoc("default none; ends the answer"),
    "bad_words": FieldDoc("default none; never generated"),
    "allowed_token_ids": FieldDoc("default all; no other token is drawn"),
    "no_repeat_ngram_size": FieldDoc(", off; no n-gram of this size twice", default=0),
    "watermark": FieldDoc("green-list bias, found by `/v1/watermark/detect`", default=False),
    "logits_processors": FieldDoc(
        "default none; processors that the operator registered, an unknown name is an error"
    ),
    "min_tokens": FieldDoc("no end before so many tokens", default=0),
    "ignore_eos": FieldDoc("goes on behind the end token", default=False),
    "include_stop_str_in_output": FieldDoc("keeps the stop string", default=False),
    "skip_special_tokens": FieldDoc("special tokens are no text", default=True),
    "priority": FieldDoc("lower runs earlier", default=0),
    "timeout": FieldDoc("seconds; default the operator's; the deadline of the request"),
}

THINKING_TOKENS: Final = (
    "default none; after so many tokens of thoughts the model has to answer, where the marks around its "
    "thoughts are tokens; elsewhere ignored and listed"
)
# Of `TemplatingFields`.
TEMPLATING: Final[Mapping[str, FieldDoc]] = {
    **chat_fields("chat_template_kwargs"),
    "add_generation_prompt": FieldDoc("the prompt ends where the assistant begins", default=True),
    "continue_final_message": FieldDoc(
        "the answer continues the last message", accepts="; not beside `add_generation_prompt`", default=False
    ),
}
