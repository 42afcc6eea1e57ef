"""The unmodified tritonclient over HTTP, blocking and asynchronous, against the demo model.

What is asked of the model is compared with transformers, run directly on the same weights.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from tritonclient.utils import InferenceServerException

from serve_app.config import EngineConfig, ModelConfig
from serve_app.models.catalogue import demo_folder
from tests.support.local_model import local_model

MODEL: Final = "demo-chat"
PROMPT: Final = (5, 17, 42, 99, 7, 300, 12)
LENGTH: Final = 24
NUMPY: Final = {
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP32": np.float32,
}
TYPES: Final = {
    "temperature": "FP32",
    "runtime_top_p": "FP32",
    "repetition_penalty": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "embedding_bias": "FP32",
    "len_penalty": "FP32",
    "random_seed": "UINT64",
    "return_log_probs": "BOOL",
    "streaming": "BOOL",
    "stop": "BOOL",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Host and port of a server of the demo model."""
    config = ModelConfig(
        name=MODEL,
        dtype="float32",
        threads=1,
        engine=EngineConfig(max_sequences=16, block_size=16, num_blocks=128, max_model_len=512),
    )
    with local_model(config) as url:
        yield url.removeprefix("http://")


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address, connection_timeout=60, network_timeout=60) as connected:
        yield connected


def inputs(module: Any = triton, *, binary: bool = True, **values: Any) -> list[Any]:
    """Tensors as the client has them: [1, 1] for a scalar, a leading 1 for all others."""
    given = {"input_ids": [PROMPT], "request_output_len": LENGTH, **values}
    found = []
    for name, value in given.items():
        datatype = TYPES.get(name, "INT32")
        array: Any = np.asarray(value, NUMPY[datatype])
        array = array.reshape(1, 1) if array.ndim == 0 else array
        tensor = module.InferInput(name, list(array.shape), datatype)
        found.append(tensor.set_data_from_numpy(array, binary_data=binary))
    return found


def output_ids(result: Any) -> list[int]:
    found: list[int] = result.as_numpy("output_ids").ravel().tolist()
    return found


# --- what the client asks of a server -------------------------------------------------


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("nobody")
    assert {"binary_tensor_data", "statistics"} <= set(client.get_server_metadata()["extensions"])
    described = client.get_model_metadata(MODEL, "1")
    assert (described["name"], described["versions"]) == (MODEL, ["1"])
    assert described["inputs"][0] == {"name": "input_ids", "datatype": "INT32", "shape": [-1, -1]}
    config = client.get_model_config(MODEL)
    assert config["model_transaction_policy"]["decoupled"] is True
    assert client.get_model_metadata("tensorrt_llm")["name"] == "tensorrt_llm"


def test_statistics_and_repository(client: triton.InferenceServerClient) -> None:
    def count() -> int:
        (entry,) = client.get_inference_statistics(MODEL)["model_stats"]
        return int(entry["inference_stats"]["success"]["count"])

    before = count()
    client.infer(MODEL, inputs())
    assert count() == before + 1
    assert client.get_inference_statistics()["model_stats"][0]["name"] == MODEL
    assert client.get_model_repository_index() == [
        {"name": MODEL, "version": "1", "state": "READY", "reason": ""}
    ]
    client.load_model(MODEL)
    with pytest.raises(InferenceServerException, match="deploy file") as error:
        client.unload_model(MODEL)
    assert error.value.status() == "400"


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model_name": "nobody"}, "404", "no such model"),
        ({"model_version": "7"}, "404", "no such version"),
        ({"inputs": inputs(beam_width=0)}, "400", "beam_width: must be an integer from 1 to"),
        ({"inputs": inputs(streaming=True)}, "400", "generate_stream"),
        ({"inputs": inputs()[:1]}, "400", "request_output_len: is required"),
        ({"inputs": inputs(nobody=1)}, "400", "unexpected inference input 'nobody' for model 'demo-chat'"),
        ({"outputs": [triton.InferRequestedOutput("cum_log_probs")]}, "400", "return_log_probs"),
        ({"outputs": [triton.InferRequestedOutput("output_ids", class_count=2)]}, "400", "classification"),
        ({"request_id": "x", "inputs": inputs(request_output_len=0)}, "400", "request_output_len"),
    ],
)  # fmt: skip
def test_errors(
    client: triton.InferenceServerClient, change: dict[str, Any], status: str, words: str
) -> None:
    with pytest.raises(InferenceServerException, match=words.replace("[", "\\[")) as error:
        client.infer(**{"model_name": MODEL, "inputs": inputs(), **change})
    assert error.value.status() == status


