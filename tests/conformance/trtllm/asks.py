"""How this folder's tests write tensors, and read those that come back. The types are the protocol's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import httpx
import numpy as np

from serve_app.types import GenerateRequest
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import gateway

# Every input of the protocol: datatype and shape, the batch's dimension first.
TYPES: Final[Mapping[str, tuple[str, list[int]]]] = {
    "input_ids": ("INT32", [-1, -1]),
    "input_lengths": ("INT32", [-1, 1]),
    "request_output_len": ("INT32", [-1, 1]),
    "streaming": ("BOOL", [-1, 1]),
    "beam_width": ("INT32", [-1, 1]),
    "temperature": ("FP32", [-1, 1]),
    "runtime_top_k": ("INT32", [-1, 1]),
    "runtime_top_p": ("FP32", [-1, 1]),
    "runtime_top_p_min": ("FP32", [-1, 1]),
    "runtime_top_p_decay": ("FP32", [-1, 1]),
    "runtime_top_p_reset_ids": ("INT32", [-1, 1]),
    "len_penalty": ("FP32", [-1, 1]),
    "early_stopping": ("INT32", [-1, 1]),
    "beam_search_diversity_rate": ("FP32", [-1, 1]),
    "num_return_sequences": ("INT32", [-1, 1]),
    "repetition_penalty": ("FP32", [-1, 1]),
    "min_length": ("INT32", [-1, 1]),
    "presence_penalty": ("FP32", [-1, 1]),
    "frequency_penalty": ("FP32", [-1, 1]),
    "no_repeat_ngram_size": ("INT32", [-1, 1]),
    "random_seed": ("UINT64", [-1, 1]),
    "end_id": ("INT32", [-1, 1]),
    "pad_id": ("INT32", [-1, 1]),
    "embedding_bias": ("FP32", [-1, -1]),
    "bad_words_list": ("INT32", [-1, 2, -1]),
    "stop_words_list": ("INT32", [-1, 2, -1]),
    "prompt_embedding_table": ("FP16", [-1, -1, -1]),
    "prompt_vocab_size": ("INT32", [-1, 1]),
    "prompt_table_extra_ids": ("UINT64", [-1, -1]),
    "lora_task_id": ("UINT64", [-1, 1]),
    "lora_weights": ("FP16", [-1, -1, -1]),
    "lora_config": ("INT32", [-1, -1, 3]),
    "return_log_probs": ("BOOL", [-1, 1]),
    "return_context_logits": ("BOOL", [-1, 1]),
    "return_generation_logits": ("BOOL", [-1, 1]),
    "return_perf_metrics": ("BOOL", [-1, 1]),
    "return_num_input_tokens": ("BOOL", [-1, 1]),
    "return_num_output_tokens": ("BOOL", [-1, 1]),
    "exclude_input_in_output": ("BOOL", [-1, 1]),
    "draft_input_ids": ("INT32", [-1, -1]),
    "draft_logits": ("FP32", [-1, -1, -1]),
    "draft_acceptance_threshold": ("FP32", [-1, 1]),
    "guided_decoding_guide_type": ("BYTES", [-1, 1]),
    "guided_decoding_guide": ("BYTES", [-1, 1]),
    "stop": ("BOOL", [-1, 1]),
    # hints
    "decoder_input_ids": ("INT32", [-1, -1]),
    "decoder_input_lengths": ("INT32", [-1, 1]),
    "lookahead_window_size": ("INT32", [-1, 1]),
    "lookahead_ngram_size": ("INT32", [-1, 1]),
    "lookahead_verification_set_size": ("INT32", [-1, 1]),
    "retention_token_range_starts": ("INT32", [-1, -1]),
    "retention_token_range_ends": ("INT32", [-1, -1]),
    "retention_token_range_priorities": ("INT32", [-1, -1]),
    "retention_token_range_durations_ms": ("INT32", [-1, -1]),
    "retention_decode_priority": ("INT32", [-1, 1]),
    "retention_decode_duration_ms": ("INT32", [-1, 1]),
}
HINTS: Final = tuple(list(TYPES)[-11:])
ALIASES: Final = {"min_tokens": "min_length", "seed": "random_seed"}

IDS: Final = [12, 871, 40, 3]
INFER: Final = "/v2/models/demo/infer"


def tensor(
    name: str, value: Any, datatype: str | None = None, shape: list[int] | None = None
) -> dict[str, Any]:
    """A tensor as JSON; a scalar of shape [1, 1], a list of the shape that it has with a leading 1."""
    own = TYPES[ALIASES.get(name, name)][0] if datatype is None else datatype
    if not isinstance(value, list):
        return {"name": name, "datatype": own, "shape": [1, 1] if shape is None else shape, "data": [value]}
    found = list(np.shape(value)) if shape is None else shape
    whole = found if shape is not None or len(found) == len(TYPES[name][1]) else [1, *found]
    return {"name": name, "datatype": own, "shape": whole, "data": value}


def body(id: str | None = None, **values: Any) -> dict[str, Any]:
    """An infer request: four tokens in, three out, unless `values` say otherwise; None leaves one out."""
    given = {"input_ids": IDS, "request_output_len": 3, **values}
    inputs = [tensor(name, value) for name, value in given.items() if value is not None]
    return {"inputs": inputs} if id is None else {"id": id, "inputs": inputs}


def with_tensor(*tensors: dict[str, Any]) -> dict[str, Any]:
    """The same request with these tensors, in place of its own where they have the same name."""
    names = {each["name"] for each in tensors}
    plain = body()
    plain["inputs"] = [each for each in plain["inputs"] if each["name"] not in names] + list(tensors)
    return plain


async def asked_for(request: dict[str, Any], **config: Any) -> GenerateRequest:
    """What the model is asked by an infer request."""
    async with gateway(FakeBackend(), **config) as g:
        answer = await g.post(INFER, request)
        if answer.status_code != 200:
            raise AssertionError(answer.text)
        return g.backend.last


async def refusal(request: dict[str, Any], path: str = INFER, status: int = 400) -> str:
    """The message of the error of a request that must not reach the model."""
    async with gateway(FakeBackend()) as g:
        answer = await g.post(path, request)
        if answer.status_code != status or g.backend.requests:
            raise AssertionError(f"{answer.status_code}: {answer.text}")
        return error_of(answer)


def error_of(answer: httpx.Response) -> str:
    """The message of an error body, which holds nothing else."""
    found = answer.json()
    if set(found) != {"error"} or not isinstance(found["error"], str):
        raise AssertionError(f"no error of this protocol: {answer.text}")
    return str(found["error"])


def outputs(answer: httpx.Response) -> dict[str, Any]:
    """Output name -> its array; of a response in JSON."""
    if answer.status_code != 200:
        raise AssertionError(f"{answer.status_code}: {answer.text}")
    return {
        each["name"]: np.asarray(each["data"]).reshape(each["shape"]) for each in answer.json()["outputs"]
    }


def events(raw: bytes) -> list[Any]:
    """The objects of a stream: `data: `, compact JSON and two line feeds each, and no terminator."""
    parts = raw.split(b"\n\n")
    if parts[-1] != b"" or not all(part.startswith(b"data: {") for part in parts[:-1]):
        raise AssertionError(f"this is no stream of events: {raw!r}")
    found = [json.loads(part.removeprefix(b"data: ")) for part in parts[:-1]]
    for part, event in zip(parts, found, strict=False):
        if json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() != part[6:]:
            raise AssertionError(f"the JSON is not compact: {part!r}")
    return found
