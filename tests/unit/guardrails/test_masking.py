"""Masks hold wherever a stream is cut: what is sent in parts is the mask of the whole, and nothing leaks."""

from __future__ import annotations

import codecs
from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from serve_app.guardrails.findings import Blocked
from serve_app.guardrails.keywords import KeywordFilter, Keywords
from serve_app.guardrails.masking import PiiFilter, masked
from serve_app.guardrails.pii import PiiFinder
from serve_app.guardrails.segments import MAX_CHARS, Segmenter

FINDER = PiiFinder(("US", "DE"))
SECRETS = (
    "john.doe+news@mail.example.co.uk",
    "zoë@exämple.org",
    "4111 1111 1111 1111",
    "5500-0000-0000-0004",
    "378282246310005",
    "219-09-9999",
    "+1 (212) 555-0100",
    "+49 30 901820",
    "212.555.0134",
    "DE89 3704 0044 0532 0130 00",
    "GB29NWBK60161331926819",
    "GB29 NWBK 6016 1331 9268 19",
    "a" * 60 + "@" + "b" * 60 + "." + "c" * 60 + "." + "d" * 58 + ".org",
)
FILLERS = st.one_of(
    st.sampled_from(
        ["Hello", "is", "7", "USA", "3.14", "谢谢", "，", "—", "😀", "\n", "(", "GB", "end.", "x" * 500]
    ),
    st.text(alphabet="aZ9 .-@/\n\té漢", max_size=12),
)
LONG: Final = 3_000_000  # characters; with time that grows with the square it takes minutes
# Secrets stand between spaces: what a neighbour may glue to a number decides whether it is one.
TEXTS = st.lists(
    st.one_of(FILLERS, st.sampled_from(SECRETS).map(lambda secret: f"\n{secret}\n")), max_size=12
).map(" ".join)


def in_parts(text: str, cuts: list[int]) -> list[str]:
    """`text` as it comes when its UTF-8 bytes are cut anywhere."""
    raw, decoder = text.encode(), codecs.getincrementaldecoder("utf-8")()
    ends = sorted(cut % (len(raw) + 1) for cut in cuts)
    return [decoder.decode(raw[a:b]) for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]


CUTS = st.lists(st.integers(0, 10**6), max_size=30)


@settings(max_examples=100, deadline=None)
@given(TEXTS, CUTS)
def test_a_stream_is_masked_as_the_whole_text(text: str, cuts: list[int]) -> None:
    streams_as_whole(text, cuts)


@pytest.mark.full
@settings(max_examples=5000, deadline=None)
@given(TEXTS, CUTS)
def test_many_streams_are_masked_as_the_whole_text(text: str, cuts: list[int]) -> None:
    streams_as_whole(text, cuts)


def streams_as_whole(text: str, cuts: list[int]) -> None:
    once, sent = PiiFilter(FINDER, blocks=False), ""
    whole = masked(text, FINDER)
    for part in in_parts(text, cuts):
        sent += once.push(part)
        assert whole.startswith(sent), "what was sent is no beginning of the mask"
    sent += once.end()
    assert sent == whole
    assert once.end() == ""
    assert not [secret for secret in SECRETS if secret in whole]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["7", "x" * 700, "12", "-", "USA", "8" * 200, "+1", " ", "\n"]), max_size=60))
def test_what_is_held_back_is_bounded(words: list[str]) -> None:
    text = " ".join(words)
    assume(masked(text, FINDER) == text)
    once, held = PiiFilter(FINDER, blocks=False), 0
    for start in range(0, len(text), 16):
        held += len(text[start : start + 16]) - len(once.push(text[start : start + 16]))
        assert held <= 2 * MAX_CHARS
    assert len(once.end()) == held


@pytest.mark.parametrize("secret", SECRETS)
def test_no_character_of_a_secret_is_sent_before_it_is_known(secret: str) -> None:
    """One character at a time, and again at every border: nothing of a secret but its place is ever sent."""
    text = f"Write to: {secret} — now"
    for border in range(len(text) + 1):
        once = PiiFilter(FINDER, blocks=False)
        for part in (text[:border], text[border:]):
            sent = once.push(part)
            assert not set(sent) - set("Write to: — now<>_ABCDEFGHIKLMNOPRSTUVW"), sent
    once = PiiFilter(FINDER, blocks=False)
    parts = [once.push(each) for each in text]
    assert all(not part or not part[0].isdigit() for part in parts)
    assert "".join(parts) + once.end() == masked(text, FINDER)
    assert secret not in masked(text, FINDER)
    blocking, passed = PiiFilter(FINDER, blocks=True), ""
    try:
        for each in text:
            passed += blocking.push(each)
        blocking.end()
    except Blocked:
        assert passed == "Write to: "
    else:
        pytest.fail("it was not blocked")


KEYWORDS = Keywords(["Falcon", "project  Blue Sky", "机密", "C++", "straße"])


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("the FALCON flies", True),
        ("falcon", True),
        ("falcons fly", False),
        ("Project\n blue\tsky!", True),
        ("project blue skyline", False),
        ("这是机密文件", True),
        ("we use c++.", True),
        ("STRASSE 5", True),
        ("a falco and a project blue", False),
    ],
)
def test_keywords_are_whole_words_whatever_their_case(text: str, is_found: bool) -> None:
    for size in range(1, len(text) + 1):
        once, passed = KeywordFilter(KEYWORDS), ""
        try:
            for start in range(0, len(text), size):
                passed += once.push(text[start : start + size])
            passed += once.end()
        except Blocked:
            assert is_found, text
            assert "fal" not in passed.lower()
            assert "机" not in passed
            assert "blue" not in passed.lower()
        else:
            assert not is_found, text
            assert passed == text


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="falcon ß机密\n", max_size=60), CUTS)
def test_a_keyword_is_found_wherever_a_stream_is_cut(text: str, cuts: list[int]) -> None:
    once, passed, found = KeywordFilter(KEYWORDS), "", False
    try:
        passed = "".join(map(once.push, in_parts(text, cuts))) + once.end()
    except Blocked:
        found = True
    assert found == KEYWORDS.occur(text)
    assert found or passed == text


def test_a_word_of_megabytes_takes_as_long_as_its_length_says() -> None:
    cut = Segmenter(lambda piece: [])
    pieces = [*cut.push("a" * LONG), *cut.end()]
    assert "".join(pieces) == "a" * LONG
    assert max(map(len, pieces)) <= MAX_CHARS
