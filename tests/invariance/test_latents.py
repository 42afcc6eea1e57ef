"""Models that keep latents give transformers' tokens, and the same bits whatever else happens. In float32.

One small model of each family goes through the engine: alone, in crowds, in pieces, with too few blocks, with
known prefixes, forked, in beams, with drafts, and moved in the middle.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from serve_app.engine.engine import Engine
from serve_app.types import Beam, ChoiceSoFar, Draft
from tests.support.engine_answers import BLOCK, OUTPUT, VOCAB, Told, answers, engine_of, prompt, request
from tests.support.families import small_config
from tests.support.tiny_models import enlarge

QUICK = ("deepseek_v3", "kimi_linear")  # the second one has layers with states, too
EACH = pytest.mark.parametrize(
    "family",
    [
        *QUICK,
        *(
            pytest.param(family, marks=pytest.mark.full)
            for family in ("deepseek_v2", "glm4_moe_lite", "longcat_flash", "minicpm3", "youtu")
        ),
    ],
)
TOLERANCE = 1e-4
REQUESTS = [request(f"r{length}", prompt(length)) for length in (70, 5, 33, 17, 1, 16, 40, 9)]


@cache
def tiny(family: str) -> PreTrainedModel:
    """A model that nothing may change; its norms are not those of a new model either."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        small_config(family), attn_implementation="eager"
    )
    model = model.float().eval()
    enlarge(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    return model


def new_engine(family: str, **settings: object) -> Engine:
    return engine_of(tiny(family), **settings)


@cache
def alone(family: str) -> dict[tuple[str, int], Told]:
    """The answers to `REQUESTS`, one after another, without known prefixes."""
    engine = new_engine(family, prefix_cache=False)
    return {key: told for each in REQUESTS for key, told in answers(engine, [each]).items()}


@EACH
def test_an_answer_is_that_of_transformers(family: str) -> None:
    for each in REQUESTS:
        told = alone(family)[each.id, 0]
        text = torch.tensor([[*each.token_ids, *told.tokens]])
        with torch.inference_mode():
            want = tiny(family)(text, use_cache=False).logits[0, len(each.token_ids) - 1 : -1]
        got = torch.frombuffer(bytearray(told.logits), dtype=torch.float32).view(OUTPUT, VOCAB)
        torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE * want.abs().max().item())
        assert told.tokens == want.argmax(-1).tolist()


MIXES: dict[str, dict[str, object]] = {
    "crowd": {},
    "pieces": {"max_step_tokens": 23, "max_sequences": 4},
    "few blocks": {"num_blocks": 14, "max_step_tokens": 37},
    "overlapped": {"overlap": True, "max_step_tokens": 29},
}


@EACH
@pytest.mark.parametrize("mix", MIXES)
def test_bits_do_not_depend_on_others_nor_on_pieces_nor_on_known_prefixes(family: str, mix: str) -> None:
    engine = new_engine(family, **MIXES[mix])
    for _ in range(2):  # the second time with the blocks of the first one
        told = answers(engine, REQUESTS)
        for key, want in alone(family).items():
            assert told[key].tokens == want.tokens
            assert told[key].logits == want.logits
    if family in QUICK:
        assert bool(engine.stats().preemptions) == (mix == "few blocks")


@EACH
def test_a_known_prefix_changes_no_bit(family: str) -> None:
    engine, asked = new_engine(family), request("a", prompt(3 * BLOCK + 1))
    answers(engine, [asked])
    told = answers(engine, [replace(asked, id="b")])["b", 0]
    assert told.cached == 3 * BLOCK
    assert told.logits == answers(new_engine(family, prefix_cache=False), [asked])["a", 0].logits


@EACH
def test_choices_and_beams_share_the_latents_of_their_prompt(family: str) -> None:
    engine = new_engine(family, max_step_tokens=40)
    three = answers(engine, [request("n", REQUESTS[0].token_ids, n=3)])
    assert [three["n", i].tokens for i in range(3)] == [alone(family)["r70", 0].tokens] * 3
    beam = request("beam", prompt(37), n=3, beam=Beam(width=3), logprobs=0, generation_logits=False)
    found = answers(engine, [*REQUESTS[:3], beam])
    for i in range(3):
        told = found["beam", i]
        with torch.inference_mode():
            logits = tiny(family)(torch.tensor([[*beam.token_ids, *told.tokens]])).logits[0, 36:-1]
        want = logits.log_softmax(-1).gather(1, torch.tensor(told.tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(told.logprobs), want, rtol=0, atol=1e-3)


@EACH
def test_an_answer_that_moves_or_has_a_draft_keeps_its_bits(family: str) -> None:
    asked, whole = REQUESTS[2], alone(family)[REQUESTS[2].id, 0]
    begun = (ChoiceSoFar(token_ids=tuple(whole.tokens[:5])),)
    told = answers(new_engine(family), [replace(asked, begun=begun)])[asked.id, 0]
    assert told.tokens == whole.tokens[5:]
    assert told.logits == whole.logits[5 * 4 * VOCAB :]
    wrong = (*whole.tokens[:4], (whole.tokens[4] + 1) % VOCAB, *whole.tokens[5:-1])
    drafted = replace(asked, draft=Draft(token_ids=wrong))
    told = answers(new_engine(family), [drafted, REQUESTS[1]])[asked.id, 0]
    assert (told.tokens, told.logits) == (whole.tokens, whole.logits)
