"""A GGUF file is the model of the numbers that its blocks mean, exactly, in each family and each type."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from serve_app.engine.kernels import native
from serve_app.engine.weights.gpu_own_codes import gpu_codes_of
from serve_app.engine.weights.own_codes import load_codes_on_cpu
from serve_app.models.gguf.types import BLOCKS
from serve_app.models.quantised.gguf import AT_ONCE, Gguf, unpack
from serve_app.models.stored import StoredTensor
from tests.support.gguf_files import SIZES, Kinds, Type, make_gguf, random_blocks
from tests.support.mixtures import alone, runner_of, texts
from tests.support.quantised import load, logits
from tests.support.tiny_models import tiny_config

TYPES: Final = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
K_TYPES: Final = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS]

EVERY: Final = [*TYPES, *K_TYPES, Type.MXFP4]
# Sizes that blocks of 256 divide, of a dense model, a mixture and a hybrid.
KINDS: Final[dict[str, dict[str, Any]]] = {
    "llama": {},
    "qwen3_moe": {"moe_intermediate_size": 256},
    "qwen3_5_text": {"linear_value_head_dim": 64, "linear_key_head_dim": 64},
}


def mixed(*types: Type) -> Kinds:
    """The types in turn, by the sum of a name's letters; both halves of an expert have one type."""
    return lambda name: types[sum(name.replace("gate", "up").encode()) % len(types)]


@pytest.mark.parametrize("architecture", SIZES)
def test_a_model_of_each_family_computes_what_its_checkpoint_does(tmp_path: Path, architecture: str) -> None:
    want = make_gguf(tmp_path / "m.gguf", architecture, mixed(*TYPES))
    lines: list[str] = []
    got = load(tmp_path / "m.gguf", lines, dtype="float32")
    assert any(line.startswith("converting ") and "from GGUF (Q4_0, Q4_1" in line for line in lines)
    assert type(got) is type(want)
    assert torch.equal(logits(got), logits(want))


@pytest.mark.skipif(native() is None, reason="without a compiler all codes are converted")
@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_the_engine_computes_what_the_numbers_of_each_type_do(
    tmp_path: Path, kind: Type, architecture: str, caplog: pytest.LogCaptureFixture
) -> None:
    """But for activations, which are rounded, and plain numbers, which are in bfloat16."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, **KINDS[architecture]}
    want = make_gguf(tmp_path / "m.gguf", architecture, lambda name: kind, **sizes)
    text = texts(1, random.Random(0))[0]
    with caplog.at_level("INFO"):
        found, wanted = (alone(runner_of(each), text) for each in (load(tmp_path / "m.gguf"), want))
    assert "multiplied by as codes" in caplog.text
    assert "no product" not in caplog.text
    assert (found - wanted).norm() < 0.2 * wanted.norm()  # a router may choose another expert


def test_layers_that_only_draft_are_left_out(tmp_path: Path) -> None:
    """A file may have them after the others."""
    path, layers = tmp_path / "m.gguf", 2
    norm = (np.ones(64, "<f4"), Type.F32)
    more = {f"blk.{layers}.attn_norm.weight": norm, f"blk.{layers}.nextn.enorm.weight": norm}
    settings = {"block_count": layers + 1, "nextn_predict_layers": 1}
    want = make_gguf(path, "qwen3_5_text", lambda name: Type.F32, settings, more)
    lines: list[str] = []
    assert torch.equal(logits(load(path, lines, dtype="float32")), logits(want))
    assert any("1 layer that only drafts is not used" in line for line in lines)


def llama3_factors() -> np.ndarray[Any, Any]:
    """By what transformers divides each frequency."""
    config = tiny_config("llama", **SIZES["llama"], hidden_size=64, rope_parameters=LLAMA3)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1 / LLAMA3["rope_theta"] ** (torch.arange(0, 16, 2) / 16)
    return np.asarray((plain / scaled).numpy(), "<f4")


LLAMA3: Final[dict[str, Any]] = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALED: Final[dict[str, dict[str, Any]]] = {
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "linear": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0},
        "settings": {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    },
}


@pytest.mark.parametrize("scaling", SCALED)
def test_scaled_positions_are_those_of_the_model(tmp_path: Path, scaling: str) -> None:
    """Llama 3's are in no setting: converters write a tensor of factors."""
    more = {"rope_freqs.weight": (llama3_factors(), Type.F32)} if scaling == "llama3" else {}
    want = make_gguf(tmp_path / "m.gguf", "llama", lambda name: Type.F32, more=more, **SCALED[scaling])
    got = load(tmp_path / "m.gguf", dtype="float32")
    assert got.config.rope_parameters == want.config.rope_parameters
    assert torch.equal(logits(got), logits(want))


