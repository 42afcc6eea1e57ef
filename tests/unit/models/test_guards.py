"""Models that we would answer for wrongly are refused, by name and with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.engine.state.functions import FUNCTIONS
from serve_app.models.errors import ModelLoadError
from serve_app.models.guards import STATE_FUNCTIONS, check_config, context_window, pin_rope
from tests.support.tiny_models import BASE, make_model, make_sequence

ORIGINAL = 16  # the trained window of the longrope models here, of 64


def make_config(model_type: str, **settings: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(model_type, **{**BASE, **settings})


def longrope() -> PreTrainedConfig:
    return make_config(
        "phi3",
        original_max_position_embeddings=ORIGINAL,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "long_factor": [4.0] * 4,
            "short_factor": [1.0] * 4,
            "partial_rotary_factor": 1.0,
            "original_max_position_embeddings": ORIGINAL,
        },
    )


@pytest.mark.parametrize(
    ("model_type", "settings", "reason"),
    [
        ("bloom", {}, "ALiBi"),
        ("mpt", {}, "ALiBi"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("falcon", {}, "attention interface"),
        ("gptj", {"rotary_dim": 8}, "attention interface"),
        (
            "gpt_neo",
            {"num_layers": 4, "num_hidden_layers": 4, "attention_types": [[["global", "local"], 2]]},
            "attention interface",
        ),
        ("codegen", {"rotary_dim": 8}, "attention interface"),
        ("recurrent_gemma", {}, "linear_attention"),
        ("xlstm", {}, "it has xLSTM layers of a kind"),
        ("zaya", {"num_experts_per_tok": 1}, "layers of type hybrid"),
        ("t5", {}, "encoder-decoder"),
        ("vit", {}, "no causal language model"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForCausalLM"),
        ("llama", {"quantization_config": {"quant_method": "hqq"}}, "quantised as hqq, which is not read"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 5}}, "GPTQ with bits 5"),
        ("llama", {"compression_config": {"format": "int-quantized"}}, "quantised"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "bidirectional"),
    ],
)
def test_a_model_we_would_get_wrong_is_refused(
    model_type: str, settings: dict[str, Any], reason: str
) -> None:
    config = make_config(model_type, **settings)
    with pytest.raises(ModelLoadError, match=reason) as caught:
        check_config(config)
    assert (config.architectures or [model_type])[0] in str(caught.value)


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5_text", "lfm2", "mamba", "minimax"])
def test_a_model_whose_states_are_computed_here_passes(model_type: str) -> None:
    check_config(make_config(model_type))


def test_the_guard_and_the_engine_know_the_same_functions_with_a_state() -> None:
    assert FUNCTIONS.keys() == STATE_FUNCTIONS


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "mistral", "gpt2", "olmo3", "phi3"])
def test_a_decoder_with_causal_and_sliding_attention_passes(model_type: str) -> None:
    check_config(make_config(model_type, **({"sliding_window": 8} if model_type != "gpt2" else {})))


def test_the_window_is_the_models_own() -> None:
    assert context_window(make_config("llama"), None) == 64
    assert context_window(make_config("gpt2", n_positions=48), None) in (48, 64)
    with pytest.raises(ModelLoadError, match="64 tokens; lower it"):
        context_window(make_config("llama"), 65)


def test_a_model_that_states_no_window_is_refused() -> None:
    config = PreTrainedConfig(architectures=["NoWindowForCausalLM"])
    with pytest.raises(ModelLoadError, match=r"NoWindow.*no context window"):
        context_window(config, None)


def test_longrope_keeps_to_its_original_window_unless_asked_for_more() -> None:
    assert context_window(longrope(), None) == ORIGINAL
    assert context_window(longrope(), 12) == ORIGINAL
    assert context_window(longrope(), 40) == 64


def run_whole(runner: ModelRunner, *texts: list[int]) -> list[torch.Tensor]:
    """All logits of each text, computed in one packed batch."""
    chunks = []
    for index, text in enumerate(texts):
        sequence = make_sequence(str(index), text, list(range(index * 16, index * 16 + 16)))
        chunks.append(Chunk(sequence, 0, len(text), 0))
    return list(runner.run(build_batch(chunks, 4, runner.device)).split([len(text) for text in texts]))


def make_runner(module: PreTrainedModel, window: int) -> ModelRunner:
    return ModelRunner(
        module,
        backend=ReferenceAttention(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        config=EngineConfig(block_size=4, num_blocks=32),
        context_window=window,
    )


@pytest.mark.parametrize(
    ("config", "wanted", "lengths"),
    [
        (
            make_config("llama", rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}),
            None,
            (10, 64),
        ),
        (longrope(), None, (10, 16)),
        (longrope(), 64, (10, 60)),
    ],
    ids=["dynamic", "longrope-short", "longrope-long"],
)
def test_a_long_neighbour_does_not_move_the_positions_of_a_short_sequence(
    config: PreTrainedConfig, wanted: int | None, lengths: tuple[int, int]
) -> None:
    window = context_window(config, wanted)
    module = make_model(config)
    pin_rope(module, config, window)
    runner = make_runner(module, window)
    texts = [torch.randint(3, 96, (n,)).tolist() for n in lengths]
    together = run_whole(runner, *texts)
    # The longest sequence alone is what transformers itself computes for it.
    want = make_model(config)(torch.tensor([texts[1]]), use_cache=False).logits[0]
    torch.testing.assert_close(together[1], want, rtol=0, atol=1e-4)
    for text, packed in zip(texts, together, strict=True):
        torch.testing.assert_close(run_whole(runner, text)[0], packed, rtol=0, atol=1e-4)
    if wanted is None:  # within the original window the short one is transformers' own too
        want = make_model(config)(torch.tensor([texts[0]]), use_cache=False).logits[0]
        torch.testing.assert_close(together[0], want, rtol=0, atol=1e-4)


def test_the_operator_is_told_which_factors_are_pinned() -> None:
    config = longrope()
    assert "short factors" in str(pin_rope(make_model(config), config, ORIGINAL))
    assert "long factors" in str(pin_rope(make_model(config), config, 64))
    assert pin_rope(make_model(make_config("llama")), make_config("llama"), 64) is None
