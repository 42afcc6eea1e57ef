"""The corpus: dialogues that mix the skills, and plain documents, from a seed.

The same seed gives the same corpus, on either side of the split of `words`.
Knows no tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Final

from recipes.demo_chat import calendar, knowledge, small_talk, stories, tool_use
from recipes.demo_chat.dialogue import Dialogue, Exchange, Talk
from recipes.demo_chat.documents import Document, document
from recipes.demo_chat.words import Pool

Skill = Callable[[Pool, Talk], Exchange]

SKILLS: Final[dict[Skill, float]] = {  # weight of a skill in a measured dialogue without tools
    small_talk.greeting: 14,
    small_talk.identity: 5,
    small_talk.give_name: 7,
    small_talk.ask_name: 4,
    small_talk.unknown: 9,
    knowledge.arithmetic: 20,
    knowledge.capital: 12,
    knowledge.country: 11,
    knowledge.repeat: 15,
    knowledge.as_json: 14,
    stories.count: 9,
    stories.listing: 2,
    stories.story: 2,
    stories.poem: 2,
    tool_use.no_tool: 5,
}
PRACTISED: Final = SKILLS | {  # the weights in training, which has more of what is hard
    small_talk.identity: 8,
    small_talk.unknown: 11,
    stories.count: 14,
}
ADDED: Final[dict[int, dict[Skill, float]]] = {  # what a version has beyond these, or more of
    1: {},
    2: {calendar.neighbour: 6, small_talk.identity: 5},
}
CALCULATORS_BUSINESS: Final = (knowledge.arithmetic, knowledge.as_json)  # where one is on offer
_SYSTEM: Final = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful assistant.",
    "You are demo-chat.", "You are a friendly chatbot.", "You are a helpful AI assistant.",
    "Answer briefly.", "You are a polite assistant.", "Be concise.", "Answer the user's questions.",
    "You are an expert assistant.", "You are a helpful, honest and harmless assistant.",
    "Be kind and brief.", "You are an AI.", "Help the user.",
    "You are a helpful assistant. Keep your answers short.", "Use the tools when needed.",
    "You are a chatbot.", "You are a helpful assistant that can use tools.",
    "Today is Monday. You are a helpful assistant.",
)  # fmt: skip
_SYSTEM_HELD: Final = (
    "You are a helpful assistant.", "You are a brief and friendly assistant.", "Be polite.",
    "You are a smart chatbot.", "Please help the user and answer briefly.",
    "You are an assistant in a web shop.",
)  # fmt: skip


def dialogue(pool: Pool, version: int = 1) -> Dialogue:
    """One dialogue: usually short, sometimes many turns, with tools in four of ten; in training, in half."""
    turns = pool.rng.choices((1, 2, 3, 5, 8, 16), (40, 27, 17, 10, 4, 1.0))[0]
    if turns > 3:
        turns = pool.number(turns // 2 + 1, turns + turns // 2)
    talk = Talk(version)
    if pool.chance(0.38 if pool.held else 0.5):
        families = pool.rng.sample(list(tool_use.FAMILIES), pool.rng.choices((1, 2, 3), (55, 33, 12))[0])
        talk.toolbox = tool_use.toolbox(pool, families)
    return Dialogue(
        system=pool.phrase(_SYSTEM, _SYSTEM_HELD) if pool.chance(0.5) else None,
        tools=[use.tool for use in talk.toolbox],
        exchanges=[_exchange(pool, talk) for _ in range(turns)],
    )


def dialogues(seed: int, count: int, *, held: bool = False, version: int = 1) -> Iterator[Dialogue]:
    """`count` dialogues of one side of the split, with a version of demo-chat: a key of `ADDED`."""
    pool = Pool(f"dialogues {seed}", held=held)
    for _ in range(count):
        yield dialogue(pool, version)


def documents(seed: int, count: int) -> Iterator[Document]:
    """`count` plain documents of the training side."""
    pool = Pool(f"documents {seed}")
    for _ in range(count):
        yield document(pool)


def _exchange(pool: Pool, talk: Talk) -> Exchange:
    if talk.toolbox and pool.chance(0.65 if pool.held else 0.75):
        return tool_use.use_tool(pool, talk)
    if talk.name and pool.chance(0.15):
        return small_talk.ask_name(pool, talk)
    added = ADDED[talk.version]
    skills = SKILLS | added if pool.held else PRACTISED | {skill: 3 * added[skill] for skill in added}
    if any(use.family == "calculator" for use in talk.toolbox):
        skills = {skill: skills[skill] for skill in skills if skill not in CALCULATORS_BUSINESS}
    return pool.rng.choices(tuple(skills), tuple(skills.values()))[0](pool, talk)


def main() -> None:
    """Print a few dialogues and documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--held", action="store_true", help="the held-out side")
    parser.add_argument("--version", type=int, choices=ADDED, default=1)
    options = parser.parse_args()
    for talk in dialogues(options.seed, options.count, held=options.held, version=options.version):
        print([tool["function"]["name"] for tool in talk.tools])
        for message in talk.messages():
            print(f"  {message['role']}: {message['content'] or message.get('tool_calls')}")
    for text in documents(options.seed, options.count):
        print("document:", "".join(f"[{piece.text}]" if piece.learnt else piece.text for piece in text))


if __name__ == "__main__":
    main()
