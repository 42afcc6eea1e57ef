"""Tensor requests that nobody honest sends: broken at random, always answered with 200 or a short 400.

A mutation that breaks one tensor is refused by that tensor's name.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
from typing import Any

import pytest

from serve_app.limits import MAX_ERROR_BYTES
from tests.conformance.trtllm.asks import IDS, INFER, TYPES, body, error_of, tensor
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import Gateway, gateway

SOME, MANY = 300, 20_000
GENERATE = "/triton/v2/models/demo/generate"

ODD_SIZES = [0, -1, 1, 2, 3, 5, 2**31 - 1, 2**31, 2**63, 2**64, 10**30, 1.5, True, None, "4", [1]]
ODD_TYPES = ["INT8", "INT64", "UINT64", "FP16", "FP32", "FP64", "BF16", "BOOL", "BYTES", "int32", "", None, 5]
ODD_VALUES: list[Any] = [
    None, True, 0, -1, 2**31, -(2**63), 2**64, 10**300, 1e39, -1e39, 1e308, 0.5, "", "x", "\x00", [], [[]],
    [[[]]], {}, {"a": [1]}, [None], [[1], [2, 3]], [1, "x"], [1e39], [-1] * 5, [[1, 2]] * 3,
]  # fmt: skip
ELEMENTS = {"INT32": "<i", "FP32": "<f", "BOOL": "<?", "UINT64": "<Q", "FP16": "<e"}


def sound_tensors(rng: random.Random) -> list[dict[str, Any]]:
    """A request with some of all tensors, each sound by itself."""
    values: dict[str, Any] = {
        "temperature": 0.5,
        "runtime_top_k": 5,
        "end_id": 2,
        "bad_words_list": [[[11, 4], [1, 2]]],
        "stop_words_list": [[[11, 4], [2, -1]]],
        "embedding_bias": [0.0] * 1000,
        "random_seed": 2**64 - 1,
        "return_log_probs": True,
        "beam_width": 2,
        "input_lengths": 3,
        "prompt_embedding_table": [[[0.5, 1.0]]],
        "lora_task_id": 5,
        "no_repeat_ngram_size": 2,
        "early_stopping": 1,
        "guided_decoding_guide_type": "json",
    }
    chosen = rng.sample(sorted(values), rng.randint(0, 6))
    request: list[dict[str, Any]] = body(**{name: values[name] for name in chosen})["inputs"]
    return request


def broken(rng: random.Random, inputs: list[dict[str, Any]]) -> str:
    """Change one part of one tensor in place; its name."""
    victim = rng.choice(inputs)
    name = str(victim["name"])
    match rng.randrange(5):
        case 0:
            victim["shape"] = [rng.choice(ODD_SIZES) for _ in range(rng.randint(0, 4))]
        case 1:
            victim["datatype"] = rng.choice(ODD_TYPES)
        case 2:
            victim["data"] = rng.choice(ODD_VALUES)
        case 3:
            victim["parameters"] = rng.choice([{"binary_data_size": rng.choice(ODD_SIZES)}, 5, [], {"x": {}}])
        case _:
            victim["data"] = [rng.choice(ODD_VALUES), *victim["data"]]
    return name


def encoded(rng: random.Random, inputs: list[dict[str, Any]]) -> tuple[bytes, dict[str, str]]:
    """The request with some tensors as bytes after the JSON, at times with wrong sizes or lengths."""
    tail = b""
    for each in inputs:
        form, data = ELEMENTS.get(str(each["datatype"])), each.get("data")
        if form is None or rng.random() < 0.5 or not isinstance(data, list):
            continue
        flat: Any = data
        while flat and isinstance(flat[0], list):
            flat = [item for inner in flat for item in (inner if isinstance(inner, list) else [inner])]
        try:
            packed = b"".join(struct.pack(form, item) for item in flat)
        except (struct.error, TypeError, OverflowError):
            continue
        del each["data"]
        each["parameters"] = {"binary_data_size": len(packed)}
        if rng.random() < 0.3:
            packed = packed[: rng.randint(0, len(packed))] + rng.randbytes(rng.randint(0, 9))
        tail += packed
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": rng.random() < 0.5}}).encode()
    size = len(head) if rng.random() < 0.8 else rng.choice([0, 1, len(head) - 1, len(head) + 1, 10**9])
    headers = {"inference-header-content-length": str(size), "content-type": "application/octet-stream"}
    if rng.random() < 0.2:
        headers["content-encoding"] = rng.choice(["gzip", "deflate"])
        packed = gzip.compress(head + tail)
        return rng.choice([packed, packed[: rng.randint(0, len(packed))], head + tail]), headers
    return head + tail, headers


async def check_answer(g: Gateway, content: bytes, headers: dict[str, str], path: str = INFER) -> str | None:
    """The message of the refusal, or None for a request that was answered."""
    answer = await g.client.post(path, content=content, headers=headers)
    if answer.status_code == 200:
        return None
    assert answer.status_code in (400, 413), (answer.text[:500], content[:500])
    assert len(answer.content) < MAX_ERROR_BYTES
    return error_of(answer)


async def break_json(count: int) -> None:
    rng = random.Random(7)
    outcomes = {True: 0, False: 0}
    async with gateway(FakeBackend()) as g:
        for _ in range(count):
            inputs = sound_tensors(rng)
            name = broken(rng, inputs)
            message = await check_answer(g, json.dumps({"inputs": inputs}).encode(), {})
            outcomes[message is None] += 1
            # Another shape of input_ids is another batch, which the other tensors then lack.
            if message is not None and name != "input_ids":
                assert name in message, (message, inputs)
        await g.check()
    assert min(outcomes.values()) > count / 50  # both kinds were there


async def break_bytes(count: int) -> None:
    rng = random.Random(8)
    outcomes = {True: 0, False: 0}
    async with gateway(FakeBackend()) as g:
        for _ in range(count):
            inputs = sound_tensors(rng)
            if rng.random() < 0.5:
                broken(rng, inputs)
            message = await check_answer(g, *encoded(rng, inputs))
            outcomes[message is None] += 1
        await g.check()
    assert min(outcomes.values()) > count / 50


async def break_values(count: int) -> None:
    rng = random.Random(9)
    async with gateway(FakeBackend()) as g:
        for _ in range(count):
            plain: dict[str, Any] = {"input_ids": IDS, "request_output_len": 3}
            name = rng.choice(sorted(TYPES))
            plain[name] = rng.choice(ODD_VALUES)
            if rng.random() < 0.3:
                plain = {"parameters": plain}
            message = await check_answer(g, json.dumps(plain).encode(), {}, GENERATE)
            assert message is None or message
        await g.check()


CASES = [break_json, break_bytes, break_values]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_broken_tensors_are_refused_by_name(case: Any) -> None:
    await case(SOME)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_many_broken_tensors_are_refused_by_name(case: Any) -> None:
    await case(MANY)


@pytest.mark.parametrize("share", [0.1, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", sorted(TYPES))
async def test_every_odd_value_of_every_tensor(name: str, share: float) -> None:
    """Or a share of them, drawn for each tensor anew, with its own type and every value."""
    own = tensor(name, 1)["datatype"]
    odd = [(each, value) for each in ODD_TYPES for value in ODD_VALUES]
    drawn = random.Random(name).sample(odd, int(share * len(odd)))
    async with gateway(FakeBackend()) as g:
        for datatype, value in [*((own, value) for value in ODD_VALUES), *drawn]:
            one = {**tensor(name, 1), "datatype": datatype, "data": value}
            inputs = [each for each in body()["inputs"] if each["name"] != name]
            message = await check_answer(g, json.dumps({"inputs": [*inputs, one]}).encode(), {})
            assert message is None or name in message
        await g.check()


async def test_raw_noise_as_every_tensor() -> None:
    """Bytes are numbers of any kind: NaN, infinities, ids of no token."""
    rng = random.Random(10)
    sizes = {"INT32": 4, "FP32": 4, "BOOL": 1, "UINT64": 8, "FP16": 2, "BYTES": 1}
    async with gateway(FakeBackend()) as g:
        for name, (datatype, dims) in TYPES.items():
            for _ in range(20):
                shape = [rng.choice([1, 2, 3, 5]) if size == -1 else size for size in dims]
                shape[0] = 1
                count = 1
                for size in shape:
                    count *= size
                data = rng.choice([rng.randbytes, lambda n: b"\xff" * n])(count * sizes[datatype])
                noise = {
                    "name": name,
                    "datatype": datatype,
                    "shape": shape,
                    "parameters": {"binary_data_size": len(data)},
                }
                inputs = [each for each in body()["inputs"] if each["name"] != name]
                head = json.dumps({"inputs": [*inputs, noise]}).encode()
                message = await check_answer(
                    g, head + data, {"inference-header-content-length": str(len(head))}
                )
                assert message is None or name in message, message
        await g.check()
