"""Weights for a CPU that stay in their files until they are packed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from serve_app.codes.tensor import CodedTensor, plain_weights
from serve_app.config import ModelConfig
from serve_app.engine.weights.formats import FORMATS
from serve_app.models.loader import load_model, read_config, read_weights
from tests.support.mixtures import alone, runner_of
from tests.support.tiny_models import BASE, make_model, tiny_config

SHAPE = {**BASE, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
EXPERTS = {"moe_intermediate_size": 64, "mlp_only_layers": [0]}
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights", ["none", "int8"])
def test_they_give_the_bits_of_weights_that_were_there(
    tmp_path: Path, weights: str, dtype: torch.dtype
) -> None:
    make_model(tiny_config("qwen3_moe", **SHAPE, **EXPERTS)).save_pretrained(tmp_path)
    results = []
    for late in (True, False):
        given = (
            AutoModelForCausalLM,
            tmp_path,
            read_config(tmp_path),
            dtype,
            CPU,
            lambda line: None,
            None,
            late,
        )
        model = read_weights(*given)
        left = {name for name, each in model.named_parameters() if isinstance(each, CodedTensor)}
        assert bool(left) == late
        results.append(alone(runner_of(model, FORMATS[weights], dtype), [5, 7, 11]))
        assert plain_weights(model) == (0, 0)
        assert not any(isinstance(each, CodedTensor) for each in model.parameters())
    assert torch.equal(*results)


def test_the_weights_of_a_model_for_a_cpu_are_late_and_no_file_stays_mapped(tmp_path: Path) -> None:
    make_model(tiny_config("qwen3_moe", **SHAPE, **EXPERTS)).save_pretrained(tmp_path)
    config = ModelConfig(name="m", source=str(tmp_path), device="cpu", dtype="float32")
    model = load_model(config, lambda line: None).module
    left = {name for name, each in model.named_parameters() if isinstance(each, CodedTensor)}
    assert {"model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.experts.gate_up_proj"} <= left
    assert str(tmp_path) not in Path("/proc/self/maps").read_text("utf-8")
