"""A request that can never be admitted is told so once, in every protocol, and no client repeats it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import grpc
import openai
import pytest

from serve_app.errors import Overloaded
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.methods import SERVICE
from serve_app.types import GenerateRequest, TokenDelta
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.fakes_metering import ListJournal
from tests.support.gateway import (
    CHAT,
    COMPLETIONS,
    chat_body,
    completion_body,
    directory_of,
    fake_app,
    gateway,
    served,
)
from tests.support.rpc_server import rpc_served
from tests.support.streams import streamed

LIMITED: list[dict[str, Any]] = [{"name": "demo", "limits": {"output_tokens_per_minute": 100}}]
NEEDS = "needs 120 output tokens, more than the limit of 100"


def tensor_body(rows: int, tokens: int) -> dict[str, Any]:
    ids = {"name": "input_ids", "datatype": "INT32", "shape": [rows, 2], "data": [5, 6] * rows}
    length = {"name": "request_output_len", "datatype": "INT32", "shape": [rows, 1], "data": [tokens] * rows}
    return {"inputs": [ids, length]}


LARGE: list[tuple[str, dict[str, Any], int]] = [
    (CHAT, chat_body(max_tokens=40, n=3), 429),
    (COMPLETIONS, completion_body(max_tokens=40, best_of=3), 429),
    ("/v3/chat/completions", chat_body(max_tokens=120), 429),
    ("/mindie" + CHAT, chat_body(max_tokens=120), 429),
    ("/v2/models/demo/generate", {"text_input": "Hi", "parameters": {"max_new_tokens": 120}}, 429),
    ("/v2/models/demo/infer", tensor_body(1, 120), 429),
    ("/serving-endpoints/demo/invocations", chat_body(max_tokens=120), 400),
    ("/serving-endpoints/chat/completions", chat_body(max_tokens=120), 400),
]


@pytest.mark.parametrize(("path", "body", "status"), LARGE)
async def test_more_than_the_whole_limit_is_said_to_be_no_use(
    path: str, body: dict[str, Any], status: int
) -> None:
    async with gateway(endpoints=LIMITED) as g:
        answer = await g.post(path, body)
        assert answer.status_code == status
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        assert NEEDS in answer.text
        if status == 400:
            assert answer.json()["error_code"] == "REQUEST_LIMIT_EXCEEDED"
        small = json.loads(json.dumps(body).replace("120", "30").replace("40", "10"))
        assert (await g.post(path, small)).status_code == 200


@pytest.mark.parametrize(("path", "body", "status"), LARGE)
async def test_a_limit_that_is_used_up_says_when_to_come_back(
    path: str, body: dict[str, Any], status: int
) -> None:
    async with gateway(endpoints=[{"name": "demo", "limits": {"requests_per_minute": 1}}]) as g:
        assert (await g.chat()).status_code == 200
        answer = await g.post(path, body)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
        assert "x-should-retry" not in answer.headers


@pytest.mark.parametrize(("path", "requests"), [(CHAT, 1), ("/serving-endpoints/chat/completions", 1)])
async def test_openais_client_asks_once(path: str, requests: int) -> None:
    async with gateway(endpoints=LIMITED) as g, served(g.app) as (host, port):
        base_url = f"http://{host}:{port}{path.removesuffix('/chat/completions')}"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=5) as client:
            with pytest.raises((openai.RateLimitError, openai.BadRequestError), match=NEEDS):
                await client.chat.completions.create(**chat_body(max_tokens=120))
        page = (await g.client.get("/metrics")).text
        assert f'route="{path}"' in page
        counts = [line for line in page.splitlines() if line.startswith("serve_app_requests_total{")]
        assert sum(float(line.rpartition(" ")[2]) for line in counts if f'route="{path}"' in line) == requests


RETRIES: Any = {
    "methodConfig": [
        {
            "name": [{"service": SERVICE}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.02s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"],
            },
        }
    ]
}


class Counting(FakeBackend):
    """Counts how often it is asked for a model, and is full."""

    asked = 0

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        self.asked += 1
        raise Overloaded("full", retry_after_s=1.0)
        yield []


def message(tokens: int) -> bytes:
    found = pb.ModelInferRequest(model_name="demo")
    found.inputs.add(name="input_ids", datatype="INT32", shape=[1, 2])
    found.inputs.add(name="request_output_len", datatype="INT32", shape=[1, 1])
    found.raw_input_contents.extend([b"\x05\0\0\0" * 2, tokens.to_bytes(4, "little")])
    return found.SerializeToString()


async def test_a_grpc_channel_that_retries_is_told_not_to() -> None:
    backend, journal = Counting(), ListJournal()
    app = fake_app(backend, directory=directory_of(backend, LIMITED), journal=journal)
    options = [("grpc.service_config", json.dumps(RETRIES))]
    async with rpc_served(app) as address, grpc.aio.insecure_channel(address, options=options) as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        call = infer(message(120), timeout=20)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        told = dict(await call.trailing_metadata() or ())
        assert (told["x-should-retry"], told["grpc-retry-pushback-ms"]) == ("false", "-1")
        assert NEEDS in (await call.details() or "")
        assert not journal.records
        call = infer(message(30), timeout=20)  # our own capacity: worth another try
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "x-should-retry" not in dict(await call.trailing_metadata() or ())
        assert backend.asked == 4
    page = app.state.services.metrics.render().decode()
    counts = [line for line in page.splitlines() if line.startswith("serve_app_requests_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in counts if 'status="429"' in line) == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        (COMPLETIONS, completion_body(prompt=["a"] * 5), 400, "prompt: must hold at most 4"),
        ("/serving-endpoints/completions", completion_body(prompt=["a"] * 5), 400, "prompt"),
        ("/v2/models/demo/infer", tensor_body(5, 9), 400, "input_ids"),
    ],
)
async def test_more_prompts_than_permits_is_a_mistake_in_a_field(
    path: str, body: dict[str, Any], status: int, field: str
) -> None:
    databricks = {"name": "demo", "task": "llm/v1/completions"}
    async with gateway(endpoints=[databricks], max_in_flight=4) as g:
        answer = await g.post(path, body)
        assert (answer.status_code, "retry-after" in answer.headers) == (status, False)
        assert field in answer.text
        fewer = (
            json.loads(json.dumps(body).replace('"a", ', "", 1)) if "prompt" in body else tensor_body(4, 9)
        )
        assert (await g.post(path, fewer)).status_code == 200


class Queue(FakeBackend):
    """A model whose queue holds three requests."""

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        if self.running >= 3:
            raise Overloaded("full", retry_after_s=1.0)
        async for deltas in super().generate(request):
            yield deltas


@pytest.mark.parametrize("stream", [False, True])
async def test_more_prompts_than_a_queue_holds_take_turns_in_it(stream: bool) -> None:
    backend = Queue([replace(model_info(), max_requests=3)])
    async with gateway(backend) as g:
        answer = await g.complete(prompt=["a"] * 20, stream=stream)
        assert answer.status_code == 200
        if not stream:
            assert [choice["index"] for choice in answer.json()["choices"]] == list(range(20))
        assert len(backend.requests) == 20
        page = (await g.client.get("/metrics")).text
        assert 'serve_app_queue_seconds_count{endpoint="demo",entity="demo"} 20.0' in page
        await g.check()
