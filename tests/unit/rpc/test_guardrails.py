"""Guardrails and inference tables over gRPC, as over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from pyarrow.dataset import dataset
from tritonclient.utils import InferenceServerException

from serve_app.accounts.inference_table import InferenceTables
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import directory_of, fake_app
from tests.support.rpc_server import rpc_served, tensor

EMAIL = "john.doe@example.com"
RULES = {"pii": {"behavior": "MASK"}, "invalid_keywords": ["falcon"]}


def asked(text: str) -> list[Any]:
    return [
        tensor("text_input", [[text.encode()]], "BYTES", np.object_),
        tensor("max_tokens", [[8]]),
    ]


async def test_calls_are_checked_and_recorded(tmp_path: Path) -> None:
    tables, backend = InferenceTables(tmp_path, retention_days=1), FakeBackend()
    backend.words = ("I am ", EMAIL[:9], EMAIL[9:], ".")
    settings = {"guardrails": {"input": RULES, "output": RULES}, "inference_table_config": {"enabled": True}}
    endpoints = [{"name": "demo", "ai_gateway": settings}]
    app = fake_app(backend, directory=directory_of(backend, endpoints), payloads=tables)
    async with rpc_served(app) as url, triton.InferenceServerClient(url) as client:
        told = await client.infer("ensemble", asked(f"Write to {EMAIL}"))
        assert told.as_numpy("text_output").item() == b"I am <EMAIL_ADDRESS>."
        assert "john" not in str(backend.last)
        for model, text, message in (
            ("ensemble", "the Falcon", "invalid_keywords"),
            ("tensorrt_llm", "Hi", "output_ids"),
        ):
            with pytest.raises(InferenceServerException, match=message) as refused:
                await client.infer(model, asked(text))
            assert "INVALID_ARGUMENT" in refused.value.status()
        assert len(backend.requests) == 1
    await asyncio.to_thread(tables.close)
    rows = dataset(tmp_path / "main/default/demo_payload", partitioning="hive").to_table().to_pylist()
    assert [row["status_code"] for row in rows] == [200, 400, 400]
    assert all(row["logging_error_codes"] == [] for row in rows)
    assert rows[0]["completion_tokens"] == 4
    asked_for = json.loads(rows[0]["request"])
    assert asked_for["model_name"] == "ensemble"
    assert asked_for["inputs"] == [
        {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["Write to <EMAIL_ADDRESS>"]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [8]},
    ]
    outputs = {each["name"]: each for each in json.loads(rows[0]["response"])["outputs"]}
    assert outputs["text_output"]["data"] == ["I am <EMAIL_ADDRESS>."]
    assert "invalid_keywords" in json.loads(rows[1]["response"])["error"]
    assert "output_ids" in json.loads(rows[2]["response"])["error"]


async def test_a_stream_of_responses_is_masked(tmp_path: Path) -> None:
    tables, backend = InferenceTables(tmp_path, retention_days=1), FakeBackend()
    backend.words = tuple(f"I am {EMAIL}.")
    settings = {"guardrails": {"output": RULES}, "inference_table_config": {"enabled": True}}
    endpoints = [{"name": "demo", "ai_gateway": settings}]
    app = fake_app(backend, directory=directory_of(backend, endpoints), payloads=tables)
    async with rpc_served(app) as url, triton.InferenceServerClient(url) as client:
        inputs = [*asked("Hi"), tensor("stream", [[True]], "BOOL", np.bool_)]

        async def requests() -> Any:
            yield {"model_name": "ensemble", "inputs": inputs, "request_id": "good"}

        texts = []
        async for result, error in client.stream_infer(requests()):
            assert error is None
            texts.append(result.as_numpy("text_output").item().decode())
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
    assert "".join(texts) == "I am <EMAIL_ADDRESS>."
    await asyncio.to_thread(tables.close)
    (row,) = dataset(tmp_path / "main/default/demo_payload", partitioning="hive").to_table().to_pylist()
    responses = [json.loads(line) for line in row["response"].splitlines()]
    told = [each["data"] for line in responses for each in line["outputs"] if each["name"] == "text_output"]
    assert "".join(text for (text,) in told) == "I am <EMAIL_ADDRESS>."
    assert json.loads(row["request"])["id"] == "good"
