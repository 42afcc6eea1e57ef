"""Stop strings over the borders of tokens and chunks, against a brute-force oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.text.answer.stop import StopMatcher, StopStrings

WORDS = st.text(alphabet="ab☃", min_size=1, max_size=5)


def oracle(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the first match ends, and the longest stop string that ends there."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            return end, max(ending, key=len)
    return None


def could_match(suffix: str, stops: list[str]) -> bool:
    return any(s.startswith(suffix) for s in stops)


@settings(deadline=None)
@given(
    stops=st.lists(WORDS, max_size=6),
    chunks=st.lists(st.text(alphabet="ab☃", max_size=6)),
    include=st.booleans(),
)
def test_matches_and_held_text_equal_a_brute_force_search(
    stops: list[str], chunks: list[str], include: bool
) -> None:
    matcher = StopMatcher(StopStrings(stops, include_stop=include))
    shown = seen = ""
    for chunk in chunks:
        seen += chunk
        expected = oracle(seen, stops)
        text, stop = matcher.push(chunk)
        shown += text
        if expected is not None:
            end, longest = expected
            assert stop == longest
            assert shown == (seen[:end] if include else seen[: end - len(longest)])
            return
        assert stop is None
        assert seen.startswith(shown)
        held = seen[len(shown) :]
        needed = max((k for k in range(len(seen) + 1) if k == 0 or could_match(seen[-k:], stops)), default=0)
        assert len(held) == needed
    assert shown + matcher.flush() == seen


@settings(deadline=None)
@given(stops=st.lists(WORDS, min_size=1, max_size=6), text=st.text(alphabet="ab☃", max_size=30))
def test_the_result_does_not_depend_on_how_the_text_is_cut(stops: list[str], text: str) -> None:
    shared = StopStrings(stops)

    def run(pieces: list[str]) -> tuple[str, str | None]:
        matcher = StopMatcher(shared)
        shown = ""
        for piece in pieces:
            part, stop = matcher.push(piece)
            shown += part
            if stop is not None:
                return shown, stop
        return shown + matcher.flush(), None

    assert run(list(text)) == run([text])


def test_a_match_inside_a_longer_candidate_is_found() -> None:
    assert StopMatcher(StopStrings(["abcd", "bc"])).push("xabcd") == ("xa", "bc")


def test_of_matches_that_end_together_the_longest_wins() -> None:
    assert StopMatcher(StopStrings(["c", "abc"])).push("xabc") == ("x", "abc")


def test_nothing_is_held_back_without_a_candidate() -> None:
    matcher = StopMatcher(StopStrings(["\n\n", "END"]))
    assert [matcher.push(t).text for t in ("a", "\n", "b", "EN", "E")] == ["a", "", "\nb", "", "EN"]
    assert matcher.flush() == "E"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError):
        StopStrings(["a", ""])


def test_the_largest_set_of_stop_strings_costs_constant_steps_a_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops = StopStrings(["a" * (1023 - i % 512) + f"{i:04d}" for i in range(1024)])
    from serve_app.text.answer import stop as module

    made = 0
    extend = module._extend

    def counted(*args: object) -> object:
        nonlocal made
        made += 1
        return extend(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_extend", counted)
    matcher = StopMatcher(stops)
    num_chars = 0
    for _ in range(20):
        for chunk in ("a" * 700, "b", "aaaa" * 200):
            assert matcher.push(chunk).stop is None
            num_chars += len(chunk)
    assert made < 2 * num_chars


def test_the_trie_is_only_made_where_the_text_goes() -> None:
    stops = StopStrings([chr(0x4E00 + i) * 1024 for i in range(1024)])
    StopMatcher(stops).push("no such character " * 100)
    assert not stops.root.children
