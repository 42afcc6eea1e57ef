"""A chat with a running server: the turns so far, and one streamed answer at a time.

Handles the chat of the OpenAI protocol, but not the terminal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.cli.server import Server, ServerError

PATH: Final = "/v1/chat/completions"
DONE: Final = "[DONE]"


@dataclass(slots=True)
class Reply:
    """The answer to one question, and how fast it came. Times are seconds since the question was sent."""

    text: str = ""
    tokens: int | None = None  # as the server counts them; None: the server did not say
    finish: str = ""  # why it ended, in the protocol's words
    stopped: bool = False  # the user stopped the answer before its end
    first_s: float | None = None
    total_s: float = 0.0

    def statistics(self) -> str:
        """One line for people to read."""
        if self.tokens is None or self.first_s is None:
            return f"{self.total_s:.2f} s"
        parts = [f"{self.tokens} tokens", f"first after {self.first_s:.2f} s"]
        if self.tokens > 1 and self.total_s > self.first_s:
            parts.append(f"then {(self.tokens - 1) / (self.total_s - self.first_s):.1f} tokens/s")
        return ", ".join(parts)


class Conversation:
    """Turns of one chat with one model. A question that got no answer is not kept as a turn."""

    def __init__(
        self,
        server: Server,
        model: str,
        *,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` are members of the request's body, such as `temperature`."""
        self.system = system
        self._server = server
        self._model = model
        self._options = dict(options or {})
        self._turns: list[dict[str, str]] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole chat, as the protocol represents it."""
        instructions = [{"role": "system", "content": self.system}] if self.system else []
        return [*instructions, *self._turns]

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self._turns.clear()

    def ask(self, question: str, show: Callable[[str], None]) -> Reply:
        """Send a question, and pass the text of the answer to `show` as it arrives.

        KeyboardInterrupt ends the answer, not the chat. Raises ServerError.
        """
        turn = {"role": "user", "content": question}
        body = {
            "model": self._model,
            "messages": [*self.messages, turn],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        answer = Reply()
        started = time.monotonic()
        try:
            self._receive(body, answer, started, show)
        except KeyboardInterrupt:
            answer.stopped = True
        answer.total_s = time.monotonic() - started
        if answer.text:
            self._turns += [turn, {"role": "assistant", "content": answer.text}]
        return answer

    def _receive(
        self, body: Mapping[str, Any], answer: Reply, started: float, show: Callable[[str], None]
    ) -> None:
        with self._server.stream(PATH, body) as events:
            for data in events:
                if data == DONE:
                    return
                chunk = _chunk(data)
                if usage := chunk.get("usage"):
                    answer.tokens = usage["completion_tokens"]
                for choice in chunk.get("choices", ()):
                    answer.finish = choice.get("finish_reason") or answer.finish
                    if text := (choice.get("delta") or {}).get("content"):
                        if answer.first_s is None:
                            answer.first_s = time.monotonic() - started
                        answer.text += text
                        show(text)
        raise ServerError("the answer ended before its end; the server may have stopped")


def _chunk(data: str) -> dict[str, Any]:
    """One chunk of a stream. Raises ServerError if the server sent an error instead of a chunk."""
    try:
        chunk = json.loads(data)
        error = chunk.get("error")
    except (ValueError, AttributeError) as problem:
        raise ServerError("the answer is not a stream of chat completion chunks; check --url") from problem
    if error:
        raise ServerError(str(error.get("message", error) if isinstance(error, dict) else error))
    return dict(chunk)