def test_shared_memory_and_unknown_calls_are_refused(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("input_ids", [1, 4], "INT32")
    tensor.set_shared_memory("region", 16)
    with pytest.raises(InferenceServerException, match="input_ids: shared memory"):
        client.infer(MODEL, [tensor, *inputs()[1:]])
    with pytest.raises(InferenceServerException) as error:
        client.get_system_shared_memory_status()
    assert error.value.status() == "404"


# --- how tensors travel ---------------------------------------------------------------


@pytest.mark.parametrize("request_compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_every_way_gives_the_same_answer(
    client: triton.InferenceServerClient, request_compression: str | None, binary_in: bool, binary_out: bool
) -> None:
    result = client.infer(
        MODEL,
        inputs(binary=binary_in, return_log_probs=True),
        outputs=[
            triton.InferRequestedOutput(name, binary_data=binary_out)
            for name in ("output_ids", "sequence_length", "output_log_probs", "cum_log_probs")
        ],
        request_id="job 42",
        request_compression_algorithm=request_compression,
        response_compression_algorithm="gzip",
        priority=1,
        timeout=60_000_000,
    )
    plain = client.infer(MODEL, inputs(return_log_probs=True))
    assert result.get_response()["id"] == "job 42"
    assert "id" not in plain.get_response()
    assert (result.get_response()["model_name"], result.get_response()["model_version"]) == (MODEL, "1")
    for name in ("output_ids", "sequence_length", "output_log_probs", "cum_log_probs"):
        assert (result.as_numpy(name) == plain.as_numpy(name)).all()
    assert result.as_numpy("output_ids").dtype == np.int32
    assert result.as_numpy("output_log_probs").shape == (1, 1, LENGTH)


async def test_the_asynchronous_client_and_the_blocking_one_agree(
    address: str, client: triton.InferenceServerClient
) -> None:
    drawn = {"runtime_top_p": 1.0, "temperature": 3.0, "random_seed": 7}
    async with triton_aio.InferenceServerClient(address) as other:
        assert await other.is_server_live()
        assert await other.is_model_ready(MODEL)
        results = await asyncio.gather(
            *(other.infer(MODEL, inputs(triton_aio, **drawn), request_id=str(i)) for i in range(8))
        )
        with pytest.raises(InferenceServerException) as error:
            await other.infer(MODEL, inputs(triton_aio, beam_width=-1))
    assert error.value.status() == "400"
    alone = output_ids(client.infer(MODEL, inputs(**drawn)))  # whose greenlets belong to this thread
    assert [output_ids(result) for result in results] == [alone] * 8
    assert [result.get_response()["id"] for result in results] == [str(i) for i in range(8)]


def test_a_second_request_stops_the_first(address: str) -> None:
    with triton.InferenceServerClient(address, concurrency=2, network_timeout=60) as both:
        running = both.async_infer(MODEL, inputs(request_output_len=500), request_id="long")
        assert any(is_stepping(both) for _ in range(10_000))
        stopped = both.infer(MODEL, inputs(stop=True), request_id="long")
        assert stopped.get_response()["outputs"] == []
        result = running.get_result(timeout=60)
    assert result.as_numpy("sequence_length").item() < 500


def is_stepping(client: triton.InferenceServerClient) -> bool:
    """Whether the long request has begun: the engine's steps grow."""
    steps = [client.get_inference_statistics(MODEL)["model_stats"][0]["execution_count"] for _ in range(2)]
    return bool(steps[1] > steps[0])


# --- against transformers -------------------------------------------------------------


class Counted(LogitsProcessor):  # type: ignore[misc,unused-ignore]
    """Presence and frequency penalties, which transformers has not."""

    def __init__(self, presence: float, frequency: float) -> None:
        self.presence, self.frequency = presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(input_ids[0], minlength=scores.shape[-1]).to(scores.dtype)
        return scores - self.presence * (counts > 0) - self.frequency * counts


class Biased(LogitsProcessor):  # type: ignore[misc,unused-ignore]
    def __init__(self, bias: npt.NDArray[np.float32]) -> None:
        self.bias = torch.from_numpy(bias)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + self.bias


@functools.cache
def reference_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_folder(MODEL), dtype=torch.float32).eval()


@torch.inference_mode()
def reference(*processors: LogitsProcessor) -> tuple[list[int], list[float]]:
    """The likeliest tokens one by one under `processors`, and their raw log-probabilities."""
    ids, found = torch.tensor([PROMPT]), []
    for _ in range(LENGTH):
        logits = reference_model()(ids).logits[:, -1].float()
        token = int(LogitsProcessorList(processors)(ids, logits.clone()).argmax())
        found.append(float(logits.log_softmax(-1)[0, token]))
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    return ids[0, len(PROMPT) :].tolist(), found


