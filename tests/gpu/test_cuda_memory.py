"""On a GPU: caches leave room for steps, a step without memory costs nobody else anything, weights stream."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.assemble import assemble
from serve_app.engine.attention.select import make_backend
from serve_app.engine.engine import Engine
from serve_app.engine.model import peak
from serve_app.engine.model.memory import keep_to_share
from serve_app.engine.model.runner import ModelRunner
from serve_app.models.loader import load_model
from serve_app.models.streamed import StreamedTensor
from serve_app.types import EngineOutput, EngineRequest, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
SHARE = 0.5
GIB = 2**30
MARK = 77  # a token for which the model wants more memory than the GPU has


@pytest.fixture(autouse=True)
def the_whole_gpu() -> Iterator[None]:
    """Before and after each test."""
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def llama(**shape: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    small = {"vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    config = LlamaConfig(**{**small, **heads, "max_position_embeddings": 131_072, **shape})
    with CUDA:
        return LlamaForCausalLM(config).eval().to(torch.bfloat16)


@pytest.mark.parametrize("attention", ["cuda", "triton"])
def test_the_largest_steps_fit_beside_a_cache_that_fills_a_part_of_the_gpu(attention: str) -> None:
    total = torch.cuda.get_device_properties(CUDA).total_memory
    keep_to_share(SHARE)
    model = llama(vocab_size=128_256)
    if attention == "triton":
        from serve_app.engine.cuda.fused import accelerate_cuda

        accelerate_cuda(model, torch.bfloat16)
    config = EngineConfig(gpu_share=SHARE)
    backend = make_backend(attention, CUDA)
    runner = ModelRunner(model, backend=backend, dtype=torch.bfloat16, device=CUDA, config=config)
    assert runner.plan.cache_bytes > 0.6 * SHARE * total
    held = torch.cuda.memory_allocated()
    for step in peak.largest_steps(config, runner.max_model_len, runner.vocab_size, CUDA):
        assert runner.run(step).isfinite().all()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == held
    assert torch.cuda.memory_reserved() < SHARE * total


class Answers:
    """What an engine answers to each request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[str, list[int]] = {}
        self.errors: dict[str, str] = {}

    def ask(self, name: str, prompt: list[int]) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        self.engine.add(EngineRequest(id=name, token_ids=tuple(prompt), sampling=sampling))
        self.tokens[name] = []

    def take(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            self.tokens[output.request_id] += output.token_ids
            if output.error is not None:
                self.errors[output.request_id] = output.error.reason

    def drain(self) -> None:
        while self.engine.has_work():
            self.take(self.engine.step())
        self.engine.check_integrity()


def test_a_request_that_takes_all_memory_fails_alone_and_the_engine_goes_on() -> None:
    model = llama().float()
    total = torch.cuda.get_device_properties(CUDA).total_memory

    def greedy(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if (inputs[0] == MARK).any():
            torch.empty(2 * total, dtype=torch.uint8, device=CUDA)

    model.get_input_embeddings().register_forward_pre_hook(greedy)
    engine = assemble(
        model,
        dtype=torch.float32,
        device=CUDA,
        context_window=1024,
        eos_token_ids=(),
        # A prompt of the test's own sizes: those that the start would run have every token.
        config=ModelConfig(
            name="m", attention="cuda", engine=EngineConfig(num_blocks=256, prefix_cache=False)
        ),
        progress=lambda line: None,
    )
    prompts = {"a": list(range(100, 140)), "b": list(range(200, 205))}
    alone, beside = Answers(engine), Answers(engine)
    for name, prompt in prompts.items():
        alone.ask(name, prompt)
        alone.drain()
    for name, prompt in prompts.items():
        beside.ask(name, prompt)
    beside.take(engine.step())
    beside.ask("greedy", [5, MARK, 6])
    beside.drain()
    assert {name: beside.tokens[name] for name in prompts} == alone.tokens
    assert set(beside.errors) == {"greedy"}
    assert "ran out of memory with this request" in beside.errors["greedy"]
    alone.ask("c", prompts["a"])
    alone.drain()
    assert alone.tokens["c"] == alone.tokens["a"]


def test_weights_reach_the_gpu_without_filling_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = llama(vocab_size=4096, hidden_size=4096, intermediate_size=11_008, num_hidden_layers=8)
    original.save_pretrained(tmp_path, max_shard_size="512MB")
    files = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert sum(files) > max(files) + GIB
    seen: list[int] = []
    move = StreamedTensor.to

    def watched(self: StreamedTensor, *where: Any, **options: Any) -> torch.Tensor:
        moved = move(self, *where, **options)
        seen.append(psutil.Process().memory_info().rss)
        return moved

    monkeypatch.setattr(StreamedTensor, "to", watched)
    before = psutil.Process().memory_info().rss
    config = ModelConfig(name="m", source=str(tmp_path), device="cuda")
    loaded = load_model(config, lambda line: None).module
    assert len(seen) >= len(list(original.parameters()))
    assert max(seen) - before < max(files) + GIB
    weights = dict(original.named_parameters())
    for name, weight in loaded.named_parameters():
        assert weight.device.type == "cuda"
        assert torch.equal(weight, weights[name])
