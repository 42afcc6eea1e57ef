"""Masks hold wherever a stream is cut: what is sent in parts is the mask of the whole, and nothing leaks."""

from __future__ import annotations

import codecs
from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from serve_app.guardrails.findings import Blocked
from serve_app.guardrails.keywords import KeywordFilter, Keywords
from serve_app.guardrails.masking import PiiFilter
from serve_app.guardrails.pii import PiiFinder
from serve_app.guardrails.reading import normalised
from serve_app.guardrails.segments import MAX_CHARS, Segmenter
from serve_app.guardrails.text_filter import TextFilter, masked

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


def masking(*, blocks: bool = False) -> TextFilter:
    return TextFilter(None, PiiFilter(FINDER, blocks=blocks))


def in_parts(text: str, cuts: list[int]) -> list[str]:
    """`text` as it comes when its UTF-8 bytes are cut anywhere."""
    raw, decoder = text.encode(), codecs.getincrementaldecoder("utf-8")()
    ends = sorted(cut % (len(raw) + 1) for cut in cuts)
    return [decoder.decode(raw[a:b]) for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]


CUTS = st.lists(st.integers(0, 10**6), max_size=30)


@given(TEXTS, CUTS)
def test_a_stream_is_masked_as_the_whole_text(text: str, cuts: list[int]) -> None:
    streams_as_whole(text, cuts)


@pytest.mark.full
@settings(max_examples=5000, deadline=None)
@given(TEXTS, CUTS)
def test_many_streams_are_masked_as_the_whole_text(text: str, cuts: list[int]) -> None:
    streams_as_whole(text, cuts)


def streams_as_whole(text: str, cuts: list[int]) -> None:
    once, sent = masking(), ""
    whole = masked(text, FINDER)
    for part in in_parts(text, cuts):
        sent += once.push(part)
        assert whole.startswith(sent), "what was sent is no beginning of the mask"
    sent += once.end()
    assert sent == whole
    assert once.end() == ""
    assert not [secret for secret in SECRETS if secret in whole]


@given(st.lists(st.sampled_from(["7", "x" * 700, "12", "-", "USA", "8" * 200, "+1", " ", "\n"]), max_size=60))
def test_what_is_held_back_is_bounded(words: list[str]) -> None:
    text = " ".join(words)
    assume(masked(text, FINDER) == text)
    once, held = masking(), 0
    for start in range(0, len(text), 16):
        held += len(text[start : start + 16]) - len(once.push(text[start : start + 16]))
        assert held <= 2 * MAX_CHARS
    assert len(once.end()) == held


@pytest.mark.parametrize("secret", SECRETS)
def test_no_character_of_a_secret_is_sent_before_it_is_known(secret: str) -> None:
    """One character at a time, and again at every border: nothing of a secret but its place is ever sent."""
    text = f"Write to: {secret} — now"
    for border in range(len(text) + 1):
        once = masking()
        for part in (text[:border], text[border:]):
            sent = once.push(part)
            assert not set(sent) - set("Write to: — now<>_ABCDEFGHIKLMNOPRSTUVW"), sent
    once = masking()
    parts = [once.push(each) for each in text]
    assert all(not part or not part[0].isdigit() for part in parts)
    assert "".join(parts) + once.end() == masked(text, FINDER)
    assert secret not in masked(text, FINDER)
    blocking, passed = masking(blocks=True), ""
    try:
        for each in text:
            passed += blocking.push(each)
        blocking.end()
    except Blocked:
        assert passed == "Write to: "
    else:
        pytest.fail("it was not blocked")


DISGUISES = (
    (
        "bob@example.com",
        ["bob\\u0040example.com", "\\u0062ob@example\\u002Ecom", "ｂｏｂ＠ｅｘａｍｐｌｅ．ｃｏｍ"],
    ),
    ("bob@example.com", ["b\u200bob@exam\u00adple.com", "bob\u2060@example.com", "bob@example.com\ufe0f"]),
    ("zo\u00eb@ex\u00e4mple.org", ["zoe\u0308@exa\u0308mple.org"]),
    ("4111 1111 1111 1111", ["４１１１ １１１１ １１１１ １１１１", "4111\u20091111\u20091111\u20091111"]),
)


