"""A load takes at most 1.15 times the weights that are served, the numbers of one tensor, and 32 MiB."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from safetensors.torch import load_file, save_file

from tests.support.gguf_files import Type, settings_of, vocabulary, write
from tests.support.gguf_files import packed as gguf_tensors
from tests.support.load_memory import measure
from tests.support.packers import mxfp4
from tests.support.quantised import Tensors
from tests.support.tiny_models import make_model, tiny_config
from tests.unit.models.gguf.test_models import EVERY
from tests.unit.models.quantised.test_formats import FORMATS

SIZES: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
    "num_hidden_layers": 1,
}
LAYERS: Final = 12
MIB: Final = 2**20


def one_layer(folder: Path, architecture: str, **sizes: Any) -> tuple[Tensors, dict[str, Any]]:
    """The weights of a random model in bfloat16, and its config.json."""
    model = make_model(tiny_config(architecture, **{**SIZES, **sizes})).bfloat16()
    model.save_pretrained(folder / "plain")
    weights = load_file(folder / "plain" / "model.safetensors")
    return weights, json.loads((folder / "plain" / "config.json").read_text())


def repeated(layer: Mapping[str, Any], prefix: str, layers: int) -> dict[str, Any]:
    """The tensors of a model whose layers are all alike. `prefix`: before the number of a layer."""
    return {
        name.replace(f"{prefix}0.", f"{prefix}{number}."): each
        for number in range(layers)
        for name, each in layer.items()
        if number == 0 or name.startswith(f"{prefix}0.")
    }


def published(folder: Path, packed: Tensors, config: dict[str, Any], settings: Any, layers: int) -> Path:
    made = folder / f"{layers}"
    made.mkdir()
    kinds = (config.get("layer_types") or []) * layers
    described = {**config, "num_hidden_layers": layers, "quantization_config": settings}
    described |= {"layer_types": kinds} if kinds else {}
    (made / "config.json").write_text(json.dumps(described))
    tensors = repeated(packed, "model.layers.", layers)
    save_file({name: each.clone() for name, each in tensors.items()}, made / "model.safetensors")
    return made


def check(small: Path, source: Path) -> None:
    taken = measure(small, source)
    assert taken.weights > 64 * MIB
    assert taken.peak < 1.15 * taken.weights + taken.largest + 32 * MIB


@pytest.mark.full
@pytest.mark.parametrize("name", FORMATS)
def test_of_a_checkpoint(name: str, tmp_path: Path) -> None:
    pack, settings = FORMATS[name]
    weights, config = one_layer(tmp_path, "llama")
    packed: Tensors = {}
    for key, weight in weights.items():
        linear = key.endswith("_proj.weight")
        packed |= pack(key.removesuffix(".weight"), weight.float())[0] if linear else {key: weight}
    check(*(published(tmp_path, packed, config, settings, layers) for layers in (1, LAYERS)))


@pytest.mark.full
def test_of_experts_in_mxfp4(tmp_path: Path) -> None:
    weights, config = one_layer(tmp_path, "gpt_oss", intermediate_size=1024, num_local_experts=4)
    packed: Tensors = {}
    for key, weight in weights.items():
        coded = key.endswith(("experts.gate_up_proj", "experts.down_proj"))
        packed |= mxfp4(key, weight.float())[0] if coded else {key: weight}
    settings = {"quant_method": "mxfp4"}
    check(*(published(tmp_path, packed, config, settings, layers) for layers in (1, LAYERS)))


@pytest.mark.full
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_of_a_gguf_file(kind: Type, tmp_path: Path) -> None:
    weights, config = one_layer(tmp_path, "llama")
    paths = []
    layer, _ = gguf_tensors(weights, "llama", config, lambda name: kind)
    for layers in (1, LAYERS):
        settings = {**settings_of("llama", {**config, "num_hidden_layers": layers}), **vocabulary(2048)}
        paths.append(tmp_path / f"{layers}.gguf")
        write(paths[-1], "llama", settings, repeated(layer, "blk.", layers))
    check(*paths)
