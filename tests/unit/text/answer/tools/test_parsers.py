"""Tool calls in text: what each format reads, and what holds for any text and any cut."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.text.answer.source import MAX_HELD_CHARS
from serve_app.text.answer.tools.calls import new_call_id
from serve_app.text.answer.tools.detect import FORMATS
from serve_app.text.answer.tools.parser import ToolParser
from serve_app.types import ToolCallDelta
from tests.support.counted import lines_run

NAMES = frozenset({"f", "get_weather", "now"})


def parse(
    format: str, pieces: list[str], max_calls: int | None = None
) -> tuple[str, list[tuple[str, str]], list[Any]]:
    """(text, [(name, arguments)], text and calls in order of their coming) of an answer."""
    ids = (f"id{i}" for i in itertools.count())
    parser = ToolParser(FORMATS[format], NAMES, max_calls=max_calls, new_id=lambda: next(ids))
    found = [piece for text in pieces for piece in parser.feed(text)] + parser.end()
    calls: list[list[str]] = []
    order: list[Any] = []
    for piece in found:
        if isinstance(piece, str):
            assert piece
            if order and isinstance(order[-1], str):
                order[-1] += piece
            else:
                order.append(piece)
            continue
        assert isinstance(piece, ToolCallDelta)
        if piece.index == len(calls):
            assert piece.id == f"id{piece.index}"
            assert piece.name is not None
            assert piece.arguments == ""
            calls.append([piece.name, ""])
            order.append(piece.index)
        else:
            assert piece.index == len(calls) - 1, "a call that has ended goes on"
            assert piece.id is piece.name is None
            assert piece.arguments
            calls[-1][1] += piece.arguments
    assert parser.num_calls == len(calls)
    return "".join(p for p in found if isinstance(p, str)), [(n, a) for n, a in calls], order


def ended(parser: ToolParser, text: str, *, cut: bool) -> tuple[str, list[int]]:
    """The text of an answer, and the calls that are whole."""
    pieces = [piece for char in text for piece in parser.feed(char)] + parser.end(cut=cut)
    return "".join(piece for piece in pieces if isinstance(piece, str)), sorted(parser.whole)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(
    ("format", "answer"),
    [
        ("hermes", 'Well: <tool_call>\n{"name": "get_we'),
        ("hermes", 'Well: <tool_call>{"arguments": {"a": 1}, '),
        ("mistral", "Well: [TOOL_CALLS] [{"),
        ("mistral", "Well: [TOOL_CALLS]get_weather"),
        ("llama3", 'Well: <|python_tag|>{"na'),
    ],
)
def test_markup_before_the_name_is_text_unless_the_answer_was_cut(format, answer, cut):
    parser = ToolParser(FORMATS[format], NAMES)
    assert ended(parser, answer, cut=cut) == ("Well: " if cut else answer, [])
    assert parser.num_calls == 0


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_of_a_forced_call_that_is_cut_is_text(format):
    form = FORMATS[format]
    spelling = form.spelling
    answer = (
        spelling.first
        + spelling.name
        + "now"
        + spelling.arguments
        + '{"a": "b"}'
        + spelling.end
        + spelling.last
    )
    for length in range(1, len(answer) + 1):
        parser = ToolParser(form, NAMES, forced=True)
        assert parser.in_call
        text, whole = ended(parser, answer[:length], cut=True)
        assert text == ""
        assert whole == ([0] if '"b"}' in answer[:length] else [])


def test_a_bare_object_that_is_cut_is_text_until_it_names_a_tool():
    bare = '{"name": "get_weather", "par'
    assert ended(ToolParser(FORMATS["llama3"], NAMES), bare, cut=True) == ("", [])
    assert (
        ended(ToolParser(FORMATS["llama3"], NAMES), '{"name": "Ann", "a', cut=True)[0] == '{"name": "Ann", "a'
    )
    assert ended(ToolParser(FORMATS["llama3"], NAMES), '{"na', cut=True)[0] == '{"na'


def test_text_after_a_broken_call_is_searched_again():
    parser = ToolParser(FORMATS["hermes"], NAMES)
    states = []
    for text in ("a ", "<tool_call>", '{"name": "no such"', ', "x"', " b"):
        parser.feed(text)
        states.append(parser.in_call)
    assert states == [False, True, False, False, False]


@pytest.mark.parametrize(
    "form", ['{"m": "<tool_call>', '["[TOOL_CALLS]', '"<tool_call>{}</tool_call>', " \n {"]
)
def test_a_form_holds_markers_as_text(form):
    for format in ("hermes", "mistral"):
        assert ended(ToolParser(FORMATS[format], NAMES, leads=True), form, cut=True)[0] == form


def test_an_answer_in_a_form_may_be_calls_from_its_first_character_on():
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    for answer in (call, f" \n{call}\n{call}"):
        parser = ToolParser(FORMATS["hermes"], NAMES, leads=True)
        assert ended(parser, answer, cut=False) == ("", [*range(parser.num_calls)])
        assert parser.num_calls == answer.count("name")
    assert ended(ToolParser(FORMATS["hermes"], NAMES, leads=True), f"x {call}", cut=False) == (
        f"x {call}",
        [],
    )


WEATHER = '{ "city" :"Oslo, \\"}{", "days":[1, {"x": -2.5e3}] }'
OBJECT = f'{{"name": "get_weather", "arguments": {WEATHER}}}'


@pytest.mark.parametrize(
    ("format", "answer", "text", "calls"),
    [
        ("hermes", "Hello!", "Hello!", []),
        ("hermes", f"<tool_call>\n{OBJECT}\n</tool_call>", "", [("get_weather", WEATHER)]),
        ("hermes", f"Let me see.\n<tool_call>{OBJECT}", "Let me see.\n", [("get_weather", WEATHER)]),
        ("hermes", f"<tool_call>{OBJECT}</tool", "", [("get_weather", WEATHER)]),
        (
            "hermes",
            f'\n\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>{{"arguments":{{}},"name":"f"}}</tool_call>\n',
            "",
            [("get_weather", WEATHER), ("f", "{}")],
        ),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
        ("hermes", '<tool_call>{"id":[{"a":"]"}],"name":"f","arguments":{}, "x": null}', "", [("f", "{}")]),
        ("hermes", r'<tool_call>{"n\u0061me":"\u0066","arguments":{}}', "", [("f", "{}")]),
        (
            "hermes",
            f"<tool_call>{OBJECT}</tool_call> And so on.",
            " And so on.",
            [("get_weather", WEATHER)],
        ),
        ("llama3", f"<|python_tag|>{OBJECT}", "", [("get_weather", WEATHER)]),
        (
            "llama3",
            f' {{"name": "f", "parameters": {{"a": 1}}}} ; {OBJECT}',
            "",
            [("f", '{"a": 1}'), ("get_weather", WEATHER)],
        ),
        ("llama3", "It is {", "It is {", []),
        ("mistral", f"[TOOL_CALLS] [{OBJECT}]", "", [("get_weather", WEATHER)]),
        (
            "mistral",
            f'Sure.[TOOL_CALLS][{{"name": "f", "arguments": {{}}, "id": "0123456789"}}, {OBJECT}]',
            "Sure.",
            [("f", "{}"), ("get_weather", WEATHER)],
        ),
        (
            "mistral",
            f"[TOOL_CALLS]get_weather{WEATHER}[TOOL_CALLS]f[CALL_ID]ab12[ARGS]{{}}[TOOL_CALLS]now[ARGS] {{}}",
            "",
            [("get_weather", WEATHER), ("f", "{}"), ("now", "{}")],
        ),
        ("json", OBJECT, "", [("get_weather", WEATHER)]),
        ("json", f'\n[{OBJECT}, {{"name":"now"}}]\n', "", [("get_weather", WEATHER), ("now", "{}")]),
        ("json", f"The call is {OBJECT}", f"The call is {OBJECT}", []),
    ],
)
def test_what_a_format_reads(format: str, answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    for pieces in ([answer], list(answer), [answer[:9], answer[9:]]):
        found = parse(format, pieces)
        assert found[:2] == (text, calls)


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize(
    "body",
    [
        "",
        "oops",
        "{",
        "[",
        "{}",
        '{"name": "unknown", "arguments": {}}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": 3}',
        '{"arguments": {}}',
        '{"name": "f" "arguments"',
        '{"name": "f", "x": <',
        '{"name": "f", "x": ',
        '{"name": "f", "argum',
        '{"na\\me": "f"}',
        '{"name": "\\ud800"}',
        '{"x": ' + "[" * (MAX_HELD_CHARS + 5) + "]" * (MAX_HELD_CHARS + 5) + "}",
        '{"arguments": {"x": "' + "y" * MAX_HELD_CHARS + '"}, "name": "f"}',
        "{" + " " * (MAX_HELD_CHARS + 5) + '"name": "f"}',
        "unknown{}",
        "f[ARGS]3",
        "f[CALL_ID]x{}",
    ],
    ids=lambda body: body[:24],
)
def test_what_is_no_call_is_text(format: str, body: str) -> None:
    for answer in (FORMATS[format].marker + body, f"Hm {FORMATS[format].marker}{body} and more"):
        size = 1 if len(body) < MAX_HELD_CHARS else 97  # characters of a piece
        for pieces in ([answer], [answer[at : at + size] for at in range(0, len(answer), size)]):
            assert parse(format, pieces) == (answer, [], [answer] if answer else [])


def test_a_broken_call_that_has_begun_stands_and_what_follows_is_text() -> None:
    begun = '<tool_call>{"name": "f", "arguments": {"x": 1'
    after = "</tool_call> and " + f"<tool_call>{OBJECT}</tool_call>"
    text, calls, _ = parse("hermes", [begun + after])
    assert (text, calls) == ("</tool_call> and ", [("f", '{"x": 1'), ("get_weather", WEATHER)])
    assert parse("hermes", [begun])[:2] == ("", [("f", '{"x": 1')])
    assert parse("hermes", [begun + "} oops"])[:2] == (" oops", [("f", '{"x": 1}')])


def test_a_limit_ends_the_answer_at_the_call() -> None:
    answer = f"Well.<tool_call>{OBJECT}</tool_call> More <tool_call>{OBJECT}</tool_call>"
    for pieces in ([answer], list(answer)):
        assert parse("hermes", pieces, max_calls=1)[:2] == ("Well.", [("get_weather", WEATHER)])
    parser = ToolParser(FORMATS["hermes"], NAMES, max_calls=1)
    parser.feed(answer[: answer.index(OBJECT) + len(OBJECT) - 1])
    assert not parser.complete
    parser.feed("}")
    assert parser.complete
    assert parse("mistral", [f"[TOOL_CALLS][{OBJECT}, {OBJECT}]"], max_calls=1)[:2] == (
        "",
        [("get_weather", WEATHER)],
    )
    broken = '<tool_call>{"name": "f", "arguments": {<</tool_call>'
    assert parse("hermes", list(broken), max_calls=1)[:2] == ("", [("f", "{")])


def test_arguments_are_streamed_as_they_come() -> None:
    parser = ToolParser(FORMATS["hermes"], NAMES)
    assert parser.feed('Hi<tool_call>{"name": "f",') == ["Hi"]
    opening, first = parser.feed(' "arguments": {"x": "a')
    assert isinstance(opening, ToolCallDelta)
    assert isinstance(first, ToolCallDelta)
    assert (opening.name, opening.arguments, first.arguments) == ("f", "", '{"x": "a')
    long = "y" * (2 * MAX_HELD_CHARS)
    assert parser.feed(long) == [ToolCallDelta(index=0, arguments=long)]
    assert parser.feed('"}') == [ToolCallDelta(index=0, arguments='"}')]
    assert parser.feed("}</tool_call>") == []
    assert parser.end() == []


def test_ids_have_openais_form_and_differ() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) == 29 and i.startswith("call_") and int(i[5:], 16) >= 0 for i in ids)


# --- any text, any cut -----------------------------------------------------------------

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", OBJECT,
    '{"name": "f", "arguments": ', '{"name":', '"arguments":', '{"x": 1}', '"f"', "f", "{", "}", "[", "]",
    ":", ";", '"', "\\", "\n", " ", "<", "tool", "é", "\ud800", "null", "-1e5", "\x00", "text ",
]  # fmt: skip
answers = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=30).map("".join)
formats = st.sampled_from(sorted(FORMATS))


@st.composite
def cut(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(answers)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]


@given(formats, cut(), st.sampled_from([None, 1, 2]))
def test_any_cut_gives_the_same(format: str, answer: tuple[str, list[str]], limit: int | None) -> None:
    text, pieces = answer
    whole = parse(format, [text], limit)
    assert parse(format, pieces, limit) == whole
    assert parse(format, list(text), limit) == whole


@given(formats, answers)
def test_nothing_is_lost_doubled_or_reordered(format: str, text: str) -> None:
    shown, calls, order = parse(format, [text])
    if not calls:
        assert shown == text
    at = 0
    for piece in order:
        # What was made of an omitted member is the only thing that the model did not write.
        wanted = piece if isinstance(piece, str) else calls[piece][1]
        found = text.find(wanted, at)
        if found < 0:
            assert wanted == "{}"
            continue
        at = found + len(wanted)


arguments = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@given(
    formats,
    st.lists(arguments, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, 2]),
    st.sampled_from(["", "Let me see. "]),
)
def test_any_json_arguments_come_back(
    format: str, all_arguments: list[Any], ascii_only: bool, indent: int | None, before: str
) -> None:
    texts = [json.dumps(a, ensure_ascii=ascii_only, indent=indent) for a in all_arguments]
    objects = [f'{{"name": "f", "arguments": {text}}}' for text in texts]
    answer = {
        "hermes": before + "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects),
        "llama3": "; ".join(objects),
        "mistral": before + "".join(f"[TOOL_CALLS]f{text}" for text in texts),
        "json": "[" + ", ".join(objects) + "]",
    }[format]
    shown, calls, _ = parse(format, list(answer))
    assert shown == (before if format in ("hermes", "mistral") else "")
    assert calls == [("f", text) for text in texts]


def steps(format: str, pieces: list[str]) -> int:
    """Lines of Python run over an answer. What runs in C copies less than a marker a piece."""
    parser = ToolParser(FORMATS[format], NAMES)
    return lines_run(lambda: [*map(parser.feed, pieces), parser.end()])


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        '<tool_call>{"x": "',
        '<tool_call>{"x":[',
        "[TOOL_CALLS][",
        "[TOOL_CALLS]f{",
        OBJECT + "; ",
        f"<tool_call>{OBJECT}</tool_call>",
        '{"name": "f", "arguments": {"x": "\\',
        "  \n",
        "<",
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_time_is_linear(format: str, unit: str, whole: bool) -> None:
    def pieces(repeats: int) -> list[str]:
        text = FORMATS[format].marker + unit * repeats
        return [text] if whole else list(text)

    small, large = steps(format, pieces(25)), steps(format, pieces(200))
    assert large <= 8 * small + 2_000
