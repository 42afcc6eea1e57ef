"""What fields of chats, completions and embeddings do where protocols agree on it, in words.

A protocol names the fields that it takes from here, and tells the others by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app import limits
from serve_app.api.edge.told import Told

TEMPLATE_VARIABLES: Final = (
    f"an object of up to {limits.MAX_TEMPLATE_VARIABLES} names, "
    f"{limits.MAX_TEMPLATE_VARIABLES_CHARS} characters of JSON"
)

_CHATS: Final[Mapping[str, Told]] = {
    "stream": Told("true answers with server-sent events", default=False),
    "stream_options": Told(
        "see its member",
        accepts="an object; only with `stream: true`",
    ),
    "stream_options.include_usage": Told("a last chunk with `usage`, null in the others", default=False),
    "n": Told("choices of one prompt", default=1),
    "stop": Told("default none; ends the answer before the match"),
    "repetition_penalty": Told("sees prompt and output", default=1.0),
    "presence_penalty": Told("sees the output", default=0),
    "frequency_penalty": Told("sees the output", default=0),
    "response_format": Told(
        "default text; the answer matches",
        accepts=(
            "an object: `type` is text, json_object, or json_schema with `json_schema` "
            "{`name`, `schema`, `strict`, `description`}"
        ),
    ),
    "user": Told("a sticky key for A/B splits"),
    "max_completion_tokens": Told(
        "the same",
        accepts="; equal to `max_tokens` if both are given",
    ),
    "logprobs": Told("log-probabilities of the output's tokens", default=False),
    "top_logprobs": Told(accepts="; above 0 needs `logprobs: true`", default=0),
    "tools": Told(
        "default none",
        accepts=f"a list of up to {limits.MAX_TOOLS} function tools",
    ),
    "tool_choice": Told(
        "default auto",
        accepts="none, auto, required or an object that names a tool",
    ),
    "parallel_tool_calls": Told("false allows one call", default=True),
    "functions": Told(
        "deprecated form of `tools`, answered with `function_call`",
        accepts=f"a list of up to {limits.MAX_TOOLS} functions; not beside `tools`",
    ),
    "function_call": Told(
        "deprecated form of `tool_choice`",
        accepts="none, auto or an object that names a function",
    ),
    "chat_template_kwargs": Told(
        "variables for the model's template",
        accepts=TEMPLATE_VARIABLES,
    ),
    "messages.tool_calls": Told(
        "earlier calls, given to the template",
        accepts="a list of calls; of an assistant",
    ),
}
_EMBEDDINGS: Final[Mapping[str, Told]] = {
    "model": Told(
        "the endpoint that answers",
        accepts="; required",
    ),
    "input": Told(
        "a vector each",
        accepts=(
            f"a string, token ids, or a list of 1 to {limits.MAX_EMBED_INPUTS} of either; no empty "
            "text; required"
        ),
    ),
    "encoding_format": Told(
        "default float; base64 is little-endian float32",
        accepts="float or base64",
    ),
    "dimensions": Told(
        "default all; shortened and normalised anew",
        accepts=", up to the model's own",
    ),
    "user": _CHATS["user"],
}


def chat_fields(*names: str) -> dict[str, Told]:
    """The words of these fields of chats and completions."""
    return {name: _CHATS[name] for name in names}


def embedding_fields(*names: str) -> dict[str, Told]:
    """The words of these fields of embeddings."""
    return {name: _EMBEDDINGS[name] for name in names}