@pytest.mark.parametrize(("plain", "written"), [(plain, each) for plain, all in DISGUISES for each in all])
def test_what_is_disguised_is_masked_wherever_it_is_cut(plain: str, written: str) -> None:
    before, after = "Write to：", "… ﬁne"
    expected = before + masked(plain, FINDER) + " " + after
    text = f"{before}{written} {after}"
    for border in range(len(text) + 1):
        once = masking()
        sent = once.push(text[:border]) + once.push(text[border:]) + once.end()
        assert sent.replace("\ufe0f", "") == expected
        each = masking()
        assert "".join(map(each.push, text)) + each.end() == sent


def test_two_addresses_without_a_space_are_masked() -> None:
    for text in ("a@example.comb@example.org", "a@x.com.b@y.org@z.net", "a@x.com,b@y.org;c@z.net"):
        assert "@" not in masked(text, FINDER)
        assert "example" not in masked(text, FINDER)


@given(st.text(alphabet="a\\u0041nD83E\ude00\u0301é\u200bﬁ@. \n", max_size=40), CUTS)
def test_what_passes_is_sent_as_it_was_written(text: str, cuts: list[int]) -> None:
    for is_json in (False, True):
        once, sent = TextFilter(KeywordFilter(Keywords(["nothing"])), None, is_json=is_json), ""
        for part in in_parts(text.encode("utf-8", "ignore").decode(), cuts):
            sent += once.push(part)
        assert sent + once.end() == text.encode("utf-8", "ignore").decode()


@pytest.mark.parametrize(
    ("text", "stop", "is_blocked"),
    [
        ("the ", "Falcon", True),
        ("the fal", "con", True),
        ("the fal", "c", True),
        ("the ", "f", True),
        ("project blue", " ", True),
        ("the reef", "\n", False),
        ("the reef", "User:", False),
        ("the falconry", ".", False),
        ("the gulf", None, False),
        ("the falco", None, False),
    ],
)
def test_a_stop_string_does_not_tell_that_a_keyword_came(
    text: str, stop: str | None, is_blocked: bool
) -> None:
    """Else a client could find a keyword out, character by character."""
    once = TextFilter(KeywordFilter(Keywords(["Falcon", "project  Blue Sky"])), None)
    if is_blocked:
        once.push(text)
        with pytest.raises(Blocked):
            once.end(stop)
    else:
        assert once.push(text) + once.end(stop) == text


def test_a_stop_string_that_is_shown_is_read_once() -> None:
    once = TextFilter(KeywordFilter(Keywords(["Falcon"])), None)
    once.push("the fal")
    with pytest.raises(Blocked):
        once.end("")


def test_personal_data_that_a_stop_string_cuts_is_masked() -> None:
    for text, stop, sent in (
        ("mail bob", "@example.com", "mail <EMAIL_ADDRESS>"),
        ("mail ", "bob@example.com", "mail "),
        ("mail bob@example.com", "\n", "mail <EMAIL_ADDRESS>"),
        ("mail bob", "\n", "mail bob"),
    ):
        once = masking()
        assert once.push(text) + once.end(stop) == sent


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
        ("the ＦＡＬＣＯＮ flies", True),
        ("the fal\u200bcon flies", True),
        ("the \\u0066alcon flies", True),
        ("project\u2003blue\u00adsky", False),
        ("stra\\u00DFe", True),
    ],
)
def test_keywords_are_whole_words_whatever_their_case(text: str, is_found: bool) -> None:
    for size in range(1, len(text) + 1):
        once, passed = TextFilter(KeywordFilter(KEYWORDS), None), ""
        try:
            for start in range(0, len(text), size):
                passed += once.push(text[start : start + size])
            passed += once.end()
        except Blocked:
            assert is_found, text
            assert "fal" not in normalised(passed).lower()
            assert "机" not in passed
            assert "blue" not in passed.lower()
        else:
            assert not is_found, text
            assert passed == text


@given(st.text(alphabet="falcon ß机密\n", max_size=60), CUTS)
def test_a_keyword_is_found_wherever_a_stream_is_cut(text: str, cuts: list[int]) -> None:
    once, passed, found = TextFilter(KeywordFilter(KEYWORDS), None), "", False
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
