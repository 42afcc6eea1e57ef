"""Rows with adapters are as on a model with the adapter's matrices merged in; the others as alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Glm4Config,
    LlamaConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen3Config,
)

from serve_app.config import EngineConfig
from serve_app.engine.attention import AttentionBackend
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.engine import Engine
from serve_app.engine.kernels import native
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.model.adapter_table import Adapters
from serve_app.engine.model.lora import LowRank
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.weights.format import Load
from serve_app.engine.weights.formats import FORMATS
from serve_app.engine.weights.torch_weight import OnednnWeight, TorchWeight
from serve_app.types import EngineOutput, EngineRequest, FinishReason, SamplingParams

SHAPE: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    "phi3": Phi3Config(**{k: v for k, v in SHAPE.items() if k != "head_dim"}),
    "glm4": Glm4Config(**SHAPE),  # the rows of its queries and keys lie in another order
    "cohere": CohereConfig(**SHAPE),
    "qwen2_moe": Qwen2MoeConfig(  # whose shared experts have adapters
        **SHAPE,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=40,
    ),
}
BACKENDS: dict[str, type[AttentionBackend]] = {"fused": CpuAttention, "plain": ReferenceAttention}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = {
    None: (5, 17, 80, 3),
    "a": (5, 17, 80, 3),
    "b": (9, 9, 31, 140, 2, 77, 8),
    "c": tuple(range(20, 60)),
}


@cache
def original(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager").eval().float()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.15)
    return model


def build(
    name: str,
    how: str = "fused",
    dtype: torch.dtype = torch.float32,
    quantization: Quantization | None = None,
    **settings: Any,
) -> tuple[Engine, Adapters]:
    module: Any = copy.deepcopy(original(name)).to(dtype)
    if how == "fused":
        accelerate_cpu(module, dtype, weights=FORMATS[quantization or "none"])
    config = EngineConfig(kv_cache_bytes=1 << 20, block_size=16, **settings)
    runner = ModelRunner(
        module, backend=BACKENDS[how](), dtype=dtype, device=torch.device("cpu"), config=config
    )
    assert runner.adapters is not None
    return Engine(runner, config, eos_token_ids=frozenset(), max_model_len=256), runner.adapters


def adapter(table: Adapters, seed: int, rank: int = 4, places: float = 1.0) -> list[LowRank]:
    """Updates as large as the weights themselves, at this share of the places."""
    random = torch.Generator().manual_seed(seed)
    updates = []
    for (layer, module), (n, k) in table.shapes.items():
        if torch.rand((), generator=random) < places:
            a, b = torch.randn(rank, k, generator=random), torch.randn(n, rank, generator=random)
            updates.append(LowRank(layer, module, a * 0.15, b * 0.15))
    return updates


def merged(name: str, updates: list[LowRank]) -> PreTrainedModel:
    """transformers' own model with the products added to its weights."""
    model: Any = copy.deepcopy(original(name))
    for update in updates:
        layer = model.model.layers[update.layer]
        delta = update.b @ update.a
        for path, linear in layer.named_modules():
            leaf = path.rpartition(".")[2]
            if leaf == update.module:
                linear.weight.data += delta
            elif leaf == "gate_up_proj" and update.module in ("gate_proj", "up_proj"):
                half = linear.out_features // 2
                start = half * (update.module == "up_proj")
                linear.weight.data[start : start + half] += delta
            elif leaf == "qkv_proj" and update.module in ("q_proj", "k_proj", "v_proj"):
                heads = {"q_proj": 0, "k_proj": 6, "v_proj": 8}[update.module]
                size = linear.out_features // 10
                linear.weight.data[heads * size : heads * size + len(delta)] += delta
    return model


