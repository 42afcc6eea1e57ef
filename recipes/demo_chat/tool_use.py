"""Tools on offer: weather, clocks, calculators, look-ups and messages, under many names.

A family makes a tool in the form of the OpenAI protocol, with names, descriptions
and parameters varied, and asks questions that need it. What the tool answers is
varied too: JSON objects, bare values, plain words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from recipes.demo_chat import tool_questions as questions
from recipes.demo_chat.dialogue import Call, Exchange, Talk, ToolUse, casually
from recipes.demo_chat.facts import CAPITALS
from recipes.demo_chat.small_talk import SORRY, unknown
from recipes.demo_chat.words import NOUNS, Pool

_OTHER_CITIES: Final = """
New York;Munich;Milan;Barcelona;Shanghai;Sydney;Toronto;Hamburg;Lyon;Osaka;Chicago;Boston;Mumbai;Dubai
Zurich;Geneva;Venice;Porto;Krakow;Istanbul;Rio de Janeiro;Los Angeles;San Francisco;Cape Town;Lagos;Oxford
"""
_CITIES: Final = (*CAPITALS.values(), *re.split("[;\n]", _OTHER_CITIES.strip()))
_SKY_WORDS: Final = "sunny cloudy rainy snowy windy foggy stormy clear humid dry hazy cold warm"
_SKIES: Final = tuple(_SKY_WORDS.split())
_CITY_KEYS: Final = ("city", "city", "location", "place", "town", "city_name")
_THING_KEYS: Final = ("item", "name", "product", "person", "word", "id", "query", "key", "title", "user")
_TOOL_VERBS: Final = (
    "get",
    "get",
    "find",
    "lookup",
    "fetch",
    "search",
    "read",
    "query",
    "check",
    "show",
    "send",
)
_TOOL_SUFFIXES: Final = ("now", "tool", "api", "v2", "service", "info")
_DESCRIPTIONS: Final = (
    "Get {}.",
    "Returns {}.",
    "Look up {}.",
    "Find {}.",
    "Tells {}.",
    "Useful for {}.",
    "{}",
)


def weather(pool: Pool) -> ToolUse:
    name = _tool_name(
        pool, "get_weather", ("weather", "current_weather", "forecast", "city_weather", "temperature")
    )
    key = _key(pool, _CITY_KEYS)
    keys = {key: "string"} | ({"unit": "string"} if pool.chance(0.15) else {})
    tool = _tool(pool, name, f"the weather in a {key}", keys, required=[key])

    def ask(pool: Pool) -> Exchange:
        city = _city(pool)
        question = pool.phrase(questions.WEATHER, questions.WEATHER_HELD).format(c=city)
        sky, degrees = pool.pick(_SKIES), pool.number(-20, 42)
        result = pool.pick((
            json.dumps({"temperature": degrees, "condition": sky}),
            json.dumps({"condition": sky, "temperature": degrees}),
            json.dumps({key: city, "temperature": degrees, "condition": sky}, ensure_ascii=False),
            json.dumps({"temp": degrees, "weather": sky}),
            json.dumps({"temperature": degrees, "sky": sky, "humidity": pool.number(10, 99)}),
            f"{sky}, {degrees} degrees",
            f"{degrees} degrees and {sky}",
        ))  # fmt: skip
        answer = f"The weather in {city} is {sky} with {degrees} degrees."
        return Exchange("tools", casually(pool, question), answer, Call(name, {key: city}, result))

    return ToolUse("weather", tool, ask)


def clock(pool: Pool) -> ToolUse:
    name = _tool_name(pool, "get_time", ("time", "current_time", "local_time", "city_time", "clock"))
    key = _key(pool, _CITY_KEYS)
    tool = _tool(pool, name, f"the time in a {key}", {key: "string"})

    def ask(pool: Pool) -> Exchange:
        city = _city(pool)
        question = pool.phrase(questions.CLOCK, questions.CLOCK_HELD).format(c=city)
        now = f"{pool.number(0, 23):02d}:{pool.number(0, 59):02d}"
        result = pool.pick(
            (json.dumps({"time": now}), now, json.dumps({key: city, "time": now}, ensure_ascii=False))
        )
        answer = f"The time in {city} is {now}."
        return Exchange("tools", casually(pool, question), answer, Call(name, {key: city}, result))

    return ToolUse("clock", tool, ask)


def calculator(pool: Pool) -> ToolUse:
    """One operation on two numbers, or any expression."""
    word, sign, names = pool.pick((
        ("plus", "+", ("add", "sum", "plus", "addition")),
        ("minus", "-", ("subtract", "minus", "difference")),
        ("times", "*", ("multiply", "times", "product")),
        ("", "", ("calculate", "calculator", "calc", "compute", "evaluate")),
    ))  # fmt: skip
    name = _tool_name(pool, names[0], names)
    left, right = pool.pick((("a", "b"), ("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")))
    expression = pool.pick(("expression", "expression", "expr", "formula", "query"))
    if sign:
        tool = _tool(pool, name, f"{names[0]} of two numbers", {left: "number", right: "number"})
    else:
        tool = _tool(pool, name, "the value of an expression", {expression: "string"})

    def ask(pool: Pool) -> Exchange:
        mark = sign or pool.pick("+-*/")
        spoken = word or {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[mark]
        spoken = spoken if pool.chance(0.5) else mark
        a, b = pool.draw(
            lambda: (pool.number(0, 10 ** pool.number(1, 5)), pool.number(0, 10 ** pool.number(1, 5)))
        )
        question = pool.phrase(questions.CALCULATOR, questions.CALCULATOR_HELD).format(a=a, b=b, s=spoken)
        value = {"+": a + b, "-": a - b, "*": a * b, "/": round(a / max(b, 1), 2)}[mark]
        arguments: dict[str, Any] = {left: a, right: b} if sign else {expression: f"{a} {mark} {b}"}
        outcome = pool.pick((json.dumps({"result": value}), str(value), json.dumps({"value": value})))
        answer = f"{a} {mark} {b} = {value}."
        return Exchange("tools", casually(pool, question), answer, Call(name, arguments, outcome))

    return ToolUse("calculator", tool, ask)


def lookup(pool: Pool) -> ToolUse:
    """Some attribute of some thing; both may be words never seen."""
    attribute = pool.phrase(questions.ATTRIBUTES, questions.ATTRIBUTES_HELD)
    if pool.chance(0.45):
        attribute = pool.nonsense() if pool.chance(0.6) else pool.pick(NOUNS)
    if not pool.held and pool.chance(0.35):  # two words are harder than one: more of them to learn from
        first = pool.nonsense() if pool.chance(0.6) else pool.pick(NOUNS)
        attribute = f"{first} {pool.pick(questions.HEADS)}"
    slug = attribute.replace(" ", "_")
    name = _tool_name(pool, f"get_{slug}", (slug,))
    key = _key(pool, _THING_KEYS)
    tool = _tool(pool, name, f"the {attribute} of a {key}", {key: "string"})

    def ask(pool: Pool) -> Exchange:
        thing = _thing(pool)
        question = pool.phrase(questions.LOOKUP, questions.LOOKUP_HELD).format(a=attribute, t=thing)
        value = pool.number(0, 99_999) if pool.chance(0.3) else pool.words(1, 3)
        result = pool.pick((
            json.dumps({slug: value}), json.dumps({"result": value}), str(value)
            , json.dumps({key: thing, slug: value})
        ))  # fmt: skip
        answer = f"The {attribute} of {thing} is {value}."
        return Exchange("tools", casually(pool, question), answer, Call(name, {key: thing}, result))

    return ToolUse("lookup", tool, ask)


def messenger(pool: Pool) -> ToolUse:
    name = _tool_name(pool, "send_message", ("message", "email", "note", "text", "mail"))
    to = pool.pick(("to", "to", "recipient", "name", "person", "receiver"))
    body = pool.pick(("text", "message", "content", "body"))
    tool = _tool(pool, name, "sending a message to a person", {to: "string", body: "string"})

    def ask(pool: Pool) -> Exchange:
        who = pool.name()
        text = pool.sentence() if pool.chance(0.5) else pool.words(1, 4)
        question = pool.phrase(questions.MESSENGER, questions.MESSENGER_HELD).format(w=who, t=text)
        result = pool.pick(('{"status": "sent"}', '{"status": "ok"}', "sent", "ok", '{"ok": true}', "done"))
        return Exchange(
            "tools", question, f"I sent the message to {who}.", Call(name, {to: who, body: text}, result)
        )

    return ToolUse("messenger", tool, ask)


FAMILIES: Final[dict[str, Callable[[Pool], ToolUse]]] = {
    "weather": weather,
    "clock": clock,
    "calculator": calculator,
    "lookup": lookup,
    "messenger": messenger,
}


def toolbox(pool: Pool, families: list[str]) -> list[ToolUse]:
    """One tool of each family."""
    return [FAMILIES[family](pool) for family in families]


def use_tool(pool: Pool, talk: Talk) -> Exchange:
    """A question that one of the offered tools answers."""
    return pool.pick(talk.toolbox).ask(pool)


def no_tool(pool: Pool, talk: Talk) -> Exchange:
    """A question for a tool that is not offered; where all are, one outside the domain."""
    offered = {use.family for use in talk.toolbox}
    absent = [name for name in ("weather", "clock", "messenger") if name not in offered]
    if not absent:
        return unknown(pool, talk)
    family = pool.pick(absent)
    question = FAMILIES[family](pool).ask(pool).question
    return Exchange("no tool", question, SORRY)


def _tool(
    pool: Pool, name: str, purpose: str, parameters: dict[str, str], required: list[str] | None = None
) -> dict[str, Any]:
    properties: dict[str, Any] = {key: {"type": kind} for key, kind in parameters.items()}
    if pool.chance(0.3):
        for key in properties:
            properties[key]["description"] = f"The {key}."
    function: dict[str, Any] = {"name": name}
    if pool.chance(0.85):
        function["description"] = pool.pick(_DESCRIPTIONS).format(purpose)
    function["parameters"] = {"type": "object", "properties": properties}
    if pool.chance(0.85):
        function["parameters"]["required"] = required or list(parameters)
    return {"type": "function", "function": function}


def _tool_name(pool: Pool, common: str, things: Sequence[str]) -> str:
    """The common name, or one put together in the ways programmers do; each side has its own of those."""
    if pool.chance(0.25):
        return common

    def make() -> str:
        style, verb, thing = pool.number(1, 5), pool.pick(_TOOL_VERBS), pool.pick(things)
        if style == 1:
            return verb + "".join(part.capitalize() for part in thing.split("_"))
        suffix = pool.pick(_TOOL_SUFFIXES) if pool.chance(0.5) else pool.nonsense()
        made = {2: f"{verb}_{thing}", 3: f"{thing}_{suffix}", 4: f"{verb}_{thing}_{suffix}"}
        return made.get(style, thing)

    return pool.draw(make)


def _key(pool: Pool, names: Sequence[str]) -> str:
    """A parameter's name: a usual one, or now and then any word."""
    return pool.pick(names) if pool.chance(0.8) else pool.nonsense()


def _thing(pool: Pool) -> str:
    kind = pool.number(1, 4)
    if kind == 1:
        return pool.name()
    return pool.words(kind - 1, kind - 1) if kind < 4 else pool.draw(lambda: pool.pick(NOUNS))


def _city(pool: Pool) -> str:
    if not pool.held and pool.chance(0.2):  # names of several parts, of which the facts have few
        mark, count = pool.pick("- "), pool.pick((2, 2, 3))
        return pool.draw(lambda: mark.join(pool.nonsense().capitalize() for _ in range(count)))
    made_up = pool.chance(0.45)
    return pool.draw(lambda: pool.nonsense().capitalize() if made_up else pool.pick(_CITIES))
