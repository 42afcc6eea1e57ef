"""Outputs: which there are, their shapes and padding, binary forms, compressed bodies."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from serve_app.limits import MAX_BODY_BYTES, MAX_TENSOR_BODY_BYTES
from serve_app.types import FinishReason, GenerateRequest, Perf, Tensor, TextLogprob, TokenDelta, Usage
from tests.conformance.trtllm.asks import IDS, INFER, body, error_of, events, outputs, refusal
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import gateway

STREAM = "/v2/models/demo/generate_stream"
PERF = Perf(
    arrival_ns=1,
    first_scheduled_ns=2,
    first_token_ns=3,
    last_token_ns=4,
    blocks_total=7,
    blocks_reused=2,
    blocks_new=5,
    draft_tokens=8,
    accepted_tokens=6,
)
MEASURED = {
    "arrival_time_ns": ("INT64", 1),
    "first_scheduled_time_ns": ("INT64", 2),
    "first_token_time_ns": ("INT64", 3),
    "last_token_time_ns": ("INT64", 4),
    "kv_cache_alloc_new_blocks": ("INT32", 5),
    "kv_cache_reused_blocks": ("INT32", 2),
    "kv_cache_alloc_total_blocks": ("INT32", 7),
    "total_accepted_draft_tokens": ("INT32", 6),
    "total_draft_tokens": ("INT32", 8),
    "acceptance_rate": ("FP32", 0.75),
}


def matrix(start: float, rows: int) -> Tensor:
    """A row of logits for each token, over a vocabulary of two."""
    array = np.arange(start, start + 2 * rows, dtype="<f4").reshape(rows, 2)
    return Tensor(dtype="FP32", shape=array.shape, data=array.tobytes())


class TensorBackend(FakeBackend):
    """Choice `i` has `i + 1` tokens, or two where it streams, with every tensor that was asked for."""

    async def _deltas(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        usage = Usage(prompt_tokens=len(request.prompt.token_ids or ()) or 2, completion_tokens=3)
        for index in range(request.n):
            groups = [(0,), (1, 2)] if request.stream else [tuple(range(index + 1))]
            for tokens in groups:
                is_last = tokens is groups[-1]
                tensors = {}
                if request.context_logits and tokens[0] == 0:
                    tensors["context_logits"] = matrix(0, usage.prompt_tokens)
                if request.generation_logits:
                    tensors["generation_logits"] = matrix(10 * index + 2 * tokens[0], len(tokens))
                yield [
                    TokenDelta(
                        request_id=request.id,
                        index=index,
                        text="".join(f"<{t}>" for t in tokens),
                        token_ids=tuple(100 * index + t for t in tokens),
                        logprobs=None
                        if request.logprobs is None
                        else tuple(TextLogprob(t, "", b"", -0.5 - t) for t in tokens),
                        prompt_token_ids=(8, 9) if request.echo and tokens[0] == 0 else None,
                        prompt_text="pq" if request.echo and tokens[0] == 0 else None,
                        finish=FinishReason.LENGTH if is_last else None,
                        usage=usage,
                        tensors=tensors,
                        perf=PERF if is_last else None,
                    )
                ]


async def infer(**values: Any) -> dict[str, Any]:
    async with gateway(TensorBackend()) as g:
        return outputs(await g.post(INFER, body(**values)))


async def test_beams_are_padded_on_their_right() -> None:
    found = await infer(beam_width=3, pad_id=5, return_log_probs=True, return_num_output_tokens=True)
    assert found["output_ids"].tolist() == [[[0, 5, 5], [100, 101, 5], [200, 201, 202]]]
    assert found["sequence_length"].tolist() == found["num_output_tokens"].tolist() == [[1, 2, 3]]
    assert found["output_log_probs"].tolist() == [[[-0.5, 0, 0], [-0.5, -1.5, 0], [-0.5, -1.5, -2.5]]]
    assert found["cum_log_probs"].tolist() == [[-0.5, -2.0, -4.5]]


@pytest.mark.parametrize(
    ("values", "pad", "of_model"),
    [
        ({"pad_id": 7, "end_id": 2}, 7, 3),
        ({"end_id": 2}, 2, 3),
        ({"pad_id": -1, "end_id": 2}, 2, 3),
        ({}, 3, 3),
        ({"end_id": -1}, 0, None),
    ],
)
async def test_pad_id_defaults_to_end_id_then_the_tokenizers_then_0(
    values: dict[str, Any], pad: int, of_model: int | None
) -> None:
    backend = TensorBackend(infos=[replace(model_info(), pad_token_id=of_model)])
    async with gateway(backend) as g:
        found = outputs(await g.post(INFER, body(beam_width=2, **values)))
    assert found["output_ids"].tolist() == [[[0, pad], [100, 101]]]


async def test_the_prompt_may_stand_before_the_output() -> None:
    found = await infer(exclude_input_in_output=False, return_log_probs=True, return_num_input_tokens=True)
    assert found["output_ids"].tolist() == [[[*IDS, 0]]]
    assert found["sequence_length"].tolist() == [[5]]
    assert found["output_log_probs"].tolist() == [[[-0.5]]]
    assert found["num_input_tokens"].tolist() == [[4]]


async def test_logits() -> None:
    found = await infer(return_context_logits=True, return_generation_logits=True, num_return_sequences=2)
    assert found["context_logits"].shape == (1, 4, 2)
    assert found["context_logits"].tolist() == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
    assert found["generation_logits"].tolist() == [[[[0, 1], [0, 0]], [[10, 11], [12, 13]]]]


async def test_perf_metrics() -> None:
    async with gateway(TensorBackend()) as g:
        answer = await g.post(INFER, body(return_perf_metrics=True))
    found = {each["name"]: each for each in answer.json()["outputs"]}
    for name, (datatype, value) in MEASURED.items():
        assert (found[name]["datatype"], found[name]["shape"], found[name]["data"]) == (
            datatype,
            [1, 1],
            [value],
        )


async def test_outputs_may_be_chosen() -> None:
    async with gateway(TensorBackend()) as g:
        asked = {
            **body(return_log_probs=True),
            "outputs": [{"name": "cum_log_probs"}, {"name": "output_ids"}],
        }
        assert list(outputs(await g.post(INFER, asked))) == ["cum_log_probs", "output_ids"]
        none = {**body(), "outputs": []}
        assert list(outputs(await g.post(INFER, none))) == ["output_ids", "sequence_length"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([{"name": "cum_log_probs"}], "return_log_probs"),
        ([{"name": "context_logits"}], "return_context_logits"),
        ([{"name": "generation_logits"}], "return_generation_logits"),
        ([{"name": "acceptance_rate"}], "return_perf_metrics"),
        ([{"name": "nobody"}], "unexpected inference output 'nobody' for model 'demo'"),
        ([{"name": "output_ids"}] * 2, "output_ids: is there twice"),
        ([{"name": "output_ids", "parameters": {"classification": 2}}], "output_ids: classification"),
        ([{"name": "output_ids", "parameters": {"shared_memory_region": "x"}}], "output_ids: shared memory"),
        ([{"name": "output_ids", "parameters": {"binary_data": "x"}}], "binary_data"),
        ([5], "outputs: "),
        ("output_ids", "outputs: "),
    ],
)
async def test_outputs_that_cannot_be(asked: Any, words: str) -> None:
    assert words in await refusal({**body(), "outputs": asked})


# --- binary tensors -------------------------------------------------------------------


def binary_body(tensors: dict[str, np.ndarray], **more: Any) -> tuple[bytes, dict[str, str]]:
    names = {"<i4": "INT32", "<f4": "FP32", "<f2": "FP16", "|b1": "BOOL", "<u8": "UINT64", "<u2": "BF16"}
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": names[array.dtype.str],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in tensors.items()
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(head)),
    }
    return head + b"".join(array.tobytes() for array in tensors.values()), headers


PLAIN = {
    "input_ids": np.asarray([IDS], "<i4"),
    "request_output_len": np.asarray([[3]], "<i4"),
    "temperature": np.asarray([[0.5]], "<f4"),
    "return_log_probs": np.asarray([[True]]),
    "random_seed": np.asarray([[2**64 - 1]], "<u8"),
}


async def test_binary_tensors_in_and_out() -> None:
    raw, headers = binary_body(PLAIN, parameters={"binary_data_output": True})
    async with gateway(TensorBackend()) as g:
        answer = await g.client.post(INFER, content=raw, headers=headers)
        asked = g.backend.last
    assert asked.prompt.token_ids == tuple(IDS)
    assert asked.sampling.seed == 2**64 - 1
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    size = int(answer.headers["inference-header-content-length"])
    told = json.loads(answer.content[:size])["outputs"]
    assert [each["parameters"]["binary_data_size"] for each in told] == [4, 4, 4, 4]
    assert "data" not in told[0]
    assert np.frombuffer(answer.content[size:], "<i4")[:2].tolist() == [0, 1]
    assert np.frombuffer(answer.content[size:], "<f4")[2:].tolist() == [-0.5, -0.5]


async def test_single_outputs_may_be_binary() -> None:
    asked = [{"name": "output_ids", "parameters": {"binary_data": True}}, {"name": "sequence_length"}]
    async with gateway(TensorBackend()) as g:
        answer = await g.post(INFER, {**body(), "outputs": asked})
        all_but = [{"name": "output_ids", "parameters": {"binary_data": False}}, {"name": "sequence_length"}]
        other = await g.post(
            INFER, {**body(), "outputs": all_but, "parameters": {"binary_data_output": True}}
        )
    for each, is_binary in ((answer, [True, False]), (other, [False, True])):
        size = int(each.headers["inference-header-content-length"])
        told = json.loads(each.content[:size])["outputs"]
        assert ["parameters" in entry for entry in told] == is_binary
        assert len(each.content) == size + 4


@pytest.mark.parametrize("size", ["x", "-1", "", "10000000", "9" * 30, "3"])
async def test_the_length_of_the_json_must_be_sound(size: str) -> None:
    raw, headers = binary_body(PLAIN)
    async with gateway() as g:
        answer = await g.client.post(
            INFER, content=raw, headers={**headers, "inference-header-content-length": size}
        )
        assert answer.status_code == 400
        assert error_of(answer)
        assert not g.backend.requests


async def test_bytes_that_no_tensor_has_are_refused() -> None:
    raw, headers = binary_body(PLAIN)
    async with gateway() as g:
        for content in (raw + b"x", raw[:-1]):
            answer = await g.client.post(INFER, content=content, headers=headers)
            assert answer.status_code == 400
            assert error_of(answer)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity", "GZIP"])
async def test_compressed_bodies(encoding: str) -> None:
    packs: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress}
    pack = packs.get(encoding.lower(), bytes)
    raw, headers = binary_body(PLAIN)
    async with gateway(TensorBackend()) as g:
        for content, more in ((raw, headers), (json.dumps(body()).encode(), {})):
            answer = await g.client.post(
                INFER, content=pack(content), headers={**more, "content-encoding": encoding}
            )
            assert answer.status_code == 200, answer.text
            assert g.backend.last.prompt.token_ids == tuple(IDS)


async def test_compressed_bodies_that_are_not_sound() -> None:
    packed = gzip.compress(json.dumps(body()).encode())
    async with gateway() as g:
        for content, encoding in (
            (packed[:-9], "gzip"),
            (packed + b"x", "gzip"),
            (packed * 2, "gzip"),
            (b"x" + packed, "gzip"),
            (b"", "gzip"),
            (packed, "br"),
            (packed, "gzip, gzip"),
        ):
            answer = await g.client.post(INFER, content=content, headers={"content-encoding": encoding})
            assert answer.status_code == 400
            assert error_of(answer)
        await g.check()


@pytest.mark.parametrize("is_binary", [False, True])
async def test_a_bomb_is_stopped_at_the_limit_of_bodies(is_binary: bool) -> None:
    most = MAX_TENSOR_BODY_BYTES if is_binary else MAX_BODY_BYTES
    headers = {"content-encoding": "gzip"} | ({"inference-header-content-length": "5"} if is_binary else {})
    async with gateway() as g:
        answer = await g.client.post(INFER, content=gzip.compress(b" " * (most + 1)), headers=headers)
        assert answer.status_code == 413
        assert error_of(answer) == f"the body must not exceed {most} bytes"
        await g.check()


# --- streams --------------------------------------------------------------------------


async def test_a_stream_has_a_response_a_token_with_its_slice_of_every_tensor() -> None:
    flags = ("log_probs", "context_logits", "generation_logits", "perf_metrics")
    asked = {
        "id": "7",
        "input_ids": IDS,
        "request_output_len": 3,
        "streaming": True,
        **{f"return_{flag}": True for flag in flags},
    }
    async with gateway(TensorBackend()) as g:
        answer = await g.post("/v2/models/demo/generate_stream", asked)
    found = events(answer.content)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [event["id"] for event in found] == ["7"] * 3
    assert [event["output_ids"] for event in found] == [0, 1, 2]
    assert [event["sequence_length"] for event in found] == [1] * 3
    assert [event["output_log_probs"] for event in found] == [-0.5, -1.5, -2.5]
    assert [event["cum_log_probs"] for event in found] == [-0.5, -2.0, -4.5]
    assert [event["generation_logits"] for event in found] == [[0, 1], [2, 3], [4, 5]]
    logits = [0, 1, 2, 3, 4, 5, 6, 7]
    assert [event.get("context_logits") for event in found] == [logits, None, logits]
    assert [event.get("acceptance_rate") for event in found] == [None, None, 0.75]


async def test_a_stream_never_repeats_the_prompt() -> None:
    asked = {
        "input_ids": IDS,
        "request_output_len": 3,
        "streaming": True,
        "exclude_input_in_output": False,
    }
    async with gateway(TensorBackend()) as g:
        found = events((await g.post(STREAM, asked)).content)
        text = {"text_input": "pq", "max_tokens": 3, "stream": True, "exclude_input_in_output": False}
        texts = events((await g.post(STREAM, text)).content)
    assert [event["output_ids"] for event in found] == [0, 1, 2]
    assert [event["sequence_length"] for event in found] == [1, 1, 1]
    assert "".join(event["text_output"] for event in texts) == "<0><1><2>"


async def test_the_setting_says_whether_the_prompt_stands_before_the_output() -> None:
    config = {"trtllm": {"exclude_input_in_output": False}}
    async with gateway(TensorBackend(), **config) as g:
        assert outputs(await g.post(INFER, body()))["output_ids"].tolist() == [[[*IDS, 0]]]
        asked = body(exclude_input_in_output=True)
        assert outputs(await g.post(INFER, asked))["output_ids"].tolist() == [[[0]]]
        parameters = (await g.client.get("/v2/models/demo/config")).json()["parameters"]
        assert parameters["exclude_input_in_output"] == {"string_value": "false"}


async def test_sequences_of_a_stream_are_told_apart_by_their_index() -> None:
    asked = {"input_ids": IDS, "request_output_len": 3, "num_return_sequences": 2, "return_log_probs": True}
    flags = {"return_context_logits": True, "return_num_input_tokens": True}
    async with gateway(TensorBackend()) as g:
        streamed = events((await g.post(STREAM, {**asked, **flags, "streaming": True})).content)
        whole = events((await g.post(STREAM, {**asked, **flags})).content)
        (one,) = events((await g.post(STREAM, {**asked, "num_return_sequences": 1})).content)
        together = outputs(await g.post(INFER, body(num_return_sequences=2)))
    assert [(event["sequence_index"], event["output_ids"]) for event in streamed] == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 100), (1, 101), (1, 102)),
    ]
    assert [event["cum_log_probs"] for event in streamed] == [-0.5, -2.0, -4.5] * 2
    assert [i for i, event in enumerate(streamed) if "context_logits" in event] == [0, 3, 5]
    assert [(event["batch_index"], event["sequence_index"]) for event in whole] == [(0, 0), (0, 1)]
    assert [event["output_ids"] for event in whole] == [0, [100, 101]]
    assert all(event["context_logits"] == streamed[0]["context_logits"] for event in whole)
    assert "sequence_index" not in one
    assert together["output_ids"].shape == (1, 2, 2)


async def test_indices_may_be_asked_for_where_one_response_has_all() -> None:
    asked = {**body(num_return_sequences=2), "outputs": [{"name": "sequence_index"}, {"name": "batch_index"}]}
    async with gateway(TensorBackend()) as g:
        found = outputs(await g.post(INFER, asked))
    assert (found["sequence_index"].tolist(), found["batch_index"].tolist()) == ([[0, 1]], [[0]])
