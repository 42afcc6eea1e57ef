"""Pages, model control, the alias, versions, and requests that stop others."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import GenerationFailed
from tests.conformance.trtllm.asks import IDS, INFER, TYPES, body, error_of, events, outputs, tensor
from tests.support.fakes_backend import FakeBackend, embedder_info, model_info
from tests.support.gateway import Gateway, gateway

MODEL = "/v2/models/demo"
# output -> datatype and shape, the batch's dimension first
OUTPUTS: dict[str, tuple[str, list[int]]] = {
    "output_ids": ("INT32", [-1, -1, -1]),
    "sequence_length": ("INT32", [-1, -1]),
    "output_log_probs": ("FP32", [-1, -1, -1]),
    "cum_log_probs": ("FP32", [-1, -1]),
    "context_logits": ("FP32", [-1, -1, -1]),
    "generation_logits": ("FP32", [-1, -1, -1, -1]),
    "num_input_tokens": ("INT32", [-1, 1]),
    "num_output_tokens": ("INT32", [-1, -1]),
    "arrival_time_ns": ("INT64", [-1, 1]),
    "first_scheduled_time_ns": ("INT64", [-1, 1]),
    "first_token_time_ns": ("INT64", [-1, 1]),
    "last_token_time_ns": ("INT64", [-1, 1]),
    "kv_cache_alloc_new_blocks": ("INT32", [-1, 1]),
    "kv_cache_reused_blocks": ("INT32", [-1, 1]),
    "kv_cache_alloc_total_blocks": ("INT32", [-1, 1]),
    "total_accepted_draft_tokens": ("INT32", [-1, 1]),
    "total_draft_tokens": ("INT32", [-1, 1]),
    "acceptance_rate": ("FP32", [-1, 1]),
    "batch_index": ("INT32", [-1, 1]),
    "sequence_index": ("INT32", [-1, -1]),
}


def listed(tensors: list[dict[str, Any]]) -> dict[str, tuple[str, list[int]]]:
    return {each["name"]: (each["datatype"], each["shape"]) for each in tensors}


async def page(path: str, **config: Any) -> Any:
    async with gateway(**config) as g:
        answer = await g.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.mark.parametrize("v1_dialect", ["openai", "mindie"])
async def test_the_server_says_what_it_can(v1_dialect: str) -> None:
    server = await page("/v2", v1_dialect=v1_dialect)
    assert set(server) == {"name", "version", "extensions"}
    wanted = {"binary_tensor_data", "parameters", "generate", "model_repository", "statistics"}
    assert wanted | {f"v1_dialect={v1_dialect}"} <= set(server["extensions"])


@pytest.mark.parametrize("path", [MODEL, MODEL + "/versions/1"])
async def test_metadata_lists_every_tensor(path: str) -> None:
    found = await page(path)
    assert (found["name"], found["versions"], found["platform"]) == ("demo", ["1"], "torch_transformers")
    assert listed(found["inputs"]) == dict(TYPES)
    assert listed(found["outputs"]) == OUTPUTS


async def test_configuration() -> None:
    found = await page(MODEL + "/config")
    assert found["name"] == "demo"
    assert found["max_batch_size"] == 128
    assert found["model_transaction_policy"] == {"decoupled": True}
    inputs = {each["name"]: each for each in found["input"]}
    assert inputs["input_ids"] == {
        "name": "input_ids",
        "data_type": "TYPE_INT32",
        "dims": [-1],
        "optional": False,
    }
    assert inputs["guided_decoding_guide"]["data_type"] == "TYPE_STRING"
    assert {name for name, each in inputs.items() if not each["optional"]} == {
        "input_ids",
        "request_output_len",
    }
    assert {each["name"] for each in found["output"]} == set(OUTPUTS)
    assert found["parameters"]["max_seq_len"] == {"string_value": "256"}


async def test_configuration_is_mindies_where_that_is_forced() -> None:
    for path, headers in (("/mindie" + MODEL, {}), (MODEL, {"x-api-dialect": "mindie"})):
        async with gateway() as g:
            found = (await g.client.get(path + "/config", headers=headers)).json()
        assert found["modelName"] == "demo"


async def test_statistics_count_answers() -> None:
    async with gateway() as g:
        for _ in range(3):
            await g.post(INFER, body())
        g.backend.refuse = GenerationFailed("no")
        await g.post(INFER, body())
        for path in (MODEL + "/stats", MODEL + "/versions/1/stats", "/v2/models/stats"):
            (entry, *_) = (await g.client.get(path)).json()["model_stats"]
            assert (entry["name"], entry["version"], entry["inference_count"]) == ("demo", "1", 3)
            assert entry["inference_stats"]["success"]["count"] == 3
            assert entry["inference_stats"]["fail"]["count"] == 1
            assert entry["inference_stats"]["success"]["ns"] > 0
            assert entry["last_inference"] > 1_600_000_000_000


async def test_probes_are_200_or_400() -> None:
    async with gateway() as g:
        paths = ["/v2/health/live", "/v2/health/ready", MODEL + "/ready", MODEL + "/versions/1/ready"]
        ready = {"name": "demo", "ready": True}
        for path, told in zip(paths, ({"live": True}, {"ready": True}, ready, ready), strict=True):
            answer = await g.client.get(path)
            assert (answer.status_code, answer.json()) == (200, told)
        g.backend.loading = {"demo"}
        server = await g.client.get("/v2/health/ready")
        assert server.status_code == 400
        assert server.json()["ready"] is False
        assert "model-demo: loading" in server.json()["error"]
        for path in paths[2:]:
            answer = await g.client.get(path)
            assert answer.status_code == 400
            assert "not ready" in error_of(answer)
        assert (await g.client.get("/v2/health/live")).status_code == 200
    async with gateway(endpoints=[]) as g:
        assert (await g.client.get("/v2/health/ready")).status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/nobody", 404),
        ("/v2/models/" + "x" * 300, 404),
        (MODEL + "/versions/2", 404),
        (MODEL + "/versions/x", 404),
        (MODEL + "/nothing", 404),
        ("/v2/nothing", 404),
        ("/v2/systemsharedmemory/status", 404),
    ],
)
async def test_what_is_not_there(path: str, status: int) -> None:
    async with gateway() as g:
        for what in ("", "/ready", "/config", "/stats"):
            answer = await g.client.get(path + what)
            assert answer.status_code == status
            assert error_of(answer)


@pytest.mark.parametrize("model", ["/v2/models/nobody", MODEL + "/versions/2"])
@pytest.mark.parametrize("what", ["infer", "generate", "generate_stream"])
async def test_models_and_versions_that_are_not_there(model: str, what: str) -> None:
    asked = body() if what == "infer" else {"input_ids": IDS, "request_output_len": 3}
    async with gateway() as g:
        answer = await g.post(f"{model}/{what}", asked)
    assert answer.status_code == 404
    assert error_of(answer)


@pytest.mark.parametrize("what", ["infer", "generate", "generate_stream", "stopInfer"])
async def test_the_wrong_method(what: str) -> None:
    async with gateway() as g:
        answer = await g.client.get(f"{MODEL}/{what}")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        posted = await g.post(MODEL + "/config", {})
        assert (posted.status_code, bool(error_of(posted))) == (405, True)


async def test_names_may_hold_slashes() -> None:
    async with gateway() as g:
        for path in ("/v2/models/org/other", "/v2/models/org%2Fother"):
            assert (await g.client.get(path)).json()["name"] == "org/other"
            assert (await g.client.get(path + "/versions/1/ready")).status_code == 200
            assert (await g.post(path + "/infer", body())).json()["model_name"] == "org/other"


async def test_the_alias_is_the_first_endpoint_that_generates() -> None:
    infos = [embedder_info(), model_info("demo"), model_info("other")]
    endpoints = [
        {"name": "embedder", "task": "llm/v1/embeddings"},
        {"name": "demo"},
        {"name": "other"},
    ]
    async with gateway(FakeBackend(infos=infos), endpoints=endpoints) as g:
        answer = await g.post("/v2/models/tensorrt_llm/infer", body())
        assert answer.json()["model_name"] == "tensorrt_llm"
        assert answer.headers["served-model-name"] == "demo"
        assert (await g.client.get("/v2/models/tensorrt_llm")).json()["name"] == "tensorrt_llm"
        embeds = await g.post("/v2/models/embedder/infer", body())
        assert (embeds.status_code, bool(error_of(embeds))) == (400, True)
        assert (await g.client.get("/v2/models/embedder")).json()["inputs"] == []
    async with gateway(trtllm={"alias": "ensemble"}) as g:
        assert (await g.post("/v2/models/ensemble/infer", body())).status_code == 200
        assert (await g.post("/v2/models/tensorrt_llm/infer", body())).status_code == 404
    named = [model_info("demo"), model_info("tensorrt_llm")]
    async with gateway(FakeBackend(infos=named)) as g:
        answer = await g.post("/v2/models/tensorrt_llm/infer", body())
        assert answer.headers["served-model-name"] == "tensorrt_llm"


async def test_a_version_is_chosen_among_those_of_the_endpoint() -> None:
    infos = [model_info("demo", "1"), model_info("demo", "2")]
    entities = [{"model": "demo", "version": "1"}, {"model": "demo", "version": "2"}]
    endpoint = {"name": "demo", "served_entities": entities, "traffic": {"demo-1": 100, "demo-2": 0}}
    async with gateway(FakeBackend(infos=infos), endpoints=[endpoint]) as g:
        for version, path in (("1", MODEL), ("1", MODEL + "/versions/1"), ("2", MODEL + "/versions/2")):
            assert (await g.post(path + "/infer", body())).json()["model_version"] == version
        assert (await g.client.get(MODEL)).json()["versions"] == ["1", "2"]


# --- model control --------------------------------------------------------------------


async def test_the_repositorys_index() -> None:
    async with gateway() as g:
        g.backend.loading = {"org/other"}
        every = [(await g.client.post("/v2/repository/index", content=c)).json() for c in (b"", b"{}")]
        ready = (await g.post("/v2/repository/index", {"ready": True})).json()
    demo = {"name": "demo", "version": "1", "state": "READY", "reason": ""}
    assert every[0] == every[1]
    assert every[0][0] == demo
    assert (every[0][1]["name"], every[0][1]["state"]) == ("org/other", "UNAVAILABLE")
    assert ready == [demo]


async def test_load_wakes_a_model_up_and_unload_says_what_to_do() -> None:
    async with gateway() as g:
        for content in (b"", b"{}", b'{"parameters":{}}'):
            loaded = await g.client.post("/v2/repository/models/demo/load", content=content)
            assert (loaded.status_code, loaded.content) == (200, b"")
        g.backend.loading = {"demo"}
        assert (await g.post("/v2/repository/models/demo/load")).status_code == 503
        unloaded = await g.post(
            "/v2/repository/models/demo/unload", {"parameters": {"unload_dependents": True}}
        )
        assert unloaded.status_code == 400
        assert "deploy file" in error_of(unloaded)
        for what in ("load", "unload"):
            answer = await g.post(f"/v2/repository/models/nobody/{what}")
            assert (answer.status_code, bool(error_of(answer))) == (400, True)
            changed = {"parameters": {"config": "{}"}}
            answer = await g.post(f"/v2/repository/models/demo/{what}", changed)
            assert (answer.status_code, bool(error_of(answer))) == (400, True)


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b'{"ready":1}', b'{"parameters":5}'])
async def test_hostile_bodies_of_model_control(content: bytes) -> None:
    async with gateway() as g:
        for path in ("/v2/repository/index", "/v2/repository/models/demo/load"):
            answer = await g.client.post(path, content=content)
            if answer.status_code != 200:
                assert answer.status_code == 400
                assert error_of(answer)
            assert answer.status_code == 400 or content in (b'{"ready":1}', b'{"parameters":5}')


# --- stop -----------------------------------------------------------------------------

STOP = {
    "id": "long",
    "inputs": [
        {"name": "stop", "datatype": "BOOL", "shape": [1, 1], "data": [True]},
        {"name": "input_ids", "datatype": "INT32", "shape": [1, 1], "data": [0]},
    ],
}


async def begun(
    g: Gateway, path: str, asked: dict[str, Any], prompts: int = 1
) -> asyncio.Task[httpx.Response]:
    """A request that hangs."""
    task = asyncio.ensure_future(g.post(path, asked))
    async with asyncio.timeout(60):
        while g.backend.running < prompts:
            await asyncio.sleep(0)
    return task


async def test_stop_ends_a_stream_and_is_answered_with_nothing() -> None:
    async with gateway(FakeBackend(hang_after=2)) as g:
        streamed = {"id": "long", "input_ids": IDS, "request_output_len": 9, "streaming": True}
        task = await begun(g, MODEL + "/generate_stream", streamed)
        stop = await g.post(INFER, STOP)
        assert (stop.status_code, stop.json()) == (
            200,
            {"model_name": "demo", "model_version": "1", "id": "long", "outputs": []},
        )
        assert len(events((await task).content)) <= 2
        assert len(g.backend.aborted) == 1
        await g.check()


async def test_stop_ends_every_prompt_of_a_batch_and_every_beam() -> None:
    batch = {
        "id": "long",
        "inputs": [
            tensor("input_ids", [[1, 2], [3, 4]], shape=[2, 2]),
            tensor("request_output_len", [9, 9], shape=[2, 1]),
            tensor("beam_width", [2, 2], shape=[2, 1]),
        ],
    }
    async with gateway(FakeBackend(hang_after=0)) as g:
        task = await begun(g, INFER, batch, prompts=2)
        assert (await g.post("/v2/models/tensorrt_llm/infer", STOP)).status_code == 200
        found = outputs(await task)
        assert found["output_ids"].shape == (2, 2, 0)
        assert found["sequence_length"].tolist() == [[0, 0], [0, 0]]
        assert len(g.backend.aborted) == 2
        await g.check()


async def test_stop_by_the_generate_routes() -> None:
    async with gateway(FakeBackend(hang_after=0)) as g:
        for path in (MODEL + "/generate", MODEL + "/generate_stream"):
            task = await begun(
                g, MODEL + "/generate", {"id": "long", "input_ids": IDS, "request_output_len": 9}
            )
            stop = await g.post(path, {"id": "long", "stop": True})
            said = events(stop.content)[0] if path.endswith("stream") else stop.json()
            assert said == {"model_name": "demo", "model_version": "1", "id": "long"}
            assert (await task).json()["sequence_length"] == 0
        await g.check()


async def test_nobody_stops_a_strangers_request_and_a_stop_needs_an_id() -> None:
    (mine, my_line), (other, other_line) = new_key("mine"), new_key("other")
    async with gateway(FakeBackend(hang_after=1), keys=f"{my_line} {other_line}") as g:
        headers = {"authorization": f"Bearer {mine}"}
        task = asyncio.ensure_future(g.post(INFER, body("long"), headers=headers))
        async with asyncio.timeout(60):
            while not g.backend.running:
                await asyncio.sleep(0)
        stranger = {"authorization": f"Bearer {other}"}
        assert (await g.post(INFER, STOP, headers=stranger)).status_code == 200
        assert not task.done()
        nameless = await g.post(INFER, {"inputs": STOP["inputs"]}, headers=headers)
        assert error_of(nameless).startswith("stop: needs the id")
        assert (await g.post("/v2/models/x/infer", STOP, headers=headers)).status_code == 404
        assert (await g.post(INFER, STOP, headers=headers)).status_code == 200
        await task


async def test_a_client_that_leaves_ends_its_request() -> None:
    async with gateway(FakeBackend(hang_after=0)) as g:
        task = await begun(g, INFER, body("x"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(60):
            await g.backend.closed.wait()
        assert len(g.backend.aborted) == 1
        await g.check()
