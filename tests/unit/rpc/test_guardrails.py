"""Guardrails and inference tables over gRPC, as over HTTP."""

from __future__ import annotations

import asyncio
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
    assert all(row["logging_error_codes"] == ["BODY_NOT_TEXT"] and row["request"] is None for row in rows)
    assert rows[0]["completion_tokens"] == 4


async def test_a_stream_of_responses_is_masked() -> None:
    backend = FakeBackend()
    backend.words = tuple(f"I am {EMAIL}.")
    endpoints = [{"name": "demo", "ai_gateway": {"guardrails": {"output": RULES}}}]
    app = fake_app(backend, directory=directory_of(backend, endpoints))
    async with rpc_served(app) as url, triton.InferenceServerClient(url) as client:
        inputs = [*asked("Hi"), tensor("stream", [[True]], "BOOL", np.bool_)]

        async def requests() -> Any:
            yield {"model_name": "ensemble", "inputs": inputs}

        texts = []
        async for result, error in client.stream_infer(requests()):
            assert error is None
            texts.append(result.as_numpy("text_output").item().decode())
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
    assert "".join(texts) == "I am <EMAIL_ADDRESS>."
