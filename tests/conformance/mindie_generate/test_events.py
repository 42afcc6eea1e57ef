"""The bytes of generate's answers, a failure after the first byte, versions, stops, and pages."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason
from tests.support.fakes_backend import WORDS, FakeBackend, model_info
from tests.support.gateway import Gateway, gateway

MODEL = "/v2/models/demo"
STREAM = MODEL + "/generate_stream"
ENDED = FinishReason.EOS


def body(id: str | None = "job_42", **parameters: Any) -> dict[str, Any]:
    return {"id": id, "text_input": "The tide comes", "parameters": parameters}


def events(raw: bytes) -> list[Any]:
    """The objects of a stream, which has neither a space after `data:` nor a terminator."""
    parts = raw.split(b"\n\n")
    assert parts[-1] == b""
    assert all(part.startswith(b"data:{") for part in parts[:-1])
    return [json.loads(part.removeprefix(b"data:")) for part in parts[:-1]]


async def test_a_stream_byte_by_byte() -> None:
    async with gateway(
        FakeBackend(words=(" in", "", "."), finish=ENDED, infos=[replace(model_info(), eos_token_ids=(12,))])
    ) as g:
        answer = await g.post(STREAM, body(details=True))
    assert answer.headers["content-type"] == "text/event-stream"
    head = 'data:{"id":"job_42","model_name":"demo","model_version":null,"text_output":'
    costs = '"first_token_cost":null,"decode_cost":null,"batch_size":2,"queue_wait_time":'
    assert answer.text == (
        f'{head}" in","details":{{"generated_tokens":1,{costs}10000}}}}\n\n'
        f'{head}"","details":{{"generated_tokens":2,{costs}15}}}}\n\n'
        f'{head}".</s>","details":{{"finish_reason":"eos_token","generated_tokens":3,{costs}15}}}}\n\n'
    )


async def test_statistics_byte_by_byte() -> None:
    async with gateway(FakeBackend(words=(" in", "."))) as g:
        answer = await g.post(MODEL + "/versions/1/generate_stream", body(details=True, perf_stat=True))
    head = 'data:{"id":"job_42","model_name":"demo","model_version":"1","text_output":'
    assert answer.text == (
        f'{head}" in","details":{{"generated_tokens":1,"first_token_cost":20,"decode_cost":null,'
        '"perf_stat":[[10,20]],"batch_size":2,"queue_wait_time":10000},"prefill_time":20,"decode_time":null}\n\n'
        f'{head}".","details":{{"finish_reason":"length","generated_tokens":2,"first_token_cost":20,'
        '"decode_cost":3,"perf_stat":[[10,20],[11,3]],"batch_size":2,"queue_wait_time":15},'
        '"prefill_time":null,"decode_time":3}\n\n'
    )


@pytest.mark.parametrize("asked", [{}, {"perf_stat": True}])
async def test_without_details_an_event_is_text_alone(asked: dict[str, Any]) -> None:
    async with gateway() as g:
        found = events((await g.post(STREAM, body(**asked))).content)
    assert [event["text_output"] for event in found] == list(WORDS)
    assert all(list(event) == ["id", "model_name", "model_version", "text_output"] for event in found)


async def test_the_end_tokens_text_may_be_left_out() -> None:
    async with gateway(FakeBackend(finish=ENDED), mindie={"emit_end_token_text": False}) as g:
        found = events((await g.post(STREAM, body())).content)
    assert found[-1]["text_output"] == WORDS[-1]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.EOS, "eos_token"),
        (FinishReason.STOP, "stop_sequence"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CONTEXT, "length"),
    ],
)
async def test_the_words_for_an_end(reason: FinishReason, word: str) -> None:
    async with gateway(FakeBackend(finish=reason)) as g:
        found = events((await g.post(STREAM, body(details=True))).content)
    assert ["finish_reason" in event["details"] for event in found] == [False] * (len(WORDS) - 1) + [True]
    assert found[-1]["details"]["finish_reason"] == word


async def test_a_whole_answer_has_lists() -> None:
    async with gateway(FakeBackend(finish=ENDED)) as g:
        plain = await g.post(MODEL + "/generate", body())
        detailed = await g.post(MODEL + "/generate", body(details=True))
        measured = (await g.post(MODEL + "/generate", body(details=True, perf_stat=True))).json()
    assert plain.headers["content-type"] == "application/json"
    text = {"id": "job_42", "model_name": "demo", "model_version": None, "text_output": "".join(WORDS)}
    assert plain.json() == text
    assert detailed.json() == text | {
        "details": {
            "finish_reason": "eos_token",
            "generated_tokens": 6,
            "first_token_cost": None,
            "decode_cost": None,
            "batch_size": [2] * 6,
            "queue_wait_time": [10_000] + [15] * 5,
        }
    }
    assert measured["details"]["perf_stat"] == [[10, 20], *([10 + k, 3] for k in range(1, 6))]
    assert (measured["prefill_time"], measured["decode_time"]) == (20, 15)


async def test_the_id_is_the_bodys_or_the_headers_or_ours() -> None:
    async with gateway() as g:
        named = await g.post(MODEL + "/generate", body(), headers={"x-request-id": "other"})
        header = await g.post(MODEL + "/generate", body(None), headers={"x-request-id": "other"})
        made = await g.post(MODEL + "/generate", body(None))
    assert [answer.json()["id"] for answer in (named, header)] == ["job_42", "other"]
    assert len(made.json()["id"]) == 32


async def test_an_error_after_the_first_byte_is_the_last_event() -> None:
    async with gateway(FakeBackend(fail_after=2, failure=GenerationFailed("the engine failed"))) as g:
        found = events((await g.post(STREAM, body())).content)
        assert found[2:] == [{"error": "the engine failed", "error_type": "Incomplete Generation"}]
        await g.check()


@pytest.mark.parametrize("path", ["/v2/models/nobody", MODEL + "/versions/2", MODEL + "/versions/x"])
async def test_models_and_versions_that_are_not_there(path: str) -> None:
    async with gateway() as g:
        answers = [
            await g.post(f"{path}/{what}", body()) for what in ("generate", "generate_stream", "stopInfer")
        ]
        answers += [await g.client.get("/mindie" + path + what) for what in ("", "/ready", "/config")]
    for answer in answers:
        assert (answer.status_code, answer.json()["error_type"]) == (404, "NotFoundError")


async def test_a_version_is_chosen_among_those_of_the_endpoint() -> None:
    infos = [model_info("demo", "1"), model_info("demo", "2")]
    entities = [{"model": "demo", "version": "1"}, {"model": "demo", "version": "2"}]
    endpoint = {"name": "demo", "served_entities": entities, "traffic": {"demo-1": 100, "demo-2": 0}}
    async with gateway(FakeBackend(infos=infos), endpoints=[endpoint]) as g:
        for version, path in (("1", MODEL), ("1", MODEL + "/versions/1"), ("2", MODEL + "/versions/2")):
            answer = await g.post(path + "/generate", body())
            assert answer.headers["served-model-name"] == f"demo-{version}"
            assert answer.json()["model_version"] == (None if path == MODEL else version)
        assert (await g.client.get(MODEL)).json()["versions"] == ["1", "2"]


async def started(g: Gateway, **parameters: Any) -> asyncio.Task[Any]:
    """A stream that hangs after two words."""
    task = asyncio.ensure_future(g.post(STREAM, body(details=True, **parameters)))
    async with asyncio.timeout(60):
        while not g.backend.running:
            await asyncio.sleep(0)
    return task


async def test_a_stop_ends_the_stream_with_its_own_word() -> None:
    async with gateway(FakeBackend(hang_after=2)) as g:
        task = await started(g)
        stop = await g.post(MODEL + "/stopInfer", {"id": "job_42"})
        assert (stop.status_code, stop.json()) == (200, {"id": "job_42"})
        found = events((await task).content)
        assert found[-1]["text_output"] == ""
        assert found[-1]["details"]["finish_reason"] == "stop_sequence"
        assert [event["text_output"] for event in found[:-1]] == list(WORDS[: len(found) - 1])
        assert len(g.backend.aborted) == 1
        again = await g.post(MODEL + "/stopInfer", {"id": "job_42"})
        assert (again.status_code, again.json()["error_type"]) == (404, "NotFoundError")
        await g.check()


async def test_a_gateway_that_is_full_still_takes_a_stop() -> None:
    async with gateway(FakeBackend(hang_after=2), max_in_flight=1) as g:
        task = await started(g)
        assert (await g.post(STREAM, body())).status_code == 429
        stop = await g.post(MODEL + "/stopInfer", {"id": "job_42"})
        assert (stop.status_code, stop.json()) == (200, {"id": "job_42"})
        assert events((await task).content)[-1]["details"]["finish_reason"] == "stop_sequence"
        await g.check()


async def test_a_stop_before_the_first_token_is_an_answer_too() -> None:
    async with gateway(FakeBackend(hang_after=0)) as g:
        for path in (STREAM, MODEL + "/generate"):
            task = asyncio.ensure_future(g.post(path, body(details=True, perf_stat=True)))
            async with asyncio.timeout(60):
                while (await g.post(MODEL + "/stopInfer", {"id": "job_42"})).status_code == 404:
                    await asyncio.sleep(0)
            answer = await task
            (only,) = events(answer.content) if path == STREAM else [answer.json()]
            assert only["text_output"] == ""
            assert (only["details"]["finish_reason"], only["details"]["generated_tokens"]) == (
                "stop_sequence",
                0,
            )
            assert (only["prefill_time"], only["decode_time"]) == (None, None)
        await g.check()


async def test_a_client_that_leaves_ends_its_request() -> None:
    async with gateway(FakeBackend(hang_after=1)) as g:
        task = await started(g)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(60):
            await g.backend.closed.wait()
        assert len(g.backend.aborted) == 1
        assert (await g.post(MODEL + "/stopInfer", {"id": "job_42"})).status_code == 404
        await g.check()


async def test_of_two_requests_the_newest_is_stopped() -> None:
    async with gateway(FakeBackend(hang_after=1)) as g:
        first = await started(g)
        second = asyncio.ensure_future(g.post(STREAM, body(details=True)))
        async with asyncio.timeout(60):
            while g.backend.running < 2:
                await asyncio.sleep(0)
        assert (await g.post(MODEL + "/stopInfer", {"id": "job_42"})).status_code == 200
        await second
        assert not first.done()
        assert (await g.post(MODEL + "/stopInfer", {"id": "job_42"})).status_code == 200
        await first


async def test_nobody_stops_a_strangers_request() -> None:
    (mine, my_line), (other, other_line) = new_key("mine"), new_key("other")
    async with gateway(FakeBackend(hang_after=1), keys=f"{my_line} {other_line}") as g:
        headers = {"authorization": f"Bearer {mine}"}
        task = asyncio.ensure_future(g.post(STREAM, body(), headers=headers))
        async with asyncio.timeout(60):
            while not g.backend.running:
                await asyncio.sleep(0)
        stranger = {"authorization": f"Bearer {other}"}
        assert (await g.post(MODEL + "/stopInfer", {"id": "job_42"}, headers=stranger)).status_code == 404
        assert not task.done()
        assert (await g.post(MODEL + "/stopInfer", {"id": "job_42"}, headers=headers)).status_code == 200
        await task


@pytest.mark.parametrize("id", [None, "", "a b", 5, "x" * 257])
async def test_a_stop_needs_a_sound_id(id: Any) -> None:
    async with gateway() as g:
        answer = await g.post(MODEL + "/stopInfer", {"id": id})
        assert (answer.status_code, answer.json()["error_type"]) == (422, "Input Validation Error")


async def test_the_pages() -> None:
    async with gateway(v1_dialect="mindie") as g:
        server = (await g.client.get("/mindie/v2")).json()
        assert "v1_dialect=mindie" in server["extensions"]
        for path in ("/v2/health/live", "/v2/health/ready", MODEL + "/ready", MODEL + "/versions/1/ready"):
            assert (await g.client.get("/mindie" + path)).status_code == 200
        described = (await g.client.get("/mindie" + MODEL)).json()
        assert (described["name"], described["versions"]) == ("demo", ["1"])
        config = (await g.client.get("/mindie" + MODEL + "/config")).json()
        assert config == {"modelName": "demo", "maxSeqLen": 256, "maxOutputLen": 256, "worldSize": 1}
        g.backend.loading = {"demo"}
        for path in ("/v2/health/ready", MODEL + "/ready"):
            assert (await g.client.get("/mindie" + path)).status_code == 503


async def test_another_protocol_has_no_such_routes() -> None:
    async with gateway() as g:
        for path, headers in (("/openai" + STREAM, {}), (STREAM, {"x-api-dialect": "openai"})):
            answer = await g.post(path, body(), headers=headers)
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "unknown_url"
