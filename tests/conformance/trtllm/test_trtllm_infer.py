"""POST .../infer: the worked example to the byte, defaults, bounds of every tensor, forms of their data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from serve_app.types import Beam, EarlyStopping, FinishReason, GrammarKind, SamplingParams
from tests.conformance.conftest import MODEL
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.trtllm.asks import (
    INFER,
    TYPES,
    asked_for,
    body,
    error_of,
    refusal,
    tensor,
    with_tensor,
)
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import gateway

module_loop = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = model_info().vocab_size
MAX_INT = 2**31 - 1

# scalar -> (values at the edge of what is accepted, values just beyond it, of its own datatype)
BOUNDS: Bounds = {
    "request_output_len": ([1, 2], [0, -1]),
    "input_lengths": ([1, 4], [0, 5, -1]),
    "streaming": ([False], [True]),
    "beam_width": ([1, 2, 4], [0, -1, 65]),
    "temperature": ([0, 0.001, 100.0], [-0.001]),
    "runtime_top_k": ([0, 1, 1024], [-1]),
    "runtime_top_p": ([0, 0.001, 1], [-0.001, 1.001]),
    "runtime_top_p_min": ([0.001, 1], [0, 1.001]),
    "runtime_top_p_decay": ([0.001, 1], [0, 1.001]),
    "runtime_top_p_reset_ids": ([-1, 0, 5], [-2]),
    "len_penalty": ([-10, 0, 10], [10.1, -10.1]),
    "early_stopping": ([0, 1, 2, -7], []),
    "beam_search_diversity_rate": ([0, 1.5], [-0.1, 100.1]),
    "num_return_sequences": ([1, 3], [0, 129]),
    "repetition_penalty": ([0.001, 1, 100], [0, -1, 100.1]),
    "min_length": ([0, 1, 3], [-1]),
    "min_tokens": ([0, 3], [-1]),
    "presence_penalty": ([-100, 0, 100], [-100.1, 100.1]),
    "frequency_penalty": ([-100, 0, 100], [-100.1, 100.1]),
    "no_repeat_ngram_size": ([0, 1, 64], [-1, 65]),
    "random_seed": ([0, 2**64 - 1], []),
    "seed": ([0, 2**64 - 1], []),
    "end_id": ([-1, 0, 5], [-2]),
    "pad_id": ([-1, 0, 5, 50256], [-2]),  # NVIDIA's own client sends that of GPT-2, whatever the model
    "lora_task_id": ([], []),
    "draft_acceptance_threshold": ([0, 1], [-0.1, 1.1]),
    **{
        name: ([True, False], [])
        for name in TYPES
        if name.startswith("return_") and name not in ("return_context_logits", "return_generation_logits")
    },
    "exclude_input_in_output": ([True, False], []),
    "stop": ([False], []),
}
# The same for values that the scripted model decides about.
OF_THE_MODEL: Bounds = {
    "runtime_top_k": ([VOCABULARY], [VOCABULARY + 1]),
    "runtime_top_p_reset_ids": ([VOCABULARY - 1], [VOCABULARY]),
    "end_id": ([VOCABULARY - 1], [VOCABULARY]),
}


def with_draws(name: str, value: Any) -> dict[str, Any]:
    """A request in which a field of drawing has a meaning."""
    draws = {"runtime_top_k": 5} if name.startswith("runtime_top_p_") else {}
    return body(**{**draws, name: value})


@module_loop
@pytest.mark.parametrize(("name", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_range_is_accepted(client: httpx.AsyncClient, name: str, value: Any) -> None:
    answer = await client.post(f"/v2/models/{MODEL}/infer", json=with_draws(name, value))
    assert answer.status_code == 200, answer.text


@module_loop
@pytest.mark.parametrize(("name", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, name: str, value: Any) -> None:
    answer = await client.post(f"/v2/models/{MODEL}/infer", json=with_draws(name, value))
    assert answer.status_code == 400
    assert error_of(answer).startswith(f"{name}: must be ")


@pytest.mark.parametrize(("name", "value"), accepted(OF_THE_MODEL))
async def test_inside_of_the_models_own_range(name: str, value: Any) -> None:
    assert (await asked_for(with_draws(name, value))).n == 1


@pytest.mark.parametrize(("name", "value"), refused(OF_THE_MODEL))
async def test_outside_of_the_models_own_range(name: str, value: Any) -> None:
    assert name in await refusal(with_draws(name, value))


async def test_the_worked_example_byte_by_byte() -> None:
    request = (
        '{"id":"9001","inputs":['
        '{"name":"input_ids","shape":[1,4],"datatype":"INT32","data":[12,871,40,3]},'
        '{"name":"request_output_len","shape":[1,1],"datatype":"INT32","data":[3]},'
        '{"name":"end_id","shape":[1,1],"datatype":"INT32","data":[2]},'
        '{"name":"bad_words_list","shape":[1,2,2],"datatype":"INT32","data":[77,5,2,-1]},'
        '{"name":"return_log_probs","shape":[1,1],"datatype":"BOOL","data":[true]}]}'
    )
    async with gateway(FakeBackend(words=("a", "b", "c"), finish=FinishReason.STOP)) as g:
        answer = await g.client.post(INFER, content=request)
        asked = g.backend.last
    assert answer.headers["content-type"] == "application/json"
    assert answer.text == (
        '{"model_name":"demo","model_version":"1","id":"9001","outputs":['
        '{"name":"output_ids","datatype":"INT32","shape":[1,1,3],"data":[10,11,12]},'
        '{"name":"sequence_length","datatype":"INT32","shape":[1,1],"data":[3]},'
        '{"name":"output_log_probs","datatype":"FP32","shape":[1,1,3],"data":[-0.5,-0.5,-0.5]},'
        '{"name":"cum_log_probs","datatype":"FP32","shape":[1,1],"data":[-1.5]}]}'
    )
    assert asked.prompt.token_ids == (12, 871, 40, 3)
    assert (asked.sampling.stop_token_ids, asked.sampling.ignore_eos) == ((2,), True)
    assert asked.sampling.bad_words == ((77, 5),)


async def test_the_defaults() -> None:
    asked = await asked_for(body())
    assert asked.sampling == SamplingParams(
        temperature=0.0, seed=0, max_tokens=3, penalize_prompt=True, ignore_eos=True
    )
    assert (asked.n, asked.beam, asked.logprobs, asked.stream) == (1, None, None, False)
    assert (asked.adapter, asked.prompt_table, asked.draft, asked.bias, asked.grammar) == (None,) * 5
    assert (asked.context_logits, asked.generation_logits, asked.priority) == (False, False, 0)


# tensors -> (temperature, top_k, top_p) as the model is asked
MODES = {
    "neither": ({"temperature": 0.7, "random_seed": 5}, (0.0, 0, 1.0)),
    "runtime_top_k": ({"temperature": 0.7, "runtime_top_k": 5}, (0.7, 5, 1.0)),
    "runtime_top_p": ({"temperature": 0.7, "runtime_top_p": 0.5}, (0.7, 0, 0.5)),
    "both": ({"runtime_top_k": 5, "runtime_top_p": 0.5}, (1.0, 5, 0.5)),
    "temperature 0": ({"temperature": 0, "runtime_top_k": 5, "runtime_top_p": 0.5}, (0.0, 0, 1.0)),
}


@pytest.mark.parametrize("mode", MODES)
async def test_top_k_and_top_p_decide_whether_tokens_are_drawn(mode: str) -> None:
    given, expected = MODES[mode]
    sampling = (await asked_for(body(**given))).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == expected


# input -> (its value, what the model is asked: attribute of the sampling and its value)
SAMPLING = {
    "repetition_penalty": (1.5, "repetition_penalty", 1.5),
    "presence_penalty": (-2.5, "presence_penalty", -2.5),
    "frequency_penalty": (3.25, "frequency_penalty", 3.25),
    "no_repeat_ngram_size": (3, "no_repeat_ngram", 3),
    "min_length": (2, "min_tokens", 2),
    "min_tokens": (2, "min_tokens", 2),
    "random_seed": (2**64 - 1, "seed", 2**64 - 1),
    "seed": (7, "seed", 7),
    "end_id": (2, "stop_token_ids", (2,)),
    "request_output_len": (9, "max_tokens", 9),
    "runtime_top_p_decay": (0.5, "top_p_decay", 0.5),
    "runtime_top_p_min": (0.25, "top_p_min", 0.25),
    "runtime_top_p_reset_ids": (4, "top_p_reset_id", 4),
}


@pytest.mark.parametrize("name", SAMPLING)
async def test_a_tensor_means_a_setting_of_sampling(name: str) -> None:
    value, attribute, expected = SAMPLING[name]
    sampling = (await asked_for(body(**{"runtime_top_p": 0.9, name: value}))).sampling
    assert getattr(sampling, attribute) == expected


@pytest.mark.parametrize(("setting", "ignored"), [(-1, True), ("tokenizer", False)])
async def test_without_end_id_the_setting_says_whether_the_model_ends(setting: Any, ignored: bool) -> None:
    config = {"trtllm": {"default_end_id": setting}}
    assert (await asked_for(body(), **config)).sampling.ignore_eos is ignored
    assert (await asked_for(body(end_id=-1), **config)).sampling.ignore_eos


async def test_beams() -> None:
    asked = await asked_for(
        body(beam_width=4, len_penalty=0.5, early_stopping=1, beam_search_diversity_rate=0.25)
    )
    assert asked.beam == Beam(
        width=4,
        length_penalty=0.5,
        early_stopping=EarlyStopping.YES,
        groups=4,
        diversity_penalty=0.25,
    )
    assert asked.n == 4
    plain = await asked_for(body(beam_width=3, num_return_sequences=2))
    assert (plain.n, plain.beam) == (2, Beam(width=3, length_penalty=0.0))
    assert "num_return_sequences: must be an integer from 1 to 3" in await refusal(
        body(beam_width=3, num_return_sequences=4)
    )
    assert (await asked_for(body(num_return_sequences=5))).n == 5


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        (0, "INT32", EarlyStopping.NO),
        (1, "INT32", EarlyStopping.YES),
        (2, "INT32", EarlyStopping.NEVER),
        (True, "BOOL", EarlyStopping.YES),
        (False, "BOOL", EarlyStopping.NO),
    ],
)
async def test_early_stopping_is_a_number_or_a_bool(
    value: Any, datatype: str, expected: EarlyStopping
) -> None:
    request = with_tensor(tensor("beam_width", 2), tensor("early_stopping", value, datatype))
    beam = (await asked_for(request)).beam
    assert beam is not None
    assert beam.early_stopping is expected


GUIDES: dict[str, tuple[str | None, GrammarKind, str]] = {
    "json": (None, GrammarKind.JSON, ""),
    "json_schema": ('{"type": "object"}', GrammarKind.SCHEMA, '{"type":"object"}'),
    "regex": ("a+", GrammarKind.REGEX, "a+"),
    "ebnf_grammar": ('root ::= "x"', GrammarKind.LARK, 'root ::= "x"'),
}


@pytest.mark.parametrize("kind", GUIDES)
async def test_guided_decoding_guide_types(kind: str) -> None:
    guide, expected, text = GUIDES[kind]
    grammar = (await asked_for(body(guided_decoding_guide_type=kind, guided_decoding_guide=guide))).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (expected, text)


STRUCTURE = '{"structures":[{"begin":%s,"schema":{},"end":""}],"triggers":["x"]}'


async def test_a_structural_tag_is_a_grammar_with_its_schema() -> None:
    guide = {
        "structures": [{"begin": "<f=g>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f="],
    }
    asked = await asked_for(
        body(guided_decoding_guide_type="structural_tag", guided_decoding_guide=json.dumps(guide))
    )
    assert asked.grammar is not None
    assert asked.grammar.kind is GrammarKind.LARK
    assert '"type":"integer"' in asked.grammar.text
    assert [(rule.text, rule.opens) for rule in asked.grammar.markers] == [("<f=g>", 3), ("</f>", 0)]


TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
IN_TAGS = {"structures": [{"begin": "<f>", "schema": TAGS, "end": "</f>"}], "triggers": ["<f>"]}


@pytest.mark.parametrize(
    ("kind", "guide", "place"),
    [("json_schema", TAGS, ""), ("structural_tag", IN_TAGS, ".structures.0.schema")],
)
async def test_keywords_that_are_not_enforced_are_named(kind: str, guide: Any, place: str) -> None:
    async with gateway() as g:
        text = json.dumps(guide)
        answer = await g.post(INFER, body(guided_decoding_guide_type=kind, guided_decoding_guide=text))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == f"guided_decoding_guide{place}.uniqueItems"


@pytest.mark.parametrize(
    ("kind", "guide", "name"),
    [
        ("xml", "x", "guided_decoding_guide_type"),
        (None, "x", "guided_decoding_guide_type"),
        ("regex", None, "guided_decoding_guide"),
        ("regex", "", "guided_decoding_guide"),
        ("json_schema", "[", "guided_decoding_guide"),
        ("structural_tag", "{}", "guided_decoding_guide"),
        ("structural_tag", STRUCTURE % "5", "guided_decoding_guide"),
        ("structural_tag", STRUCTURE % '"y"', "guided_decoding_guide"),
    ],
)
async def test_guides_that_are_none(kind: str | None, guide: str | None, name: str) -> None:
    message = await refusal(body(guided_decoding_guide_type=kind, guided_decoding_guide=guide))
    assert message.startswith(f"{name}: ")


@pytest.mark.parametrize("shape", [[], [1], [1, 1]])
@pytest.mark.parametrize("name", ["request_output_len", "temperature", "return_log_probs", "random_seed"])
async def test_a_scalar_comes_in_any_of_its_shapes(name: str, shape: list[int]) -> None:
    value = {"return_log_probs": True}.get(name, 1)
    asked = await asked_for(with_tensor(tensor(name, value, shape=shape)))
    assert asked.prompt.token_ids is not None


@pytest.mark.parametrize("shape", [[2], [1, 1, 1], [0], [1, 2]])
async def test_a_scalar_in_no_other_shape(shape: list[int]) -> None:
    data = [1] * int(np.prod(shape))
    request = with_tensor({"name": "beam_width", "datatype": "INT32", "shape": shape, "data": data})
    assert (await refusal(request)).startswith("beam_width: must be one value")


@pytest.mark.parametrize(
    ("name", "value", "shapes"),
    [
        ("input_ids", [4, 5], [[2], [1, 2]]),
        ("embedding_bias", [0.5] * VOCABULARY, [[VOCABULARY], [1, VOCABULARY]]),
        ("bad_words_list", [7, 8, 2, -1], [[2, 2], [1, 2, 2]]),
        ("stop_words_list", [7, 8, 2, -1], [[2, 2], [1, 2, 2]]),
        ("draft_input_ids", [4, 5], [[2], [1, 2]]),
        ("prompt_embedding_table", [0.5] * 6, [[2, 3], [1, 2, 3]]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_vector_or_table_comes_with_or_without_the_leading_one(
    name: str, value: list[Any], shapes: list[list[int]]
) -> None:
    asked = [await asked_for(with_tensor(tensor(name, value, shape=shape))) for shape in shapes]
    assert asked[0] == replace(asked[1], id=asked[0].id, salt=asked[0].salt)
    wrong = tensor(name, value, shape=[*shapes[0], 1, 1])
    assert (await refusal(with_tensor(wrong))).startswith(f"{name}: must have the shape [")


async def test_data_may_be_nested_or_flat() -> None:
    flat = tensor("bad_words_list", [7, 8, 2, -1], shape=[1, 2, 2])
    nested = tensor("bad_words_list", [[[7, 8], [2, -1]]])
    assert [(await asked_for(with_tensor(each))).sampling.bad_words for each in (flat, nested)] == [
        ((7, 8),)
    ] * 2


@pytest.mark.parametrize(
    ("name", "value", "datatype"),
    [
        ("request_output_len", 3, "INT64"),
        ("request_output_len", 3, "UINT32"),
        ("request_output_len", 3.0, "INT32"),
        ("temperature", 0.5, "FP16"),
        ("temperature", 0.5, "FP64"),
        ("temperature", 1, "FP32"),
        ("random_seed", 3, "INT64"),
        ("random_seed", 3, "INT32"),
        ("random_seed", 3, "UINT32"),
    ],
)
async def test_widening(name: str, value: Any, datatype: str) -> None:
    asked = await asked_for(with_tensor(tensor(name, value, datatype)))
    assert asked.sampling.max_tokens == 3


@pytest.mark.parametrize(
    ("name", "value", "datatype"),
    [
        ("input_ids", [1.0], "FP32"),
        ("request_output_len", 3, "INT8"),
        ("request_output_len", 3.0, "FP32"),
        ("request_output_len", "3", "BYTES"),
        ("temperature", 1, "INT32"),
        ("streaming", 0, "INT32"),
        ("random_seed", 3.0, "FP64"),
        ("guided_decoding_guide_type", 1, "INT32"),
        ("early_stopping", 1.0, "FP32"),
        ("lora_config", [[1, 0, 1]], "FP32"),
        ("lora_weights", [[1, 0, 1]], "INT32"),
    ],
)
async def test_other_datatypes_are_refused(name: str, value: Any, datatype: str) -> None:
    message = await refusal(with_tensor(tensor(name, value, datatype)))
    assert message.startswith(f"{name}: datatype must be ")


@pytest.mark.parametrize(
    ("name", "value", "datatype"),
    [
        ("request_output_len", 2**31, "INT64"),
        ("request_output_len", 2**32 - 1, "UINT32"),
        ("random_seed", -1, "INT64"),
        ("temperature", 1e300, "FP64"),
        ("temperature", 1e39, "FP32"),
        ("temperature", 10**400, "FP32"),
        ("temperature", 65_520, "FP16"),
        ("input_ids", [1, 2**31], "INT32"),
        ("input_ids", [-1], "INT32"),
        ("input_ids", [VOCABULARY], "INT32"),
        ("embedding_bias", [0.0], "FP32"),
        ("streaming", 1, "BOOL"),
        ("request_output_len", True, "INT32"),
        ("request_output_len", "3", "INT32"),
        ("request_output_len", 3.5, "INT32"),
        ("temperature", "1", "FP32"),
        ("temperature", True, "FP32"),
        ("guided_decoding_guide_type", 5, "BYTES"),
        ("temperature", 1.0, "BF16"),
        ("temperature", 1.0, "FP8"),
        ("temperature", None, "FP32"),
    ],
)
async def test_values_that_do_not_fit_are_refused(name: str, value: Any, datatype: str) -> None:
    request = with_tensor(tensor(name, value, datatype))
    assert (await refusal(request)).startswith(f"{name}: ")


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [1, 5]},
        {"shape": [1, -4]},
        {"shape": [2**40]},
        {"shape": "4"},
        {"shape": [1, 4.5]},
        {"shape": [True, 4]},
        {"shape": [1] * 9},
        {"shape": None},
        {"data": None},
        {"data": [[1, 2], [3]]},
        {"data": {"a": 1}},
        {"data": "abcd"},
        {"datatype": None},
        {"datatype": 5},
        {"parameters": {"shared_memory_region": "x"}},
        {"parameters": {"binary_data_size": 16}},
        {"parameters": 5},
    ],
    ids=repr,
)
async def test_a_tensor_whose_parts_do_not_fit_is_refused_by_name(change: dict[str, Any]) -> None:
    request = with_tensor({**tensor("input_ids", [1, 2, 3, 4]), **change})
    assert (await refusal(request)).startswith("input_ids: ")


async def test_names() -> None:
    assert await refusal(with_tensor({**tensor("end_id", 1), "name": "end"})) == (
        "unexpected inference input 'end' for model 'demo'"
    )
    assert (await refusal({"inputs": [tensor("request_output_len", 3)]})).startswith("input_ids: is required")
    assert (await refusal({"inputs": [tensor("input_ids", [3])]})).startswith(
        "request_output_len: is required"
    )
    twice = {"inputs": [*body()["inputs"], tensor("end_id", 1), tensor("end_id", 1)]}
    assert (await refusal(twice)).startswith("end_id: is there twice")
    both = with_tensor(tensor("seed", 1), tensor("random_seed", 1))
    assert (await refusal(both)).startswith("random_seed: must not be given beside seed")


@pytest.mark.parametrize("inputs", [None, [], {}, "x", [5], [{}], [{"name": 5}], [{"name": ""}]], ids=repr)
async def test_inputs_must_be_a_list_of_tensors(inputs: Any) -> None:
    assert (await refusal({"inputs": inputs})).startswith("inputs: ")


async def test_input_lengths_take_the_padding_off() -> None:
    assert (await asked_for(body(input_lengths=2))).prompt.token_ids == (12, 871)


async def test_the_id_is_echoed_whatever_it_is() -> None:
    async with gateway(FakeBackend()) as g:
        for id in ("9001", "not a number", "ü/\u2028", "x" * 1024):
            assert (await g.post(INFER, body(id))).json()["id"] == id
        for none in ("", None):
            assert "id" not in (await g.post(INFER, {**body(), "id": none})).json()
        for wrong in (5, ["x"], "x" * 1025):
            assert error_of(await g.post(INFER, {**body(), "id": wrong})).startswith("id: ")


@pytest.mark.parametrize(("priority", "expected"), [(0, 0), (1, 4), (4, 1), (5, 0), (7, -2), (2**64 - 1, -4)])
async def test_priority(priority: int, expected: int) -> None:
    assert (await asked_for({**body(), "parameters": {"priority": priority}})).priority == expected


async def test_parameters() -> None:
    known = {"timeout": 2_000_000, "sequence_id": 5, "sequence_start": True, "nobody": "x", "list": [1]}
    assert (await asked_for({**body(), "parameters": known})).timeout_s == 2.0
    assert (await asked_for({**body(), "parameters": {"timeout": 0}})).timeout_s == 600.0
    for wrong in ({"timeout": -1}, {"timeout": "x"}, {"priority": 1.5}, {"binary_data_output": 1}, 5):
        assert "parameters" in await refusal({**body(), "parameters": wrong})


@pytest.mark.parametrize("text", ["prompt and output", "output alone"])
@module_loop
async def test_an_output_that_does_not_fit_is_clamped_to_the_window(
    client: httpx.AsyncClient, text: str
) -> None:
    given = {"input_ids": [5] * 400} if text.startswith("prompt") else {}
    answer = await client.post(f"/v2/models/{MODEL}/infer", json=body(**given, request_output_len=10_000_000))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-clamped-fields"].startswith("request_output_len=")
