"""Beam search through a replica: hypotheses as choices, best first, whole even when streamed."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from serve_app.errors import InvalidField
from serve_app.replica.server import ModelServer
from serve_app.types import (
    Beam,
    EarlyStopping,
    FinishReason,
    GenerateRequest,
    Grammar,
    GrammarKind,
    Prompt,
    SamplingParams,
    TokenDelta,
)
from tests.support.replica import model_server
from tests.support.sink import Sink
from tests.support.tiny_llama import tiny_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Hello, world"
_ids = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder) -> AsyncIterator[ModelServer]:
    engine = {"max_model_len": 256, "num_blocks": 64, "max_sequences": 8}
    async with model_server(engine, name="tiny", source=str(folder), attention="reference") as made:
        yield made


async def search(server, width=4, **changes) -> list[TokenDelta]:
    """The deltas of a search; those fields of `Beam` that are given are its."""
    shape = {name: changes.pop(name) for name in list(changes) if name in Beam.__dataclass_fields__}
    request = GenerateRequest(
        id=f"b{next(_ids)}",
        model="tiny",
        prompt=Prompt(text=TEXT),
        sampling=SamplingParams(max_tokens=10, ignore_eos=True),
        beam=Beam(width=width, **shape),
        n=changes.pop("n", width),
    )
    sink = Sink()
    await server.generate(replace(request, **changes), sink)
    return sink.deltas


def mean_logprob(delta):
    return sum(p.logprob for p in delta.logprobs) / len(delta.logprobs)


async def test_the_hypotheses_are_those_of_transformers(server, folder):
    deltas = await search(server, early_stopping=EarlyStopping.NEVER)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([tiny_tokenizer()(TEXT)["input_ids"]])
    found = model.generate(
        prompt, num_beams=4, num_return_sequences=4, max_new_tokens=10, early_stopping="never",
        do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert [list(delta.token_ids) for delta in deltas] == found[:, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("stream", [True, False])
async def test_each_hypothesis_is_one_delta_at_the_end_and_the_best_is_first(server, stream):
    deltas = await search(server, n=3, logprobs=0, stream=stream)
    assert [delta.index for delta in deltas] == [0, 1, 2]
    assert all(delta.finish is FinishReason.LENGTH and len(delta.token_ids) == 10 for delta in deltas)
    assert len({delta.token_ids for delta in deltas}) == 3
    means = [mean_logprob(delta) for delta in deltas]
    assert means == sorted(means, reverse=True)
    tokenizer = tiny_tokenizer()
    assert [tokenizer.decode(delta.token_ids, skip_special_tokens=True) for delta in deltas] == [
        delta.text for delta in deltas
    ]


async def test_streamed_and_whole_are_the_same(server):
    streamed, whole = await search(server, logprobs=2), await search(server, logprobs=2, stream=False)
    assert [(d.text, d.token_ids, d.logprobs, d.finish) for d in streamed] == [
        (d.text, d.token_ids, d.logprobs, d.finish) for d in whole
    ]
    assert streamed[-1].usage == whole[-1].usage


async def test_usage_counts_the_hypotheses_that_are_returned(server):
    deltas = await search(server, n=2)
    usage = deltas[-1].usage
    assert usage.completion_tokens == 20
    assert usage.prompt_tokens == len(tiny_tokenizer()(TEXT)["input_ids"])
    assert deltas[0].timing is not None


async def test_log_probabilities_are_of_the_hypothesis_own_tokens(server):
    for delta in await search(server, logprobs=3):
        assert tuple(p.token_id for p in delta.logprobs) == delta.token_ids
        assert all(len(p.top) == 3 for p in delta.logprobs)


async def test_a_stop_string_cuts_a_text_and_not_the_search(server):
    free = await search(server)
    stop = next(d.text for d in free if len(d.text) >= 4)[2:4]
    cut = await search(server, stop=(stop,))
    for before, after in zip(free, cut, strict=True):
        assert after.token_ids == before.token_ids[: len(after.token_ids)]
        if stop in before.text:
            assert after.text == before.text[: before.text.index(stop)]
            assert (after.finish, after.stop) == (FinishReason.STOP, stop)
        else:
            assert (after.text, after.finish) == (before.text, before.finish)
    assert cut[-1].usage.completion_tokens == sum(len(d.token_ids) for d in cut)


async def test_a_delta_a_token_where_a_protocol_wants_it(server):
    whole = await search(server, n=1)
    single = await search(server, n=1, per_token=True)
    assert [len(d.token_ids) for d in single] == [1] * 10
    assert all(d.step is not None for d in single)
    assert "".join(d.text for d in single) == whole[0].text


async def test_echo_and_log_probabilities_of_the_prompt(server):
    deltas = await search(server, n=2, echo=True, prompt_logprobs=1)
    for delta in deltas:
        assert delta.prompt_text == TEXT
        assert len(delta.prompt_logprobs) == delta.usage.prompt_tokens


async def test_a_grammar_holds_for_every_hypothesis(server):
    grammar = Grammar(kind=GrammarKind.REGEX, text="[a-d]{3}[0-9]{2}")
    deltas = await search(server, grammar=grammar, sampling=SamplingParams(max_tokens=20), width=3)
    assert len({delta.text for delta in deltas}) == 3
    assert all(re.fullmatch("[a-d]{3}[0-9]{2}", delta.text) for delta in deltas)
    assert all(delta.finish is FinishReason.EOS for delta in deltas)


async def test_what_masks_leave_no_hypotheses_for_ends_with_an_error(server):
    grammar = Grammar(kind=GrammarKind.CHOICE, text='["a", "b"]')  # each one token
    deltas = await search(server, grammar=grammar, sampling=SamplingParams(max_tokens=20), width=8)
    assert sorted(delta.text for delta in deltas[:2]) == ["a", "b"]
    assert deltas[-1].finish is FinishReason.ERROR
    assert "leave fewer answers" in deltas[-1].error.reason


async def test_as_many_hypotheses_as_masks_leave_can_be_asked_for(server):
    grammar = Grammar(kind=GrammarKind.CHOICE, text='["a", "b"]')
    deltas = await search(server, grammar=grammar, sampling=SamplingParams(max_tokens=20), width=8, n=2)
    assert sorted(delta.text for delta in deltas) == ["a", "b"]


async def test_searches_beside_each_other_are_as_alone(server):
    alone = [[d.token_ids for d in await search(server, width=w)] for w in (2, 3)]
    found = await asyncio.gather(search(server, width=2), search(server, width=3))
    assert [[d.token_ids for d in deltas] for deltas in found] == alone


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"width": 1, "n": 1}, "beam_width"),
        ({"width": 9, "n": 1}, "beam_width"),  # the engine's batch
        ({"width": 4, "n": 5}, "n"),
        ({"groups": 3}, "beam_groups"),
        ({"length_penalty": 10.5}, "length_penalty"),
        ({"diversity_penalty": -1.0}, "diversity_penalty"),
        ({"rank_length_penalty": 10.5}, "length_penalty"),
        ({"rank_length_penalty": float("nan")}, "length_penalty"),
    ],
)
async def test_refusals_name_the_field(server, changes, param):
    with pytest.raises(InvalidField) as refused:
        await search(server, **changes)
    assert refused.value.param == param


async def test_the_ranking_of_samples_has_a_length_penalty(server):
    """Of the same candidates, which one is best depends on how length counts."""
    sampling = SamplingParams(seed=3, max_tokens=20, temperature=1.5, stop_token_ids=tuple(range(6, 40)))
    chosen = {}
    for penalty in (-8.0, 8.0):
        (delta,) = await search(
            server, beam=None, n=1, best_of=8, sampling=sampling, rank_length_penalty=penalty, stream=False
        )
        chosen[penalty] = len(delta.token_ids)
    assert chosen[-8.0] < chosen[8.0]  # a sum below zero gains by being divided
