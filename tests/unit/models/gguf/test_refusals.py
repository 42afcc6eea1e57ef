"""A GGUF file that is damaged, or says something that is not known here, is refused by name."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from gguf.constants import GGUF_DEFAULT_ALIGNMENT

from serve_app.models.errors import ModelLoadError
from serve_app.models.gguf.folder import describe, folder_of
from serve_app.models.source import locate
from tests.support.gguf_files import Type, make_gguf, settings_of, vocabulary, write
from tests.support.quantised import load

CONFIG: Final = {
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10_000.0},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A whole file of a small model."""
    make_gguf(tmp_path / "m.gguf", "llama", lambda name: Type.Q8_0)
    return tmp_path / "m.gguf"


def header(path: Path, settings: dict[str, Any] | None = None, **tensors: Any) -> Path:
    """A file of which only the header is of interest."""
    kept = {"token_embd.weight": (np.zeros((128, 32), "<f4"), Type.F32), **tensors}
    kept.setdefault("blk.0.attn_norm.weight", (np.zeros(32, "<f4"), Type.F32))
    write(path, "llama", {**settings_of("llama", CONFIG), **vocabulary(), **(settings or {})}, kept)
    return path


def patched(path: Path, old: bytes, new: bytes) -> Path:
    """The file with its first `old` replaced."""
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    return path


def entry(name: str) -> bytes:
    """How the entry of a tensor begins."""
    return struct.pack("<Q", len(name)) + name.encode()


