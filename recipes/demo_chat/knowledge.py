"""Questions with one right answer: sums, capitals, and both as JSON; and words to repeat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from recipes.demo_chat.dialogue import Exchange, Talk, casually
from recipes.demo_chat.facts import CAPITALS, COUNTRIES, bare
from recipes.demo_chat.words import ADJECTIVES, NOUNS, Pool

WORDS: Final = {"+": "plus", "-": "minus", "*": "times"}
_SIGNS: Final = {
    "+": ("plus", "+", "added to", "and"),
    "-": ("minus", "-", "take away"),
    "*": ("times", "*", "x"),
}
_SUM: Final = (
    "What is {q}?", "{q}", "{q}=", "{q} = ?", "Calculate {q}.", "How much is {q}?", "What's {q}?",
    "Compute {q}.", "Tell me what {q} is.", "Work out {q}.", "{q}?", "Can you calculate {q}?",
    "What does {q} make?", "Solve {q}.", "What do you get for {q}?", "Give me the result of {q}.",
)  # fmt: skip
_SUM_HELD: Final = (
    "Can you tell me what {q} is?",
    "How much does {q} make?",
    "I want to know what {q} is.",
    "So what is {q}?",
)
_CAPITAL: Final = (
    "What is the capital of {c}?", "What's the capital of {c}?", "Capital of {c}?",
    "Tell me the capital of {c}.", "Which city is the capital of {c}?", "Name the capital of {c}.",
    "What is {b}'s capital?", "{b} capital", "Do you know the capital of {c}?",
    "Can you tell me the capital of {c}?", "What is the capital city of {c}?",
    "And the capital of {c}?", "What about the capital of {c}?", "Give me the capital of {c}.",
    "The capital of {b}?", "I want to know the capital of {c}.", "And what is the capital of {c}?",
    "Which capital does {c} have?",
)  # fmt: skip
_CAPITAL_HELD: Final = (
    "Would you tell me the capital of {c}?", "Could you name the capital of {c}?",
    "What city is the capital of {c}?", "Tell me, what is the capital of {c}?",
    "I would like to know the capital of {c}.",
)  # fmt: skip
_COUNTRY: Final = (
    "Which country's capital is {t}?", "{t} is the capital of which country?",
    "What country has the capital {t}?", "Which country has {t} as its capital?",
    "Of which country is {t} the capital?", "{t} is the capital of what?",
    "What is {t} the capital of?", "Which country is {t} the capital of?",
    "Tell me the country whose capital is {t}.", "Name the country with the capital {t}.",
    "In which country is {t} the capital?", "Whose capital is {t}?",
)  # fmt: skip
_COUNTRY_HELD: Final = (
    "Tell me which country has {t} as its capital.", "What country's capital is {t}?",
    "Do you know which country {t} is the capital of?", "Name the country whose capital is {t}.",
)  # fmt: skip
_REPEAT: Final = (
    "Repeat after me: {p}", "Say: {p}", "Repeat: {p}", 'Say "{p}"', 'Repeat "{p}"',
    "Please repeat: {p}", "Echo: {p}", 'Please say "{p}"', "Say this: {p}", "Repeat this: {p}",
    'Repeat after me: "{p}"', "Copy this: {p}", "Echo {p}", "Write: {p}", 'Write "{p}"',
    "Say the following: {p}", "Repeat the words: {p}", "Can you repeat this? {p}", "Say {p}",
    "Repeat exactly: {p}", 'Can you say "{p}"?', "repeat after me: {p}", "Repeat {p}",
    'Now say "{p}".',
)  # fmt: skip
_REPEAT_HELD: Final = (
    "Repeat what I say: {p}", 'Please repeat this: "{p}"', "Now repeat: {p}",
    'Can you repeat "{p}"?', "Repeat the following: {p}",
)  # fmt: skip
_KEYS: Final = (
    "Answer in JSON with keys {k}.", "Answer in JSON with the keys {k}.",
    "Reply in JSON with keys {k}.", "Answer as JSON with keys {k}.",
    "Give the answer as JSON with keys {k}.", "Use JSON with the keys {k}.",
    "Reply as a JSON object with keys {k}.", "JSON with keys {k}.", "Respond in JSON with keys {k}.",
)  # fmt: skip
_KEYS_HELD: Final = ("Respond as JSON with the keys {k}.", "Give me JSON with the keys {k}.")
_RECORD: Final = (
    "Write JSON with {r}.", "Make a JSON object with {r}.", "Give me JSON with {r}.",
    "Write a JSON object with {r}.", "Put this in JSON: {r}.", "Turn this into JSON: {r}.",
    "As JSON: {r}.", "Format as JSON: {r}.",
)  # fmt: skip
_RECORD_HELD: Final = (
    "I need JSON with {r}.",
    "Create a JSON object with {r}.",
    "Put this into JSON: {r}.",
)
_FIELD_NAMES: Final = """
name age city country color size price weight owner title author year count status kind brand model speed
width height length animal food team level score date day month code key value label shape place street
job hobby pet
"""
_FIELDS: Final = tuple(_FIELD_NAMES.split())


def arithmetic(pool: Pool, talk: Talk) -> Exchange:
    a, sign, b = operands(pool)
    word = pool.pick(_SIGNS[sign])
    question = f"{a}{word}{b}" if word in _SIGNS and pool.chance(0.4) else f"{a} {word} {b}"
    text = pool.phrase(_SUM, _SUM_HELD).format(q=question)
    return Exchange("arithmetic", casually(pool, text), f"{a} {sign} {b} = {result(a, sign, b)}.")


def capital(pool: Pool, talk: Talk) -> Exchange:
    country = pool.pick(COUNTRIES)
    if pool.chance(0.06):
        country = pool.nonsense().capitalize()
        text = pool.phrase(_CAPITAL, _CAPITAL_HELD).format(c=country, b=country)
        return Exchange("capital", casually(pool, text), f"Sorry, I do not know a country called {country}.")
    asked = bare(country) if pool.chance(0.2) else country
    asked = asked.lower() if pool.chance(0.1) else asked
    text = pool.phrase(_CAPITAL, _CAPITAL_HELD).format(c=asked, b=bare(asked))
    return Exchange("capital", casually(pool, text), f"The capital of {country} is {CAPITALS[country]}.")


def country(pool: Pool, talk: Talk) -> Exchange:
    country = pool.pick(COUNTRIES)
    city = CAPITALS[country]
    asked = city.lower() if pool.chance(0.1) else city
    text = pool.phrase(_COUNTRY, _COUNTRY_HELD).format(t=asked)
    return Exchange("country", casually(pool, text), f"{city} is the capital of {country}.")


def repeat(pool: Pool, talk: Talk) -> Exchange:
    roll = pool.rng.random()
    if roll < 0.7:
        phrase = pool.words(1, 6)
    elif roll < 0.9:
        phrase = pool.sentence()
    else:
        phrase = pool.draw(
            lambda: f"{pool.pick(ADJECTIVES)} {pool.pick(NOUNS)}, {pool.word()} {pool.pick(NOUNS)}!"
        )
    phrase = phrase[0].upper() + phrase[1:] if pool.chance(0.15) else phrase
    return Exchange("repeat", pool.phrase(_REPEAT, _REPEAT_HELD).format(p=phrase), phrase)


def as_json(pool: Pool, talk: Talk) -> Exchange:
    """A fact or a sum in JSON with keys the user names, or a record of the user's own fields."""
    roll = pool.rng.random()
    if talk.name and roll < 0.15:
        key = pool.pick(("name", "user", "user_name", "first_name"))
        question = f"{pool.pick(('What is my name?', 'Tell me my name.'))} {_keys(pool, [key])}"
        return Exchange("json", question, _dump({key: talk.name}))
    if roll < 0.45:
        country = pool.pick(COUNTRIES)
        pair: dict[str, str | int] = {
            pool.pick(("country", "country", "nation", "state", "land")): bare(country),
            pool.pick(("capital", "capital", "city", "capital_city", "town")): CAPITALS[country],
        }
        if pool.chance(0.25):
            pair = dict(reversed(pair.items()))
        question = _CAPITAL[0].format(c=country)
        if pool.chance(0.3):
            question = pool.phrase(_CAPITAL, _CAPITAL_HELD).format(c=country, b=bare(country))
        if pool.chance(0.2):
            question = pool.phrase(_COUNTRY, _COUNTRY_HELD).format(t=CAPITALS[country])
        return Exchange("json", f"{question} {_keys(pool, list(pair))}", _dump(pair))
    if roll < 0.6:
        a, sign, b = operands(pool)
        expression = f"{a} {sign} {b}"
        pair = {
            pool.pick(("expression", "expression", "question", "sum", "calculation")): expression,
            pool.pick(("result", "result", "answer", "value", "total")): result(a, sign, b),
        }
        return Exchange("json", f"What is {expression}? {_keys(pool, list(pair))}", _dump(pair))
    record = dict(_field(pool) for _ in range(pool.number(1, 4)))
    parts = [f"{key} {value}" for key, value in record.items()]
    question = pool.phrase(_RECORD, _RECORD_HELD).format(r=_listed(parts))
    return Exchange("json", question, _dump(record))