@functools.cache
def greedy() -> tuple[tuple[int, ...], tuple[float, ...]]:
    tokens, logprobs = reference()
    return tuple(tokens), tuple(logprobs)


def noise(scale: float) -> npt.NDArray[np.float32]:
    size = reference_model().config.vocab_size
    return (np.random.default_rng(5).standard_normal(size) * scale).astype(np.float32)


def cases() -> Mapping[str, tuple[dict[str, Any], list[LogitsProcessor]]]:
    """Tensors, and what they are to transformers."""
    words = [list(greedy()[0][3:5]), [greedy()[0][0]]]
    listed = [[[*words[0], *words[1]], [2, 3, -1]]]
    bias = noise(3.0)
    return {
        "greedy": ({}, []),
        "repetition_penalty": ({"repetition_penalty": 1.7}, [RepetitionPenaltyLogitsProcessor(1.7)]),
        "presence_penalty": ({"presence_penalty": 2.5}, [Counted(2.5, 0)]),
        "frequency_penalty": ({"frequency_penalty": 1.5}, [Counted(0, 1.5)]),
        "penalties together": (
            {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25},
            [RepetitionPenaltyLogitsProcessor(1.3), Counted(0.5, 0.25)],
        ),
        "no_repeat_ngram_size 1": ({"no_repeat_ngram_size": 1}, [NoRepeatNGramLogitsProcessor(1)]),
        "no_repeat_ngram_size 2": ({"no_repeat_ngram_size": 2}, [NoRepeatNGramLogitsProcessor(2)]),
        "bad_words_list": ({"bad_words_list": listed}, [NoBadWordsLogitsProcessor(words)]),
        "embedding_bias": ({"embedding_bias": [bias]}, [Biased(bias)]),
        "bias and bans": (
            {"embedding_bias": [bias], "no_repeat_ngram_size": 2, "bad_words_list": listed},
            [Biased(bias), NoRepeatNGramLogitsProcessor(2), NoBadWordsLogitsProcessor(words)],
        ),
    }


NAMES: Final = (
    "greedy", "repetition_penalty", "presence_penalty", "frequency_penalty", "penalties together",
    "no_repeat_ngram_size 1", "no_repeat_ngram_size 2", "bad_words_list", "embedding_bias", "bias and bans",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_log_probabilities_are_those_of_transformers(
    client: triton.InferenceServerClient, name: str
) -> None:
    tensors, processors = cases()[name]
    expected, logprobs = reference(*processors)
    result = client.infer(MODEL, inputs(return_log_probs=True, **tensors))
    assert output_ids(result) == expected
    assert np.allclose(result.as_numpy("output_log_probs").ravel(), logprobs, atol=2e-3)
    assert np.isclose(result.as_numpy("cum_log_probs").item(), sum(logprobs), atol=2e-2)
    assert name == "greedy" or expected != list(greedy()[0])


def test_every_case_is_asked() -> None:
    assert set(cases()) == set(NAMES)


def test_stop_words_and_end_id_end_where_transformers_tokens_have_them(
    client: triton.InferenceServerClient,
) -> None:
    tokens = list(greedy()[0])
    word = tokens[5:7]
    end = next(i for i in range(1, LENGTH) if tokens[i - 1 : i + 1] == word) + 1
    found = output_ids(client.infer(MODEL, inputs(stop_words_list=[[word, [2, -1]]])))
    assert found == tokens[:end]
    first = tokens.index(tokens[9]) + 1
    assert output_ids(client.infer(MODEL, inputs(end_id=tokens[9]))) == tokens[:first]


@torch.inference_mode()
def test_beams_are_those_of_transformers(client: triton.InferenceServerClient) -> None:
    expected = reference_model().generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=8,
        min_new_tokens=8,
        do_sample=False,
        length_penalty=0.0,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        renormalize_logits=True,
    )
    result = client.infer(
        MODEL, inputs(beam_width=4, request_output_len=8, return_log_probs=True, **banned_ends())
    )
    assert result.as_numpy("output_ids")[0].tolist() == expected.sequences[:, len(PROMPT) :].tolist()
    assert json.dumps(result.as_numpy("sequence_length").tolist()) == "[[8, 8, 8, 8]]"


def banned_ends() -> dict[str, Any]:
    """What `min_new_tokens` does to transformers' end tokens."""
    ends = reference_model().generation_config.eos_token_id
    ids = list(ends) if isinstance(ends, list) else [ends]
    return {"bad_words_list": [[ids, list(range(1, len(ids) + 1))]]}
