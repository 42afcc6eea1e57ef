"""Prompt tables against transformers with `inputs_embeds`, and what keeps one table from another's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from serve_app.engine.engine import Engine
from serve_app.engine.model.prompt_tuning import EmbeddingRows
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import Beam, EngineRequest, PromptTable, SamplingParams, Tensor
from tests.invariance.test_batch_invariance import VOCAB, Answer, alone, mixed, new_engine
from tests.support.fakes import VOCAB_SIZE, HashRunner
from tests.unit.engine.test_engine import Bench

WIDTH = 64
COUNT = 8
PROMPT = (*range(VOCAB, VOCAB + 20), 10, 11, VOCAB + 3, 12, 13, 14)  # more than one block of virtual tokens


@pytest.fixture(scope="module")
def module(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def table(seed: int, rows: int = 20, dtype: torch.dtype = torch.float32) -> PromptTable:
    values = (torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)) * 0.2).to(dtype)
    name = {torch.float32: "FP32", torch.float16: "FP16", torch.bfloat16: "BF16"}[dtype]
    data = values.view(torch.uint8).numpy().tobytes()
    return PromptTable(rows=Tensor(dtype=name, shape=(rows, WIDTH), data=data), used=rows)


def request(number: int, prompt: tuple[int, ...] = PROMPT, **fields: Any) -> EngineRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True, repetition_penalty=1.1)
    return EngineRequest(
        id=f"r{number}",
        token_ids=prompt,
        sampling=sampling,
        prompt_table=fields.pop("prompt_table", None),
        **fields,
    )


@torch.inference_mode()
def by_transformers(
    module: Any, prompt: tuple[int, ...], rows: torch.Tensor, output: tuple[int, ...]
) -> torch.Tensor:
    """Logits [len(output), V] from which transformers chooses the tokens of `output`."""
    ids = torch.tensor([*prompt, *output[:-1]])
    embeds = module.get_input_embeddings()(ids.clamp(max=VOCAB - 1))
    virtual = ids >= VOCAB
    embeds[virtual] = rows[ids[virtual] - VOCAB]
    logits: torch.Tensor = module(inputs_embeds=embeds[None]).logits[0]
    return logits[len(prompt) - 1 :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("attention", ["reference", "cpu"])
def test_rows_are_what_transformers_takes_for_inputs_embeds(
    folder: Path, module: Any, attention: str, dtype: torch.dtype
) -> None:
    engine = new_engine(folder, attention, max_step_tokens=16)  # chunks begin among virtual tokens
    wanted = table(1, dtype=dtype)
    engine.add(request(0, prompt_table=wanted, generation_logits=True))
    output: list[int] = []
    rows: list[torch.Tensor] = []
    while engine.has_work():
        for told in engine.step():
            output += told.token_ids
            data = told.tensors["generation_logits"].data
            rows.append(torch.frombuffer(bytearray(data), dtype=torch.float32).view(-1, VOCAB))
    values = torch.frombuffer(bytearray(wanted.rows.data), dtype=dtype).view(-1, WIDTH).float()
    expected = by_transformers(module, PROMPT, values, tuple(output))
    assert len(output) == COUNT
    assert torch.allclose(torch.cat(rows), expected, atol=1e-4)


def answers(engine: Engine, requests: list[EngineRequest]) -> list[Answer]:
    return [alone(engine, one) for one in requests]


def test_one_table_never_finds_the_cache_of_another(folder: Path) -> None:
    shared, fresh = new_engine(folder, "cpu"), new_engine(folder, "cpu", prefix_cache=False)
    wanted = [request(i, prompt_table=table(i % 2)) for i in range(4)]
    assert answers(shared, wanted) == answers(fresh, wanted)
    # Each table's second request finds the first one's: one block of 16 of 26 tokens.
    assert shared.stats().cached_tokens == 2 * 16


def test_tables_beside_plain_rows(folder: Path) -> None:
    plain = [
        EngineRequest(id=f"p{i}", token_ids=tuple(range(6, 30 + i)), sampling=request(0).sampling)
        for i in range(4)
    ]
    tuned = [request(i, prompt_table=table(i), n=1 + i % 2) for i in range(4)]
    searched = [request(9, prompt_table=table(9), beam=Beam(width=2))]
    wanted = [*plain, *tuned, *searched]
    lone = answers(new_engine(folder, "cpu", prefix_cache=False), wanted)
    for seed in range(3):
        collected = mixed(new_engine(folder, "cpu", num_blocks=16, max_step_tokens=20), wanted, [], seed)
        assert [collected.answer(one) for one in wanted] == lone


def test_penalties_ngrams_watermarks_and_lookup_survive_virtual_tokens(folder: Path) -> None:
    engine = new_engine(folder, "cpu", ngram_draft=4)
    sampling = SamplingParams(
        seed=1,
        max_tokens=20,
        ignore_eos=True,
        no_repeat_ngram=2,
        watermark=True,
        frequency_penalty=0.5,
        penalize_prompt=True,
        bad_words=((12, 13),),
    )
    answer = alone(
        engine,
        EngineRequest(id="a", token_ids=PROMPT[:-3] * 2 + (VOCAB,), sampling=sampling, prompt_table=table(1)),
    )
    assert len(answer.tokens[0]) == 20
    assert max(answer.tokens[0]) < VOCAB


def rows(values: list[list[float]] | None = None, used: int = 2, dtype: str = "FP32") -> PromptTable:
    data = torch.tensor(values or [[0.0] * 4] * 3)
    return PromptTable(
        rows=Tensor(dtype=dtype, shape=tuple(data.shape), data=data.numpy().tobytes()), used=used
    )


@pytest.mark.parametrize(
    ("given", "token", "message"),
    [
        (None, VOCAB_SIZE, "outside the vocabulary of 32"),
        (rows(), VOCAB_SIZE + 2, "outside the vocabulary of 34"),
        (rows(used=0), 1, "prompt_vocab_size must be from 1 to the 3"),
        (rows(used=4), 1, "prompt_vocab_size must be from 1 to the 3"),
        (rows([[0.0] * 3]), 1, "prompt_table must have the shape"),
        (rows([[float("inf")] * 4], used=1), 1, "finite"),
        (rows(dtype="INT32"), 1, "prompt_table must be FP32"),
    ],
)
def test_bad_tables_are_refused(given: PromptTable | None, token: int, message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        Bench().add("a", (1, token), prompt_table=given)


def test_the_last_used_row_can_be_addressed() -> None:
    bench = Bench()
    bench.add("a", (1, VOCAB_SIZE + 1), prompt_table=rows())
    bench.drain()
    assert len(bench.tokens["a", 0]) == 6


def test_virtual_tokens_have_no_log_probability() -> None:
    with pytest.raises(InvalidField, match="prompt_logprobs"):
        Bench().add("a", (1, VOCAB_SIZE), prompt_table=rows(), prompt_logprobs=1)


def test_a_model_that_takes_no_rows_says_so() -> None:
    runner = HashRunner()
    runner.table_width = 0
    with pytest.raises(UnsupportedField, match="prompt_table"):
        Bench(runner=runner).add("a", (1, VOCAB_SIZE), prompt_table=rows())


def test_a_second_embedding_of_tokens_is_not_patched(folder: Path) -> None:
    module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert EmbeddingRows(module, VOCAB).width == WIDTH
    module.per_layer = nn.Embedding(VOCAB, 8)
    assert EmbeddingRows(module, VOCAB).width == 0
