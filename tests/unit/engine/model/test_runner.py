"""The runner: what it learns from a module, what it refuses, and the shape of what it returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, LlamaConfig, LlamaForCausalLM

from serve_app.config import EngineConfig
from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.model.forward import ATTENTION_NAME, UnsupportedModel, current, paged_attention
from serve_app.engine.model.memory import CacheTooSmall
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

CPU = torch.device("cpu")


def llama(**overrides: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    settings = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **overrides})).eval()


def make_runner(module: Any, **settings: Any) -> ModelRunner:
    return ModelRunner(
        module,
        backend=ReferenceAttention(),
        dtype=torch.float32,
        device=CPU,
        config=EngineConfig(**{"block_size": 4, "num_blocks": 16, **settings}),
    )


def sequence(length: int, table: list[int]) -> Sequence:
    return Sequence(
        request_id="r",
        index=0,
        prompt_len=length,
        token_ids=list(range(3, 3 + length)),
        sampling=SamplingParams(),
        seed=0,
        block_table=table,
    )


class WithoutRows(LlamaForCausalLM):
    """A model whose forward cannot select rows, and which scales its logits at the end."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, use_cache: Any = None) -> Any:
        out = super().forward(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache)
        out.logits = out.logits * 0.5
        return out


class WithConvolution(LlamaForCausalLM):
    """Attends in every layer and also lets each token see the one before it."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, **others: Any) -> Any:
        embedded = self.get_input_embeddings()(input_ids)
        embedded = embedded + 0.5 * embedded.roll(1, dims=1)
        return super().forward(inputs_embeds=embedded, position_ids=position_ids, **others)


class WithOneLayerTwice(LlamaForCausalLM):
    """Two layers that both say they are the first."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.layers[1].self_attn.layer_idx = 0


def test_it_learns_layers_logits_and_window_from_the_module() -> None:
    runner = make_runner(llama())
    assert runner.layers == (LayerSpec(num_kv_heads=2, key_dim=8, value_dim=8),) * 2
    assert (runner.vocab_size, runner.block_size, runner.num_blocks) == (96, 4, 16)
    assert runner.max_model_len == 64


def test_a_batch_without_wanted_rows_still_fills_the_cache() -> None:
    module, one, heads = llama(), sequence(6, [3, 5]), []
    runner = make_runner(module)
    module.lm_head.register_forward_hook(lambda _, inputs, __: heads.append(inputs[0].numel()))
    empty = runner.run(build_batch([Chunk(one, 0, 5, 5)], 4, CPU))
    assert not any(heads)
    assert (empty.shape, empty.dtype) == ((0, 96), torch.float32)
    last = runner.run(build_batch([Chunk(one, 5, 1, 5)], 4, CPU))
    want = llama()(torch.tensor([one.token_ids])).logits[0, -1:]
    torch.testing.assert_close(last, want, rtol=0, atol=1e-6)


def test_rows_come_in_float32_from_a_bfloat16_model() -> None:
    runner = make_runner(llama().bfloat16())
    assert runner.run(build_batch([Chunk(sequence(4, [1]), 0, 4, 2)], 4, CPU)).dtype == torch.float32


def test_a_copied_block_continues_like_its_source() -> None:
    runner, one = make_runner(llama()), sequence(7, [3, 5])
    runner.run(build_batch([Chunk(one, 0, 6, 6)], 4, CPU))
    runner.copy_blocks([])
    runner.copy_blocks([(5, 9)])
    source = runner.run(build_batch([Chunk(one, 6, 1, 6)], 4, CPU))
    one.block_table = [3, 9]
    assert torch.equal(runner.run(build_batch([Chunk(one, 6, 1, 6)], 4, CPU)), source)


def test_a_model_that_cannot_select_rows_keeps_its_own_last_step() -> None:
    plain, scaled = make_runner(llama()), make_runner(WithoutRows(llama().config).eval())
    scaled.module.load_state_dict(llama().state_dict())
    batch = build_batch([Chunk(sequence(6, [1, 2]), 0, 6, 3)], 4, CPU)
    torch.testing.assert_close(scaled.run(batch), plain.run(batch) * 0.5)


@pytest.mark.parametrize(
    ("kind", "reason"), [(WithConvolution, "outside attention"), (WithOneLayerTwice, r"layers \[0, 0\]")]
)
def test_a_model_that_would_be_wrong_is_refused_by_name(kind: type[LlamaForCausalLM], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{kind.__name__}.*{reason}"):
        make_runner(kind(llama().config).eval())


def test_an_encoder_is_refused() -> None:
    config = BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    with pytest.raises(UnsupportedModel, match="not causal"):
        make_runner(AutoModelForCausalLM.from_config(config).eval())


def test_a_window_beyond_the_models_own_is_refused() -> None:
    with pytest.raises(CacheTooSmall):
        make_runner(llama(), max_model_len=65)


def test_attention_outside_a_step_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="active step"):
        current()
    module = llama()
    module.set_attn_implementation(ATTENTION_NAME)
    with pytest.raises(RuntimeError, match="active step"):
        module(torch.tensor([[1, 2]]))


@pytest.mark.parametrize(
    "argument",
    [{"attention_mask": torch.ones(1)}, {"position_bias": torch.ones(1)}, {"is_causal": False}],
    ids=lambda argument: next(iter(argument)),
)
def test_what_would_change_the_scores_is_refused_instead_of_ignored(argument: dict[str, Any]) -> None:
    layer = llama().model.layers[0].self_attn
    q = torch.zeros(1, 4, 2, 8)
    with pytest.raises(UnsupportedModel, match="LlamaAttention"):
        paged_attention(layer, q, q, q, **{"attention_mask": None, **argument})
