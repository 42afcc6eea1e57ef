"""What is found out about a model from its configuration is what its start finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.model.memory import CUDA_SHARE
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.weights.formats import FORMATS
from serve_app.models.errors import ModelLoadError
from serve_app.models.footprint import least_memory
from serve_app.models.loader import load_model
from serve_app.models.text_alone import language_model
from serve_app.replica.model_check import ModelCheck, check_model
from tests.support.families import small_config
from tests.support.ranks import divided_config, runners, save
from tests.support.tiny_models import make_model, tiny_config, tiny_model

FUSED = {
    "qwen3": "Qwen3",
    "gemma3": "Gemma3",
    "gemma3_text": "Gemma3",
    "qwen3_moe": "Qwen3Moe",
    "gpt_oss": "GptOss",
}
QUIET = {"threads": 1, "engine": {"num_blocks": 8}}


def nothing(line: str) -> None:
    pass


def saved(family: str, folder: Path) -> str:
    config = small_config(family)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return str(folder)


def checked(source: str, **settings: object) -> ModelCheck:
    return check_model(ModelConfig(name="m", source=source, device="cpu", **settings), nothing)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_the_demo_takes_what_its_check_says(quantization: str) -> None:
    config = ModelConfig(name="demo-chat", quantization=quantization, device="cpu", **QUIET)
    found = check_model(config, nothing)
    model = load_model(config, nothing, fast_bfloat16=True)
    module = accelerate_cpu(model.module, model.dtype, weights=FORMATS[quantization])
    plan = ModelRunner(
        module, backend=CpuAttention(), dtype=model.dtype, device=model.device, config=config.engine
    ).plan
    assert found.plan == plan
    assert found.engine is not None
    assert found.engine.token_bytes == plan.block_bytes // plan.block_size
    assert (found.engine.family, found.engine.dtype) == ("Llama", model.dtype)
    assert found.model.window == model.context_window
    assert found.model.weight_bytes + plan.cache_bytes == least_memory(config)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "qwen3_moe", "deepseek_v3", "gpt_oss", "gemma3"])
def test_other_families_have_the_layers_that_their_check_says(family: str, tmp_path: Path) -> None:
    source = saved(family, tmp_path)
    found = checked(source)
    assert found.engine is not None
    assert found.engine.family == FUSED.get(family)
    assert found.model.text_alone == (family == "gemma3")
    module = AutoModelForCausalLM.from_pretrained(source)
    if found.model.text_alone:
        module = language_model(module)
    assert found.model.parameters == sum(each.numel() for each in module.parameters())
    assert found.engine.layers is not None
    assert len(found.engine.layers.attention) == module.config.get_text_config().num_hidden_layers


def test_what_a_start_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="ALiBi"):
        checked(saved("bloom", tmp_path / "a"))
    with pytest.raises(ModelLoadError, match=r"cannot be served: .* layers \[0, 0, 1, 1"):
        checked(saved("diffllama", tmp_path / "b"))
    with pytest.raises(ModelLoadError, match=r"experts\.gate_up_proj .* uses otherwise"):
        checked(saved("llama4_text", tmp_path / "c"), quantization="int8")
    small_config("llama").save_pretrained(tmp_path / "d")
    with pytest.raises(ModelLoadError, match=r"has no \.safetensors weights"):
        checked(str(tmp_path / "d"))


def test_memory_decides_between_a_window_and_a_refusal() -> None:
    config = ModelConfig(name="demo-chat", device="cuda")
    found = check_model(config, nothing, 2**33)
    assert found.engine is not None
    least = found.model.weight_bytes + found.engine.step_bytes
    enough = int((least + 500 * (found.engine.token_bytes or 0)) / CUDA_SHARE)
    with pytest.raises(ModelLoadError, match=r"do not fit into 0\.0 GiB beside steps"):
        check_model(config, nothing, 4 * 2**20)
    small = check_model(config, nothing, enough).plan
    assert small is not None
    assert small.max_model_len == small.num_blocks * small.block_size == 480
    assert small.lowered_from == 1024
    asked = config.model_copy(update={"engine": EngineConfig(max_model_len=1000)})
    with pytest.raises(ModelLoadError, match="max_model_len asks for 1000"):
        check_model(asked, nothing, enough)


def test_a_model_that_embeds_has_no_cache() -> None:
    found = checked("demo:demo-embed")
    assert (found.model.embeds, found.engine, found.plan, found.model.window) == (True, None, None, 256)


def test_a_model_that_embeds_has_to_fit_too() -> None:
    config = ModelConfig(name="demo-embed", device="cpu")
    with pytest.raises(ModelLoadError, match=r"does not fit: 0\.0 GiB of weights do not fit into 0\.0 GiB$"):
        check_model(config, nothing, 2**20)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
def test_a_rank_takes_what_its_check_says(family: str, tmp_path: Path) -> None:
    folder = save(tiny_model(family), tmp_path)
    config = divided_config(folder, 2, num_blocks=8)
    found = check_model(config, nothing)
    assert found.plan == runners(folder, 2, num_blocks=8)[0].runner.plan
    part = load_model(config, nothing)
    assert found.model.weight_bytes == sum(each.nbytes for each in part.module.parameters())
    whole = check_model(divided_config(folder, 1, num_blocks=8), nothing)
    assert found.model.parameters == whole.model.parameters
    assert found.memory < whole.memory


def test_of_several_stages_the_largest_is_shown(tmp_path: Path) -> None:
    folder = save(make_model(tiny_config("llama", num_hidden_layers=5)), tmp_path)
    settings = {"stages": 2, "kv_cache_bytes": 2**20, "num_blocks": None}
    config = divided_config(folder, 1, **settings)
    found = check_model(config, nothing)
    assert found.plan == runners(folder, 1, **settings)[1].runner.plan
    first = load_model(config, nothing, rank=1)  # with three layers
    assert found.model.weight_bytes == sum(each.nbytes for each in first.module.parameters())


def test_a_model_that_cannot_be_divided_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = save(tiny_model("llama"), tmp_path)
    with pytest.raises(ModelLoadError, match="num_attention_heads of 4 cannot be divided among 3 ranks"):
        check_model(divided_config(folder, 3), nothing)