@pytest.mark.parametrize("architecture", [*SIZES, *SCALED])
def test_llama_cpp_computes_the_same(tmp_path: Path, architecture: str) -> None:
    """In float32, but for its cache of float16. Skipped if the library is not installed."""
    library = pytest.importorskip("llama_cpp")
    path, scaled = tmp_path / "m.gguf", SCALED.get(architecture, {})
    if architecture == "gpt_oss":  # llama.cpp rounds where its YaRN begins and ends
        scaled = {"rope_parameters": {"rope_type": "default", "rope_theta": 150_000.0}}
    more = {"rope_freqs.weight": (llama3_factors(), Type.F32)} if architecture == "llama3" else {}
    family = "llama" if architecture in SCALED else architecture
    make_gguf(path, family, lambda name: Type.F32, more=more, **scaled)
    ids = [3 + 7 * number % 90 for number in range(60)]
    with torch.inference_mode():
        got = load(path, dtype="float32")(torch.tensor([ids]), use_cache=False).logits[0]
    theirs = library.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    theirs.eval(ids)
    want = torch.from_numpy(np.array(theirs.scores[: len(ids)]))
    torch.testing.assert_close(got, want, rtol=0, atol=0.02)
    assert torch.equal(got.argmax(-1), want.argmax(-1))


def blocks_of(kind: Type, rows: int, count: int) -> np.ndarray[Any, Any]:
    """[rows, count, bytes]."""
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in K_TYPES:
        return np.asarray(random_blocks(kind, (rows, count, size)))
    weights = torch.randn(rows, count * numbers, generator=torch.Generator().manual_seed(0)).numpy()
    return np.asarray(gguf.quants.quantize(weights, kind).reshape(rows, count, size))


@pytest.mark.skipif(native() is None, reason="without a compiler all codes are converted")
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_the_check_counts_codes_where_a_device_has_a_product_for_them(kind: Type) -> None:
    rows, columns = 64, 512
    blocks = blocks_of(kind, rows, columns // BLOCKS[kind.name].numbers)
    stored = StoredTensor("w", kind.name, (rows, columns), Path(), 0, blocks.nbytes)
    found = Gguf.of({"types": [kind.name]}).find("w", {"w": stored})
    assert found is not None
    matrix = unpack({"blocks": torch.from_numpy(blocks)}, kind=kind.name)
    for device, held in (
        ("cpu", load_codes_on_cpu(matrix, None, torch.bfloat16)),
        ("cuda", gpu_codes_of(matrix)),
    ):
        counted = found.kept(device)
        assert (counted is None) == (held is None), device
        if counted is not None and held is not None:
            assert 0.95 * held.num_bytes <= counted.num_bytes <= 1.2 * held.num_bytes, device


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_each_type_means_what_the_package_reads_for_any_bytes(
    kind: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = blocks_of(kind, 7, 3)
    want = torch.from_numpy(dequantize(blocks.reshape(7, -1), kind).copy())
    for at_once in (AT_ONCE, 9):  # all rows, or three at a time
        monkeypatch.setattr("serve_app.models.quantised.gguf.AT_ONCE", at_once)
        found = unpack({"blocks": torch.from_numpy(blocks)}, kind=kind.name)
        assert torch.equal(found.dequantise(torch.float32), want)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
def test_floats_are_loaded_in_the_same_order(tmp_path: Path, kind: Type) -> None:
    want = make_gguf(tmp_path / "m.gguf", "llama", lambda name: kind)
    assert torch.equal(logits(load(tmp_path / "m.gguf", dtype="float32")), logits(want))
