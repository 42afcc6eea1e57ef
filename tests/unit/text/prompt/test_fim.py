"""Fill-in-the-middle prompts of the common families."""

from __future__ import annotations

import pytest

from serve_app.errors import PromptTooLong
from serve_app.limits import MAX_PROMPT_CHARS
from serve_app.text.prompt.fim import FillInTheMiddle
from serve_app.text.tokens.tokenizer import Tokenizer


async def test_prefix_and_suffix_stand_behind_their_tokens(byte_level: Tokenizer) -> None:
    fim = FillInTheMiddle.find(byte_level)
    assert fim is not None
    ids = await fim.encode("def add(", "return a")
    text = byte_level.decode(ids, skip_special_tokens=False)
    assert text == "<|fim_prefix|>def add(<|fim_suffix|>return a<|fim_middle|>"
    assert ids[0] == byte_level.token_id("<|fim_prefix|>")
    assert ids[-1] == byte_level.token_id("<|fim_middle|>")


async def test_a_sentencepiece_model_gets_its_begin_token_and_no_space_before_the_suffix(
    sentencepiece: Tokenizer,
) -> None:
    fim = FillInTheMiddle.find(sentencepiece)
    assert fim is not None
    ids = await fim.encode("def add(", "return a")
    assert ids[0] == sentencepiece.bos_token_id
    cut = ids.index(fim.suffix_id)
    assert b"".join(map(sentencepiece.token_bytes, ids[2:cut])) == b" def add("
    assert b"".join(map(sentencepiece.token_bytes, ids[cut + 1 : -1])) == b"return a"


async def test_code_that_quotes_the_tokens_cannot_move_the_gap(byte_level: Tokenizer) -> None:
    fim = FillInTheMiddle.find(byte_level)
    assert fim is not None
    ids = await fim.encode('x = "<|fim_suffix|>"', "<|fim_middle|>\n")
    assert [ids.count(i) for i in (fim.prefix_id, fim.suffix_id, fim.middle_id)] == [1, 1, 1]
    assert byte_level.decode(ids) == 'x = "<|fim_suffix|>"<|fim_middle|>\n'


async def test_empty_texts_are_allowed(byte_level: Tokenizer) -> None:
    fim = FillInTheMiddle.find(byte_level)
    assert fim is not None
    assert await fim.encode("", "") == [fim.prefix_id, fim.suffix_id, fim.middle_id]


async def test_both_texts_together_are_bounded(byte_level: Tokenizer) -> None:
    fim = FillInTheMiddle.find(byte_level)
    assert fim is not None
    with pytest.raises(PromptTooLong):
        await fim.encode("a" * MAX_PROMPT_CHARS, "b")


def test_a_model_without_the_tokens_has_none(metaspace: Tokenizer) -> None:
    assert FillInTheMiddle.find(metaspace) is None
