"""On a GPU: a decode step waits for nothing but its tokens, and steps that overlap give the same answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.assemble import assemble
from serve_app.engine.engine import Engine
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.transfer import Receipt, send
from serve_app.types import EngineRequest, SamplingParams
from tests.unit.engine.sampling.test_waits import PADDED, V, batch, logits_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
EOS = 2
LENGTH = 24


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait raises, but the one for a receipt."""
    own = Receipt.wait

    def waiting(receipt: Receipt) -> list[torch.Tensor]:
        torch.cuda.set_sync_debug_mode("default")
        try:
            return own(receipt)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(Receipt, "wait", waiting)


def test_sampling_waits_for_nothing_but_the_tokens(strict: None) -> None:
    sequences = batch()
    logits = logits_of(len(sequences)).to(CUDA)
    sampler = Sampler(V, frozenset({EOS}))
    with torch.inference_mode():
        sampler.choose(logits.clone(), sequences).read()  # what a first use allocates
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            outcomes = sampler.choose(logits, sequences).read()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert {outcome.error is None for outcome in outcomes} == {True, False}
    assert all(outcome.token_id < PADDED for outcome in outcomes)


def test_what_is_sent_and_received_is_what_it_was() -> None:
    sizes = (3, torch.int64), (70, torch.int32), (0, torch.int64)
    arrays = [torch.arange(size).to(kind).numpy() for size, kind in sizes]
    sent = send(CUDA, *arrays)
    assert [tensor.tolist() for tensor in sent] == [array.tolist() for array in arrays]
    parts = [sent[0], torch.linspace(0, 1, 6, dtype=torch.float64, device=CUDA).view(2, 3)]
    for part, found in zip(parts, Receipt(parts).wait(), strict=True):
        assert torch.equal(part.cpu(), found)


def engine(folder: Path, overlap: bool) -> Engine:
    settings = EngineConfig(max_model_len=256, num_blocks=200, block_size=16, overlap=overlap)
    config = ModelConfig(name="tiny", source=str(folder), attention="triton", engine=settings)
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    module = LlamaForCausalLM(LlamaConfig(vocab_size=V, max_position_embeddings=256, **shape)).eval()
    return assemble(
        module.to(CUDA),
        dtype=torch.float32,
        device=CUDA,
        context_window=256,
        eos_token_ids=(EOS,),
        config=config,
        progress=lambda _: None,
    )


def asked() -> list[EngineRequest]:
    drawn = SamplingParams(temperature=0.8, seed=3, max_tokens=LENGTH, ignore_eos=True)
    kinds = (
        replace(drawn, temperature=0.0),
        drawn,
        replace(drawn, top_k=20),
        replace(drawn, top_p=0.9, min_p=0.01),
        replace(drawn, logit_bias=((7, 1.0),)),
        replace(drawn, repetition_penalty=1.3, frequency_penalty=0.2, bad_words=((7, 8),)),
        replace(drawn, no_repeat_ngram=2, min_tokens=20),
        replace(drawn, watermark=True),
    )
    return [
        EngineRequest(id=f"r{i}", token_ids=tuple(range(3, 20 + i)), sampling=kind, logprobs=i % 2 or None)
        for i, kind in enumerate(kinds)
    ]


def take(made: Engine, tokens: dict[str, list[int]]) -> None:
    """One step, and the tokens that it gave. A wait that is not allowed would end its request."""
    for output in made.step():
        assert output.error is None
        tokens.setdefault(output.request_id, []).extend(output.token_ids)


def test_overlapped_steps_give_the_answers_of_steps_that_wait_and_never_wait_in_between(
    tmp_path: Path, strict: None
) -> None:
    found = []
    for overlap in (False, True):
        made = engine(tmp_path, overlap)
        tokens: dict[str, list[int]] = {}
        for request in asked():
            made.add(request)
        for _ in range(8):  # prompts, and the kernels that they compile
            take(made, tokens)
        torch.cuda.set_sync_debug_mode("error")
        try:
            while made.has_work():
                take(made, tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found.append(tokens)
    assert found[0] == found[1]
    assert {len(told) for told in found[0].values()} == {LENGTH}
