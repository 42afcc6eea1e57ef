"""What users ask of tools: the ways of asking, on both sides of the split, and attributes to look up.

`{c}` is a city; `{a}`, `{s}` and `{b}` are a number, a sign and a number; of a look-up `{a}` is
an attribute and `{t}` a thing; of a message `{w}` is a person and `{t}` the text. Plain data.
"""

from __future__ import annotations

from typing import Final

WEATHER: Final = (
    "What is the weather in {c}?", "How is the weather in {c}?", "What's the weather like in {c}?",
    "Weather in {c}?", "Tell me the weather in {c}.", "Can you tell me the weather in {c}?",
    "Please check the weather in {c}.", "What is the weather like in {c} today?",
    "How is the weather in {c} now?", "And in {c}, how is the weather?", "And the weather in {c}?",
    "Do you know the weather in {c}?", "Check the weather in {c}.", "Get me the weather in {c}.",
    "Could you look up the weather in {c}?", "I want to know the weather in {c}.",
    "I need the weather in {c}.", "Give me the weather in {c} please.", "What weather do they have in {c}?",
    "Will you check the weather in {c} for me?", "How is today's weather in {c}?",
    "I'd like the weather for {c}.", "What's the weather in {c} right now?", "What is it like in {c} today?",
    "How about the weather in {c}?", "I would love to hear about the weather in {c}.",
    "Is the weather nice in {c}?", "What does the weather in {c} look like?", "Show me the weather in {c}.",
)  # fmt: skip
WEATHER_HELD: Final = (
    "Can you check the weather in {c}?", "I would like to know the weather in {c}.",
    "What is the weather in {c} like?", "How is the weather in {c} today?",
)  # fmt: skip

CLOCK: Final = (
    "What time is it in {c}?", "What is the time in {c}?", "Time in {c}?", "Tell me the time in {c}.",
    "Can you give me the time in {c}?", "Please check the time in {c}.", "What is the local time in {c}?",
    "And what time is it in {c}?", "How late is it in {c}?", "What time do they have in {c}?",
    "Do you know what time it is in {c}?", "And the time in {c}?", "Could you check the time in {c}?",
    "I want to know the time in {c}.", "I need the time in {c}.", "Give me the time in {c} please.",
    "What time is it right now in {c}?", "What's the time now in {c}?", "Will you tell me the time in {c}?",
    "I'd like the time for {c}.", "How about the time in {c}?", "Can you find out what time it is in {c}?",
    "I would love to hear what time it is in {c}.", "Show me the time in {c}.", "Get me the time in {c}.",
)  # fmt: skip
CLOCK_HELD: Final = (
    "I would like to know the time in {c}.", "What time is it now in {c}?",
    "Can you tell me the time in {c}?",
)  # fmt: skip

CALCULATOR: Final = (
    "What is {a} {s} {b}?", "Calculate {a} {s} {b}.", "How much is {a} {s} {b}?", "{a} {s} {b}",
    "What's {a} {s} {b}?", "Can you compute {a} {s} {b}?", "Please calculate {a} {s} {b}.",
    "Compute {a} {s} {b}.", "And {a} {s} {b}?", "Tell me what {a} {s} {b} is.",
    "Could you calculate {a} {s} {b}?", "I need the result of {a} {s} {b}.", "I need {a} {s} {b}.",
    "Give me the value of {a} {s} {b}.", "Find the value of {a} {s} {b}.",
    "What is the value of {a} {s} {b}?", "I want to know how much {a} {s} {b} is.",
    "Will you work out {a} {s} {b}?", "Work out {a} {s} {b}.",
    "So what is {a} {s} {b}?", "Can you do {a} {s} {b}?", "The value of {a} {s} {b}?",
    "Do you know how much {a} {s} {b} is?", "Please find {a} {s} {b}.", "I would like {a} {s} {b}.",
)  # fmt: skip
CALCULATOR_HELD: Final = (
    "Can you calculate {a} {s} {b}?", "I need the value of {a} {s} {b}.", "So how much is {a} {s} {b}?",
)  # fmt: skip

LOOKUP: Final = (
    "What is the {a} of {t}?", "Find the {a} of {t}.", "Look up the {a} of {t}.", "Tell me the {a} of {t}.",
    "Get the {a} of {t}.", "What's the {a} of {t}?", "And the {a} of {t}?", "The {a} of {t}?",
    'What is the {a} of "{t}"?', "I need the {a} of {t}.", "Can you look up the {a} of {t}?",
    "Please find the {a} of {t}.", "Can you tell me the {a} of {t}?", "Do you know the {a} of {t}?",
    "Could you get the {a} of {t}?", "Could you tell me the {a} of {t}?", "Can you get the {a} of {t}?",
    "I want the {a} of {t}.", "I want to know the {a} of {t}.", "I would love to know the {a} of {t}.",
    "I'd like the {a} of {t}.", "Show me the {a} of {t}.", "Give me the {a} of {t}.",
    "Will you find the {a} of {t} for me?", "Can you check the {a} of {t}?", "Search for the {a} of {t}.",
    "How about the {a} of {t}?", "Would you look for the {a} of {t}?", "Please look up the {a} of {t}.",
)  # fmt: skip
LOOKUP_HELD: Final = (
    "Could you find the {a} of {t}?", "Can you find the {a} of {t}?", "I would like the {a} of {t}.",
)  # fmt: skip

MESSENGER: Final = (
    'Send {w} the message "{t}".', 'Send a message to {w}: "{t}"', "Send a message to {w}: {t}",
    'Tell {w} "{t}".', "Write to {w}: {t}", "Please write to {w}: {t}", "Please message {w}: {t}",
    'Please tell {w} "{t}".', "Can you send {w} this message: {t}", 'Send "{t}" to {w}.',
    'Send the message "{t}" to {w}.', 'Could you tell {w} "{t}"?', "Let {w} know: {t}", "Message {w}: {t}",
    "Send {w} a message: {t}", 'Send {w} a note saying "{t}".', "Send this to {w}: {t}",
    "Write {w} a message: {t}", 'Would you send {w} "{t}"?', "Text {w} the following: {t}",
    'Can you write "{t}" to {w}?', 'I want to send {w} the message "{t}".', "Send {w} the text: {t}",
    'Will you send the message "{t}" to {w}?', "Please send {w} these words: {t}",
)  # fmt: skip
MESSENGER_HELD: Final = ('Could you send {w} the message "{t}"?', "Send {w} this message: {t}")

ATTRIBUTES: Final = (
    "price", "stock", "email", "address", "population", "owner", "weight", "size", "score", "age",
    "definition", "author", "distance", "height", "rating", "status", "birthday", "phone number",
    "delivery date", "opening hours", "release year", "job title", "balance", "temperature", "version",
    "length", "width", "volume", "speed", "category", "manager", "supplier", "warranty", "license", "budget",
    "account number", "order number", "flight number", "end date", "arrival time", "postal code", "tax rate",
    "shoe size", "home town", "seat", "grade", "discount", "language", "origin", "nickname", "voltage",
    "material", "diameter", "frequency", "postage", "department", "nationality", "fuel",
)  # fmt: skip
ATTRIBUTES_HELD: Final = (
    "capacity", "barcode", "deadline", "salary", "area", "room number", "start date", "serial number", "rank",
)  # fmt: skip
HEADS: Final = ("number", "date", "code", "name", "time", "size", "level", "limit", "type", "fee")
