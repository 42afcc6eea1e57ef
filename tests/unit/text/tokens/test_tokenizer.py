"""Bounded encoding off the event loop, equal to transformers; the bytes of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from serve_app.errors import InvalidField, PromptTooLong
from serve_app.limits import MAX_PROMPT_CHARS
from serve_app.text.tokens.files import TokenizerLoadError
from serve_app.text.tokens.tokenizer import Tokenizer
from tests.support.counted import ticks_during

TEXTS = ["", "Hello fox", "  two spaces ", "Größe 😀\n\n", "a<|im_end|>b</s>", "the the\tthe"]


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "metaspace", "wordpiece"])
@pytest.mark.parametrize("add_special_tokens", [True, False])
async def test_raw_prompts_encode_as_in_transformers(
    name: str, add_special_tokens: bool, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(f"{name}_folder")
    tokenizer: Tokenizer = request.getfixturevalue(name)
    reference = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        expected = reference.encode(text, add_special_tokens=add_special_tokens)
        assert await tokenizer.encode(text, add_special_tokens=add_special_tokens) == expected
        assert tokenizer.decode(expected) == reference.decode(expected, skip_special_tokens=True)


def test_whether_bos_is_added_is_the_tokenizer_files_word_as_in_transformers(
    sentencepiece_folder: Path, byte_level_folder: Path, tmp_path: Path
) -> None:
    for folder, flag in ((sentencepiece_folder, False), (byte_level_folder, True)):
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config |= {"add_bos_token": flag, "bos_token": config.get("bos_token", "<|endoftext|>")}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
        assert Tokenizer.load(tmp_path).encode_now("fox") == AutoTokenizer.from_pretrained(tmp_path).encode(
            "fox"
        )


def test_tokens_known_only_to_the_configuration_are_added_under_their_ids(
    metaspace_folder: Path, tmp_path: Path
) -> None:
    size = Tokenizer.load(metaspace_folder).vocab_size
    config = json.loads((metaspace_folder / "tokenizer_config.json").read_text())
    added = {"content": "<sep>", "special": True, "normalized": False, "lstrip": False, "rstrip": False}
    config["added_tokens_decoder"] = {str(size): added | {"single_word": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_bytes((metaspace_folder / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.token_id("<sep>") == size
    assert size in tokenizer.special_ids
    assert tokenizer.encode_now("a<sep>") == AutoTokenizer.from_pretrained(tmp_path).encode("a<sep>")


def test_a_stored_truncation_never_cuts_a_prompt(byte_level_folder: Path, tmp_path: Path) -> None:
    stored = json.loads((byte_level_folder / "tokenizer.json").read_text())
    stored["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    assert len(Tokenizer.load(tmp_path).encode_now("0 1 2 3 4 5 6 7 8 9")) > 4


async def test_a_long_prompt_does_not_stop_the_event_loop(byte_level: Tokenizer) -> None:
    text = "the quick brown fox jumps over the lazy dog. " * (300_000 // 45)
    ids, ticks = await ticks_during(byte_level.encode(text))
    assert byte_level.decode(ids) == text
    assert ticks >= 5


async def test_long_and_short_prompts_encode_alike(byte_level: Tokenizer) -> None:
    text = "naïve fox 😀 " * 400
    assert await byte_level.encode(text) == byte_level.encode_now(text)


async def test_a_prompt_beyond_the_limit_is_refused_before_encoding(byte_level: Tokenizer) -> None:
    with pytest.raises(PromptTooLong) as caught:
        await byte_level.encode("a" * (MAX_PROMPT_CHARS + 1))
    assert caught.value.param == "prompt"
    assert str(MAX_PROMPT_CHARS) in caught.value.message


@pytest.mark.parametrize("repeat", [1, 3_000])
async def test_a_lone_surrogate_is_an_invalid_field(byte_level: Tokenizer, repeat: int) -> None:
    with pytest.raises(InvalidField) as caught:
        await byte_level.encode("\ud800" * repeat)
    assert caught.value.param == "prompt"


def test_token_bytes_are_the_true_bytes(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    text = "Größe 😀 the fox"
    for tokenizer, expected in ((byte_level, text), (sentencepiece, " " + text)):
        ids = tokenizer.encode_now(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == expected.encode()
    newline = sentencepiece.token_id("<0x0A>")
    assert newline is not None
    assert (sentencepiece.token_bytes(newline), sentencepiece.token_text(newline)) == (b"\n", "\n")


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_an_id_that_is_no_token_has_no_text(exact_tokenizer: Tokenizer, token_id: int) -> None:
    assert exact_tokenizer.token_bytes(token_id) == b""
    assert exact_tokenizer.decode([token_id]) == ""


def test_special_ids_are_the_flagged_and_the_named_tokens(byte_level: Tokenizer) -> None:
    assert byte_level.eos_token_id == byte_level.token_id("<|im_end|>")
    assert byte_level.bos_token_id is None
    assert byte_level.token_id("<|fim_prefix|>") in byte_level.special_ids
    assert byte_level.token_id("<tool_call>") not in byte_level.special_ids


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_folder_without_a_usable_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerLoadError):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_in_older_files_is_converted(byte_level_folder: Path, tmp_path: Path) -> None:
    model = json.loads((byte_level_folder / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "eos_token": "<|im_end|>",
        "bos_token": None,
        "unk_token": None,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    text = "Größe 😀 the fox"
    assert tokenizer.encode_now(text) == AutoTokenizer.from_pretrained(tmp_path).encode(text)
    assert tokenizer.decode(tokenizer.encode_now(text)) == text


def test_a_folder_whose_tokenizer_needs_its_own_code_is_refused(tmp_path: Path) -> None:
    config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(TokenizerLoadError):
        Tokenizer.load(tmp_path)
