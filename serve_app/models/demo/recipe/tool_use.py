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

from serve_app.models.demo.recipe.dialogue import Call, Exchange, Talk, ToolUse, casually
from serve_app.models.demo.recipe.facts import CAPITALS
from serve_app.models.demo.recipe.small_talk import SORRY, unknown
from serve_app.models.demo.recipe.words import NOUNS, Pool

_OTHER_CITIES: Final = """
New York;Munich;Milan;Barcelona;Shanghai;Sydney;Toronto;Hamburg;Lyon;Osaka;Chicago;Boston;Mumbai;Dubai
Zurich;Geneva;Venice;Porto;Krakow;Istanbul;Rio de Janeiro;Los Angeles;San Francisco;Cape Town;Lagos;Oxford
"""
_CITIES: Final = (*CAPITALS.values(), *re.split("[;\n]", _OTHER_CITIES.strip()))
_SKY_WORDS: Final = "sunny cloudy rainy snowy windy foggy stormy clear humid dry hazy cold warm"
_SKIES: Final = tuple(_SKY_WORDS.split())
_ATTRIBUTES: Final = (
    "price stock email address population owner weight size score age definition author distance height "
    "rating status "
    "birthday phone number|delivery date|opening hours|release year|job title|balance|temperature|version"
)
_ATTRIBUTES_HELD: Final = "capacity barcode deadline salary area|room number|start date|serial number|rank"
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
        question = pool.phrase(
            ("What is the weather in {c}?", "How is the weather in {c}?",
             "What's the weather like in {c}?",
             "Weather in {c}?", "Tell me the weather in {c}.", "Can you tell me the weather in {c}?",
             "Please check the weather in {c}.",
             "What is the weather like in {c} today?", "How is the weather in {c} now?",
             "And in {c}, how is the weather?", "And the weather in {c}?",
             "Do you know the weather in {c}?", "Check the weather in {c}.",
             "Get me the weather in {c}."),
            ("Can you check the weather in {c}?", "I would like to know the weather in {c}.",
             "What is the weather in {c} like?", "How is the weather in {c} today?"),
        ).format(c=city)  # fmt: skip
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
        question = pool.phrase(
            ("What time is it in {c}?", "What is the time in {c}?", "Time in {c}?",
             "Tell me the time in {c}.", "Can you give me the time in {c}?",
             "Please check the time in {c}.",
             "What is the local time in {c}?", "And what time is it in {c}?", "How late is it in {c}?",
             "What time do they have in {c}?", "Do you know what time it is in {c}?",
             "And the time in {c}?"),
            ("I would like to know the time in {c}.", "What time is it now in {c}?",
             "Can you tell me the time in {c}?"),
        ).format(c=city)  # fmt: skip
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
        question = pool.phrase(
            ("What is {a} {s} {b}?", "Calculate {a} {s} {b}.", "How much is {a} {s} {b}?",
             "{a} {s} {b}",
             "What's {a} {s} {b}?", "Can you compute {a} {s} {b}?", "Please calculate {a} {s} {b}.",
             "Compute {a} {s} {b}.", "And {a} {s} {b}?",
             "Tell me what {a} {s} {b} is."),
            ("Can you calculate {a} {s} {b}?", "I need the value of {a} {s} {b}.",
             "So how much is {a} {s} {b}?"),
        ).format(a=a, b=b, s=spoken)  # fmt: skip
        value = {"+": a + b, "-": a - b, "*": a * b, "/": round(a / max(b, 1), 2)}[mark]
        arguments: dict[str, Any] = {left: a, right: b} if sign else {expression: f"{a} {mark} {b}"}
        outcome = pool.pick((json.dumps({"result": value}), str(value), json.dumps({"value": value})))
        answer = f"{a} {mark} {b} = {value}."
        return Exchange("tools", casually(pool, question), answer, Call(name, arguments, outcome))

    return ToolUse("calculator", tool, ask)


def lookup(pool: Pool) -> ToolUse:
    """Some attribute of some thing; both may be words never seen."""
    attribute = pool.phrase(_split(_ATTRIBUTES), _split(_ATTRIBUTES_HELD))
    if pool.chance(0.45):
        attribute = pool.nonsense() if pool.chance(0.6) else pool.pick(NOUNS)
    slug = attribute.replace(" ", "_")
    name = _tool_name(pool, f"get_{slug}", (slug,))
    key = _key(pool, _THING_KEYS)
    tool = _tool(pool, name, f"the {attribute} of a {key}", {key: "string"})

    def ask(pool: Pool) -> Exchange:
        thing = _thing(pool)
        question = pool.phrase(
            ("What is the {a} of {t}?", "Find the {a} of {t}.", "Look up the {a} of {t}.",
             "Tell me the {a} of {t}.",
             "Get the {a} of {t}.", "What's the {a} of {t}?", "And the {a} of {t}?", "The {a} of {t}?",
             'What is the {a} of "{t}"?', "I need the {a} of {t}.", "Can you look up the {a} of {t}?",
             "Please find the {a} of {t}.",
             "Can you tell me the {a} of {t}?", "Do you know the {a} of {t}?"),
            ("Could you find the {a} of {t}?", "Can you find the {a} of {t}?",
             "I would like the {a} of {t}."),
        ).format(a=attribute, t=thing)  # fmt: skip
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
        question = pool.phrase(
            ('Send {w} the message "{t}".', 'Send a message to {w}: "{t}"', "Send a message to {w}: {t}",
             'Tell {w} "{t}".', "Write to {w}: {t}", "Please write to {w}: {t}",
             "Please message {w}: {t}", 'Please tell {w} "{t}".', "Can you send {w} this message: {t}",
             'Send "{t}" to {w}.', 'Send the message "{t}" to {w}.'),
            ('Could you send {w} the message "{t}"?', "Send {w} this message: {t}"),
        ).format(w=who, t=text)  # fmt: skip
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
    made_up = pool.chance(0.45)
    return pool.draw(lambda: pool.nonsense().capitalize() if made_up else pool.pick(_CITIES))


def _split(names: str) -> tuple[str, ...]:
    first, *rest = names.split("|")
    return (*first.split(), *rest)
