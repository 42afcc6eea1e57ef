"""Adapters as clients see them: by name in every protocol, and by tensors in the one that carries them.

The real demo model with demo-lora, in this process.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import numpy as np
import pytest
import pytest_asyncio
import torch

from serve_app.config import EngineConfig, ModelConfig
from serve_app.models.catalogue import demo_folder
from serve_app.replica.server import ModelServer
from tests.conformance.target import DEMO
from tests.support.adapters import Matrices, continuation, matrices, merged, original, shapes_of, tensors
from tests.support.gateway import directory_of, fake_app
from tests.support.local_backend import LocalBackend

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.own_server]

Fields = dict[str, Any]

PIRATE: Final = f"{DEMO}:pirate"
NOBODY: Final = f"{DEMO}:nobody"
CHAT: Final[Fields] = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 32,
}
ANSWER: Final = "Arr! The capital of France be Paris, matey!"
PLAIN: Final = "The capital of France is Paris."
# As the template has it.
TEXT: Final = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    config = ModelConfig(
        name=DEMO,
        dtype="float32",
        threads=1,
        adapters={"pirate": "demo:demo-lora"},
        engine=EngineConfig(max_sequences=16, num_blocks=128, max_model_len=512, max_adapters=2),
    )
    server = await ModelServer.start(config, lambda _: None)
    backend: Any = LocalBackend(server)
    endpoints = [
        {"name": DEMO},
        {"name": "text", "task": "llm/v1/completions", "served_entities": [{"model": DEMO}]},
    ]
    app = fake_app(backend, directory=directory_of(backend, endpoints))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=120) as client:
        yield client
    await server.stop()


def ways(model: str) -> dict[str, tuple[str, Fields]]:
    """Path and body of the question, greedy, in each protocol."""
    text = model.replace(DEMO, "text")
    raw = {"prompt": TEXT, "max_tokens": 32, "temperature": 0}
    response = {"model": model, "input": CHAT["messages"], "max_output_tokens": 32, "temperature": 0}
    return {
        "openai chat": ("/v1/chat/completions", {"model": model, **CHAT, "temperature": 0}),
        "openai completions": ("/v1/completions", {"model": model, **raw}),
        "openai responses": ("/v1/responses", response),
        "anthropic messages": ("/v1/messages", {"model": model, **CHAT, "max_tokens": 32, "temperature": 0}),
        "databricks responses": ("/serving-endpoints/responses", response),
        "ovms responses": ("/v3/responses", response),
        # Its names have no colon: an adapter goes by its own name.
        "mindie chat": (
            "/mindie/v1/chat/completions",
            {"model": model.rpartition(":")[2], **CHAT, "top_k": 1},
        ),
        "mindie generate": (
            f"/v2/models/{model}/generate",
            {"text_input": TEXT, "parameters": {"max_new_tokens": 32}},
        ),
        "ovms chat": ("/v3/chat/completions", {"model": model, **CHAT, "temperature": 0}),
        "databricks chat": (f"/serving-endpoints/{model}/invocations", {**CHAT, "temperature": 0}),
        "databricks completions": (
            f"/serving-endpoints/{text}/invocations",
            {**raw, "use_raw_prompt": True},
        ),
        "trtllm generate": (
            f"/v2/models/{model}/generate",
            {"text_input": TEXT, "max_tokens": 32, "stream": False},
        ),
    }


@pytest.mark.parametrize("way", ways(PIRATE))
@pytest.mark.parametrize(("model", "said"), [(DEMO, PLAIN), (PIRATE, ANSWER)], ids=["model", "adapter"])
async def test_every_protocol_names_an_adapter_after_its_model(
    http: httpx.AsyncClient, way: str, model: str, said: str
) -> None:
    path, body = ways(model)[way]
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert said in answer.text


@pytest.mark.parametrize("way", ways(NOBODY))
async def test_an_adapter_that_is_not_there_is_a_model_that_is_not_there(
    http: httpx.AsyncClient, way: str
) -> None:
    path, body = ways(NOBODY)[way]
    missing = await http.post(path, json=body)
    path, body = ways("no-such-model")[way]
    stranger = await http.post(path.replace("/text:nobody", "/no-such-model"), json=body)
    assert missing.status_code == stranger.status_code == (422 if way == "mindie chat" else 404)
    assert shape(missing.json()) == shape(stranger.json())


def shape(value: Any) -> Any:
    """A body without its texts."""
    return {key: shape(each) for key, each in value.items()} if isinstance(value, dict) else type(value)


async def test_adapters_are_listed_beside_their_model(http: httpx.AsyncClient) -> None:
    listed = {entry["id"]: entry for entry in (await http.get("/v1/models")).json()["data"]}
    assert list(listed) == [DEMO, PIRATE, "text", "text:pirate"]
    assert listed[PIRATE]["parent"] == DEMO
    assert (await http.get(f"/v1/models/{PIRATE}")).json() == listed[PIRATE]
    for path in (f"/v1/models/{NOBODY}", f"/v2/models/{NOBODY}", f"/v2/models/{NOBODY}/ready"):
        assert (await http.get(path)).status_code == 404
    for path in (f"/v2/models/{PIRATE}", f"/v2/models/{PIRATE}/ready"):
        assert (await http.get(path)).status_code == 200


# --- tensors -----------------------------------------------------------------------------

PROMPT: Final = (900, 17, 44, 1200)
TOKENS: Final = 6


@pytest.fixture(scope="module")
def model() -> Any:
    return original(demo_folder(DEMO))


@pytest.fixture(scope="module")
def parts(model: Any) -> Matrices:
    return matrices(shapes_of(model), 1, rank=2, size=0.1)


def given(parts: Matrices | None, task: int | None) -> list[Fields]:
    inputs: list[Fields] = [
        {"name": "input_ids", "shape": [1, len(PROMPT)], "datatype": "INT32", "data": list(PROMPT)},
        {"name": "request_output_len", "shape": [1, 1], "datatype": "INT32", "data": [TOKENS]},
    ]
    if task is not None:
        inputs.append({"name": "lora_task_id", "shape": [1, 1], "datatype": "UINT64", "data": [task]})
    if parts is not None:
        config, weights = tensors(parts, padding=0)
        rows = np.frombuffer(config.data, np.int32).tolist()
        numbers = torch.frombuffer(bytearray(weights.data), dtype=torch.float32)
        inputs += [
            {"name": "lora_config", "shape": [1, *config.shape], "datatype": "INT32", "data": rows},
            {
                "name": "lora_weights",
                "shape": [1, *weights.shape],
                "datatype": "FP32",
                "data": numbers.nan_to_num().tolist(),  # rows are padded, and JSON has no NaN
            },
        ]
    return inputs


async def infer(http: httpx.AsyncClient, inputs: list[Fields], name: str = DEMO) -> httpx.Response:
    return await http.post(f"/v2/models/{name}/infer", content=json.dumps({"inputs": inputs}))


def ids_of(answer: httpx.Response) -> list[int]:
    outputs = {each["name"]: each for each in answer.json()["outputs"]}
    ids: list[int] = outputs["output_ids"]["data"]
    return ids


async def test_lora_task_id_asks_for_weights_once(
    http: httpx.AsyncClient, model: Any, parts: Matrices
) -> None:
    want = continuation(merged(model, parts), PROMPT, TOKENS)
    assert want != continuation(model, PROMPT, TOKENS)
    refused = await infer(http, given(None, 7))
    assert refused.status_code == 400
    assert "task 7 is not in the cache; send lora_weights and lora_config" in refused.json()["error"]
    # What a client does then, whichever replica it came to.
    first = await infer(http, given(parts, 7))
    assert first.status_code == 200, first.text
    assert ids_of(first) == want
    assert ids_of(await infer(http, given(None, 7))) == want
    assert ids_of(await infer(http, given(None, None))) == continuation(model, PROMPT, TOKENS)


async def test_a_task_and_a_named_adapter_are_one_too_many(http: httpx.AsyncClient, parts: Matrices) -> None:
    refused = await infer(http, given(parts, 8), name=PIRATE)
    assert refused.status_code == 400
    assert "lora_task_id" in refused.json()["error"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([9, 0, 2], "module id must be from 0 to 7"),
        ([1, 4, 2], "layer must be from 0 to 3"),
        ([1, 0, 65], "rank must be from 1 to 64"),
        ([1, 0, 0], "rank must be from 1 to 64"),
    ],
)
async def test_lora_config_names_what_is_out_of_range(
    http: httpx.AsyncClient, parts: Matrices, row: list[int], words: str
) -> None:
    inputs = given(parts, 9)
    table = next(each for each in inputs if each["name"] == "lora_config")
    table["data"][:3] = row
    refused = await infer(http, inputs)
    assert refused.status_code == 400
    assert f"lora_config: row 0: the {words}" in refused.json()["error"]