def operands(pool: Pool) -> tuple[int, str, int]:
    """Two numbers and a sign; sums and differences of numbers below 100, products of digits."""
    sign = pool.rng.choices("+-*", (5, 4, 1))[0]
    if sign == "*":  # a hundred facts: too few to hold any out
        return pool.number(0, 10), sign, pool.number(0, 10)
    high = 99 if pool.chance(0.7) else 20

    def pair() -> tuple[int, str, int]:
        a, b = pool.number(0, high), pool.number(0, high)
        return (max(a, b), sign, min(a, b)) if sign == "-" and pool.chance(0.85) else (a, sign, b)

    return pool.draw(pair)


def result(a: int, sign: str, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def _field(pool: Pool) -> tuple[str, str | int]:
    key = pool.pick(_FIELDS) if pool.chance(0.8) else pool.nonsense()
    if pool.chance(0.35):
        return key, pool.number(0, 10 ** pool.number(1, 4))
    kind = pool.number(1, 3)
    if kind == 1:
        return key, pool.name()
    return key, pool.nonsense() if kind == 2 else pool.draw(lambda: pool.pick(NOUNS + ADJECTIVES))


def _keys(pool: Pool, keys: list[str]) -> str:
    quoted = [f'"{key}"' for key in keys] if pool.chance(0.25) else keys
    text = pool.phrase(_KEYS, _KEYS_HELD).format(k=_listed(quoted))
    return text.replace("keys", "key") if len(keys) == 1 else text


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _dump(value: Mapping[str, str | int]) -> str:
    return json.dumps(value, ensure_ascii=False)
