"""What Databricks' chats and completions share: chunks, and the usage at the end of a stream.

Tokens, calls and log-probabilities look like OpenAI's. Depends neither on bodies nor on sockets.
"""

from __future__ import annotations

from serve_app.api.dialects.chat.finish import FINISH
from serve_app.api.dialects.chat.wire import DONE, encode, head, sse
from serve_app.api.dialects.databricks import answers
from serve_app.api.dialects.databricks.errors import broken
from serve_app.errors import ServeError
from serve_app.types import FinishReason, ModelInfo, TokenDelta, Usage


def usage_fields(usage: Usage) -> answers.Usage:
    fields: answers.Usage = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens:
        fields["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return fields


class Renderer:
    """Writes answers. Each chunk of a stream is about one choice, except for a last chunk with the usage."""

    def __init__(self, kind: str, id: str, info: ModelInfo, choices: int, include_usage: bool | None) -> None:
        """`include_usage`: see `GenerationFields.include_usage`; `choices`: how many for all prompts."""
        self._head = head(kind, id, info.name)
        self._opening = b"data: " + encode(self._head)[:-1] + b',"choices":[{"index":'
        self._begun: set[int] = set()  # choices that have had a chunk
        self._open = choices
        self._include_usage = include_usage
        # As OpenAI has it: null in every chunk but the last.
        self._no_usage = b',"usage":null' if include_usage else b""
        self._usage: dict[int, Usage] = {}  # of each prompt that has a choice that ended

    def _piece(self, index: int, members: bytes) -> bytes:
        """A chunk of a choice that has not ended; `members` come between `index` and `finish_reason`."""
        return b'%b%d,%b,"finish_reason":null}]%b}\n\n' % (self._opening, index, members, self._no_usage)

    def _last(self, index: int, members: bytes, prompt: int, delta: TokenDelta) -> bytes:
        """The chunk that ends a choice; `delta` is the choice's last delta."""
        self._open -= 1
        self._usage[prompt] = delta.usage
        usage = self._no_usage
        if not self._open and self._include_usage is None:
            usage = b',"usage":' + encode(usage_fields(Usage.total(self._usage.values())))
        reason = FINISH[delta.finish or FinishReason.LENGTH].encode()
        return b'%b%d,%b,"finish_reason":"%b"}]%b}\n\n' % (self._opening, index, members, reason, usage)

    def end(self, usage: Usage) -> bytes:
        """The bytes that close a complete stream."""
        if not self._include_usage:
            return DONE
        chunk: answers.CompletionChunk = {**self._head, "choices": [], "usage": usage_fields(usage)}
        return sse(encode(chunk)) + DONE

    def broken(self, error: ServeError) -> bytes:
        """The bytes that close a failed stream."""
        return sse(broken(error)) + DONE
