"""Incremental detokenising against the whole text (scenario C1)."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import tokenizers
from tokenizers import decoders, models

from serve_app.text.tokens.token_bytes import TokenBytes
from serve_app.text.tokens.tokenizer import Tokenizer


def streamed(tokenizer: Tokenizer, ids: list[int], chunks: random.Random, **options: bool) -> str:
    """The text from pushes of 0 to 3 ids."""
    detokenizer = tokenizer.detokenizer(**options)
    text = ""
    rest = list(ids)
    while rest:
        n = chunks.randint(0, 3)
        text += detokenizer.push(rest[:n])
        del rest[:n]
    return text + detokenizer.flush()


def joined_bytes(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")


def check_random_ids(tokenizer: Tokenizer, count: int) -> None:
    rng = random.Random(7)
    for _ in range(count):
        ids = [rng.randrange(tokenizer.vocab_size + 2) for _ in range(rng.randint(0, 40))]
        skip = rng.random() < 0.5
        shown = [i for i in ids if not (skip and i in tokenizer.special_ids)]
        text = streamed(tokenizer, ids, rng, skip_special_tokens=skip)
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)
        going_on = streamed(tokenizer, ids, rng, skip_special_tokens=skip, continues=True)
        assert going_on == joined_bytes(tokenizer, shown)
        assert going_on.endswith(text)
        assert going_on.removesuffix(text).strip(" ") == ""


def test_random_ids_stream_to_the_text_of_the_whole(exact_tokenizer: Tokenizer) -> None:
    check_random_ids(exact_tokenizer, 300)


@pytest.mark.full
def test_ten_thousand_random_id_sequences_stream_to_the_text_of_the_whole(exact_tokenizer: Tokenizer) -> None:
    check_random_ids(exact_tokenizer, 10_000)


def test_byte_level_text_equals_the_library_for_any_ids(byte_level: Tokenizer) -> None:
    rng = random.Random(3)
    for _ in range(300):
        ids = [rng.randrange(byte_level.vocab_size) for _ in range(30)]
        for skip in (True, False):
            expected = byte_level.table.backend.decode(ids, skip_special_tokens=skip)
            assert streamed(byte_level, ids, rng, skip_special_tokens=skip) == expected


@pytest.mark.parametrize(
    "text", ["Größe 😀", " the fox", "  two", "日本語のテキスト", "a👩‍👩‍👧b", "x", "", "tab\tnew\nline", "é́é"]
)
def test_real_text_equals_the_library_for_every_family(exact_tokenizer: Tokenizer, text: str) -> None:
    ids = exact_tokenizer.encode_now(text, add_special_tokens=False)
    expected = exact_tokenizer.table.backend.decode(ids)
    assert streamed(exact_tokenizer, ids, random.Random(1)) == expected
    assert exact_tokenizer.decode(ids) == expected


@pytest.mark.parametrize("first", ["▁", "▁▁", "▁the", "fox", "<0x20>", "</s>"])
@pytest.mark.parametrize("name", ["sentencepiece", "metaspace"])
def test_the_opening_space_is_dropped_as_by_the_library(
    name: str, first: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = [i for p in (first, "▁▁", "a", "▁") if (i := tokenizer.token_id(p)) is not None]
    for skip in (True, False):
        expected = tokenizer.table.backend.decode(ids, skip_special_tokens=skip)
        assert streamed(tokenizer, ids, random.Random(2), skip_special_tokens=skip) == expected


def test_a_continued_text_keeps_its_opening_space(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode_now("the fox", add_special_tokens=False)
    assert sentencepiece.decode(ids) == "the fox"
    assert streamed(sentencepiece, ids, random.Random(0), continues=True) == " the fox"


def test_a_character_is_shown_with_its_last_byte_and_never_in_halves(byte_level: Tokenizer) -> None:
    table = byte_level.table
    by_byte = {table[i]: i for i in range(byte_level.vocab_size) if len(table[i]) == 1}
    detokenizer = byte_level.detokenizer()
    shown = [detokenizer.push([by_byte[bytes([byte])]]) for byte in "a😀é".encode()]
    assert shown == ["a", "", "", "", "😀", "", "é"]
    assert detokenizer.flush() == ""


def test_bytes_that_never_become_a_character_are_not_withheld(byte_level: Tokenizer) -> None:
    table = byte_level.table
    by_byte = {table[i]: i for i in range(byte_level.vocab_size) if len(table[i]) == 1}
    detokenizer = byte_level.detokenizer()
    assert [detokenizer.push([by_byte[b"\x80"]]) for _ in range(6)] == ["�"] * 6


@pytest.mark.parametrize("tail", [b"\xf0\x9f\x98", b"\xe6\x97", b"\xc3"])
def test_an_unfinished_character_at_the_end_becomes_one_replacement(
    byte_level: Tokenizer, tail: bytes
) -> None:
    table = byte_level.table
    by_byte = {table[i]: i for i in range(byte_level.vocab_size) if len(table[i]) == 1}
    detokenizer = byte_level.detokenizer()
    assert detokenizer.push([by_byte[bytes([byte])] for byte in tail]) == ""
    assert detokenizer.flush() == "�"
    assert detokenizer.flush() == ""


def test_at_most_three_bytes_are_withheld(exact_tokenizer: Tokenizer) -> None:
    rng = random.Random(5)
    for _ in range(50):
        detokenizer = exact_tokenizer.detokenizer(skip_special_tokens=False, continues=True)
        shown, data = "", b""
        for _ in range(30):
            token_id = rng.randrange(exact_tokenizer.vocab_size)
            data += exact_tokenizer.token_bytes(token_id)
            shown += detokenizer.push([token_id])
            assert any(data[: len(data) - k].decode("utf-8", "replace") == shown for k in range(4))


def test_special_tokens_are_text_only_when_asked_for(byte_level: Tokenizer) -> None:
    ids = byte_level.encode_now("hi<|im_end|>")
    assert byte_level.decode(ids) == "hi"
    assert byte_level.decode(ids, skip_special_tokens=False) == "hi<|im_end|>"


def test_an_added_token_beyond_ascii_keeps_its_text(byte_level: Tokenizer) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level.table.backend.to_str())
    backend.add_tokens(["naïve", "｜標｜"])
    table = TokenBytes(backend)
    for text in ("naïve", "｜標｜"):
        token_id = backend.token_to_id(text)
        assert token_id is not None
        assert table[token_id] == text.encode()


def test_a_decoder_that_looks_at_neighbours_streams_to_the_text_of_the_whole(wordpiece: Tokenizer) -> None:
    assert not wordpiece.table.exact
    rng = random.Random(11)
    for _ in range(200):
        ids = [rng.randrange(wordpiece.vocab_size) for _ in range(rng.randint(0, 12))]
        assert streamed(wordpiece, ids, rng) == wordpiece.table.backend.decode(ids)


@pytest.mark.parametrize(
    "steps",
    [
        [decoders.Replace(tokenizers.Regex("▁+"), " "), decoders.Fuse()],
        [decoders.ByteFallback(), decoders.Replace("▁", " ")],
        [decoders.Strip(" ", 1, 0), decoders.Fuse()],
        [decoders.CTC()],
    ],
)
def test_a_decoder_that_is_no_plain_concatenation_is_recognised(steps: list[decoders.Decoder]) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "▁b": 1}, merges=[]))
    backend.decoder = decoders.Sequence(steps)
    assert not TokenBytes(backend).exact


def test_growing_texts_only_append(exact_tokenizer: Tokenizer) -> None:
    ids = exact_tokenizer.encode_now("Größe 😀 the fox", add_special_tokens=False)
    detokenizer = exact_tokenizer.detokenizer()
    shown = [""]
    for token_id in ids:
        shown.append(shown[-1] + detokenizer.push([token_id]))
    assert all("�" not in text for text in shown)
    assert all(after.startswith(before) for before, after in pairwise(shown))
