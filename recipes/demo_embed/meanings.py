"""Meanings, and the ways in which each can be said.

A meaning is an intent ("which is the capital of ...") with its content ("France"). Two
sentences are alike when they say one meaning. Intents have ways of saying that training
never sees; names, words and numbers of a held-out pool are never seen either. Countries
and cities are a table, so only the ways of asking about them are held out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from recipes.demo_chat.calendar import DAYS
from recipes.demo_chat.facts import CAPITALS, COUNTRIES
from recipes.demo_chat.words import ADJECTIVES, NOUNS, Pool

Content = dict[str, str]


@dataclass(frozen=True)
class Intent:
    """Something that can be said of any content that `fill` draws."""

    ways: tuple[str, ...]  # templates, for training
    held: tuple[str, ...]  # templates that training never sees
    fill: Callable[[Pool], Content]


@dataclass(frozen=True)
class Meaning:
    """An intent with its content."""

    intent: str
    content: tuple[tuple[str, str], ...]

    def say(self, way: str) -> str:
        """The sentence that `way` makes of it."""
        return way.format(**dict(self.content))


def draw(pool: Pool, intent: str | None = None) -> Meaning:
    """A meaning of `intent`, or of any."""
    name = intent or pool.pick(tuple(INTENTS))
    return Meaning(name, tuple(sorted(INTENTS[name].fill(pool).items())))


def siblings(meaning: Meaning) -> list[Meaning]:
    """What else can be said of the same content: the other intents of that kind of content."""
    fill = INTENTS[meaning.intent].fill
    return [
        Meaning(name, meaning.content)
        for name, intent in INTENTS.items()
        if intent.fill is fill and name != meaning.intent
    ]


def ways_of(meaning: Meaning, *, held: bool) -> tuple[str, ...]:
    """The templates of its intent, of one side of the split."""
    intent = INTENTS[meaning.intent]
    return intent.held if held else intent.ways


def _nothing(pool: Pool) -> Content:
    return {}


def _country(pool: Pool) -> Content:
    return {"x": pool.pick(COUNTRIES)}


def _city(pool: Pool) -> Content:
    return {"x": pool.pick(tuple(CAPITALS.values()))}


def _day(pool: Pool) -> Content:
    return {"x": pool.pick(DAYS)}


def _numbers(pool: Pool) -> Content:
    a, b = pool.draw(lambda: (pool.number(1, 99), pool.number(1, 99)))
    return {"a": str(a), "b": str(b)}


def _name(pool: Pool) -> Content:
    return {"x": pool.name()}


def _thing(pool: Pool) -> Content:
    return {"x": pool.draw(lambda: f"{pool.pick(ADJECTIVES)} {pool.pick(NOUNS)}")}


def _liking(pool: Pool) -> Content:
    return {"n": pool.name(), "x": pool.draw(lambda: pool.pick(NOUNS))}


INTENTS: Final[dict[str, Intent]] = {
    "capital": Intent(
        ("What is the capital of {x}?", "Tell me the capital city of {x}.",
         "Which city is the capital of {x}?",
         "Do you know the capital of {x}?", "{x}: what is its capital?", "Name the capital of {x}.",
         "I would like to know which capital {x} has."),
        ("Can you tell me the capital of {x}?", "What is the name of the capital city of {x}?",
         "Please give me {x}'s capital."),
        _country,
    ),
    "country": Intent(
        ("Which country has {x} as its capital?", "{x} is the capital of which country?",
         "What country is {x} the capital of?", "In which country is the city of {x}?",
         "Name the country whose capital is {x}.", "Where is {x}?"),
        ("Of which country is {x} the capital?", "In what country does {x} lie?", "Tell me where {x} is."),
        _city,
    ),
    "weather": Intent(
        ("What is the weather in {x}?", "How is the weather in {x} today?", "Is it raining in {x}?",
         "Weather in {x}, please.", "Tell me the weather for {x}.", "Will it be sunny in {x}?",
         "What does the forecast say for {x}?"),
        ("Give me the weather report of {x}.", "Do I need an umbrella in {x}?",
         "Show me the weather in {x} now."),
        _city,
    ),
    "time": Intent(
        ("What time is it in {x}?", "Tell me the time in {x}.", "How late is it in {x} now?",
         "What is the local time in {x}?", "Current time in {x}, please.", "Which hour is it in {x}?"),
        ("Give me the time of day in {x}.", "Do you know what time it is in {x}?",
         "What does the clock say in {x}?"),
        _city,
    ),
    "sum": Intent(
        ("What is {a} plus {b}?", "{a} + {b}", "Add {a} and {b}.", "How much is {a} plus {b}?",
         "Calculate {a} + {b}.", "The sum of {a} and {b}", "What do you get when you add {b} to {a}?"),
        ("Compute {a} plus {b}.", "What is the sum of {a} and {b}?", "Can you add {a} and {b}?"),
        _numbers,
    ),
    "difference": Intent(
        ("What is {a} minus {b}?", "{a} - {b}", "Subtract {b} from {a}.", "How much is {a} minus {b}?",
         "Calculate {a} - {b}.", "Take {b} away from {a}."),
        ("Compute {a} minus {b}.", "What is left when you take {b} from {a}?",
         "Can you subtract {b} from {a}?"),
        _numbers,
    ),
    "product": Intent(
        ("What is {a} times {b}?", "{a} * {b}", "Multiply {a} by {b}.", "How much is {a} times {b}?",
         "Calculate {a} * {b}.", "The product of {a} and {b}"),
        ("Compute {a} times {b}.", "What is the product of {a} and {b}?", "Can you multiply {a} by {b}?"),
        _numbers,
    ),
    "count": Intent(
        ("Count from {a} to {b}.", "Please count up from {a} to {b}.", "Say the numbers from {a} to {b}.",
         "Start at {a} and count to {b}.", "List all numbers from {a} to {b}."),
        ("Can you count from {a} to {b}?", "Write the numbers between {a} and {b}."),
        _numbers,
    ),
    "name given": Intent(
        ("My name is {x}.", "I am {x}.", "Call me {x}.", "You can call me {x}.", "Hello, I am {x}.",
         "Hi, my name is {x}.", "People call me {x}."),
        ("Good day, my name is {x}.", "Please call me {x}.", "The name is {x}."),
        _name,
    ),
    "message": Intent(
        ("Send a message to {x}.", "Write to {x}.", "Send {x} an email.", "Text {x} for me.",
         "Mail {x}, please.",
         "I want to send {x} a message."),
        ("Please write a message to {x}.", "Can you send an email to {x}?"),
        _name,
    ),
    "liking": Intent(
        ("{n} likes the {x}.", "{n} is fond of the {x}.", "The {x} is what {n} likes.",
         "{n} really loves the {x}.",
         "It is the {x} that {n} likes."),
        ("The {x} is loved by {n}.", "{n} likes the {x} a lot."),
        _liking,
    ),
    "story": Intent(
        ("Tell me a story about a {x}.", "Write a story about a {x}.", "I want a story with a {x} in it.",
         "A story about a {x}, please.", "Make up a tale of a {x}.", "Once upon a time there was a {x}."),
        ("Can you tell a story of a {x}?", "Please invent a short story about a {x}."),
        _thing,
    ),
    "poem": Intent(
        ("Write a poem about a {x}.", "Give me a poem about a {x}.", "A poem on a {x}, please.",
         "Make a rhyme about a {x}.", "I would like some verses about a {x}."),
        ("Can you write a short poem about a {x}?", "Let me read a poem of a {x}."),
        _thing,
    ),
    "repeat": Intent(
        ("Repeat after me: {x}", "Say {x}.", "Please repeat: {x}", "Echo the words {x}.",
         "Say exactly this: {x}"),
        ("Repeat the words {x}.", "Can you say {x}?"),
        _thing,
    ),
    "day after": Intent(
        ("Which day comes after {x}?", "What is the day after {x}?", "What day follows {x}?",
         "After {x} comes which day?"),
        ("Tell me the day that follows {x}.", "Name the day after {x}."),
        _day,
    ),
    "day before": Intent(
        ("Which day comes before {x}?", "What is the day before {x}?", "What day precedes {x}?",
         "Before {x} comes which day?"),
        ("Tell me the day that precedes {x}.", "Name the day before {x}."),
        _day,
    ),
    "greeting": Intent(
        ("Hello!", "Hi!", "Hello there.", "Good morning!", "Hey, hello.", "Good day to you.", "Greetings!"),
        ("Hi there, good morning.", "Good day!", "Hello, good evening."),
        _nothing,
    ),
    "farewell": Intent(
        ("Goodbye!", "Bye!", "See you later.", "Good night, bye.", "Farewell.", "See you soon, bye."),
        ("Bye, see you tomorrow.", "Goodbye and good night.", "Bye for now."),
        _nothing,
    ),
    "thanks": Intent(
        ("Thank you!", "Thanks a lot.", "Many thanks.", "Thanks, that helped.", "I thank you very much.",
         "Thanks for your help."),
        ("Thank you so much.", "Thanks!", "Thank you for the help."),
        _nothing,
    ),
    "well-being": Intent(
        ("How are you?", "How are you today?", "How do you do?", "Are you well?", "How is it going?",
         "How do you feel?"),
        ("How are you doing?", "Are you feeling well today?"),
        _nothing,
    ),
    "identity": Intent(
        ("Who are you?", "What are you?", "What is your name?", "Tell me who you are.", "Are you a human?",
         "Are you a robot?", "Introduce yourself."),
        ("What should I call you?", "Please tell me what you are.", "Who am I talking to?"),
        _nothing,
    ),
    "ability": Intent(
        ("What can you do?", "How can you help me?", "What are you able to do?", "What do you know?",
         "Which questions can you answer?"),
        ("Tell me what you can do.", "What can I ask you?"),
        _nothing,
    ),
    "joke": Intent(
        ("Tell me a joke.", "Make me laugh.", "Say something funny.", "Do you know a joke?",
         "A joke, please."),
        ("I want to hear a joke.", "Tell me something funny."),
        _nothing,
    ),
}  # fmt: skip
