"""Layers that keep latents: their size in the cache, their scale far into a context, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.torch_gpu import TorchGpuAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.estimate import Estimate
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.latents import latents_of
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.engine.weights.formats import FORMATS
from tests.support.families import small_config
from tests.support.tiny_models import check_parity, enlarge, make_sequence, tiny_config

CPU = torch.device("cpu")
FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "minicpm3", "youtu")
# Of DeepSeek-V3, with the real factor, betas and scales; the context is that of a small model.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 40.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
V2_LITE = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 27,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 128,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def random_model(config: Any) -> PreTrainedModel:
    """Norms are not those of a new model."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.eval().float()
    enlarge(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    return model


def runner_of(model: PreTrainedModel, blocks: int = 64, **settings: object) -> ModelRunner:
    config = EngineConfig.model_validate({"num_blocks": blocks, "block_size": 16, **settings})
    return ModelRunner(model, backend=CpuAttention(), dtype=model.dtype, device=CPU, config=config)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_keeps_latents_and_gives_transformers_logits(family: str) -> None:
    model = random_model(small_config(family))
    check_parity(
        model, CpuAttention(), tolerance=1e-4, prepare=lambda given: accelerate_cpu(given, given.dtype)
    )
    kept = [part for part in model.modules() if latents_of(part)]
    assert len(kept) == model.config.num_hidden_layers
    assert not any("weight" in part.kv_b_proj._parameters for part in kept), "all of them are packed"  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("kind", [ReferenceAttention, TorchGpuAttention])
def test_other_backends_give_them_from_weights_that_are_not_packed(kind: type[AttentionBackend]) -> None:
    model = random_model(tiny_config("deepseek_v3"))
    check_parity(model, kind(), tolerance=1e-4)
    weight = model.model.layers[0].self_attn.kv_b_proj.weight
    assert weight.numel(), "the weight of the checkpoint is what multiplies"


def test_yarn_acts_on_positions_and_on_the_scale_far_into_a_context() -> None:
    """The scale is that of expanded heads, with the square of YaRN's factor: at position 0 no fault shows."""
    config = tiny_config(
        "deepseek_v3", rope_parameters=YARN, max_position_embeddings=163_840, num_hidden_layers=2
    )
    model = random_model(config)
    attention = model.model.layers[0].self_attn
    assert attention.scaling != (16 + 8) ** -0.5
    text = torch.randint(3, 96, (4700,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        model.set_attn_implementation("sdpa")
        want = model(torch.tensor([text]), use_cache=False).logits[0, -200:]
    runner = runner_of(accelerate_cpu(model, model.dtype), blocks=300)
    sequence = make_sequence("", text, list(range(300)))
    runner.run(build_batch([Chunk(sequence, 0, 4500, 0)], 16, CPU))
    got = runner.run(build_batch([Chunk(sequence, 4500, 200, 4500)], 16, CPU))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4 * float(want.abs().max()))


def test_a_token_of_deepseek_v2_lite_takes_no_more_than_its_latents() -> None:
    with torch.device("meta"):
        config = AutoConfig.for_model("deepseek_v2", **V2_LITE)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    found = Estimate.of(module, ModelConfig(name="m", source="m"))
    assert found.layers is not None
    assert found.layers.attention == (LayerSpec(1, 576, 512, latent=True),) * 27
    assert found.token_bytes == 27 * (512 + 64) * 2


def test_a_layer_of_its_shape_holds_no_more_and_gives_transformers_logits() -> None:
    model = random_model(
        AutoConfig.for_model("deepseek_v2", **V2_LITE | {"num_hidden_layers": 1, "hidden_size": 64})
    )
    check_parity(model, CpuAttention(), tolerance=1e-4)
    assert runner_of(model).plan.block_bytes == 16 * (512 + 64) * 4


def test_another_attention_implementation_finds_the_module_as_it_was() -> None:
    model = random_model(tiny_config("deepseek_v3"))
    text = torch.arange(3, 20)[None]
    with torch.inference_mode():
        want = model(text, use_cache=False).logits
        runner_of(model)
        model.set_attn_implementation("eager")
        assert torch.equal(model(text, use_cache=False).logits, want)


def test_a_layer_that_expands_its_latents_in_another_way_keeps_doing_so() -> None:
    model = random_model(tiny_config("deepseek_v3"))
    for layer in model.model.layers:
        own = layer.self_attn.expand_kv
        layer.self_attn.expand_kv = lambda latents, rotary, own=own: tuple(
            2 * x for x in own(latents, rotary)
        )
    check_parity(model, CpuAttention(), tolerance=1e-4)
    assert not any(latents_of(part) for part in model.modules())
    assert runner_of(model).layers == (LayerSpec(4, 24, 16),) * 4


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_weights_expand_latents_too(kind: str) -> None:
    model = random_model(tiny_config("deepseek_v3"))
    accelerate_cpu(model, model.dtype, weights=FORMATS[kind])
    assert "weight" not in model.model.layers[0].self_attn.kv_b_proj._parameters
    sequence = make_sequence("", list(range(3, 30)), [1, 2])
    assert runner_of(model).run(build_batch([Chunk(sequence, 0, 27, 0)], 16, CPU)).isfinite().all()


def test_a_cache_of_codes_is_refused_by_name() -> None:
    model = random_model(tiny_config("deepseek_v3"))
    with pytest.raises(UnsupportedModel, match=r"latents .* set engine\.kv_cache_dtype to auto"):
        runner_of(model, kv_cache_dtype="int8")
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(tiny_config("minicpm3"), dtype=torch.bfloat16).eval()
    config = ModelConfig(name="m", source="m", engine=EngineConfig(kv_cache_dtype="int8"))
    with pytest.raises(UnsupportedModel, match="latents beside rotary keys"):
        Estimate.of(module, config)


def test_adapters_change_queries_and_outputs_but_not_what_is_absorbed() -> None:
    runner = runner_of(accelerate_cpu(random_model(tiny_config("minicpm3")), torch.float32), max_adapters=1)
    assert runner.adapters is not None
    modules = {module for _, module in runner.adapters.shapes}
    assert "o_proj" in modules
    assert "kv_b_proj" not in modules
