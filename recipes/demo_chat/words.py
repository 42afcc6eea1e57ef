"""Names, words and numbers to fill dialogues with, each on one side of a fixed split.

`Pool` draws for one side: what a *training* pool yields, a *held-out* pool never
does, and the other way round. The side of a text is a hash of it, so it is the
same in every run. Knows nothing of dialogues.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

_NAMES: Final = """
Ada Adam Agnes Ahmed Aisha Akira Alan Alba Alex Alice Amara Amir Amy Ana Anders Andre Anna Anton Aria
Arjun Astrid Ava Axel Bea Ben Bianca Bob Boris Brian Bruno Carl Carla Carlos Chen Chloe Clara Claude
Daisy Dan Dana Daniel Dara David Diego Dina Dora Edgar Ella Elena Eli Elif Emil Emma Eric Erika Esra Eva
Faye Felix Fiona Frank Freya Gabriel Gina Grace Greta Gus Hana Hannah Harry Hassan Heidi Helen Henry
Hugo Ian Ida Igor Ilse Ines Ingrid Ira Iris Isaac Ivan Ivy Jack Jade James Jana Jane Jasper Jin John
Jonas Jorge Jose Juan Judy Julia June Kai Kara Karim Kate Ken Kenji Kim Klaus Lara Lars Laura Layla Lea
Leo Liam Lily Lin Lina Linus Lola Lucas Lucy Luis Luna Maja Malik Marco Maria Marie Mark Marta Mary Matt
Maya Mei Mia Mike Mila Milan Mina Mira Mohamed Molly Nadia Nana Nia Nico Nina Noah Nora Oleg Olga Olive
Oscar Otto Pablo Paul Pedro Petra Pia Priya Quinn Rachel Rafael Raj Ravi Remy Rita Robin Rosa Ruth Ryan
Sally Sam Sara Sasha Sean Selma Simon Sofia Sven Tara Theo Tilda Tim Tom Uma Ursula Vera Victor Viola
Walter Wanda Will Xena Yara Yuki Yusuf Zara Zoe
"""

_NOUNS: Final = """
apple arrow basket bear bell bird boat book bottle bread bridge bucket button cake candle carrot cat
chair cheese cherry clock cloud coat coffee coin cup desk dog door dragon drum duck eagle egg engine
feather fish flag flower fork fox frog garden ghost glass goat guitar hammer hat honey horse house
island jacket key king kite knife ladder lamp leaf lemon letter lion map mirror monkey moon mountain
mouse mushroom needle nest ocean onion orange owl paper parrot pencil piano pillow pirate planet potato
queen rabbit radio rain ring river robot rocket rope rose salt scarf shell ship shirt shoe silver snail
snow sofa spider spoon star stone sugar sun table tea tiger tomato towel tower train tree turtle
umbrella violin wagon wallet water whale window wizard wolf
"""

_ADJECTIVES: Final = """
big blue bold brave bright brown busy calm clever cold cool dark deep dry early empty fast fine fresh
gentle golden good grand gray green happy heavy hidden hot huge kind large late lazy light little lonely
long loud lucky new nice noisy old pink plain proud purple quick quiet red rich round sad sharp shiny
short silent sleepy slow small soft strange strong sunny sweet tall tiny warm white wide wild wise
yellow young
"""

_VERBS: Final = """
bakes breaks builds buys carries catches cleans closes cooks draws drinks drops eats feeds finds follows
gets grabs hears helps hides holds keeps kicks leaves likes loves makes meets moves needs opens paints
pulls pushes reads rides sees sells sends shows sings steals takes tells throws touches trusts visits
wants washes watches wears writes
"""

_ONSETS: Final = """
b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr kr pl pr qu sh sk sl sn sp st th tr x y
"""
_VOWELS: Final = "a e i o u a e i o u ai au ea ee ia io oa oo ou y"
_CODAS: Final = "b ck d f g k l m n p r s t x z ld lm mp nd ng nk nt rd rk rn rt sh sk ss st th ll m n r l s"

NAMES: Final = tuple(_NAMES.split())
NOUNS: Final = tuple(_NOUNS.split())
ADJECTIVES: Final = tuple(_ADJECTIVES.split())
VERBS: Final = tuple(_VERBS.split())
_ONSET, _VOWEL, _CODA = _ONSETS.split(), _VOWELS.split(), _CODAS.split()


def held_out(text: str) -> bool:
    """Whether a text belongs to the held-out side: one in eight does."""
    return zlib.crc32(text.lower().encode()) % 8 == 0


class Pool:
    """A seeded source of choices; `held` says from which side of the split."""

    def __init__(self, seed: int | str, *, held: bool = False) -> None:
        self.rng = random.Random(seed)
        self.held = held

    def pick(self, items: Sequence[T]) -> T:
        """Any item: for what both sides share."""
        return self.rng.choice(items)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def phrase(self, train: Sequence[str], held: Sequence[str]) -> str:
        """A way of asking: the held-out side has its own."""
        return self.rng.choice(held if self.held else train)

    def draw(self, make: Callable[[], T], key: Callable[[T], str] = str) -> T:
        """What `make` makes, on this pool's side of the split."""
        while True:
            item = make()
            if held_out(key(item)) == self.held:
                return item

    def name(self) -> str:
        """A first name, common or made up."""
        return self.draw(lambda: self.pick(NAMES) if self.chance(0.5) else self._made_up(2).capitalize())

    def nonsense(self) -> str:
        """A made-up lower-case word."""
        return self.draw(lambda: self._made_up(self.pick((1, 2, 2, 3))))

    def word(self) -> str:
        """A word to copy: common, made up, capitalised, or with digits."""
        return self.draw(self._any_word)

    def words(self, low: int, high: int) -> str:
        """A phrase of `low` to `high` words."""
        return self.draw(lambda: " ".join(self._any_word() for _ in range(self.rng.randint(low, high))))

    def sentence(self) -> str:
        """A short sentence without its final stop."""
        return self.draw(self._sentence)

    def number(self, low: int, high: int) -> int:
        """An integer in [low, high]; both sides share it."""
        return self.rng.randint(low, high)

    def _made_up(self, syllables: int) -> str:
        pick = self.rng.choice
        parts = [pick(_ONSET) + pick(_VOWEL) for _ in range(syllables)]
        return "".join(parts) + (pick(_CODA) if self.chance(0.6) else "")

    def _any_word(self) -> str:
        kind = self.rng.random()
        if kind < 0.45:
            return self.pick((NOUNS, ADJECTIVES, VERBS)[self.rng.randrange(3)])
        if kind < 0.75:
            return self._made_up(self.pick((1, 2, 2, 3)))
        if kind < 0.85:
            return self.pick(NAMES) if self.chance(0.5) else self._made_up(2).capitalize()
        if kind < 0.94:
            return str(self.rng.randrange(10 ** self.rng.randint(1, 5)))
        return self._made_up(1) + str(self.rng.randrange(100))

    def _sentence(self) -> str:
        subject = f"the {self.pick(ADJECTIVES)} {self.pick(NOUNS)}" if self.chance(0.6) else self.pick(NAMES)
        article = self.pick(("a", "the", "my", "your"))
        adjective = f"{self.pick(ADJECTIVES)} " if self.chance(0.5) else ""
        tail = self.pick(("", "", " every day", " at night", " in the garden", " again", " today"))
        return f"{subject} {self.pick(VERBS)} {article} {adjective}{self.pick(NOUNS)}{tail}"
