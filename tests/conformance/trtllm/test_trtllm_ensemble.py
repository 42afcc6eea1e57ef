"""The names of TensorRT-LLM's backend: what each takes and gives, and the order in which errors are told."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from serve_app.types import DetokenizeRequest, TokenizeRequest
from tests.conformance.trtllm.asks import HINTS, IDS, INFER, body, error_of, events, outputs, refusal, tensor
from tests.conformance.trtllm.test_trtllm_outputs import TensorBackend
from tests.support.fakes_backend import WORDS, FakeBackend, model_info
from tests.support.gateway import gateway

MODELS = "/v2/models"
NAMES = ("ensemble", "tensorrt_llm_bls", "preprocessing", "postprocessing", "tensorrt_llm")
VOCABULARY = 1000  # of the scripted model


def bytes_tensor(name: str, rows: list[list[str]]) -> dict[str, Any]:
    return tensor(name, rows, "BYTES", [len(rows), len(rows[0])])


def text_body(*prompts: str, **scalars: Any) -> dict[str, Any]:
    """What the public client of the ensemble sends: every scalar of shape (batch, 1)."""
    count = len(prompts)
    inputs = [bytes_tensor("text_input", [[prompt] for prompt in prompts])]
    inputs.append(tensor("max_tokens", [[3]] * count, "INT32", [count, 1]))
    types = {bool: "BOOL", int: "INT32", float: "FP32"}
    for name, value in scalars.items():
        inputs.append(tensor(name, [[value]] * count, types[type(value)], [count, 1]))
    return {"inputs": inputs}


def query_body(*queries: str, **lists: list[list[str]]) -> dict[str, Any]:
    count = len(queries)
    inputs = [bytes_tensor("QUERY", [[query] for query in queries])]
    inputs.append(tensor("REQUEST_OUTPUT_LEN", [[7]] * count, "INT32", [count, 1]))
    return {"inputs": inputs + [bytes_tensor(name, rows) for name, rows in lists.items()]}


def tokens_body(tokens: Any, lengths: Any) -> dict[str, Any]:
    inputs = (("TOKENS_BATCH", tokens), ("SEQUENCE_LENGTH", lengths))
    return {"inputs": [tensor(name, value, "INT32", list(np.shape(value))) for name, value in inputs]}


# --- names ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
async def test_every_name_has_its_pages(name: str) -> None:
    path = f"{MODELS}/{name}"
    async with gateway() as g:
        assert (await g.client.get(path + "/ready")).json() == {"name": name, "ready": True}
        page, config = (await g.client.get(path)).json(), (await g.client.get(path + "/config")).json()
    listed = {each["name"] for each in page["inputs"]}, {each["name"] for each in page["outputs"]}
    wanted = {
        "preprocessing": ({"QUERY", "REQUEST_OUTPUT_LEN"}, {"INPUT_ID", "OUT_END_ID"}),
        "postprocessing": ({"TOKENS_BATCH", "SEQUENCE_LENGTH"}, {"OUTPUT"}),
        "tensorrt_llm": ({"input_ids", *HINTS}, {"output_ids"}),
    }.get(name, ({"text_input", "max_tokens", "stream", "embedding_bias_words"}, {"text_output"}))
    assert wanted[0] <= listed[0]
    assert wanted[1] <= listed[1]
    assert config["model_transaction_policy"] == {"decoupled": not name.endswith("processing")}
    if name == "ensemble":
        assert not listed[0] & {"input_ids", "input_lengths", "request_output_len", "bad_words_list"}
        assert not listed[1] & {"output_ids", "sequence_length"}


async def test_the_names_are_settings_and_endpoints_come_first() -> None:
    config = {"ensemble": ["talk"], "preprocessing": "", "postprocessing": "back"}
    async with gateway(trtllm=config) as g:
        for name in ("ensemble", "tensorrt_llm_bls", "preprocessing", "postprocessing"):
            assert (await g.client.get(f"{MODELS}/{name}")).status_code == 404
        assert (await g.post(f"{MODELS}/talk/infer", text_body("x"))).status_code == 200
        assert (await g.post(f"{MODELS}/back/infer", tokens_body([[[5]]], [[1]]))).status_code == 200
    async with gateway(FakeBackend(infos=[model_info(), model_info("preprocessing")])) as g:
        answer = await g.post(f"{MODELS}/preprocessing/infer", body())
        assert answer.headers["served-model-name"] == "preprocessing"


# --- the ensemble ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ensemble", "tensorrt_llm_bls"])
async def test_an_ensemble_gives_text(name: str) -> None:
    async with gateway() as g:
        answer = await g.post(f"{MODELS}/{name}/infer", text_body("The tide", temperature=1.0, top_k=1))
        (told,) = answer.json()["outputs"]
        assert told == {
            "name": "text_output",
            "datatype": "BYTES",
            "shape": [1],
            "data": ["".join(WORDS)],
        }
        whole = (await g.post(f"{MODELS}/{name}/generate", {"text_input": "x", "max_tokens": 3})).json()
        assert whole == {"model_name": name, "model_version": "1", "text_output": "".join(WORDS)}
        asked = {"text_input": "x", "max_tokens": 3, "stream": True}
        found = events((await g.post(f"{MODELS}/{name}/generate_stream", asked)).content)
        assert [event["text_output"] for event in found] == list(WORDS)
        assert g.backend.requests[0].prompt.text == "The tide"


async def test_any_model_takes_the_tensors_of_text() -> None:
    asked = text_body("x", stream=False, num_draft_tokens=5, use_draft_logits=False)
    words = [["stop", ""]], [["never", "ever"]]
    for name, rows in zip(("stop_words", "bad_words"), words, strict=True):
        asked["inputs"].append(bytes_tensor(name, rows))
    asked["inputs"].append(bytes_tensor("embedding_bias_words", [["a", "b"]]))
    asked["inputs"].append(tensor("embedding_bias_weights", [[2.5, -1.0]], "FP32", [1, 2]))
    async with gateway() as g:
        found = await g.post(INFER, asked)
        assert {each["name"] for each in found.json()["outputs"]} == {
            "output_ids",
            "sequence_length",
            "text_output",
        }
        request = g.backend.last
    assert (request.stop, request.bad_words) == (("stop",), ("never", "ever"))
    assert request.biased_words == (("a", 2.5), ("b", -1.0))


async def test_a_batch_of_texts_has_a_response_with_all_of_them() -> None:
    asked = {**text_body("a", "b", num_return_sequences=2), "outputs": []}
    asked["outputs"] = [{"name": name} for name in ("text_output", "batch_index", "sequence_index")]
    async with gateway(TensorBackend()) as g:
        found = outputs(await g.post(f"{MODELS}/ensemble/infer", asked))
        assert {request.prompt.text for request in g.backend.requests} == {"a", "b"}
    assert found["text_output"].tolist() == ["<0>", "<0><1>"] * 2
    assert found["batch_index"].tolist() == [[0], [1]]
    assert found["sequence_index"].tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (body(), "text_input: is required"),
        ({"inputs": [bytes_tensor("text_input", [["x"]])]}, "request_output_len: is required"),
        ({**text_body("x"), "outputs": [{"name": "nobody"}]}, "unexpected inference output 'nobody'"),
        (text_body("x", max_tokens_=1), "unexpected inference input 'max_tokens_'"),
        (text_body("x", num_draft_tokens=-1), "num_draft_tokens: must be an integer from 0"),
        ({"inputs": [*text_body("a", "b")["inputs"], bytes_tensor("stop_words", [["x"]])]}, "stop_words: "),
        (
            {"inputs": [*text_body("x")["inputs"], bytes_tensor("embedding_bias_words", [["x"]])]},
            "embedding_bias_weights: must have 1 numbers",
        ),
    ],
)
async def test_what_an_ensemble_refuses(asked: dict[str, Any], words: str) -> None:
    assert (await refusal(asked, f"{MODELS}/ensemble/infer")).startswith(words)


async def test_text_output_needs_a_text() -> None:
    asked = {**body(), "outputs": [{"name": "text_output"}]}
    assert await refusal(asked) == "text_output: needs the input text_input"


@pytest.mark.parametrize("name", HINTS)
async def test_hints_are_checked_and_change_nothing(name: str) -> None:
    value = [5] if name in ("decoder_input_ids",) or "range" in name else 5
    async with gateway() as g:
        answer = await g.post(INFER, body(**{name: value}))
        assert answer.status_code == 200, answer.text
        await g.post(INFER, body())
        hinted, plain = g.backend.requests
    assert hinted.sampling == plain.sampling
    wrong = [-5] if isinstance(value, list) else -5
    assert (await refusal(body(**{name: wrong}))).startswith(f"{name}: ")


async def test_texts_and_numbers_that_change_nothing() -> None:
    hints = {"decoder_text_input": "y", "prompt_table_extra_id": 2**63, "num_draft_tokens": 5}
    asked = {"text_input": "x", "max_tokens": 3}
    async with gateway() as g:
        for more in ({}, {**hints, "use_draft_logits": True}):
            answer = await g.post(f"{MODELS}/ensemble/generate", {**asked, **more})
            assert answer.status_code == 200, answer.text
        plain, hinted = g.backend.requests
        assert (plain.prompt, plain.sampling) == (hinted.prompt, hinted.sampling)
    for name in ("prompt_table_extra_id", "num_draft_tokens", "use_draft_logits"):
        path = f"{MODELS}/ensemble/generate"
        assert (await refusal({**asked, name: -1}, path)).startswith(f"{name}: ")


# --- the steps around generation ------------------------------------------------------


async def test_preprocessing_makes_the_tensors_of_a_request() -> None:
    asked = query_body("What?", BAD_WORDS_DICT=[["bad"]], STOP_WORDS_DICT=[[""]])
    async with gateway() as g:
        answer = await g.post(f"{MODELS}/preprocessing/infer", asked)
        found = outputs(answer)
        questions = {(each.prompt.text, each.add_special_tokens) for each in g.backend.questions}
        await g.check()
    assert answer.headers["served-model-name"] == "demo"
    assert questions == {("What?", True), ("bad", False)}
    assert {name: array.tolist() for name, array in found.items()} == {
        "INPUT_ID": [[10, 11]],
        "REQUEST_INPUT_LEN": [[2]],
        "DECODER_INPUT_ID": [[0]],
        "REQUEST_DECODER_INPUT_LEN": [[1]],
        "BAD_WORDS_IDS": [[[10, 11], [2, -1]]],
        "STOP_WORDS_IDS": [[[0], [-1]]],
        "EMBEDDING_BIAS": [[]],
        "REQUEST_OUTPUT_LEN": [[7]],
        "OUT_END_ID": [[-1]],
        "OUT_PAD_ID": [[0]],
    }


async def test_preprocessing_has_batches_biases_and_chosen_outputs() -> None:
    asked = query_body("a", "b", EMBEDDING_BIAS_WORDS=[["x"], ["y"]])
    asked["inputs"].append(tensor("EMBEDDING_BIAS_WEIGHTS", [[1.5], [-2.0]], "FP32", [2, 1]))
    asked["inputs"].append(tensor("END_ID", [[5], [6]], "INT32", [2, 1]))
    names = ("EMBEDDING_BIAS", "OUT_END_ID", "OUT_PAD_ID", "BAD_WORDS_IDS")
    asked["outputs"] = [{"name": name} for name in names]
    async with gateway() as g:
        found = outputs(await g.post(f"{MODELS}/preprocessing/infer", asked))
    assert tuple(found) == names
    assert found["EMBEDDING_BIAS"].shape == (2, VOCABULARY)
    assert found["EMBEDDING_BIAS"][:, 9:12].tolist() == [[0, 1.5, 1.5], [0, -2.0, -2.0]]
    assert found["OUT_END_ID"].tolist() == [[5], [6]]
    assert found["BAD_WORDS_IDS"].shape == (2, 2, 0)


async def test_postprocessing_makes_texts() -> None:
    asked = tokens_body([[[5, 6, 0], [7, 0, 0]]], [[2, 1]])
    async with gateway() as g:
        found = outputs(await g.post(f"{MODELS}/postprocessing/infer", asked))
        assert found["OUTPUT"].tolist() == ["".join(WORDS)] * 2
        assert g.backend.questions == [
            DetokenizeRequest(id=each.id, timeout_s=each.timeout_s, token_ids=ids, skip_special_tokens=True)
            for each, ids in zip(g.backend.questions, [(5, 6), (7,)], strict=True)
        ]
        await g.check()


async def test_the_steps_take_values_too() -> None:
    async with gateway() as g:
        asked = {"id": "9", "QUERY": "What?", "REQUEST_OUTPUT_LEN": 7}
        whole = (await g.post(f"{MODELS}/preprocessing/generate", asked)).json()
        assert (whole["id"], whole["INPUT_ID"], whole["REQUEST_OUTPUT_LEN"]) == ("9", [10, 11], 7)
        assert events((await g.post(f"{MODELS}/preprocessing/generate_stream", asked)).content) == [whole]
        asked = {"TOKENS_BATCH": [[[5, 6]]], "SEQUENCE_LENGTH": [[2]]}
        answer = await g.post(f"{MODELS}/postprocessing/generate", asked)
        assert answer.json()["OUTPUT"] == "".join(WORDS)
        assert isinstance(g.backend.questions[0], TokenizeRequest)


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("preprocessing", text_body("x"), "unexpected inference input 'text_input'"),
        ("preprocessing", query_body(""), "QUERY: must be a string of 1 to"),
        ("preprocessing", {"inputs": query_body("x")["inputs"][:1]}, "REQUEST_OUTPUT_LEN: is required"),
        (
            "preprocessing",
            query_body("x", BAD_WORDS_DICT=[["x" * 1025]]),
            "BAD_WORDS_DICT: must hold",
        ),
        ("preprocessing", {**query_body("x"), "outputs": [{"name": "x"}]}, "unexpected inference output 'x'"),
        ("postprocessing", tokens_body([[[5]]], [[2]]), "SEQUENCE_LENGTH: must hold integers from 0 to 1"),
        ("postprocessing", tokens_body([[[5]]], [[-1]]), "SEQUENCE_LENGTH: must hold integers from 0 to 1"),
        ("postprocessing", tokens_body([[[5], [6]]], [[1]]), "SEQUENCE_LENGTH: must have the shape [1, 2]"),
        ("postprocessing", tokens_body([[[-5]]], [[1]]), "TOKENS_BATCH: token ids must not be negative"),
        ("postprocessing", tokens_body([[[5]] * 129], [[1] * 129]), "TOKENS_BATCH: must hold at most 128"),
        ("postprocessing", body(), "unexpected inference input 'input_ids'"),
    ],
)
async def test_what_the_steps_refuse(name: str, asked: dict[str, Any], words: str) -> None:
    assert (await refusal(asked, f"{MODELS}/{name}/infer")).startswith(words)


# --- whose error it is ----------------------------------------------------------------


@pytest.mark.parametrize("what", ["infer", "generate", "generate_stream"])
@pytest.mark.parametrize("content", [b"{", b"[]", b'{"max_tokens": -1}', b'{"inputs": 5}', b""])
async def test_an_unknown_model_is_404_whatever_the_body_is(what: str, content: bytes) -> None:
    async with gateway() as g:
        for prefix in ("", "/triton"):
            answer = await g.client.post(f"{prefix}{MODELS}/nobody/{what}", content=content)
            assert answer.status_code == 404, answer.text
        answer = await g.client.post(f"/triton{MODELS}/nobody/{what}", content=content)
        assert error_of(answer) == "model: no such model"


@pytest.mark.parametrize("media", [None, "application/x-www-form-urlencoded", "application/json; x=y"])
async def test_a_body_of_json_needs_no_type(media: str | None) -> None:
    headers = {} if media is None else {"content-type": media}
    tritons = json.dumps({"text_input": "x", "max_tokens": 3}).encode()
    mindies = json.dumps({"text_input": "x", "parameters": {"max_new_tokens": 3}}).encode()
    async with gateway() as g:
        for path, content in (
            (f"{MODELS}/demo/generate", tritons),
            (f"{MODELS}/demo/generate_stream", tritons),
            (f"{MODELS}/demo/generate", mindies),
            (INFER, json.dumps(body()).encode()),
            ("/v1/completions", b'{"model": "demo", "prompt": "x"}'),
            ("/tokenize", b'{"model": "demo", "prompt": "x"}'),
        ):
            answer = await g.client.post(path, content=content, headers=headers)
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}])
async def test_an_error_is_in_the_words_of_the_bodys_protocol(headers: dict[str, str]) -> None:
    async with gateway() as g:
        for content in (b'{"text_input": "x", "max_tokens": NaN}', b'{"text_input": "x", "max_tokens": 3'):
            answer = await g.client.post(f"{MODELS}/demo/generate", content=content, headers=headers)
            assert answer.status_code == 400
            assert error_of(answer)
        for content in (b'{"text_input": "x", "parameters": {"max_new_tokens": 0}}', b'{"text_input": "'):
            answer = await g.client.post(f"{MODELS}/demo/generate", content=content, headers=headers)
            assert "error_type" in answer.json()


async def test_a_name_of_the_ensemble_makes_any_body_tritons() -> None:
    async with gateway() as g:
        answer = await g.post(f"{MODELS}/ensemble/generate", {"text_input": "x"})
        assert error_of(answer).startswith("request_output_len: is required")
        for name in ("ensemble", "preprocessing"):
            forced = await g.post(f"/mindie{MODELS}/{name}/generate", {"text_input": "x"})
            assert (forced.status_code, "error_type" in forced.json()) == (404, True)
        refused = await g.client.post(
            f"{MODELS}/ensemble/generate", content=b"{}", headers={"content-type": "text/plain"}
        )
        assert error_of(refused) == "Content-Type must be application/json"


# --- biases that exclude --------------------------------------------------------------


async def test_a_bias_may_exclude_tokens() -> None:
    bias = [0.0, float("-inf"), *[0.0] * (VOCABULARY - 2)]
    row = tensor("embedding_bias", [bias], "FP32", [1, VOCABULARY])
    infer = json.dumps({"inputs": [*body()["inputs"], row]})
    values = json.dumps({"input_ids": IDS, "request_output_len": 3, "embedding_bias": bias})
    async with gateway() as g:
        for path, content in ((INFER, infer), (f"{MODELS}/demo/generate", values)):
            assert "-Infinity" in content
            answer = await g.client.post(path, content=content)
            assert answer.status_code == 200, answer.text
            asked = g.backend.last.bias
            assert asked is not None
            assert np.frombuffer(asked.data, "<f4")[:3].tolist() == [0.0, -np.inf, 0.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("embedding_bias", [float("inf")] * VOCABULARY),
        ("embedding_bias", [float("nan")] * VOCABULARY),
        ("embedding_bias", [float("-inf")] * VOCABULARY),
        ("temperature", float("-inf")),
        ("prompt_embedding_table", [[float("-inf")]]),
    ],
)
async def test_other_numbers_that_are_none_are_refused(name: str, value: Any) -> None:
    shape = [1, 1] if name == "temperature" else [1, *np.shape(value)]
    row = tensor(name, value, "FP32", shape)
    async with gateway() as g:
        content = json.dumps({"inputs": [*body()["inputs"], row]})
        answer = await g.client.post(INFER, content=content)
    assert answer.status_code == 400
    assert error_of(answer).startswith(f"{name}: ")


async def test_a_bias_without_width_is_none() -> None:
    async with gateway() as g:
        empty = tensor("embedding_bias", [], "FP32", [1, 0])
        await g.post(INFER, {"inputs": [*body()["inputs"], empty]})
        assert g.backend.last.bias is None
