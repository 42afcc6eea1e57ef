"""What version 2 knows beyond version 1: which day or month is next to which.

The facts are few, so only the ways of asking for them are held out.
"""

from __future__ import annotations

from typing import Final

from recipes.demo_chat.dialogue import Exchange, Talk, casually
from recipes.demo_chat.words import Pool

_TURNS: Final = {"after": 1, "before": -1}

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip

_NEIGHBOUR: Final = (
    "Which {u} comes {w} {x}?", "Which {u} is {w} {x}?", "What {u} is {w} {x}?", "What comes {w} {x}?",
    "Tell me the {u} {w} {x}.", "Name the {u} {w} {x}.", "The {u} {w} {x}?", "What is the {u} {w} {x}?",
    "Can you tell me which {u} comes {w} {x}?", "And what comes {w} {x}?", "Do you know the {u} {w} {x}?",
    "Which {u} comes right {w} {x}?", "What's the {u} {w} {x}?", "Give me the {u} {w} {x}.",
    "I want to know which {u} is {w} {x}.", "{u} {w} {x}?",
)  # fmt: skip
_NEIGHBOUR_HELD: Final = (
    "What {u} comes {w} {x}?", "Could you tell me the {u} {w} {x}?", "Can you name the {u} {w} {x}?",
)  # fmt: skip


def neighbour(pool: Pool, talk: Talk) -> Exchange:
    """The day or month after or before another; the year and the week go round."""
    unit, names = pool.pick((("day", DAYS), ("month", MONTHS)))
    at, turn = pool.number(0, len(names) - 1), pool.pick(tuple(_TURNS))
    asked, found = names[at], names[(at + _TURNS[turn]) % len(names)]
    question = pool.phrase(_NEIGHBOUR, _NEIGHBOUR_HELD).format(u=unit, w=turn, x=asked)
    return Exchange("calendar", casually(pool, question), f"{found} comes {turn} {asked}.")
