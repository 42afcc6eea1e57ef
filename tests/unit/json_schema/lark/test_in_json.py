"""Grammars in JSON strings, against the parser's own reading of the same grammars: the same texts match."""

import json
import random
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from llguidance import LLMatcher, LLTokenizer

from serve_app.json_schema.lark import LarkError, in_json
from serve_app.json_schema.lark.terminals import COMMON
from serve_app.limits import MAX_GRAMMAR_CHARS

ALPHABET = 'ab"\\\n\té \f'
IGNORED = " \f"  # where anything is
PATCH = r"""
start: begin hunk+ end?      // as agents have one
begin: "*** Begin\n"
end: "*** \"End\"" LF?
?hunk: add | -> nothing
!add: "+" /(.*)/ LF
    | "-" /(.+)/ LF -> less
%import common.LF
"""
LITERALS = (
    *('"a"', '"b"', r'"\""', r'"\\"', r'"\n"', r'"\t"', '"ab"', r'"\n\n"', r'"a\n"', '"é"', r'"\"a"i'),
    *(r'"\x61"', '"a".."c"', r'"\"".."b"'),
)  # fmt: skip
SPACELESS = (
    *(r"/[ab]+/", r"/a?\n/", r"/[\\\n]/", r"/(a|\t)*/", r"/\n?/", r"/a*\n*b/", r"/(\n|a){1,2}/", r"/a|\n\t/"),
    *(r"/A\n/i", r"/[é\t]+?/", r"/(?:a\n?){0,2}/", "/b{2}|\\\\/"),
)  # fmt: skip
REGEXES = (
    *(r"/[^\n]+/", r"/[^\n]*/", r'/"[^"]*"/', r"/\s+/", r"/.+/", r"/.*/s", r'/[^"\\]/', r"/\W/", r"/[^ab]+/"),
    *(r"/\S\D/", r"/\p{Po}*/", r"/\P{L}/", r"/[^\p{Cc}\\]+/", r"/(?s:.)b/"),
)  # fmt: skip


