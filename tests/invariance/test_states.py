"""Models with states give transformers' tokens, and the same bits whatever else happens. In float32.

One small model of each kind of state goes through the engine: alone, in crowds, in pieces, with too few
blocks, with the states of known prefixes, forked, in beams, with drafts, and moved in the middle.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.engine import Engine
from serve_app.engine.kernels import native
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.lora import MLP, LowRank
from serve_app.types import Beam, ChoiceSoFar, Draft
from tests.support.engine_answers import (
    BLOCK,
    OUTPUT,
    VOCAB,
    Told,
    answers,
    engine_of,
    prompt,
    request,
)
from tests.support.low_rank import random_updates
from tests.support.tiny_states import KIN, KINDS, tiny_stateful

QUICK = ("nemotron_h", "qwen3_5_text")
EACH = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.full) for kind in (*KINDS, *KIN)]
)
TOLERANCE = 1e-4
WITHOUT_ADAPTERS = {"mamba", "mamba2", "falcon_mamba"}  # no linear has a name that adapters know
# One rounded linear changes the logits of so small a model by a tenth, so quantising all of them is refused.
SENSITIVE = {"zamba2"}
NEARLY = {"mamba2": 1e-5}  # its own code multiplies by the weight of the head, so bits depend on the batch


def new_engine(kind: str, quantization: str = "none", **settings: object) -> Engine:
    return engine_of(tiny_stateful(kind), quantization, **settings)


LENGTHS = (70, 5, 33, 17, 50, 1, 16, 40, 9, 21)
REQUESTS = [request(f"r{length}", prompt(length)) for length in LENGTHS]


@cache
def alone(kind: str) -> dict[tuple[str, int], Told]:
    """The answers to `REQUESTS`, one after another, without known prefixes."""
    engine = new_engine(kind, prefix_cache=False)
    return {key: told for each in REQUESTS for key, told in answers(engine, [each]).items()}


def alike(kind: str, one: bytes, other: bytes) -> bool:
    """Whether logits are the same bits, or nearly the same numbers where a kind promises no more."""
    if one == other or kind not in NEARLY or len(one) != len(other):
        return one == other
    mine, others = (torch.frombuffer(bytearray(each), dtype=torch.float32) for each in (one, other))
    return torch.allclose(mine, others, rtol=0, atol=NEARLY[kind] * mine.abs().max().item())


@EACH
def test_an_answer_is_that_of_transformers(kind: str) -> None:
    for each in REQUESTS:
        told = alone(kind)[each.id, 0]
        text = torch.tensor([[*each.token_ids, *told.tokens]])
        with torch.inference_mode():
            want = tiny_stateful(kind)(text, use_cache=False).logits[0, len(each.token_ids) - 1 : -1]
        got = torch.frombuffer(bytearray(told.logits), dtype=torch.float32).view(OUTPUT, VOCAB)
        torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE * want.abs().max().item())
        assert told.tokens == want.argmax(-1).tolist()


@pytest.mark.parametrize("kind", sorted({*KINDS, *KIN} - {"nemotron_h"}))
@pytest.mark.full
def test_tokens_are_those_that_transformers_generates_from_its_cache(kind: str) -> None:
    """Not of `nemotron_h`: transformers limits the time steps of its prompts, and not of single tokens."""
    model = copy.deepcopy(tiny_stateful(kind))
    for each in REQUESTS:
        text = model.generate(
            torch.tensor([each.token_ids]),
            max_new_tokens=OUTPUT,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert alone(kind)[each.id, 0].tokens == text[0, len(each.token_ids) :].tolist()


MIXES: dict[str, dict[str, object]] = {
    "crowd": {},
    "pieces": {"max_step_tokens": 23, "max_sequences": 4},
    "few blocks": {"num_blocks": 17, "max_step_tokens": 37},
    "overlapped": {"overlap": True, "max_step_tokens": 29},
}


@EACH
@pytest.mark.parametrize("mix", MIXES)
def test_bits_do_not_depend_on_others_nor_on_pieces_nor_on_known_prefixes(kind: str, mix: str) -> None:
    engine = new_engine(kind, **MIXES[mix])
    for _ in range(2):  # the second time with the states of the first one
        told = answers(engine, REQUESTS)
        for key, want in alone(kind).items():
            assert told[key].tokens == want.tokens
            assert alike(kind, told[key].logits, want.logits)
    assert bool(engine.stats().preemptions) == (mix == "few blocks")


@EACH
def test_the_same_prompt_again_costs_one_token(kind: str) -> None:
    engine = new_engine(kind)
    asked = request("a", prompt(3 * BLOCK + 1))
    answers(engine, [asked])
    before = engine.stats().steps
    told = answers(engine, [replace(asked, id="b")])["b", 0]
    assert told.cached == len(asked.token_ids) - 1
    assert engine.stats().steps - before <= OUTPUT, "a token a step, or more where drafts are right"
    assert (
        told.logits == answers(new_engine(kind, prefix_cache=False), [replace(asked, id="b")])["b", 0].logits
    )


@EACH
def test_a_shared_prefix_is_found_where_prompts_part(kind: str) -> None:
    """The third prompt that begins alike finds states where the second one left the first."""
    engine, shared = new_engine(kind), prompt(2 * BLOCK + 5)
    asked = [request(f"p{i}", (*shared, *prompt(20, seed=i))) for i in range(4)]
    cached = [answers(engine, [each])[each.id, 0].cached for each in asked[:3]]
    assert cached == [0, 0, 2 * BLOCK]
    told = answers(engine, asked[3:])["p3", 0]
    assert told.cached == 2 * BLOCK
    assert told.logits == answers(new_engine(kind, prefix_cache=False), asked[3:])["p3", 0].logits


@EACH
def test_the_next_turn_of_a_chat_finds_the_states_of_the_last_answer(kind: str) -> None:
    plain, first = new_engine(kind), request("t1", prompt(25))
    answer = answers(plain, [first])["t1", 0].tokens
    second = request("t2", (*first.token_ids, *answer, *prompt(7)))
    want = answers(new_engine(kind, prefix_cache=False), [second])["t2", 0].logits
    drafted = new_engine(kind)  # the end of a block is in the midst of what one step accepts
    assert (
        answers(drafted, [replace(first, draft=Draft(token_ids=tuple(answer[:-1])))])["t1", 0].tokens
        == answer
    )
    for engine in (plain, drafted):
        told = answers(engine, [second])["t2", 0]
        assert told.cached == 2 * BLOCK
        assert told.logits == want


@EACH
def test_choices_and_beams_go_on_from_the_states_of_their_prompt(kind: str) -> None:
    engine = new_engine(kind, max_step_tokens=40)
    three = answers(engine, [request("n", REQUESTS[0].token_ids, n=3)])
    assert [three["n", i].tokens for i in range(3)] == [alone(kind)["r70", 0].tokens] * 3
    beam = request("beam", prompt(37), n=3, beam=Beam(width=3), logprobs=0, generation_logits=False)
    found = answers(engine, [*REQUESTS[:3], beam])
    for i in range(3):
        told = found["beam", i]
        with torch.inference_mode():
            logits = tiny_stateful(kind)(torch.tensor([[*beam.token_ids, *told.tokens]])).logits[0, 36:-1]
        want = logits.log_softmax(-1).gather(1, torch.tensor(told.tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(told.logprobs), want, rtol=0, atol=1e-3)
    assert len({tuple(found["beam", i].tokens) for i in range(3)}) == 3


@EACH
def test_an_answer_that_moves_goes_on_with_the_same_bits(kind: str) -> None:
    asked, whole = REQUESTS[2], alone(kind)[REQUESTS[2].id, 0]
    for done in (1, 5, OUTPUT - 1):
        begun = (ChoiceSoFar(token_ids=tuple(whole.tokens[:done])),)
        told = answers(new_engine(kind), [replace(asked, begun=begun)])[asked.id, 0]
        assert told.tokens == whole.tokens[done:]
        assert told.logits == whole.logits[done * 4 * VOCAB :]


@EACH
def test_a_draft_right_or_wrong_changes_nothing(kind: str) -> None:
    asked, whole = REQUESTS[4], alone(kind)[REQUESTS[4].id, 0]
    right = tuple(whole.tokens[:-1])
    for tokens in (right, (*right[:4], (right[4] + 1) % VOCAB, *right[5:])):
        engine = new_engine(kind)
        told = answers(engine, [replace(asked, draft=Draft(token_ids=tokens)), REQUESTS[1]])
        assert told[asked.id, 0].tokens == whole.tokens
        assert alike(kind, told[asked.id, 0].logits, whole.logits)
        assert engine.stats().accepted_tokens >= 4


@EACH
def test_log_probabilities_are_those_of_transformers_however_the_prompt_is_cut(kind: str) -> None:
    asked = [
        request(f"p{i}", prompt(length), logprobs=0, prompt_logprobs=0) for i, length in enumerate((45, 20))
    ]
    alone = {key: told for each in asked for key, told in answers(new_engine(kind), [each]).items()}
    cut = answers(new_engine(kind, max_step_tokens=19), [*asked, *REQUESTS[:2]])
    for each in asked:
        told = alone[each.id, 0]
        text = torch.tensor([*each.token_ids, *told.tokens])
        with torch.inference_mode():
            logits = tiny_stateful(kind)(text[None], use_cache=False).logits[0, :-1]
        want = logits.log_softmax(-1).gather(1, text[1:, None])[:, 0]
        got = torch.tensor([*told.prompt_logprobs, *told.logprobs])
        torch.testing.assert_close(got, want, rtol=0, atol=1e-3)
        others = cut[each.id, 0]
        if kind not in NEARLY:
            assert (others.prompt_logprobs, others.logprobs) == (told.prompt_logprobs, told.logprobs)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@EACH
def test_quantised_weights_keep_the_promise(kind: str, quantization: str) -> None:
    if native() is None:
        pytest.skip("no native kernels on this machine")
    if kind in SENSITIVE:
        with pytest.raises(UnsupportedModel, match="computes something else"):
            new_engine(kind, "int8")
        return
    one = new_engine(kind, quantization, prefix_cache=False)
    want = {key: told for each in REQUESTS[:5] for key, told in answers(one, [each]).items()}
    crowd = answers(new_engine(kind, quantization, max_step_tokens=23), REQUESTS[:5])
    for key, told in want.items():
        assert crowd[key].tokens == told.tokens
        assert alike(kind, crowd[key].logits, told.logits)


@EACH
def test_an_adapter_changes_its_own_rows_alone(kind: str) -> None:
    """Tokens are those of transformers with the adapter's products added to the weights."""
    engine = new_engine(kind)
    table = engine.adapters
    assert table is not None
    if not table.shapes:
        assert kind in WITHOUT_ADAPTERS
        return
    updates = random_updates(table.shapes, seed=1, rank=4, scale=0.3)
    model = copy.deepcopy(tiny_stateful(kind))
    for update in updates:
        linear = linear_of(model, update)
        weight = linear.weight.detach().clone()  # layers may share the original
        rows = weight[-len(update.b) :] if update.module == "up_proj" else weight[: len(update.b)]
        rows += update.b @ update.a
        linear.weight = nn.Parameter(weight)
    table.put("a", table.compile(updates))
    asked = [replace(REQUESTS[2], id="with", adapter="a", salt="a"), REQUESTS[2], REQUESTS[0]]
    told = answers(engine, asked)
    assert told[REQUESTS[2].id, 0].logits == alone(kind)[REQUESTS[2].id, 0].logits or kind in NEARLY
    mine = told["with", 0]
    text = torch.tensor([[*REQUESTS[2].token_ids, *mine.tokens]])
    with torch.inference_mode():
        want = model(text, use_cache=False).logits[0, len(REQUESTS[2].token_ids) - 1 : -1]
    got = torch.frombuffer(bytearray(mine.logits), dtype=torch.float32).view(OUTPUT, VOCAB)
    torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE * want.abs().max().item())
    assert mine.tokens != told[REQUESTS[2].id, 0].tokens
    again = answers(engine, asked[:1])["with", 0]
    assert again.cached == 2 * BLOCK
    assert again.logits == mine.logits


def linear_of(model: PreTrainedModel, update: LowRank) -> nn.Linear:
    """The linear of transformers' model that an update is for, perhaps with gates above ups."""
    joined = "gate_up_proj" if update.module in MLP else update.module
    found = [
        part
        for name, part in model.get_decoder().layers[update.layer].named_modules()
        if name.rpartition(".")[2] in (update.module, joined)
    ]
    assert len(found) == 1
    linear = found[0]
    assert isinstance(linear, nn.Linear)
    return linear
