"""Longer answers, so that a stream has something to show: counting, lists, stories and rhymes."""

from __future__ import annotations

from typing import Final

from recipes.demo_chat.dialogue import Exchange, Talk, casually
from recipes.demo_chat.words import ADJECTIVES, NOUNS, Pool

LISTS: Final = {
    "days of the week": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
    "months of the year": "January, February, March, April, May, June, July, August, September, October, "
    "November, December.",
    "letters of the alphabet": ", ".join("abcdefghijklmnopqrstuvwxyz") + ".",
    "colours of the rainbow": "red, orange, yellow, green, blue, indigo, violet.",
    "seasons": "spring, summer, autumn, winter.",
    "planets": "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune.",
}
STORY: Final = (
    "Once upon a time there was a {a} {n}. Every day the {n} looked at the hills and dreamed of the "
    "sea. One morning "
    "it packed some bread and walked away. On the road it met an old owl. The owl said: follow the "
    "river. So the {n} "
    "followed the river, day and night, until it saw the blue water. It was so happy that it sang all "
    "evening. And "
    "when the moon came up, the {a} {n} fell asleep on the warm sand."
)
POEM: Final = (
    "The {n} in the morning light,\nthe {n} in the quiet night,\nit hums a song of sea and air,\nand "
    "leaves a little "
    "wonder there.\n\nSo if you see the {n} some day,\nsmile once at it and go your way."
)
_STORY: Final = (
    "Tell me a story about a {t}.", "Tell a story about a {t}.", "Write a story about a {t}.",
    "Write a short story about a {t}.", "Can you tell me a story about a {t}?", "A story about a {t}.",
    "I want a story about a {t}.", "Give me a story about a {t}.", "Tell me a short story about a {t}.",
)  # fmt: skip
_STORY_HELD: Final = ("I would like a story about a {t}.", "Can you write a story about a {t}?")
_POEM: Final = (
    "Write a poem about a {n}.", "Tell me a poem about a {n}.", "Write a short poem about a {n}.",
    "Can you write a poem about a {n}?", "A poem about a {n}.", "Write me a poem about a {n}.",
    "Give me a poem about a {n}.", "I want a poem about a {n}.",
)  # fmt: skip
_POEM_HELD: Final = ("Could you write a poem about a {n}?", "Can you tell me a poem about a {n}?")
_COUNT: Final = (
    "Count from {a} to {b}.", "Please count from {a} to {b}.", "Can you count from {a} to {b}?",
    "Count up from {a} to {b}.", "Count from {a} up to {b}.", "Write the numbers from {a} to {b}.",
    "List the numbers from {a} to {b}.", "Say the numbers from {a} to {b}.",
    "Can you count up from {a} to {b}?", "Start at {a} and count to {b}.", "Then count from {a} to {b}.",
    "I want you to count from {a} to {b}.", "Would you count from {a} to {b}?",
    "Count for me from {a} to {b}.",
)  # fmt: skip
_COUNT_HELD: Final = ("Now count from {a} to {b}.", "Could you count from {a} to {b}?")
_LIST: Final = (
    "List the {l}.", "Name the {l}.", "What are the {l}?", "Tell me the {l}.", "Say the {l}.",
    "Give me the {l}.", "Write the {l}.", "Can you list the {l}?", "Which are the {l}?",
)  # fmt: skip
_LIST_HELD: Final = ("Could you list the {l}?", "Can you name the {l}?", "Can you tell me the {l}?")


def count(pool: Pool, talk: Talk) -> Exchange:
    low, high = count_range(pool)
    question = pool.phrase(_COUNT, _COUNT_HELD).format(a=low, b=high)
    return Exchange("count", casually(pool, question), counted(low, high))


def listing(pool: Pool, talk: Talk) -> Exchange:
    name = pool.pick(tuple(LISTS))
    return Exchange("lists", casually(pool, pool.phrase(_LIST, _LIST_HELD).format(l=name)), LISTS[name])


def story(pool: Pool, talk: Talk) -> Exchange:
    adjective, noun = hero(pool)
    question = pool.phrase(_STORY, _STORY_HELD).format(t=f"{adjective} {noun}")
    return Exchange("story", casually(pool, question), STORY.format(a=adjective, n=noun))


def poem(pool: Pool, talk: Talk) -> Exchange:
    _, noun = hero(pool)
    return Exchange(
        "story", casually(pool, pool.phrase(_POEM, _POEM_HELD).format(n=noun)), POEM.format(n=noun)
    )


def hero(pool: Pool) -> tuple[str, str]:
    """An adjective and a noun, now and then made up."""
    return pool.draw(
        lambda: (pool.pick(ADJECTIVES), pool.pick(NOUNS) if pool.chance(0.8) else pool.nonsense())
    )


def count_range(pool: Pool) -> tuple[int, int]:
    def make() -> tuple[int, int]:
        low = 1 if pool.chance(0.6 if pool.held else 0.3) else pool.number(0, 80)
        if not pool.held and pool.chance(0.3):  # ends that counting from 1 leaves out, from elsewhere near
            low = pool.number(0, 9)
        return low, low + pool.number(2, 12 if pool.chance(0.7) else 24)

    return (1, 10) if not pool.held and pool.chance(0.1) else pool.draw(make)


def counted(low: int, high: int) -> str:
    return ", ".join(str(number) for number in range(low, high + 1)) + "."