class Grammars:
    """Random grammars, and texts that may match them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def grammar(self) -> str:
        one = self._random.choice
        self._ignores = self._random.random() < 0.3
        leaves = (*LITERALS, *SPACELESS, *(() if self._ignores else REGEXES))
        self._leaves = leaves
        rules = [
            f"start: {self._series(2)}",
            f"?x: {one(LITERALS)} | {one(leaves)} {one(('x', 'y', 'A'))}",
            f"y: {one(LITERALS)} // or\n | y {one(LITERALS)}",
            f"A: {one(LITERALS)} | {one(leaves)}",
            f"B: {one(('A', 'A*', 'A?', 'A{2}', '(A | /b/){0,2}'))} {one(LITERALS)}",
        ]
        return "\n".join([*rules, *([one(('%ignore " "', r"%ignore /[ \f]+/"))] if self._ignores else [])])

    def _series(self, depth: int) -> str:
        return " ".join(self._term(depth) for _ in range(self._random.randint(1, 3)))

    def _term(self, depth: int) -> str:
        draw, one = self._random.random(), self._random.choice
        if depth == 0 or draw < 0.3:
            return one(self._leaves)
        if draw < 0.6:
            return one("ABxy")
        if draw < 0.75:
            return f"({self._series(depth - 1)} | {self._series(depth - 1)})"
        if draw < 0.95:
            counts = ("*", "+", "?", "{1,2}", "~2", "{,3}", "{2,}", "{4,7}", "{0,6}")
            return f"({self._series(depth - 1)}){one(counts)}"
        return f"[{self._series(depth - 1)}]"

    def texts(self, matcher: LLMatcher) -> Iterator[str]:
        """Some that `matcher` begins to accept, some like them, and any."""
        for _ in range(8):
            text = self._walk(matcher)
            yield text
            if text:
                i = self._random.randrange(len(text))
                yield text[:i] + self._random.choice(ALPHABET) + text[i + 1 :]
            yield "".join(self._random.choices(ALPHABET, k=self._random.randint(0, 5)))

    def _walk(self, matcher: LLMatcher) -> str:
        matcher.reset()
        found = b""
        for _ in range(self._random.randint(1, 12)):
            if matcher.is_accepting() and self._random.random() < 0.2:
                break
            choices = list(ALPHABET.encode())
            self._random.shuffle(choices)
            taken = next((byte for byte in choices if matcher.try_consume_tokens([byte])), None)
            if taken is None:
                break
            found += bytes([taken])
        return found.decode(errors="ignore")


@cache
def tokens() -> LLTokenizer:
    return LLTokenizer("byte")


def parser(grammar: str) -> LLMatcher:
    return LLMatcher(tokens(), LLMatcher.grammar_from_lark(grammar), log_level=0)


def matches(matcher: LLMatcher, text: str) -> bool:
    matcher.reset()
    wanted = tokens().tokenize_str(text)
    return bool(matcher.try_consume_tokens(wanted) == len(wanted) and matcher.is_accepting())


def both(grammar: str) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """Whether a text matches a grammar: to the parser, and in JSON."""
    own = parser(grammar)
    quoted = parser("\n".join(['start: "\\"" text "\\""', *in_json(grammar, "text")]))
    assert not own.is_error(), own.get_error()
    assert not quoted.is_error(), quoted.get_error()
    return lambda text: matches(own, text), lambda text: matches(quoted, json.dumps(text, ensure_ascii=False))


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 60), *(pytest.param(seed, 4_000, marks=pytest.mark.full) for seed in range(2, 6))]
)
def test_the_same_texts_match_as_without_json(seed: int, count: int) -> None:
    grammars, accepted = Grammars(seed), 0
    for _ in range(count):
        grammar = grammars.grammar()
        own = parser(grammar)
        plain, quoted = both(grammar)
        for text in grammars.texts(own):
            accepted += plain(text)
            # The parser ignores nothing behind a text to which nothing can be added.
            is_plain = plain(text) or ("%ignore" in grammar and plain(text.rstrip(IGNORED)) and quoted(text))
            assert is_plain == quoted(text), (text, grammar)
    assert accepted > 5 * count  # so that the texts are not all refused


@pytest.mark.parametrize("name", COMMON)
def test_the_common_terminals_are_the_parsers(name: str) -> None:
    rng = random.Random(name)
    own = parser(f"start: X\n%import common.{name} -> X")
    plain, quoted = both(f"start: X\n%import common.{name} -> X")
    pieces = [
        "0",
        "12",
        ".5",
        "a",
        "F",
        "_",
        "eE+"[rng.randrange(3)],
        "e-",
        "\r",
        "\n",
        "\t\f",
        " ",
        '"',
        "\\",
    ]
    pieces += ["/*", "*/", "//", "#", "--", "*", "é", "Z"]
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 5))) for _ in range(300)]
    firsts = [bytes([byte]).decode() for byte in range(1, 128) if parser_takes(own, byte)]
    texts += [rng.choice(firsts) + text for text in texts]
    texts += ["1.5e+3", "-12", "+.5", '"a\\"b"', "/* a * b */", "// a", "# a", "-- a", "E-7", "\r\n\n"]
    assert any(map(plain, texts))
    assert [text for text in texts if plain(text) != quoted(text)] == []


def parser_takes(matcher: LLMatcher, byte: int) -> bool:
    matcher.reset()
    return bool(matcher.try_consume_tokens([byte]) == 1)


def test_a_grammar_of_an_agent() -> None:
    plain, quoted = both(PATCH)
    good = '*** Begin\n+a "b" \\\t\n-c\n+\n*** "End"\n'
    for text in (good, good[:-1], "*** Begin\n-\n", "*** Begin\n+a", "*** Begin\n*** Begin\n"):
        assert plain(text) is quoted(text) is (text.startswith(good[:-1])), text


def test_what_lark_has_and_the_parser_lacks() -> None:
    """Counts by `~`, and an empty line or a comment before a bar."""
    quoted = parser("\n".join(["start: text", *in_json('start: "\\n"~2..3\n\n// or\n | "b"', "text")]))
    assert [matches(quoted, r"\n" * count) for count in range(1, 5)] == [False, True, True, False]
    assert matches(quoted, "b")


def test_control_characters_without_a_short_escape_are_left_out() -> None:
    _, quoted = both(r"start: /[^a]+/")
    assert quoted("b\x7f\n")
    assert not quoted("b\x01")


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ("x: y", "there is no rule start"),
        ('start: a\na: "a" start | a', "no text matches the rule start"),
        ("start: a", "line 1: there is no rule a"),
        ('start: "a"\n\n  | A', "line 3: there is no terminal A"),
        ("start: A\nA: /a/ B\nB: A", "line 3: A refers to itself"),
        ('start: "a"\nstart: "b"', "line 2: start is defined twice"),
        ('start: "a', 'line 1: this is not closed: "a'),
        ('start: "a" | )', "line 1: this is not available here: )"),
        ('start: ("a"', "line 1: ) is missing before the end of the statement"),
        ('start: "\\q"', "line 1: \"\\q\": this is no string"),
        ('start: "b".."a"', 'line 1: "b": a range goes from one character to a later one'),
        ('start: "a"~3..1', "line 1: counts are out of order before the end of the statement"),
        ('start: "a"~99999', "line 1: a count of at most 10000 is missing before 99999"),
        ("start: A\nA.2: /a/", "line 2: priorities are not available"),
        ("start[lazy]: /a/", "line 1: attributes of rules are not available"),
        ("start{x}: /a/", "line 1: templates are not available"),
        ("start: %json {}", "line 1: this is not available here: %json"),
        ("start: <tool>", "line 1: this is not available here: <"),
        ("start: A & A\nA: /a/", "line 1: this is not available here: &"),
        ('start: "a"\n%declare A', "line 2: %declare does not begin a rule"),
        ("%import other.A", "line 1: only terminals of common can be imported"),
        ("%import common.FOO\nstart: FOO", "line 1: there is no common.FOO"),
        ("start: /(a/", "line 1: /(a/: a ( is not closed"),
        ("start: /a(?=b)/", "line 1: /a(?=b)/: assertions, look-around and references are not available"),
        ("start: /a/x", "line 1: /a/x: of flags only i, m and s are available"),
        ("start: /[[a]b]/", "line 1: /[[a]b]/: of classes neither parts nor operators"),
        (r"start: /\p{sc=Greek}/", r"line 1: /\p{sc=Greek}/: \p{sc=Greek} is not available"),
        ("start: /\\x01/", "line 1: /\\x01/: a control character without a short escape"),
        (f"start: {'(' * 99}/a/{')' * 99}", "line 1: it nests too deep at ("),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_line(grammar: str, told: str) -> None:
    with pytest.raises(LarkError) as raised:
        in_json(grammar, "x")
    assert str(raised.value).startswith(told)


def padded(unit: str, head: str = "start: ", tail: str = "") -> str:
    """As long as a grammar may be."""
    return head + unit * ((MAX_GRAMMAR_CHARS - len(head) - len(tail)) // len(unit)) + tail


@pytest.mark.parametrize(
    "grammar",
    [
        padded(r'"\n"? '),
        padded(r"\n?", "start: /", "/"),
        padded("a|", "start: /", "/"),
        padded(r"\n", 'start: "', '"'),
        padded(r'"\n"~0..9999 '),
        padded('"a" ', tail="\n%ignore /\\n/"),
        padded("b|", "start: b\na: ", 'b\nb: "\\n"'),
        "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(6_000)) + 'r6000: "\\n"?',
        "start: r0\n" + "".join(f"r{i}: r{i - 1} |\n" for i in range(8_000, 0, -1)) + 'r0: r8000 "\\n"?',
        "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(6_000)) + "R6000: /\\n?/",
    ],
    ids=[
        "options",
        "regex",
        "choice",
        "literal",
        "counts",
        "ignored",
        "names",
        "doubled",
        "chain",
        "terminals",
    ],
)
def test_a_grammar_that_would_take_too_long_is_refused(grammar: str) -> None:
    assert len(grammar) <= MAX_GRAMMAR_CHARS
    with pytest.raises(LarkError, match=r"too large|nests too deep"):
        in_json(grammar, "x")


def test_large_counts_are_written_in_little() -> None:
    """The parser has limits of its own for what the grammar means."""
    assert sum(map(len, in_json(r'start: (((("\n"~9999)~9999)~9999)~9999)', "x"))) < 20_000


@pytest.mark.parametrize("unit", ['"\\', "/\\"])
def test_what_is_never_closed_is_read_once(unit: str) -> None:
    with pytest.raises(LarkError, match="not closed"):
        in_json(padded(unit), "x")
