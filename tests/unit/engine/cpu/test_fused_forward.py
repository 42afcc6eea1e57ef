"""The fused forward is used where it is the model's own, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from serve_app.engine.cpu.decoder import FusedStack
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.fused import forward as fused_forward
from serve_app.engine.fused import rotary as fused_rotary
from serve_app.engine.fused.forward import FusedForward
from serve_app.engine.fused.layer import norm_of
from serve_app.engine.fused.rotary import RotaryTable
from serve_app.engine.kernels import native
from serve_app.engine.norm import Norm

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}

pytestmark = pytest.mark.skipif(native() is None, reason="no native kernels on this machine")


def llama(**options: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **options)).eval()


def is_fused(model: PreTrainedModel) -> bool:
    return isinstance(accelerate_cpu(model, torch.float32).forward, FusedForward)


@pytest.mark.parametrize(
    "model",
    [
        lambda: llama(),
        lambda: llama(tie_word_embeddings=True),
        lambda: MistralForCausalLM(MistralConfig(**SHAPE)).eval(),
        lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval(),
        lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)).eval(),
    ],
    ids=["llama", "tied", "mistral", "qwen2", "qwen3"],
)
def test_models_of_embedding_layers_norm_and_head_have_it(model: Any) -> None:
    assert is_fused(model())


def test_a_model_whose_rotary_factors_depend_on_more_than_the_position_keeps_its_own() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = accelerate_cpu(llama(rope_parameters=dynamic, max_position_embeddings=64), torch.float32)
    assert not isinstance(model.get_decoder().layers[0], FusedStack)
    assert not isinstance(model.forward, FusedForward)


def test_a_subclass_may_do_more_and_keeps_its_own() -> None:
    class Scaled(LlamaForCausalLM):
        pass

    torch.manual_seed(0)
    assert not is_fused(Scaled(LlamaConfig(**SHAPE)).eval())


def test_layers_that_are_not_fused_keep_their_own() -> None:
    model = accelerate_cpu(llama(hidden_act="relu"), torch.float32)
    assert not isinstance(model.get_decoder().layers[0], FusedStack)
    assert not isinstance(model.forward, FusedForward)


def test_one_with_another_norm_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = norm_of
    monkeypatch.setattr(
        fused_forward, "norm_of", lambda *arguments: Norm(right(*arguments).weight * 1.1, 1e-6)
    )
    assert not is_fused(llama())
    assert "LlamaForCausalLM is not fused: its logits are off by" in caplog.text


def test_one_with_other_positions_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = RotaryTable.at
    monkeypatch.setattr(RotaryTable, "at", lambda self, positions, end: right(self, positions * 2, 2 * end))
    assert not is_fused(llama())
    assert "LlamaForCausalLM is not fused: its logits are off by" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_table_gives_the_factors_of_the_models_module_and_grows(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_rotary, "FIRST_POSITIONS", 8)
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    rotary = llama(rope_parameters=yarn).get_decoder().rotary_emb
    table = RotaryTable(rotary, torch.empty(0, dtype=dtype), 16)
    for positions in (torch.tensor([0, 7, 3]), torch.tensor([99, 2]), torch.tensor([5])):
        want = rotary(torch.empty(0, dtype=dtype), positions[None])
        got = table.at(positions, int(positions.max()) + 1)
        for factor, whole in zip(got, want, strict=True):
            assert torch.equal(factor, whole[0, :, :8].float())


def test_the_embeddings_of_a_step_wake_no_thread_of_torch() -> None:
    model = accelerate_cpu(llama(hidden_act="silu"), torch.float32)
    assert isinstance(model.forward, FusedForward)
    model.forward.decode = lambda states, positions, rows: states
    seen: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model.forward(torch.zeros(1, 2_000, dtype=torch.int64), torch.arange(2_000)[None])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)
    assert seen == [1]
