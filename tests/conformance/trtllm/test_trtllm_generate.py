"""generate and generate_stream: whose body it is, tensors as values, text keys, the bytes of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.errors import EngineRefused, GenerationFailed, Overloaded, ServeError, Unavailable
from serve_app.types import FinishReason, GenerateRequest
from tests.conformance.trtllm.asks import IDS, TYPES, error_of, events, refusal
from tests.conformance.trtllm.test_trtllm_outputs import TensorBackend
from tests.support.fakes_backend import WORDS, FakeBackend
from tests.support.gateway import gateway

GENERATE = "/v2/models/demo/generate"
STREAM = "/v2/models/demo/generate_stream"
TEXT = {"text_input": "The tide", "max_tokens": 4}
TOKENS = {"input_ids": IDS, "request_output_len": 3}


async def asked_for(request: dict[str, Any], path: str = GENERATE, **config: Any) -> GenerateRequest:
    async with gateway(FakeBackend(), **config) as g:
        answer = await g.post(path, request)
        if answer.status_code != 200:
            raise AssertionError(answer.text)
        return g.backend.last


async def test_the_worked_example_of_a_stream_byte_by_byte() -> None:
    asked = {"input_ids": [12, 871, 40, 3], "request_output_len": 2, "end_id": 2, "streaming": True}
    async with gateway(FakeBackend(words=("a", "b"))) as g:
        answer = await g.post(STREAM, asked)
        named = await g.post(STREAM, {**asked, "id": "9"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    head = 'data: {"model_name":"demo","model_version":"1",'
    assert answer.text == (
        f'{head}"output_ids":10,"sequence_length":1}}\n\n{head}"output_ids":11,"sequence_length":1}}\n\n'
    )
    assert events(named.content)[0] == {**events(answer.content)[0], "id": "9"}


async def test_a_stream_of_an_answer_that_does_not_stream_is_one_event() -> None:
    async with gateway() as g:
        streamed = events((await g.post(STREAM, TOKENS)).content)
        whole = (await g.post(GENERATE, TOKENS)).json()
    assert streamed == [whole]
    assert whole == {
        "model_name": "demo",
        "model_version": "1",
        "output_ids": [10, 11, 12, 13, 14, 15],
        "sequence_length": 6,
    }


async def test_text_in_and_out() -> None:
    async with gateway() as g:
        whole = (await g.post(GENERATE, TEXT)).json()
        streamed = events((await g.post(STREAM, {**TEXT, "stream": True})).content)
        asked = g.backend.last
    assert whole["text_output"] == "".join(WORDS)
    assert [event["text_output"] for event in streamed] == list(WORDS)
    assert [event["output_ids"] for event in streamed] == [10, 11, 12, 13, 14, 15]
    assert asked.prompt.text == "The tide"
    assert (asked.sampling.max_tokens, asked.sampling.ignore_eos) == (4, False)


async def test_several_texts_are_a_list_and_the_prompt_may_come_before() -> None:
    async with gateway(TensorBackend()) as g:
        many = (await g.post(GENERATE, {**TEXT, "num_return_sequences": 2})).json()
        echoed = (await g.post(GENERATE, {**TEXT, "exclude_input_in_output": False})).json()
    assert many["text_output"] == ["<0>", "<0><1>"]
    assert many["output_ids"] == [0, 0, 100, 101]
    assert (echoed["text_output"], echoed["output_ids"]) == ("pq<0>", [8, 9, 0])


# text key -> (its value, attribute of the sampling, what the model is asked)
RENAMED = {
    "max_tokens": (7, "max_tokens", 7),
    "top_k": (5, "top_k", 5),
    "top_p": (0.5, "top_p", 0.5),
    "min_tokens": (2, "min_tokens", 2),
    "seed": (9, "seed", 9),
}


@pytest.mark.parametrize("key", RENAMED)
@pytest.mark.parametrize("nested", [False, True])
async def test_text_keys(key: str, nested: bool) -> None:
    value, attribute, expected = RENAMED[key]
    given = {"runtime_top_k": 3, **TEXT, key: value}
    if key == "top_k":
        del given["runtime_top_k"]
    request: dict[str, Any] = (
        {"text_input": given.pop("text_input"), "parameters": given} if nested else given
    )
    assert getattr((await asked_for(request)).sampling, attribute) == expected


async def test_length_penalty_is_that_of_beams() -> None:
    beam = (await asked_for({**TEXT, "beam_width": 2, "length_penalty": 0.5})).beam
    assert beam is not None
    assert beam.length_penalty == 0.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", ()), ([], ()), ("no", ("no",)), (["a", "", "b c"], ("a", "b c")), (None, ())],
)
async def test_words_as_text(value: Any, expected: tuple[str, ...]) -> None:
    bad = await asked_for({**TEXT, "bad_words": value})
    stop = await asked_for({**TEXT, "stop_words": value})
    assert (bad.bad_words, stop.stop, stop.include_stop) == (expected, expected, True)
    with_tokens = await asked_for({**TOKENS, "stop_words": value})
    assert (with_tokens.stop, with_tokens.prompt.token_ids) == (expected, tuple(IDS))


@pytest.mark.parametrize("key", ["bad_words", "stop_words"])
@pytest.mark.parametrize("value", [5, {"a": 1}, [5], ["x" * 1025], ["x"] * 1025])
async def test_words_that_are_none(key: str, value: Any) -> None:
    assert (await refusal({**TEXT, key: value}, GENERATE)).startswith(f"{key}: must ")


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        ({**TEXT, "input_ids": [1]}, "text_input"),
        ({**TEXT, "input_lengths": 1}, "text_input"),
        ({**TEXT, "text_input": ""}, "text_input"),
        ({**TEXT, "text_input": 5}, "text_input"),
        ({**TEXT, "request_output_len": 5}, "request_output_len"),
        ({**TEXT, "max_tokens": 0}, "max_tokens"),
        ({**TEXT, "max_tokens": "4"}, "max_tokens"),
        ({**TEXT, "top_p": 1.5}, "top_p"),
        ({**TEXT, "top_k": 1001}, "top_k"),
        ({**TEXT, "parameters": {"max_tokens": 4}}, "max_tokens"),
        ({**TEXT, "parameters": 5}, "parameters"),
        ({**TEXT, "prompt_embedding_table": [[0.5]]}, "prompt_embedding_table"),
        ({"text_input": "x", "stream": False}, "request_output_len"),
        ({"max_tokens": 3}, "input_ids"),
        ({**TOKENS, "input_ids": [[1, 2], [3, 4]], "request_output_len": [1, 1]}, "request_output_len"),
        ({**TOKENS, "input_ids": [[1, 2], [3]]}, "input_ids"),
        ({**TOKENS, "input_ids": []}, "input_ids"),
        ({**TOKENS, "input_ids": {}}, "input_ids"),
        ({**TOKENS, "beam_width": [1, 2]}, "beam_width"),
        ({**TOKENS, "bad_words_list": [7, 8, 1]}, "bad_words_list"),
        ({**TOKENS, "prompt_embedding_table": [0.5, 0.5]}, "prompt_embedding_table"),
        ({**TOKENS, "temperature": 1e39}, "temperature"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_bodies_that_cannot_be(request_: dict[str, Any], name: str) -> None:
    assert (await refusal(request_, GENERATE)).startswith(f"{name}: ")


async def test_an_unknown_key_is_an_unexpected_tensor() -> None:
    assert await refusal({**TEXT, "nobody": 1}, GENERATE) == (
        "unexpected inference input 'nobody' for model 'demo'"
    )
    assert (await asked_for({**TEXT, "nobody": None, "parameters": {"nobody": 1}})).prompt.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_ids", 5),
        ("input_ids", [[5, 6]]),
        ("request_output_len", [[2]]),
        ("bad_words_list", [7, 8, 2, -1]),
        ("bad_words_list", [[7, 8], [2, -1]]),
        ("bad_words_list", [[[7, 8], [2, -1]]]),
        ("stop_words_list", []),
        ("draft_input_ids", [1, 2]),
        ("early_stopping", True),
        ("prompt_embedding_table", [[0.5, 1]]),
        ("embedding_bias", [0.5] * 1000),
        ("return_log_probs", [True]),
        ("guided_decoding_guide_type", "json"),
    ],
)
async def test_values_take_the_type_and_shape_of_their_tensor(name: str, value: Any) -> None:
    assert (await asked_for({**TOKENS, name: value})).prompt.token_ids


async def test_flat_tables_take_their_rows_from_their_neighbours() -> None:
    flat = {"lora_task_id": 1, "lora_config": [1, 0, 2, 3, 1, 2], "lora_weights": [0.5] * 8}
    adapter = (await asked_for({**TOKENS, **flat})).adapter
    assert adapter is not None
    assert adapter.config is not None
    assert adapter.weights is not None
    assert (adapter.config.shape, adapter.weights.shape) == ((2, 3), (2, 4))
    draft = (await asked_for({**TOKENS, "draft_input_ids": [1, 2], "draft_logits": [0.0] * 2000})).draft
    assert draft is not None
    assert draft.logits is not None
    assert draft.logits.shape == (2, 1000)


# --- whose body it is (D-2, D-2a) -----------------------------------------------------


def is_mindies(answer: Any, path: str) -> bool:
    """By the framing of a stream, or by the keys of an object."""
    if path == STREAM and answer.status_code == 200:
        return bool(answer.content.startswith(b"data:{"))
    found = answer.json()
    return "error_type" in found or ("text_output" in found and "sequence_length" not in found)


OURS = ["stream", "max_tokens", "bad_words", "stop_words", "min_tokens", "length_penalty"]
SHARED = {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "repetition_penalty": 1.5, "seed": 7, "stop": ["x"]}


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize("name", [*OURS, *(name for name in TYPES if name not in SHARED)])
async def test_a_parameter_that_only_triton_has_makes_a_body_tritons(path: str, name: str) -> None:
    async with gateway() as g:
        answer = await g.post(path, {"text_input": "x", "parameters": {name: {}}})
        assert not is_mindies(answer, path)
        assert error_of(answer)
        forced = await g.post("/mindie" + path, {"text_input": "x", "parameters": {name: {}}})
        assert (forced.status_code, is_mindies(forced, path)) == (200, True)


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text_input": "x"}, 200),
        ({"text_input": "x", "id": "a", "parameters": {**SHARED, "nobody": 1}}, 200),
        ({"text_input": "x", "parameters": None}, 200),
        ({"text_input": "x", "parameters": 5}, 422),
        ({}, 422),
        ([], 422),
        ("x", 422),
    ],
)
async def test_any_other_body_is_mindies(path: str, body: Any, status: int) -> None:
    async with gateway() as g:
        answer = await g.post(path, body)
    assert (answer.status_code, is_mindies(answer, path)) == (status, True)


@pytest.mark.parametrize(
    ("prefix", "headers"),
    [("/triton", {}), ("", {"x-api-dialect": "triton"}), ("", {"x-api-dialect": "trtllm"})],
)
async def test_triton_can_be_forced(prefix: str, headers: dict[str, str]) -> None:
    mindies = {"text_input": "x", "parameters": {"temperature": 0.5}}
    async with gateway() as g:
        answer = await g.post(prefix + GENERATE, mindies, headers=headers)
        assert answer.status_code == 400
        assert error_of(answer).startswith("request_output_len: is required")
        answer = await g.client.post(prefix + GENERATE, content=b"[]", headers=headers)
        assert answer.status_code == 400
        assert error_of(answer)


async def test_a_member_that_nests_too_deep_is_refused_before_anything_reads_it() -> None:
    deep = b'{"text_input":"x","stream":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    async with gateway() as g:
        for path in (GENERATE, STREAM):
            answer = await g.client.post(path, content=deep)
            assert answer.status_code in (400, 422)
            assert "lists and objects" in json.loads(answer.content)["error"]


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("full"), 503),
        (Unavailable("loading"), 503),
        (EngineRefused("no"), 500),
        (GenerationFailed("failed"), 500),
    ],
)
async def test_errors_before_the_first_token(error: ServeError, status: int) -> None:
    async with gateway(FakeBackend(refuse=error)) as g:
        for path, asked in ((STREAM, {**TEXT, "stream": True}), (GENERATE, TEXT)):
            answer = await g.post(path, asked)
            assert (answer.status_code, error_of(answer)) == (status, error.message)
        await g.check()


async def test_an_error_after_the_first_byte_is_the_last_event() -> None:
    async with gateway(FakeBackend(fail_after=2, failure=GenerationFailed("the engine failed"))) as g:
        answer = await g.post(STREAM, {**TEXT, "stream": True})
        assert answer.content.endswith(b'\n\ndata: {"error":"the engine failed"}\n\n')
        assert len(events(answer.content)) == 3
        await g.check()


async def test_an_abort_ends_a_stream_without_another_event() -> None:
    async with gateway(FakeBackend(finish=FinishReason.ABORT)) as g:
        found = events((await g.post(STREAM, {**TEXT, "stream": True})).content)
    assert len(found) == len(WORDS)