def expected(model: PreTrainedModel, prompt: tuple[int, ...], count: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def run(engine: Engine, requests: Mapping[str, EngineRequest]) -> dict[str, list[int]]:
    """All tokens of each request; none may fail."""
    tokens: dict[str, list[int]] = {id: [] for id in requests}
    for request in requests.values():
        engine.add(request)
    for output in steps(engine):
        assert output.finish is not FinishReason.ERROR
        tokens[output.request_id] += output.token_ids
    engine.check_integrity()
    return tokens


def steps(engine: Engine) -> Iterator[EngineOutput]:
    while engine.has_work():
        yield from engine.step()


def ask(id: str, key: str | None, prompt: tuple[int, ...] = (), **fields: Any) -> EngineRequest:
    return EngineRequest(
        id=id, token_ids=prompt or PROMPTS[key], adapter=key, **{"sampling": GREEDY, **fields}
    )


def load(table: Adapters, **places: float) -> dict[str, list[LowRank]]:
    updates = {
        key: adapter(table, seed, rank=seed + 3, places=places.get(key, 1.0))
        for seed, key in enumerate("abc")
    }
    for key, each in updates.items():
        table.put(key, table.compile(each))
    return updates


@pytest.mark.parametrize("how", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_answers_as_a_model_with_the_matrices_merged_in(name: str, how: str) -> None:
    engine, table = build(name, how)
    updates = load(table, c=0.4)
    found = run(engine, {key: ask(key, key) for key in "abc"})
    for key in "abc":
        assert found[key] == expected(merged(name, updates[key]), PROMPTS[key], 12)
    plain = run(engine, {"x": ask("x", None)})["x"]
    assert plain == expected(original(name), PROMPTS[None], 12) != found["a"]


@pytest.mark.parametrize(
    "module", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
)
@pytest.mark.parametrize("how", BACKENDS)
def test_each_module_changes_its_own_outputs(how: str, module: str) -> None:
    engine, table = build("qwen3", how)
    updates = [update for update in adapter(table, 5) if update.module == module]
    table.put("m", table.compile(updates))
    request = ask("m", "m", PROMPTS["c"], prompt_logprobs=0)
    engine.add(request)
    outputs = list(steps(engine))
    want = merged("qwen3", updates)
    with torch.inference_mode():
        logits = want(input_ids=torch.tensor([PROMPTS["c"]])).logits[0].log_softmax(-1)
    positions = outputs[0].prompt_logprobs
    assert positions is not None
    assert len(positions) == len(PROMPTS["c"]) - 1
    for at, position in enumerate(positions):
        assert position.logprob == pytest.approx(float(logits[at, position.token_id]), abs=2e-3)
    assert [token for output in outputs for token in output.token_ids] == expected(want, PROMPTS["c"], 12)


@pytest.mark.parametrize("load_weight", [TorchWeight, OnednnWeight])
def test_products_of_torch_say_the_same(monkeypatch: pytest.MonkeyPatch, load_weight: Load) -> None:
    """As on a GPU, and on a CPU without a compiler."""
    monkeypatch.setattr("serve_app.engine.model.packed_adapters.load_on_cpu", load_weight)
    engine, table = build("qwen3", "plain")
    updates = load(table, b=0.5)
    found = run(engine, {key: ask(key, key) for key in "abc"})
    for key in "abc":
        assert found[key] == expected(merged("qwen3", updates[key]), PROMPTS[key], 12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen2_moe"])
def test_a_mixed_batch_answers_as_each_row_alone(name: str, how: str, dtype: torch.dtype) -> None:
    if how == "plain" and (dtype is torch.bfloat16 or name == "qwen2_moe"):
        pytest.skip("plain torch rounds differently at different batch sizes")
    engine, table = build(name, how, dtype, prefix_cache=False, max_step_tokens=24)
    load(table, b=0.5)
    requests = {
        f"{key}{copy}": ask(f"{key}{copy}", key, logprobs=1) for copy in range(3) for key in (None, *"abc")
    }
    together = run(engine, requests)
    for id, request in requests.items():
        assert run(engine, {id: request})[id] == together[id], id


def test_a_quantised_mixed_batch_answers_as_each_row_alone() -> None:
    if native() is None:
        pytest.skip("exact with the kernels of ours alone")
    engine, table = build("qwen3", quantization=Quantization.INT8, prefix_cache=False, max_step_tokens=24)
    load(table, b=0.5)
    requests = {
        f"{key}{copy}": ask(f"{key}{copy}", key, logprobs=1) for copy in range(3) for key in (None, *"abc")
    }
    together = run(engine, requests)
    for id, request in requests.items():
        assert run(engine, {id: request})[id] == together[id], id


def test_an_adapter_moves_a_quantised_model_as_it_moves_the_model_itself() -> None:
    engine, table = build("qwen3", quantization=Quantization.INT8)
    updates = load(table)
    for key in "abc":
        engine.add(ask(key, key, PROMPTS["c"], prompt_logprobs=0))
        (positions,) = (each.prompt_logprobs for each in steps(engine) if each.prompt_logprobs is not None)
        found = torch.tensor([each.logprob for each in positions])
        want, plain = (
            _logprobs(each, PROMPTS["c"]) for each in (merged("qwen3", updates[key]), original("qwen3"))
        )
        assert (found - want).abs().mean() < 0.1 * (plain - want).abs().mean()


def _logprobs(model: PreTrainedModel, prompt: tuple[int, ...]) -> torch.Tensor:
    """Of each token of the prompt but the first."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]


def test_a_prefix_is_found_under_its_own_adapter_only() -> None:
    engine, table = build("llama")
    load(table)
    prompt = PROMPTS["c"]
    alone = {key: run(build_with(key), {"x": ask("x", key, prompt)})["x"] for key in (None, *"abc")}
    for _ in range(2):  # the second time each finds its own prefix
        for key in (None, *"abc"):
            assert run(engine, {"x": ask("x", key, prompt)})["x"] == alone[key]
    assert engine.stats().cached_tokens == 4 * 32  # two blocks each, in the second round alone


def build_with(key: str | None) -> Engine:
    engine, table = build("llama")
    load(table)
    return engine


def test_an_adapter_that_is_gone_fails_its_own_request_only() -> None:
    engine, table = build("llama")
    load(table)
    good = run(engine, {"x": ask("x", "a")})["x"]
    engine.add(ask("lost", "nobody", PROMPTS["a"]))
    engine.add(ask("x", "a"))
    ends = {output.request_id: output for output in steps(engine) if output.finish is not None}
    assert ends["lost"].finish is FinishReason.ERROR
    assert ends["x"].finish is FinishReason.LENGTH
    assert run(engine, {"y": ask("y", "a")})["y"] == good


def test_beams_and_siblings_have_the_adapter_of_their_request() -> None:
    engine, table = build("llama", prefix_cache=False)
    updates = load(table)
    engine.add(ask("n", "b", n=3))
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for output in steps(engine):
        tokens[output.index] += output.token_ids
    want = expected(merged("llama", updates["b"]), PROMPTS["b"], 12)
    assert list(tokens.values()) == [want, want, want]


def test_memory_is_given_back() -> None:
    _, table = build("llama")
    for _ in range(3):
        load(table)
        assert len(table) == 3
        assert table.num_bytes > 0
        for key in "abc":
            table.drop(key)
        assert (len(table), table.num_bytes) == (0, 0)


def test_what_all_slots_may_take_is_kept_free() -> None:
    _, table = build("llama", max_adapters=3, max_adapter_rank=16)
    before = table.bytes_to_come
    for number, key in enumerate("abc", 1):
        table.put(key, table.compile(adapter(table, 0, rank=16)))
        assert 0 < table.num_bytes <= 1.1 * before * number / 3
        assert table.bytes_to_come == before - table.num_bytes


def test_experts_are_no_place_for_an_adapter() -> None:
    torch.manual_seed(0)
    config = Qwen2MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    runner = ModelRunner(
        model,
        backend=ReferenceAttention(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        config=EngineConfig(kv_cache_bytes=1 << 20),
    )
    assert runner.adapters is not None
    assert {module for _, module in runner.adapters.shapes} >= {"q_proj", "k_proj", "v_proj", "o_proj"}
