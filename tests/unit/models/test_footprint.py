"""The least memory of a replica, told without loading: never more than the engine really takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from serve_app.codes.tensor import plain_weights
from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.weights.formats import FORMATS
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.models.catalogue import demo_folder
from serve_app.models.files import INDEX
from serve_app.models.footprint import cache_bytes, least_memory
from serve_app.models.loader import load_model

SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
TOKEN = 2 * 2 * 4 * 16  # keys and values, layers, heads, numbers of a head
CODES = 2 * 2 * 4 * (16 + 4)  # the same in bytes, with scales


def folder_of(path: Path, **tensors: torch.Tensor) -> ModelConfig:
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    return ModelConfig(name="m", source=str(path))


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_it_is_nearly_what_the_loaded_model_takes(dtype: str) -> None:
    config = ModelConfig(name="demo-chat", dtype=dtype, engine={"num_blocks": 3})
    model = load_model(config, lambda line: None, fast_bfloat16=True).module
    plain_weights(model)  # none is left in its file
    shape = json.loads((demo_folder("demo-chat") / "config.json").read_text())
    cache = cache_bytes(shape, config.engine, model.dtype.itemsize)
    weights = sum({each.data_ptr(): each.nbytes for each in model.parameters()}.values())
    least = least_memory(config)
    if dtype == "float32":
        assert least == weights + cache
        return
    assert least_memory(config.model_copy(update={"device": "cuda"})) == weights + cache
    model = accelerate_cpu(model, model.dtype)
    packed = [each for each in model.modules() if isinstance(each, PackedLinear)]
    head = model.get_output_embeddings()  # a packed copy of the embedding, which does not count
    parameters = {each.data_ptr(): each.nbytes for each in model.parameters()}
    taken = cache + sum(parameters.values()) + sum(each.num_bytes for each in packed if each is not head)
    assert 0.9 * taken < (least or 0) <= taken


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, 2 * 32 * TOKEN * 2),
        ({"max_model_len": 1000}, 1000 * TOKEN * 2),
        ({"num_blocks": 10, "block_size": 16}, 160 * TOKEN * 2),
        ({"kv_cache_bytes": 2**20, "max_model_len": 10**6}, 2**20),
        ({"kv_cache_dtype": "int8", "num_blocks": 10, "block_size": 16}, 160 * CODES),
    ],
)
def test_the_cache_is_what_the_settings_insist_on(settings: dict[str, int], size: int) -> None:
    engine = EngineConfig.model_validate(settings)
    assert cache_bytes(SHAPE, engine, 2) == size
    assert cache_bytes({"text_config": SHAPE}, engine, 2) == size


def test_a_cache_of_another_form_counts_nothing() -> None:
    assert cache_bytes(SHAPE | {"kv_lora_rank": 512}, EngineConfig(), 2) == 0
    assert cache_bytes({}, EngineConfig(), 2) == 0


@pytest.mark.parametrize("declared", [{"dtype": "bfloat16"}, {"text_config": {"torch_dtype": "bfloat16"}}])
def test_floats_count_in_the_type_that_the_model_declares(tmp_path: Path, declared: dict[str, Any]) -> None:
    """`dtype: auto` takes it, whatever the files have."""
    config = folder_of(tmp_path, a=torch.zeros(10, 10)).model_copy(update={"device": "cuda"})
    (tmp_path / "config.json").write_text(json.dumps(declared))
    assert least_memory(config) == 200
    assert least_memory(config.model_copy(update={"dtype": "float32"})) == 400


def test_floats_count_in_the_type_that_is_asked_for(tmp_path: Path) -> None:
    config = folder_of(tmp_path, a=torch.zeros(10, 10), ids=torch.zeros(4, dtype=torch.int64))
    assert least_memory(config) == 400 + 32
    halves = config.model_copy(update={"dtype": "bfloat16"})
    assert least_memory(halves) == 150 + 32
    assert least_memory(halves.model_copy(update={"device": "cuda"})) == 200 + 32


def test_shards_count_by_their_index(tmp_path: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in (*names, "consolidated.safetensors"):
        save_file({name[6:11]: torch.zeros(25)}, tmp_path / name)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {name[6:11]: name for name in names}}))
    (tmp_path / "config.json").write_text("{}")
    assert least_memory(ModelConfig(name="m", source=str(tmp_path))) == 200


def test_what_is_not_here_or_broken_is_not_known(tmp_path: Path) -> None:
    assert least_memory(ModelConfig(name="m", source="somebody/not-downloaded")) is None
    assert least_memory(ModelConfig(name="m", source=str(tmp_path))) is None
    config = folder_of(tmp_path, a=torch.zeros(1))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert least_memory(config) is None


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_count_as_they_are_quantised(tmp_path: Path, tied: bool) -> None:
    """The embedding stays as it is. The head is int8, also where the files have one matrix for both."""
    tensors = {"a": torch.zeros(64, 64), "b": torch.zeros(8), "embed": torch.zeros(100, 64)}
    tensors["q_proj.weight"] = torch.zeros(10, 64)
    if not tied:
        tensors["head"] = torch.zeros(100, 64)
    config = folder_of(tmp_path, **{name: each.bfloat16() for name, each in tensors.items()})
    (tmp_path / "config.json").write_text('{"vocab_size": 100}')
    for kind, matrix in (("int8", 64 * 64), ("int4", 64 * 64 * 5 // 8)):
        quantised = config.model_copy(update={"quantization": kind})
        matrices = matrix + 10 * 64
        assert least_memory(quantised) == matrices + 8 * 2 + 100 * 64 * 2 + 100 * 64
        in_float32 = quantised.model_copy(update={"dtype": "float32"})
        assert least_memory(in_float32) == matrices + 8 * 4 + 100 * 64 * 4 + 100 * 64


@pytest.mark.parametrize("kind", Quantization)
def test_a_quantised_model_takes_no_less(kind: Quantization) -> None:
    config = ModelConfig(name="demo-chat", quantization=kind.value, engine={"num_blocks": 3})
    model = load_model(config, lambda line: None, fast_bfloat16=True).module
    shape = json.loads((demo_folder("demo-chat") / "config.json").read_text())
    cache = cache_bytes(shape, config.engine, model.dtype.itemsize)
    model = accelerate_cpu(model, model.dtype, weights=FORMATS[kind])
    packed = [each for each in model.modules() if isinstance(each, PackedLinear)]
    parameters = {each.data_ptr(): each.nbytes for each in model.parameters()}
    taken = cache + sum(parameters.values()) + sum(each.num_bytes for each in packed)
    assert 0.9 * taken < (least_memory(config) or 0) <= taken
