"""Context and generation logits against transformers, complete however a prompt is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.engine import Engine
from serve_app.errors import InvalidField
from serve_app.limits import MAX_LOGITS_BYTES
from serve_app.replica.build import load_engine
from serve_app.types import Beam, Draft, EngineOutput, EngineRequest, SamplingParams, Tensor
from tests.invariance.test_batch_invariance import VOCAB, new_engine
from tests.support.fakes import VOCAB_SIZE, HashRunner, hash_logits
from tests.unit.engine.test_engine import Bench

PROMPT = tuple(range(10, 60))


@pytest.fixture(scope="module")
def module(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def numbers(tensor: Tensor) -> torch.Tensor:
    assert tensor.dtype == "FP32"
    return torch.frombuffer(bytearray(tensor.data), dtype=torch.float32).view(tensor.shape)


class Told:
    """What an engine told of one request."""

    def __init__(self, engine: Engine, request: EngineRequest) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.rows: dict[int, list[torch.Tensor]] = {}
        self.context: list[torch.Tensor] = []
        self.last: dict[int, EngineOutput] = {}
        engine.add(request)
        while engine.has_work():
            for output in engine.step():
                if output.request_id == request.id:
                    self._take(output)
            engine.check_integrity()

    def _take(self, output: EngineOutput) -> None:
        self.tokens.setdefault(output.index, []).extend(output.token_ids)
        generation = output.tensors.get("generation_logits")
        if generation is not None:
            assert generation.shape[0] == len(output.token_ids)
            self.rows.setdefault(output.index, []).append(numbers(generation))
        if "context_logits" in output.tensors:
            self.context.append(numbers(output.tensors["context_logits"]))
        self.last[output.index] = output


def request(name: str, prompt: tuple[int, ...] = PROMPT, **fields: Any) -> EngineRequest:
    known = {f: fields.pop(f) for f in list(fields) if f in EngineRequest.__dataclass_fields__}
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 7, "ignore_eos": True, **fields})
    return EngineRequest(id=name, token_ids=prompt, sampling=sampling, **known)


@torch.inference_mode()
def by_transformers(module: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = module(input_ids=torch.tensor([tokens])).logits[0]
    return logits


@pytest.mark.parametrize("attention", ["reference", "cpu"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"repetition_penalty": 1.5, "logit_bias": ((5, 9.0),)},
        {"temperature": 1.0, "seed": 3, "n": 3},
        {"beam": Beam(width=3), "n": 2},
        {"draft": Draft(token_ids=(1, 2, 3)), "prompt_logprobs": 1},
    ],
    ids=["greedy", "penalties", "n", "beam", "draft"],
)
def test_logits_are_those_of_transformers(
    folder: Path, module: Any, attention: str, fields: dict[str, Any]
) -> None:
    engine = new_engine(folder, attention, max_step_tokens=16)
    told = Told(engine, request("a", context_logits=True, generation_logits=True, **fields))
    (context,) = told.context
    assert torch.allclose(context, by_transformers(module, list(PROMPT)), atol=1e-4)
    for index, tokens in told.tokens.items():
        rows = torch.cat(told.rows[index])
        expected = by_transformers(module, [*PROMPT, *tokens])[len(PROMPT) - 1 : -1]
        assert torch.allclose(rows, expected, atol=1e-4)
        assert torch.equal(rows[0], context[-1])


def test_the_demo_model_gives_the_logits_of_transformers() -> None:
    config = ModelConfig(
        name="demo-chat",
        dtype="float32",
        threads=1,
        engine=EngineConfig(max_model_len=128, num_blocks=32, block_size=16, ngram_draft=4),
    )
    engine, loaded = load_engine(config, lambda _: None)
    module = AutoModelForCausalLM.from_pretrained(loaded.folder, dtype=torch.float32).eval()
    told = Told(engine, request("a", context_logits=True, generation_logits=True, max_tokens=20))
    assert torch.equal(told.context[0][-1], told.rows[0][0][0])
    expected = by_transformers(module, [*PROMPT, *told.tokens[0]])
    assert torch.allclose(told.context[0], expected[: len(PROMPT)], atol=1e-4)
    assert torch.allclose(torch.cat(told.rows[0]), expected[len(PROMPT) - 1 : -1], atol=1e-4)


def test_a_prefix_hit_leaves_no_gap(folder: Path, module: Any) -> None:
    engine = new_engine(folder, "cpu")
    Told(engine, request("first"))
    told = Told(engine, request("again", context_logits=True))
    assert told.last[0].cached_tokens == 0  # all of it had to be computed
    assert torch.allclose(told.context[0], by_transformers(module, list(PROMPT)), atol=1e-4)
    assert Told(engine, request("third")).last[0].cached_tokens > 0


@pytest.mark.parametrize("seed", range(6))
def test_context_logits_survive_preemption_and_chunks(seed: int) -> None:
    """In a cache so small that requests push each other out, to the last bit."""
    bench = Bench(runner=HashRunner(num_blocks=10), settings={"max_step_tokens": 16 + seed}, window=40)
    found: dict[str, torch.Tensor] = {}
    rows: dict[tuple[str, int], list[torch.Tensor]] = {}
    prompts = {f"r{i}": tuple((i * 7 + k) % VOCAB_SIZE for k in range(3 + 2 * i)) for i in range(5)}
    for i, (name, prompt) in enumerate(prompts.items()):
        bench.add(
            name,
            prompt,
            max_tokens=12,
            n=1 + i % 2,
            context_logits=True,
            generation_logits=True,
            prompt_logprobs=0 if i % 2 else None,
            priority=i % 3,
        )
    while bench.engine.has_work():
        for output in bench.step():
            if "context_logits" in output.tensors:
                assert output.request_id not in found
                found[output.request_id] = numbers(output.tensors["context_logits"])
            if "generation_logits" in output.tensors:
                piece = numbers(output.tensors["generation_logits"])
                rows.setdefault((output.request_id, output.index), []).append(piece)
    assert bench.engine.stats().preemptions > 0
    for name, prompt in prompts.items():
        expected = [torch.from_numpy(hash_logits(prompt[: k + 1])) for k in range(len(prompt))]
        assert torch.equal(found[name], torch.stack(expected))
    for line, tokens in bench.tokens.items():
        prompt = prompts[line[0]]
        expected = [torch.from_numpy(hash_logits((*prompt, *tokens[:k]))) for k in range(len(tokens))]
        assert torch.equal(torch.cat(rows[line]), torch.stack(expected))


@pytest.mark.parametrize(
    ("prompt", "fields", "name"),
    [
        (200, {"context_logits": True, "max_tokens": 1}, "context_logits"),
        (1, {"generation_logits": True, "max_tokens": 150}, "generation_logits"),
        (1, {"generation_logits": True, "max_tokens": 60, "n": 3}, "generation_logits"),
        (1, {"generation_logits": True, "max_tokens": 60, "beam": Beam(width=3)}, "generation_logits"),
        (1, {"generation_logits": True, "max_tokens": None}, "generation_logits"),
    ],
)
def test_too_many_logits_are_refused(
    prompt: int, fields: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.limits.MAX_LOGITS_BYTES", 130 * 4 * VOCAB_SIZE)
    bench = Bench(window=256)
    with pytest.raises(InvalidField, match=f"{name}: .* hold 130"):
        bench.add("a", (1,) * prompt, **fields)
    bench.add("b", (1,) * 100, context_logits=True, generation_logits=True, max_tokens=30)


def test_the_limit_is_worth_something() -> None:
    assert MAX_LOGITS_BYTES // (4 * VOCAB) > 10_000


def test_performance_numbers_add_up(folder: Path) -> None:
    engine = new_engine(folder, "cpu")
    first, again = Told(engine, request("first")).last[0].perf, Told(engine, request("again", n=2)).last
    assert first is not None
    assert first.arrival_ns <= first.first_scheduled_ns < first.first_token_ns < first.last_token_ns
    assert (first.blocks_total, first.blocks_reused, first.blocks_new) == (4, 0, 4)
    for output in again.values():
        assert output.perf is not None
        assert (output.perf.blocks_total, output.perf.blocks_reused, output.perf.blocks_new) == (4, 3, 1)
        assert (output.perf.draft_tokens, output.perf.accepted_tokens) == (0, 0)
    searched = Told(engine, request("beam", beam=Beam(width=2))).last[0].perf
    assert searched is not None
    assert searched.first_token_ns <= searched.last_token_ns
