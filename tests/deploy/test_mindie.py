"""deploy/mindie.yaml: chat, texts and their end by request, through HTTP and Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.deploy.deployment import CHAT, DEMO, Deployed, deploy_file, deployed
from tests.support.invariants import WAIT_S
from tests.support.ray_cluster import Cluster

pytestmark = [
    pytest.mark.full,  # the protocol is in tests/conformance, its server in the tutorial from-mindie
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

TEXT: Final = f"/v2/models/{DEMO}"
MAX_OUTPUT: Final = 256  # as the file says
NOISE: Final = {"do_sample": True, "temperature": 1e6, "details": True}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, deploy_file("mindie"), usage) as server:
        yield server


def events(text: str) -> list[Any]:
    return [json.loads(part.removeprefix("data:")) for part in text.split("\n\n")[:-1]]


async def test_v1_speaks_this_protocol_and_the_other_has_a_prefix(server: Deployed) -> None:
    answer = await server.chat(DEMO, max_tokens=MAX_OUTPUT, top_k=1)
    assert answer.json()["choices"][0]["finish_reason"] == "eos_token"
    other = await server.client.post("/openai" + CHAT, json=json.loads(answer.request.content))
    assert other.json()["choices"][0]["finish_reason"] == "stop"
    text = answer.json()["choices"][0]["message"]["content"]
    assert other.json()["choices"][0]["message"]["content"] == text
    assert "v1_dialect=mindie" in (await server.client.get("/mindie/v2")).json()["extensions"]


async def test_output_and_prompt_have_the_models_limits(server: Deployed) -> None:
    refused = await server.chat(DEMO, max_tokens=MAX_OUTPUT + 1)
    assert (refused.status_code, str(MAX_OUTPUT) in refused.json()["error"]) == (422, True)
    config = (await server.client.get(f"/mindie{TEXT}/config")).json()
    assert config["maxOutputLen"] == MAX_OUTPUT
    # One token each, or more: as many as the window has do not fit beside the output.
    prompt = " a b" * (config["maxSeqLen"] // 2)
    refused = await server.client.post(f"{TEXT}/generate", json={"text_input": prompt})
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Input Validation Error")


async def test_every_token_has_an_event_with_measured_details(server: Deployed) -> None:
    body = {"text_input": "Once", "parameters": {**NOISE, "perf_stat": True, "max_new_tokens": 32}}
    found = events((await server.client.post(f"{TEXT}/generate_stream", json=body)).text)
    details = [event["details"] for event in found]
    assert [each["generated_tokens"] for each in details] == list(range(1, len(found) + 1))
    assert all(each["batch_size"] >= 1 and each["queue_wait_time"] >= 0 for each in details)
    assert len(details[-1]["perf_stat"]) == len(found)
    assert details[-1]["finish_reason"] in ("length", "eos_token")


async def test_the_end_token_has_its_text(server: Deployed) -> None:
    body = {"text_input": "Hello, my name is", "parameters": {"max_new_tokens": MAX_OUTPUT, "details": True}}
    last = events((await server.client.post(f"{TEXT}/generate_stream", json=body)).text)[-1]
    assert last["details"]["finish_reason"] == "eos_token"
    assert last["text_output"].endswith(">")


async def test_a_stop_frees_the_engine(server: Deployed) -> None:
    async with asyncio.timeout(WAIT_S):
        while (last := await stopped(server)) is None:
            pass
        while await server.running():
            await asyncio.sleep(0.05)
    assert last["finish_reason"] == "stop_sequence"
    assert last["generated_tokens"] < MAX_OUTPUT


async def stopped(server: Deployed) -> Any:
    """The details of the last event of a text that was stopped; None where it was whole before."""
    body = {"id": "long", "text_input": "Once", "parameters": {**NOISE, "max_new_tokens": MAX_OUTPUT}}
    task = asyncio.ensure_future(server.client.post(f"{TEXT}/generate_stream", json=body))
    while (await server.client.post(f"{TEXT}/stopInfer", json={"id": "long"})).status_code == 404:
        if task.done():
            return None
    last = events((await task).text)[-1]["details"]
    return last if last["generated_tokens"] < MAX_OUTPUT else None
