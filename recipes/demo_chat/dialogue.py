"""What a dialogue is: a system turn, offered tools, and exchanges of question and answer.

An exchange also says how its answer is judged, so that the texts a model is
trained on and the texts it is measured on are one thing. Knows no skill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from recipes.demo_chat.words import Pool

Message = dict[str, Any]  # as a chat template takes it
Tool = dict[str, Any]  # a function in the form of the OpenAI protocol


@dataclass(frozen=True)
class Call:
    """A call of a tool, and what the tool answers."""

    name: str
    arguments: dict[str, Any]
    result: str


@dataclass(frozen=True)
class Exchange:
    """One question, the call it needs if any, and the answer.

    `must` loosens the judgement: the answer need only contain these texts. Without
    it the answer has to be exactly `answer`.
    """

    skill: str
    question: str
    answer: str
    call: Call | None = None
    must: tuple[str, ...] = ()

    def messages(self) -> list[Message]:
        """The exchange as chat messages."""
        turns: list[Message] = [{"role": "user", "content": self.question}]
        if self.call is not None:
            turns += call_messages(self.call)
        return [*turns, {"role": "assistant", "content": self.answer}]

    def accepts(self, text: str) -> bool:
        """Whether `text` is a right answer."""
        if self.must:
            return all(part in text for part in self.must)
        return text == self.answer


@dataclass
class Talk:
    """What a dialogue has established so far: the state that skills read and write."""

    version: int = 1  # of the demo-chat that answers
    name: str | None = None
    toolbox: list[ToolUse] = field(default_factory=list)


@dataclass(frozen=True)
class ToolUse:
    """A tool on offer, and a source of exchanges that need it."""

    family: str
    tool: Tool
    ask: Callable[[Pool], Exchange]


@dataclass(frozen=True)
class Dialogue:
    """A whole conversation; `system` is none where the client sent none."""

    system: str | None
    tools: list[Tool]
    exchanges: list[Exchange]

    def messages(self) -> list[Message]:
        turns: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        for exchange in self.exchanges:
            turns += exchange.messages()
        return turns


def call_messages(call: Call) -> list[Message]:
    """The assistant's call of a tool and the tool's answer."""
    function = {"name": call.name, "arguments": call.arguments}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": call.result},
    ]


_OPENINGS: Final = (
    "Please ",
    "Please ",
    "Hey, ",
    "So, ",
    "Okay, ",
    "One more thing: ",
    "Now, ",
    "And ",
    "Well, ",
)


def casually(pool: Pool, text: str) -> str:
    """A question as people type it: now and then in lower case, unpunctuated, or with a polite word."""
    roll = pool.rng.random()
    if roll < 0.12:
        text = pool.pick(_OPENINGS) + (text if text.startswith("I ") else text[0].lower() + text[1:])
    elif roll < 0.15:
        text = text[:-1] + ", please" + text[-1] if text[-1] in "?.!" else text + ", please"
    if pool.chance(0.2):
        text = text.rstrip("?.!")
    if pool.chance(0.2):
        text = text[0].lower() + text[1:]
    return text
