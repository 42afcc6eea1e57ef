"""Attention to the tokens that an index chooses: transformers' tokens and logits, whatever else happens.

The index keys of a token are in its blocks: they must be there after a prefix hit, a fork and a preemption.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine.engine import Engine
from serve_app.engine.estimate import Estimate
from serve_app.types import EngineRequest
from tests.invariance.test_states import REQUESTS
from tests.support.engine_answers import OUTPUT, VOCAB, Told, answers, engine_of, request
from tests.support.tiny_models import MLA, make_model, tiny_config

TOPK: Final = 8  # tokens that a row sees, of up to 82
INDEX: Final = {**MLA, "index_topk": TOPK, "index_n_heads": 16, "index_head_dim": 16}
EXPERTS: Final = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1}
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "deepseek_v32": {**INDEX, **EXPERTS, "topk_group": 1, "first_k_dense_replace": 1},
    "glm_moe_dsa": {**INDEX, **EXPERTS, "indexer_types": ["full", "shared"] * 2},  # some share a choice
}
EACH = pytest.mark.parametrize("kind", ["deepseek_v32", pytest.param("glm_moe_dsa", marks=pytest.mark.full)])
TOLERANCE: Final = 1e-4


@cache
def model(kind: str, **settings: int) -> PreTrainedModel:
    """A float32 model that nothing may change."""
    return make_model(tiny_config(kind, **{**KINDS[kind], "max_position_embeddings": 256, **settings}))


def new_engine(kind: str, **settings: object) -> Engine:
    return engine_of(model(kind), **settings)


def logits(module: PreTrainedModel, tokens: tuple[int, ...], answer: list[int]) -> torch.Tensor:
    """Transformers' logits [N, V] of the tokens of an answer."""
    with torch.inference_mode():
        found = module(torch.tensor([[*tokens, *answer]]), use_cache=False).logits[0]
    return found[len(tokens) - 1 : -1]


def check(kind: str, asked: EngineRequest, told: Told) -> None:
    want = logits(model(kind), asked.token_ids, told.tokens)
    got = torch.frombuffer(bytearray(told.logits), dtype=torch.float32).view(OUTPUT, VOCAB)
    torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE * want.abs().max().item())
    assert told.tokens == want.argmax(-1).tolist()


MIXES: dict[str, dict[str, object]] = {
    "crowd": {},
    "pieces": {"max_step_tokens": 23, "max_sequences": 4},
    "few blocks": {"num_blocks": 17, "max_step_tokens": 37},
}


@EACH
@pytest.mark.parametrize("mix", MIXES)
def test_answers_are_those_of_transformers(kind: str, mix: str) -> None:
    engine = new_engine(kind, **MIXES[mix])
    for _ in range(2):  # the second time with the index keys of the first one
        told = answers(engine, REQUESTS)
        for asked in REQUESTS:
            check(kind, asked, told[asked.id, 0])
    assert bool(engine.stats().preemptions) == (mix == "few blocks")


@EACH
def test_choices_go_on_from_the_index_of_their_prompt(kind: str) -> None:
    asked = request("n", REQUESTS[0].token_ids, n=3)
    told = answers(new_engine(kind, max_step_tokens=40), [asked])
    for choice in range(3):
        check(kind, asked, told["n", choice])


@EACH
def test_a_row_sees_only_what_its_index_chooses(kind: str) -> None:
    """With room for all tokens, the same weights give other logits."""
    asked = REQUESTS[0]
    few, all_of_them = (
        logits(model(kind, **more), asked.token_ids, [3]) for more in ({}, {"index_topk": 256})
    )
    assert not torch.allclose(few, all_of_them, rtol=0, atol=0.1 * few.abs().max().item())


def test_the_cache_counts_the_keys_of_the_index() -> None:
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(copy.deepcopy(model("glm_moe_dsa").config)).float()
    layers = Estimate.of(empty, ModelConfig(name="tiny", source="tiny")).layers
    assert layers is not None
    assert [spec.index_dim for spec in layers.attention] == [16, 0, 16, 0]
    plain = replace(layers.attention[0], index_dim=0).bytes_per_token(torch.float32)
    assert layers.attention[0].bytes_per_token(torch.float32) == plain + 16 * 4
