"""What a model thinks, apart from what it says: for any text and any cut."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.text.answer.reasoning import FORMATS, ReasoningParser, find_reasoning_format
from serve_app.text.tokens.tokenizer import Tokenizer
from tests.support.counted import lines_run
from tests.support.tiny_llama import make_tiny_llama

THINK = FORMATS["think"]


def parse(pieces: list[str], opened: bool = False, format: str = "think") -> tuple[str, str]:
    parser = ReasoningParser(FORMATS[format], opened=opened)
    thoughts = [*map(parser.feed, pieces), parser.end()]
    return "".join(t.reasoning for t in thoughts), "".join(t.text for t in thoughts)


@pytest.mark.parametrize(
    ("answer", "opened", "expected"),
    [
        ("Hello", False, ("", "Hello")),
        (" \nHello ", False, ("", " \nHello ")),
        ("<think>\nHm <b>.\n</think>\n\nHello </think>", False, ("Hm <b>.\n", "Hello </think>")),
        ("\n<think>Hm", False, ("Hm", "")),
        ("<think>Hm</thin", False, ("Hm</thin", "")),
        ("<thin", False, ("", "<thin")),
        ("<thing>", False, ("", "<thing>")),
        ("So <think>Hm</think>", False, ("", "So <think>Hm</think>")),
        ("<think>\n\n</think>\n\nHello", False, ("", "Hello")),
        ("\nHm\n</think>\nHello", True, ("Hm\n", "Hello")),
        ("</think>Hello", True, ("", "Hello")),
        ("<think>\nHm</think>Hello", True, ("Hm", "Hello")),
        ("<b>Hm", True, ("<b>Hm", "")),
        ("", True, ("", "")),
    ],
)
def test_thoughts_are_split_off(answer: str, opened: bool, expected: tuple[str, str]) -> None:
    assert parse([answer], opened) == expected
    assert parse(list(answer), opened) == expected


def test_other_markers() -> None:
    assert parse(["[THINK]Hm[/THINK]<think>"], format="magistral") == ("Hm", "<think>")


def test_text_is_not_held_back() -> None:
    parser = ReasoningParser(THINK, opened=False)
    assert parser.feed("<think>a").reasoning == "a"
    assert parser.feed(" b </").reasoning == " b "
    assert parser.feed("c").reasoning == "</c"
    assert parser.feed("</think> d").text == "d"
    assert parser.feed(" e </").text == " e </"


def test_a_prompt_that_ends_inside_is_recognised() -> None:
    assert THINK.opened_by("<|im_start|>assistant\n<think>\n")
    assert not THINK.opened_by("<think>\n\n</think>\n\n")
    assert not THINK.opened_by("<|im_start|>assistant\n")


PARTS = ["<think>", "</think>", "<", "/", "think", ">", "\n", " ", "a"]


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=20),
    st.booleans(),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_any_cut_gives_the_same_and_only_markers_and_blanks_are_dropped(
    parts: list[str], opened: bool, places: list[int]
) -> None:
    text = "".join(parts)
    cuts = sorted(min(place, len(text)) for place in places)
    whole = parse([text], opened)
    assert parse([text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])], opened) == whole
    assert parse(list(text), opened) == whole
    reasoning, said = whole
    assert text.endswith(said)
    thought = text[: len(text) - len(said)]
    around = re.compile(r"\s*(<think>\s*)?" + re.escape(reasoning) + r"(</think>\s*)?")
    assert around.fullmatch(thought)


def steps(pieces: list[str]) -> int:
    """Lines of Python run over an answer."""
    parser = ReasoningParser(THINK, opened=False)
    return lines_run(lambda: [*map(parser.feed, pieces), parser.end()])


@pytest.mark.parametrize("unit", ["<think>", "</", "\n", "word "])
@pytest.mark.parametrize("whole", [True, False])
def test_time_is_linear(unit: str, whole: bool) -> None:
    def pieces(repeats: int) -> list[str]:
        text = "<think>" + unit * repeats
        return [text] if whole else list(text)

    assert steps(pieces(800)) <= 8 * steps(pieces(100)) + 2_000


@pytest.mark.parametrize(
    ("setting", "template", "expected"),
    [
        ("auto", "{{ messages[0].content.split('</think>')[-1] }}", "think"),
        ("auto", "{{ messages[0].content }}", None),
        ("none", "</think>", None),
        ("magistral", "</think>", "magistral"),
    ],
)
def test_the_format_is_the_settings_or_the_templates(
    tmp_path_factory: pytest.TempPathFactory, setting: str, template: str, expected: str | None
) -> None:
    tokenizer = Tokenizer.load(make_tiny_llama(tmp_path_factory.mktemp("tiny")), chat_template=template)
    found = find_reasoning_format(setting, tokenizer)
    assert (found and found.name) == expected
