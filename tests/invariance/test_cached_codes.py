"""A cache of codes: the same answers alone, in a mix, preempted and after a hit; not a number stays alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from serve_app.engine.engine import Engine
from serve_app.engine.kernels import native
from serve_app.types import EngineRequest, SamplingParams
from tests.invariance.test_batch_invariance import alone, mixed, requests
from tests.support.engines import WINDOW, engine_over
from tests.support.several_ranks import ranks

DTYPES = [torch.float32, torch.bfloat16]
BROKEN = 300  # a token whose embedding is not a number


def new_engine(folder: Path, dtype: torch.dtype, *, broken: bool = False, **engine: object) -> Engine:
    if native() is None:
        pytest.skip("exact with the kernels of ours alone: torch's own round by the shape of the batch")
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    if broken:
        with torch.no_grad():
            module.get_input_embeddings().weight[BROKEN] = float("nan")
    return engine_over(module, engine={"max_model_len": WINDOW, "kv_cache_dtype": "int8", **engine})


def greedy(name: str, tokens: tuple[int, ...], count: int) -> EngineRequest:
    """`count` tokens, none of which is the broken one."""
    sampling = SamplingParams(
        temperature=0.0, max_tokens=count, ignore_eos=True, logit_bias=((BROKEN, -1e9),)
    )
    return EngineRequest(id=name, token_ids=tokens, sampling=sampling)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prompts_give_the_same_tokens_alone_in_a_mix_and_preempted(folder: Path, dtype: torch.dtype) -> None:
    wanted = requests(16, seed=1)
    engine = new_engine(folder, dtype, prefix_cache=False)
    lone = {request.id: alone(engine, request) for request in wanted}
    crowded = new_engine(folder, dtype, num_blocks=20, max_step_tokens=37, max_sequences=9)
    noise = [replace(request, id=f"noise-{request.id}") for request in requests(6, seed=2)]
    collected = mixed(crowded, wanted, noise, seed=3)
    for request in wanted:
        assert collected.answer(request) == lone[request.id], request
    assert crowded.stats().preemptions > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_prefix_that_is_found_and_an_answer_that_goes_on_change_nothing(
    folder: Path, dtype: torch.dtype
) -> None:
    whole = greedy("whole", tuple(range(10, 90)), 30)
    engine = new_engine(folder, dtype)
    first = alone(engine, whole).tokens[0]
    before = engine.stats().cached_tokens
    assert alone(engine, whole).tokens[0] == first
    assert engine.stats().cached_tokens - before >= 64
    rest = greedy("rest", (*whole.token_ids, *first[:11]), 19)
    assert alone(new_engine(folder, dtype), rest).tokens[0] == first[11:]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_request_that_is_not_a_number_fails_alone_and_leaves_nothing_in_its_blocks(
    folder: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.models.loader.check_finite", lambda module, folder: None)
    sound = greedy("sound", tuple(range(20, 50)), 12)
    want = alone(new_engine(folder, dtype), sound).tokens
    engine = new_engine(folder, dtype, broken=True, num_blocks=10, max_model_len=128, prefix_cache=False)
    broken = greedy("broken", (*range(60, 150), BROKEN, 61, 62), 12)
    for request in (broken, sound):
        engine.add(request)
    outputs = []
    while engine.has_work():
        outputs += engine.step()
    errors = {o.request_id: o.error.kind for o in outputs if o.error is not None}
    assert errors == {"broken": "NumericalError"}
    tokens = [t for o in outputs if o.request_id == "sound" for t in o.token_ids]
    assert tuple(tokens) == want[0]
    for again in range(3):  # in blocks that the broken one had
        assert alone(engine, replace(sound, id=f"again-{again}")).tokens == want


def test_the_same_bytes_hold_twice_the_tokens(folder: Path) -> None:
    """Exactly: a token of the tiny model, of 2 layers, 2 heads and 16 numbers, has 256 bytes or 160.

    The bytes are those of one rank, which has its part of the heads.
    """
    blocks = {}
    for kept in ("auto", "int8"):
        engine = new_engine(
            folder, torch.bfloat16, kv_cache_dtype=kept, num_blocks=None, kv_cache_bytes=1 << 20
        )
        blocks[kept] = engine.stats().blocks_total
    size = (1 << 20) * ranks() // 16
    assert blocks == {"auto": size // 256, "int8": size // 160}
