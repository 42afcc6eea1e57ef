"""The client packages that copied programs use, by the shape of the request."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from serve_app.console.playground.protocols import Shape

# The parameters of a package's `create`; anything else goes into `extra_body`.
OPENAI_CHAT: Final = {
    "model", "messages", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "max_completion_tokens", "max_tokens", "metadata", "n", "parallel_tool_calls", "presence_penalty",
    "reasoning_effort", "response_format", "seed", "stop", "stream", "stream_options", "temperature",
    "tool_choice", "tools", "top_logprobs", "top_p", "user",
}  # fmt: skip
OPENAI_RESPONSES: Final = {
    "model", "input", "include", "instructions", "max_output_tokens", "max_tool_calls", "metadata",
    "parallel_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store",
    "stream", "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p",
    "truncation", "user",
}  # fmt: skip
ANTHROPIC: Final = {
    "model", "messages", "max_tokens", "metadata", "output_config", "service_tier", "stop_sequences",
    "stream", "system", "thinking", "tool_choice", "tools",
}  # fmt: skip
OPENAI_TEXT: Final = {
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
    "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p",
    "user",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Client:
    """How a package sends a request of one shape, and which part of the answer is printed."""

    name: str  # of the class; its package is the same in small letters
    call: str
    known: Set[str]
    streamed: str
    whole: str


CLIENTS: Final[Mapping[Shape, Client]] = {
    "chat": Client(
        "OpenAI",
        "chat.completions.create",
        OPENAI_CHAT,
        "for chunk in answer:\n    for choice in chunk.choices:\n        print("
        'choice.delta.content or choice.delta.tool_calls or "", end="", flush=True)\nprint()\n',
        "for choice in answer.choices:\n    print(choice.message.content or choice.message.tool_calls)\n",
    ),
    "text": Client(
        "OpenAI",
        "completions.create",
        OPENAI_TEXT,
        "for chunk in answer:\n    for choice in chunk.choices:\n"
        '        print(choice.text or "", end="", flush=True)\nprint()\n',
        "for choice in answer.choices:\n    print(choice.text)\n",
    ),
    "responses": Client(
        "OpenAI",
        "responses.create",
        OPENAI_RESPONSES,
        "for event in answer:\n"
        '    if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):\n'
        '        print(event.delta, end="", flush=True)\nprint()\n',
        "print(answer.output_text or answer.output)\n",
    ),
    "messages": Client(
        "Anthropic",
        "messages.create",
        ANTHROPIC,
        'for event in answer:\n    if event.type == "content_block_delta":\n'
        '        more = getattr(event.delta, "text", "") or getattr(event.delta, "partial_json", "")\n'
        '        print(more, end="", flush=True)\nprint()\n',
        "for block in answer.content:\n"
        '    print(getattr(block, "text", "") or getattr(block, "input", ""))\n',
    ),
}
