"""A quantised model gives the same answers alone, among others, preempted, and from a place in the middle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from serve_app.engine.engine import Engine
from serve_app.engine.kernels import native
from serve_app.engine.kernels.quantized import Quantization
from serve_app.types import EngineRequest, SamplingParams
from tests.invariance.test_batch_invariance import alone, mixed, requests
from tests.support.engines import WINDOW, engine_over


@pytest.fixture(params=Quantization)
def kind(request: pytest.FixtureRequest) -> Quantization:
    found: Quantization = request.param
    return found


def new_engine(folder: Path, kind: Quantization, **engine: int) -> Engine:
    if native() is None:
        pytest.skip("exact with the kernels of ours alone: torch's own round by the shape of the batch")
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return engine_over(module, quantization=kind.value, engine={"max_model_len": WINDOW, **engine})


def test_prompts_give_the_same_tokens_alone_in_a_mix_and_preempted(folder: Path, kind: Quantization) -> None:
    wanted = [without_eos(request) for request in requests(16, seed=1)]  # long answers fill the cache
    engine = new_engine(folder, kind)
    lone = {request.id: alone(engine, request) for request in wanted}
    crowded = new_engine(folder, kind, num_blocks=20, max_step_tokens=37, max_sequences=9)
    noise = [replace(without_eos(request), id=f"noise-{request.id}") for request in requests(6, seed=2)]
    collected = mixed(crowded, wanted, noise, seed=3)
    for request in wanted:
        assert collected.answer(request) == lone[request.id], request
    assert crowded.stats().preemptions > 0


def without_eos(request: EngineRequest) -> EngineRequest:
    return replace(request, sampling=replace(request.sampling, ignore_eos=True))


def test_an_answer_goes_on_as_it_would_have(folder: Path, kind: Quantization) -> None:
    """The rest of a greedy answer, computed from prompt and first tokens, is the rest of the answer."""
    whole = EngineRequest(
        id="whole",
        token_ids=tuple(range(10, 60)),
        sampling=SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
    )
    tokens = alone(new_engine(folder, kind), whole).tokens[0]
    rest = replace(
        whole,
        token_ids=(*whole.token_ids, *tokens[:11]),
        sampling=replace(whole.sampling, max_tokens=19),
    )
    assert alone(new_engine(folder, kind), rest).tokens[0] == tokens[11:]
