"""Tensors in an inference table: the elements stand where their bytes stood, within a bound."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from pyarrow.dataset import dataset

from serve_app.accounts.inference_table import InferenceTables
from serve_app.api.kserve.http_body import HEADER
from serve_app.api.kserve.recorded import MAX_ELEMENTS_BYTES, Elements, HttpTensors
from serve_app.types import Tensor
from tests.support.gateway import gateway


def body(*tensors: tuple[str, str, list[int], bytes]) -> tuple[bytes, str]:
    """A request with binary tensors, and the length of its JSON."""
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, kind, shape, data in tensors
    ]
    head = json.dumps({"id": "mine", "inputs": inputs}).encode()
    return head + b"".join(data for *_, data in tensors), str(len(head))


async def test_a_request_of_bytes_is_recorded_as_json(tmp_path: Path) -> None:
    tables = InferenceTables(tmp_path, retention_days=1)
    endpoints = [{"name": "demo", "ai_gateway": {"inference_table_config": {"enabled": True}}}]
    async with gateway(endpoints=endpoints, payloads=tables) as g:
        ids, size = struct.pack("<2i", 1, 300), struct.pack("<i", 4)
        sent, length = body(
            ("input_ids", "INT32", [1, 2], ids), ("request_output_len", "INT32", [1, 1], size)
        )
        wants = json.loads(sent[: int(length)]) | {"parameters": {"binary_data_output": True}}
        head = json.dumps(wants).encode()
        answer = await g.client.post(
            "/v2/models/demo/infer", content=head + ids + size, headers={HEADER: str(len(head))}
        )
        plain = await g.post(
            "/v2/models/demo/infer",
            {
                "inputs": [
                    {"name": "input_ids", "datatype": "INT32", "shape": [1, 2], "data": [1, 300]},
                    {"name": "request_output_len", "datatype": "INT32", "shape": [1, 1], "data": [4]},
                ]
            },
        )
    await asyncio.to_thread(tables.close)
    assert answer.status_code == plain.status_code == 200
    assert HEADER in answer.headers
    first, second = (
        dataset(tmp_path / "main/default/demo_payload", partitioning="hive").to_table().to_pylist()
    )
    assert first["logging_error_codes"] == second["logging_error_codes"] == []
    asked = json.loads(first["request"])
    assert asked["id"] == "mine"
    assert asked["inputs"][0] == {"name": "input_ids", "datatype": "INT32", "shape": [1, 2], "data": [1, 300]}
    # What came as bytes reads as what came as JSON.
    assert json.loads(first["response"])["outputs"] == json.loads(second["response"])["outputs"]
    assert second["response"] == plain.text


@pytest.mark.parametrize(
    ("kind", "data", "elements"),
    [
        ("BF16", b"\x80\x3f\x00\xc0", [1.0, -2.0]),
        ("FP32", struct.pack("<2f", -0.41, 1e10), [-0.41, 1e10]),
        ("BOOL", b"\x01\x00", [True, False]),
        ("BYTES", b"\x01\0\0\0a\x02\0\0\0\xc3\xbc", ["a", "ü"]),
        ("BYTES", b"\x01\0\0\0\xff\x00\0\0\0", None),  # no text
    ],
)
def test_elements_of_every_kind(kind: str, data: bytes, elements: list[object] | None) -> None:
    sent, length = body(("x", kind, [2], data))
    (told,) = json.loads(HttpTensors(length).request(sent))["inputs"]
    if elements is None:
        assert told == {
            "name": "x",
            "datatype": kind,
            "shape": [2],
            "parameters": {"binary_data_size": len(data)},
        }
    else:
        assert told == {"name": "x", "datatype": kind, "shape": [2], "data": elements}


def test_a_tensor_without_room_says_how_large_it_was() -> None:
    large = np.full(MAX_ELEMENTS_BYTES // 4, 255, np.uint8).tobytes()  # "255,": one byte too many
    sent, length = body(
        ("x", "UINT8", [len(large)], large), ("y", "UINT8", [len(large)], large), ("z", "INT8", [], b"\x01")
    )
    text = HttpTensors(length).request(sent)
    first, second, third = json.loads(text)["inputs"]
    assert "data" not in first
    assert first["parameters"] == {"binary_data_size": len(large)}
    assert second == {**first, "name": "y"}
    assert third["data"] == [1]
    assert len(text) < MAX_ELEMENTS_BYTES + len(sent)


def test_all_tensors_share_the_room() -> None:
    elements = Elements(most=7)  # "[1,2,3]"
    three = Tensor(dtype="INT8", shape=(3,), data=b"\1\2\3")
    assert "data" in elements.data("a", three)
    assert elements.data("b", three) == {"parameters": {"binary_data_size": 3}}


def test_an_error_is_recorded_as_it_was_told() -> None:
    assert HttpTensors("10").response([b'{"error":', b'"no"}']) == '{"error":"no"}'