def test_a_file_that_ends_anywhere_is_incomplete(file: Path) -> None:
    data = file.read_bytes()
    for end in (*range(0, 400, 7), *range(400, len(data), len(data) // 60), len(data) - 1):
        file.write_bytes(data[:end])
        with pytest.raises(ModelLoadError, match=r"m\.gguf"):
            describe([file])


def test_a_header_with_any_byte_changed_is_read_or_refused(file: Path) -> None:
    data, draw = file.read_bytes(), random.Random(0)
    end = data.index(b"token_embd.weight")
    refused = 0
    for _ in range(250):
        place = draw.randrange(4, end)
        file.write_bytes(data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :])
        try:
            folder_of([file], lambda line: None)
        except ModelLoadError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"GGUF", b"GGML", "does not begin with GGUF"),
        (b"GGUF\x03\0\0\0", b"GGUF\x01\0\0\0", "its version is 1"),
        (b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", "the other byte order"),
        (
            entry("blk.0.attn_norm.weight") + struct.pack("<I", 1),
            entry("blk.0.attn_norm.weight") + struct.pack("<I", 9),
            "attn_norm.weight has 9 dimensions",
        ),
        (
            entry("token_embd.weight") + struct.pack("<IQQ", 2, 32, 128),
            entry("token_embd.weight") + struct.pack("<IQQ", 2, 32, 2**60),
            "token_embd.weight has the impossible shape|ends within token_embd.weight",
        ),
        (
            entry("token_embd.weight") + struct.pack("<IQQ", 2, 32, 128),
            entry("token_embd.weight") + struct.pack("<IQQ", 2, 32, 0),
            "token_embd.weight has the impossible shape",
        ),
        (
            entry("token_embd.weight") + struct.pack("<IQQI", 2, 32, 128, 0),
            entry("token_embd.weight") + struct.pack("<IQQI", 2, 32, 128, 16),
            "token_embd.weight is of type IQ2_XXS, which is not read here",
        ),
        (
            entry("token_embd.weight") + struct.pack("<IQQI", 2, 32, 128, 0),
            entry("token_embd.weight") + struct.pack("<IQQI", 2, 32, 128, 12),
            "32 columns, which blocks of 256 of its type Q4_K do not divide",
        ),
        (
            struct.pack("<IQ", 3, 2),
            struct.pack("<IQ", 3, 2**62),
            f"{2**62} tensors do not fit",
        ),
        (b"blk.0.attn_norm.weight", b"blk.1.attn_norm.weight", "tensors of 1 layers|another layer"),
        (b"blk.0.attn_norm.weight", b"blk.0.attn_morn.weight", "attn_morn.weight is not known"),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, old: bytes, new: bytes, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        describe([patched(header(tmp_path / "m.gguf"), old, new)])


@pytest.mark.parametrize("alignment", [0, 24, 2**31])
def test_an_alignment_is_a_power_of_two(tmp_path: Path, alignment: int) -> None:
    path = header(tmp_path / "m.gguf", {"general.alignment": GGUF_DEFAULT_ALIGNMENT})
    key = entry("general.alignment") + struct.pack("<I", 4)
    patched(path, key + struct.pack("<I", GGUF_DEFAULT_ALIGNMENT), key + struct.pack("<I", alignment))
    with pytest.raises(ModelLoadError, match=r"general\.alignment is|ends within"):
        describe([path])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rope.scaling.type": "sideways"}, "positions are scaled as 'sideways'"),
        (
            {"rope.scaling.yarn_log_multiplier": 0.1},
            "llama.rope.scaling.yarn_log_multiplier is not known here",
        ),
        ({"rope.scaling.attn_factor": 1.2}, "rope.scaling.attn_factor is 1.2"),
        ({"attention.value_length": 8}, "its values have 8 numbers, its keys 16"),
        ({"block_count": None}, "lacks the setting llama.block_count"),
        ({"block_count": 3}, "tensors of 1 layers, not of 3"),
        ({"embedding_length": 64}, r"embeddings have the shape \[128, 32\]"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon is nan"),
        ({"attention.head_count": "two"}, "head_count is 'two'"),
    ],
)
def test_a_setting_that_is_missing_wrong_or_unknown_is_named(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        describe([header(tmp_path / "m.gguf", settings)])


def test_halves_of_experts_have_one_type(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    make_gguf(path, "gpt_oss", lambda name: Type.Q8_0 if "ffn_up" in name else Type.Q4_0)
    with pytest.raises(ModelLoadError, match=r"ffn_gate_exps\.weight is Q4_0 .*ffn_up_exps\.weight is Q8_0"):
        describe([path])


def test_a_half_of_experts_that_is_missing_is_named(tmp_path: Path) -> None:
    data = (np.zeros((4, 32, 32), "<f4"), Type.F32)
    tensors = {"token_embd.weight": (np.zeros((128, 32), "<f4"), Type.F32), "blk.0.ffn_up_exps.weight": data}
    more = {"attention.sliding_window": 8, "expert_feed_forward_length": 32, "expert_count": 4}
    settings = {**settings_of("gpt-oss", CONFIG), **vocabulary(), **more, "expert_used_count": 2}
    write(tmp_path / "m.gguf", "gpt-oss", settings, tensors)
    with pytest.raises(ModelLoadError, match=r"of blk\.0\.ffn_up_exps\.weight and what belongs to it"):
        describe([tmp_path / "m.gguf"])


def test_an_architecture_that_is_not_read_is_named(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (np.zeros((8, 32), "<f4"), Type.F32)}
    write(tmp_path / "m.gguf", "rwkv7", {"block_count": 1}, tensors)
    with pytest.raises(ModelLoadError, match=r"'rwkv7' is not read from GGUF files here.*with safetensors"):
        describe([tmp_path / "m.gguf"])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"tokenizer.ggml.pre": "unheard-of"},
            r"\(tokenizer\.ggml\.pre\) is 'unheard-of'.*tokenizer\.json of",
        ),
        ({"tokenizer.ggml.pre": None}, r"\(tokenizer\.ggml\.pre\) is None"),
        ({"tokenizer.ggml.model": "rwkv"}, "its kind is 'rwkv'"),
        ({"tokenizer.ggml.merges": ["x yz"]}, "out of vocabulary"),
        ({"tokenizer.ggml.eos_token_id": 4000}, "its eos_token_id is 4000"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "128 tokens have 2 types"),
        ({"tokenizer.ggml.tokens": ["a"] * 128}, "it has a token twice"),
        ({"tokenizer.ggml.tokens": ["a"] * 129}, "more tokens than the 128 of its embeddings"),
        ({"tokenizer.ggml.tokens": None}, "it has no tokens"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_refused(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        folder_of([header(tmp_path / "m.gguf", settings)], lambda line: None)


def test_factors_of_positions_that_are_not_llama_3s_are_refused(tmp_path: Path) -> None:
    factors = np.array([1, 2, 3, 4, 5, 6, 7, 8], "<f4")
    path = header(tmp_path / "m.gguf", **{"rope_freqs.weight": (factors, Type.F32)})
    with pytest.raises(ModelLoadError, match="its rope_freqs are not those of Llama 3"):
        describe([path])


def test_a_missing_tensor_and_a_scale_that_is_not_finite_are_named(file: Path) -> None:
    path = header(file.parent / "n.gguf")
    with pytest.raises(ModelLoadError, match=r"lack .* tensors of LlamaForCausalLM"):
        load(path)
    _, tensors, _ = describe([file])
    place = next(each for each in tensors if each.name.endswith("layers.1.mlp.up_proj.weight"))
    data = bytearray(file.read_bytes())
    data[place.start : place.start + 2] = b"\0\x7c"  # infinity in float16
    file.write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj\.weight .*a scale is not finite"):
        load(file, dtype="float32")


def test_parts_and_folders_must_be_whole_and_clear(file: Path) -> None:
    part = file.with_name("big-00001-of-00002.gguf")
    file.rename(part)
    with pytest.raises(ModelLoadError, match=r"big-00002-of-00002\.gguf is missing"):
        locate(str(part), None, lambda line: None)
    for name in ("a.Q4_0.gguf", "b.gguf"):
        (file.parent / name).write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"holds 3 models in GGUF; name one.*a\.Q4_0\.gguf, b\.gguf"):
        locate(str(file.parent), None, lambda line: None)
