"""The text of one choice: tokens used, stop strings over tokens, what is shown at the end."""

from __future__ import annotations

import random

import pytest

from serve_app.text.answer.output_text import OutputText, TextStep
from serve_app.text.answer.stop import StopStrings
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import PositionLogprobs, TopLogprob


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token a byte, so that token borders are everywhere."""
    table = tokenizer.table
    by_byte = {table[i]: i for i in range(tokenizer.vocab_size) if len(table[i]) == 1}
    return [by_byte[bytes([byte])] for byte in text.encode()]


def test_the_token_that_completes_the_stop_string_counts_and_the_next_do_not(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, stop=["cd"])
    assert output.push(byte_ids(byte_level, "abc")) == TextStep("ab", 3, None)
    assert output.push(byte_ids(byte_level, "def")) == TextStep("", 1, "cd")
    assert output.push(byte_ids(byte_level, "g")) == TextStep("", 0, "cd")
    assert output.flush() == ""


def test_no_stop_string_ends_within_the_first_tokens(byte_level: Tokenizer) -> None:
    ids = byte_ids(byte_level, "xabxababx")
    for least, shown in ((0, "x"), (2, "x"), (3, "xabx"), (5, "xabx"), (6, "xabxab"), (8, "xabxababx")):
        for size in (1, 4, 9):
            output = OutputText(byte_level, stop=["ab"], min_tokens=least)
            steps = [output.push(ids[at : at + size]) for at in range(0, len(ids), size)]
            assert "".join(step.text for step in steps) + output.flush() == shown, (least, size)
            used = sum(step.num_tokens_used for step in steps)
            assert used == min(9, len(shown) + 2)


def test_half_a_character_at_the_end_stops_only_behind_the_first_tokens(byte_level: Tokenizer) -> None:
    ids = byte_ids(byte_level, "aé")[:2]
    for least, shown in ((1, ""), (2, "a\ufffd")):
        output = OutputText(byte_level, stop=["a\ufffd"], min_tokens=least)
        assert output.push(ids).text + output.flush() == shown


def test_include_stop_keeps_the_match_and_nothing_after_it(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, stop=["cd"], include_stop=True)
    assert output.push(byte_ids(byte_level, "abcdef")) == TextStep("abcd", 4, "cd")


def test_a_stop_string_inside_one_token_cuts_that_token(byte_level: Tokenizer) -> None:
    ids = byte_level.encode_now("again and again")
    output = OutputText(byte_level, stop=["in an"])
    step = output.push(ids)
    assert (step.text, step.stop) == ("aga", "in an")
    assert byte_level.decode(ids[: step.num_tokens_used]).startswith("again an")
    assert "in an" not in byte_level.decode(ids[: step.num_tokens_used - 1])


def test_a_stop_string_of_split_characters_is_found(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, stop=["😀é"])
    ids = byte_ids(byte_level, "x😀éy")
    steps = [output.push([i]) for i in ids]
    assert "".join(step.text for step in steps) == "x"
    assert sum(step.num_tokens_used for step in steps) == len(ids) - 1
    assert steps[-1].stop == "😀é"


def test_a_partial_match_is_shown_at_the_end(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, stop=["cde"])
    assert output.push(byte_ids(byte_level, "abcd")) == TextStep("ab", 4, None)
    assert output.flush() == "cd"


def test_half_a_character_at_the_end_is_shown_as_a_replacement(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, stop=["é!"])
    assert output.push(byte_ids(byte_level, "aé")[:2]).text == "a"
    assert output.flush() == "�"


def test_a_stop_string_completed_by_the_last_replacement_cuts_the_end(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, stop=["a�"])
    assert output.push(byte_ids(byte_level, "xaé")[:3]).text == "x"
    assert output.flush() == ""


def test_special_end_tokens_are_counted_and_never_shown(byte_level: Tokenizer) -> None:
    end = byte_level.eos_token_id
    assert end is not None
    ids = [*byte_ids(byte_level, "ab"), end]
    assert OutputText(byte_level).push(ids) == TextStep("ab", 3, None)
    assert OutputText(byte_level, stop=["<|im_end|>"]).push(ids) == TextStep("ab", 3, None)
    assert OutputText(byte_level, skip_special_tokens=False).push(ids).text == "ab<|im_end|>"


def test_the_stop_token_that_ended_the_sequence_is_shown_only_with_include_stop(
    byte_level: Tokenizer,
) -> None:
    ids = byte_ids(byte_level, "ab.")
    assert OutputText(byte_level).push(ids, end_token=True) == TextStep("ab", 3, None)
    assert OutputText(byte_level, stop=["x"]).push(ids, end_token=True) == TextStep("ab", 3, None)
    assert OutputText(byte_level, include_stop=True).push(ids, end_token=True) == TextStep("ab.", 3, None)


def test_choices_that_share_stop_strings_do_not_share_their_text(byte_level: Tokenizer) -> None:
    stops = StopStrings(["cd"])
    first, second = OutputText(byte_level, stop=stops), OutputText(byte_level, stop=stops)
    assert first.push(byte_ids(byte_level, "xc")).text == "x"
    assert second.push(byte_ids(byte_level, "d")) == TextStep("d", 1, None)
    assert first.push(byte_ids(byte_level, "d")) == TextStep("", 1, "cd")


@pytest.mark.parametrize("skip", [True, False])
def test_streamed_text_equals_the_text_in_one_piece_for_random_ids(
    exact_tokenizer: Tokenizer, skip: bool
) -> None:
    rng = random.Random(13)
    for _ in range(100):
        ids = [rng.randrange(exact_tokenizer.vocab_size) for _ in range(30)]
        output = OutputText(exact_tokenizer, stop=["no such text"], skip_special_tokens=skip)
        text = "".join(output.push([i]).text for i in ids) + output.flush()
        assert text == exact_tokenizer.decode(ids, skip_special_tokens=skip)


def test_log_probabilities_carry_each_tokens_own_text_and_bytes(byte_level: Tokenizer) -> None:
    half, letter = byte_ids(byte_level, "é")[0], byte_ids(byte_level, "a")[0]
    described = OutputText(byte_level).describe(PositionLogprobs(half, -1.5, (TopLogprob(letter, -0.5),)))
    assert (described.text, described.data, described.logprob) == ("�", b"\xc3", -1.5)
    assert [(top.text, top.data, top.logprob) for top in described.top] == [("a", b"a", -0.5)]
