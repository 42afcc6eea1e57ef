"""From a name to the entity that answers: splits, stickiness, overrides, fallbacks, changes."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import grpc
import pytest

from serve_app.accounts.keys import new_key
from serve_app.endpoints.catalogue import parse_catalogue
from serve_app.errors import GenerationFailed, InvalidField, Overloaded, Unavailable
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.methods import SERVICE
from serve_app.types import Scope
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import (
    CHAT,
    COMPLETIONS,
    Gateway,
    bearer,
    chat_body,
    completion_body,
    directory_of,
    events,
    fake_app,
    gateway,
)
from tests.support.rpc_server import rpc_served
from tests.support.streams import streamed

KEY, LINE = new_key("infer")
OTHER, OTHER_LINE = new_key("other")
ROUTER, ROUTER_LINE = new_key("router", [Scope.INFERENCE, Scope.ROUTING])
KEYS = f"{LINE} {OTHER_LINE} {ROUTER_LINE}"


def ab(old: int = 90, **fields: Any) -> dict[str, Any]:
    return {
        "name": "ab",
        "served_entities": [{"model": "m", "version": 1}, {"model": "m", "version": 2}],
        "traffic": {"m-1": old, "m-2": 100 - old},
        **fields,
    }


def models(**fields: Any) -> FakeBackend:
    return FakeBackend(infos=[model_info("m", version="1"), model_info("m", version="2")], **fields)


async def ask(g: Gateway, headers: dict[str, str] | None = None, **fields: Any) -> str:
    answer = await g.post(CHAT, {**chat_body(), "model": "ab", **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["served-model-name"]


async def test_the_answer_names_its_entity_everywhere() -> None:
    async with gateway(models(), endpoints=[ab(0)]) as g:
        body = {**chat_body(), "model": "ab"}
        whole = await g.post(CHAT, body)
        assert whole.headers["served-model-name"] == whole.json()["model"] == "m-2"
        streamed = await g.post(CHAT, {**body, "stream": True})
        assert streamed.headers["served-model-name"] == "m-2"
        assert {event["model"] for event in events(streamed.text)} == {"m-2"}
        assert {request.model for request in g.backend.requests} == {"model-m_v_2"}
        page = (await g.client.get("/metrics")).text
        assert 'serve_app_requests_total{endpoint="ab",entity="m-2",route="/v1/chat/completions"' in page


async def test_without_a_key_the_draw_is_by_request() -> None:
    async with gateway(models(), endpoints=[ab(70)]) as g:
        counts = Counter([await ask(g) for _ in range(400)])
        assert abs(counts["m-1"] - 280) <= 4.5 * math.sqrt(400 * 0.7 * 0.3)


async def test_header_then_user_then_api_key_stick() -> None:
    async with gateway(models(), keys=KEYS, endpoints=[ab(50)]) as g:
        for i in range(20):
            header = {**bearer(KEY), "x-routing-key": f"h{i}"}
            assert len({await ask(g, header, user=f"u{k}") for k in range(6)}) == 1
            assert (
                len({await ask(g, bearer(key), user=f"u{i}") for key in (KEY, OTHER) for _ in range(2)}) == 1
            )
        assert len({await ask(g, bearer(KEY)) for _ in range(12)}) == 1
        assert len({await ask(g, {**bearer(KEY), "x-routing-key": f"h{k}"}) for k in range(40)}) == 2


async def test_an_endpoint_may_leave_out_a_source_of_keys() -> None:
    async with gateway(models(), keys=KEYS, endpoints=[ab(50, sticky=["header"])]) as g:
        assert len({await ask(g, bearer(KEY), user="me") for _ in range(40)}) == 2


async def test_a_routing_key_has_a_bounded_length() -> None:
    async with gateway(models(), endpoints=[ab(50)]) as g:
        await ask(g, {"x-routing-key": "k" * 512})
        answer = await g.post(CHAT, {**chat_body(), "model": "ab"}, headers={"x-routing-key": "k" * 513})
        assert answer.status_code == 400
        assert "X-Routing-Key must hold at most 512" in answer.json()["error"]["message"]


async def test_choosing_an_entity_takes_a_scope() -> None:
    path = "/serving-endpoints/ab/served-models/m-2/invocations"
    async with gateway(models(), keys=KEYS, endpoints=[ab(100)]) as g:
        body = {**chat_body(), "model": "ab"}
        chosen = {**bearer(ROUTER), "x-served-entity": "m-2"}
        assert (await g.post(CHAT, body, headers=chosen)).json()["model"] == "m-2"
        assert (await g.post(path, chat_body(), headers=bearer(ROUTER))).json()["model"] == "m-2"
        for where, headers in ((CHAT, {**bearer(KEY), "x-served-entity": "m-2"}), (path, bearer(KEY))):
            refused = await g.post(where, body, headers=headers)
            assert refused.status_code == 403
            assert "'routing'" in refused.text
        unknown = await g.post(CHAT, body, headers={**bearer(ROUTER), "x-served-entity": "m-3"})
        assert unknown.status_code == 404
        assert (await g.post(path.replace("/ab/", "/no/"), body, headers=bearer(ROUTER))).status_code == 404


async def test_the_served_model_route_follows_the_task_and_needs_no_model() -> None:
    path = "/serving-endpoints/ab/served-models/m-1/invocations"
    async with gateway(models(), endpoints=[ab(task="llm/v1/completions")]) as g:
        body = completion_body()
        del body["model"]
        answer = (await g.post(path, body)).json()
        assert (answer["object"], answer["model"]) == ("text_completion", "m-1")
        refused = await g.post(CHAT, {**chat_body(), "model": "ab"})
        assert refused.status_code == 400
        assert "task is llm/v1/completions" in refused.json()["error"]["message"]
    async with gateway(models(), endpoints=[ab(0)]) as g:  # a chat model completes raw prompts too
        assert (await g.post(COMPLETIONS, {**body, "model": "ab"})).json()["model"] == "m-2"


async def test_what_is_not_ready_is_skipped() -> None:
    backend = models()
    async with gateway(backend, endpoints=[ab(90)]) as g:
        g.backend.infos = [info for info in backend.infos if info.version == "2"]
        assert {await ask(g) for _ in range(20)} == {"m-2"}
        listed = (await g.client.get("/v1/models")).json()["data"][0]
        assert [(e["name"], e["traffic"], e["ready"]) for e in listed["served_entities"]] == [
            ("m-1", 90, False),
            ("m-2", 10, True),
        ]
        g.backend.infos = []
        gone = await g.post(CHAT, {**chat_body(), "model": "ab"})
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "2")
        assert (await g.client.get("/v1/models/ab")).status_code == 503


TENSORS: dict[str, Any] = {
    "inputs": [
        {"name": "input_ids", "datatype": "INT32", "shape": [1, 2], "data": [5, 6]},
        {"name": "request_output_len", "datatype": "INT32", "shape": [1, 1], "data": [3]},
    ]
}
BY_VERSION: list[tuple[str, dict[str, Any]]] = [
    ("/v2/models/ab/versions/{}/infer", TENSORS),
    ("/v2/models/ab/versions/{}/generate", {"text_input": "Hi", "parameters": {}}),
    ("/v2/models/ab/versions/{}/generate_stream", {"text_input": "Hi", "parameters": {}}),
    ("/mindie/v2/models/ab/versions/{}/generate_stream", {"text_input": "Hi", "parameters": {}}),
    ("/triton/v2/models/ab/versions/{}/generate", {"input_ids": [5, 6], "request_output_len": 3}),
    ("/triton/v2/models/ab/versions/{}/generate_stream", {"input_ids": [5, 6], "request_output_len": 3}),
]


@pytest.mark.parametrize(("path", "body"), BY_VERSION)
async def test_a_version_goes_past_the_split_only_with_the_scope(path: str, body: dict[str, Any]) -> None:
    async with gateway(models(), keys=KEYS, endpoints=[ab(100)]) as g:
        for version in ("1", "2"):  # also the one that the split would choose
            refused = await g.post(path.format(version), body, headers=bearer(KEY))
            assert (refused.status_code, "scope 'routing'" in refused.text) == (403, True)
            allowed = await g.post(path.format(version), body, headers=bearer(ROUTER))
            assert allowed.headers["served-model-name"] == f"m-{version}"
        unversioned = path.replace("/versions/{}", "")
        assert (await g.post(unversioned, body, headers=bearer(KEY))).headers["served-model-name"] == "m-1"
        assert (await g.post(path.format("9"), body, headers=bearer(KEY))).status_code == 404
        assert len(g.journal.records) == 3  # what was refused was never admitted
    async with gateway(models(), endpoints=[ab(100)]) as g:  # no keys: this machine may do all
        assert (await g.post(path.format("2"), body)).headers["served-model-name"] == "m-2"


@pytest.mark.parametrize(("path", "body"), BY_VERSION)
async def test_a_version_that_leaves_no_choice_needs_no_scope(path: str, body: dict[str, Any]) -> None:
    alone = {"name": "ab", "served_entities": [{"model": "m", "version": 2}]}
    async with gateway(models(), keys=KEYS, endpoints=[alone]) as g:
        answer = await g.post(path.format("2"), body, headers=bearer(KEY))
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "m-2")
    alike = ab(0)  # two entities of one version: the split decides between them
    alike["served_entities"] = [
        {"model": name, "version": 1, "name": f"m-{n}"} for n, name in ((1, "m"), (2, "k"))
    ]
    backend = FakeBackend(infos=[model_info("m", version="1"), model_info("k", version="1")])
    async with gateway(backend, keys=KEYS, endpoints=[alike]) as g:
        for _ in range(5):
            answer = await g.post(path.format("1"), body, headers=bearer(KEY))
            assert (answer.status_code, answer.headers["served-model-name"]) == (200, "m-2")


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_version_over_grpc_needs_the_scope_too(method: str) -> None:
    backend = models()
    app = fake_app(backend, KEYS, directory_of(backend, [ab(100)]))
    message = pb.ModelInferRequest(model_name="ab", model_version="2")
    message.inputs.add(name="input_ids", datatype="INT32", shape=[1, 2])
    message.inputs.add(name="request_output_len", datatype="INT32", shape=[1, 1])
    message.raw_input_contents.extend([b"\x05\0\0\0" * 2, b"\x03\0\0\0"])

    async def said(channel: grpc.aio.Channel, key: str) -> str:
        """What refuses the request; nothing where it is answered."""
        metadata = [("authorization", f"Bearer {key}")]
        call = channel.stream_stream(f"/{SERVICE}/{method}")(
            iter([message.SerializeToString()]), metadata=metadata, timeout=20
        )
        try:
            raw = [each async for each in call]
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        if method == "ModelInfer":
            return ""
        return "".join(pb.ModelStreamInferResponse.FromString(each).error_message for each in raw)

    async with rpc_served(app, KEYS) as address, grpc.aio.insecure_channel(address) as channel:
        refused = await said(channel, KEY)
        assert "scope 'routing'" in refused
        assert refused.startswith("PERMISSION_DENIED") == (method == "ModelInfer")
        assert not backend.requests
        assert await said(channel, ROUTER) == ""
        assert {request.model for request in backend.requests} == {"model-m_v_2"}


@pytest.mark.parametrize("path", [CHAT, "/v3/chat/completions", "/mindie/v1/chat/completions"])
async def test_a_model_that_restarts_is_waited_for_and_not_for_long(path: str) -> None:
    body = {**chat_body(), "model": "m"}
    one = {"name": "m", "served_entities": [{"model": "m", "version": 1}]}
    async with gateway(models(loading={"m"}, returning=9.9), endpoints=[one]) as g:
        assert (await g.post(path, body)).status_code == 200
    async with gateway(models(loading={"m"}, returning=10.1), endpoints=[one]) as g:
        answer = await g.post(path, body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "try again" in answer.text
    async with gateway(models(loading={"m"}, returning=1.0), endpoints=[one], restart_wait_s=0) as g:
        assert (await g.post(path, body)).status_code == 503


class Failing(FakeBackend):
    """Version 1 fails."""

    @streamed
    async def generate(self, request):  # type: ignore[no-untyped-def]
        self.refuse = self.first if request.model == "model-m_v_1" else None  # type: ignore[attr-defined]
        async for deltas in super().generate(request):
            yield deltas


@pytest.mark.parametrize("error", [Unavailable("no"), Overloaded("full"), GenerationFailed("broke")])
@pytest.mark.parametrize("stream", [False, True])
async def test_another_entity_answers_when_one_fails_before_its_first_token(error: Any, stream: bool) -> None:
    backend = Failing(infos=models().infos)
    backend.first = error  # type: ignore[attr-defined]
    async with gateway(backend, endpoints=[ab(100)]) as g:
        assert await ask(g, stream=stream) == "m-2"
    async with gateway(backend, endpoints=[ab(100, fallback=False)]) as g:
        answer = await g.post(CHAT, {**chat_body(), "model": "ab", "stream": stream})
        assert answer.status_code in (500, 503)


async def test_the_callers_own_mistake_is_not_tried_elsewhere() -> None:
    backend = Failing(infos=models().infos)
    backend.first = InvalidField("n", "no")  # type: ignore[attr-defined]
    async with gateway(backend, endpoints=[ab(100)]) as g:
        answer = await g.post(CHAT, {**chat_body(), "model": "ab"})
        assert answer.status_code == 400
        assert len(backend.requests) == 1


async def test_after_the_first_token_nothing_is_tried_again() -> None:
    async with gateway(models(fail_after=2, failure=Unavailable("gone")), endpoints=[ab(100)]) as g:
        answer = await g.post(CHAT, {**chat_body(), "model": "ab", "stream": True})
        assert answer.status_code == 200
        assert "error" in json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))
        assert len(g.backend.requests) == 1


async def test_a_new_catalogue_serves_the_next_request() -> None:
    async with gateway(models(), endpoints=[ab(100)]) as g:
        assert await ask(g) == "m-1"
        g.directory.replace(parse_catalogue({"endpoints": [ab(0)]}))
        assert await ask(g) == "m-2"
        g.directory.replace(parse_catalogue({"endpoints": [{"name": "m"}]}))
        assert (await g.post(CHAT, {**chat_body(), "model": "ab"})).status_code == 404


async def test_no_endpoint_at_all_is_not_ready_and_says_what_to_do() -> None:
    async with gateway(endpoints=[]) as g:
        answer = await g.client.get("/readyz")
        assert answer.status_code == 503
        assert "user_config.endpoints" in answer.json()["reasons"][0]


async def test_a_model_without_its_endpoints_task_is_told_so() -> None:
    path = "/serving-endpoints/ab/served-models/m-1/invocations"
    async with gateway(models(), endpoints=[ab(task="llm/v1/embeddings")]) as g:
        answer = await g.post(path, {"input": "text"})
        assert answer.status_code == 400
        assert "generates text and does not embed" in answer.json()["message"]
