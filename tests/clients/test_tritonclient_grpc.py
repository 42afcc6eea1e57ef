"""The unmodified tritonclient over gRPC, blocking and asynchronous, against the demo model in this process.

Answers are compared with one another: a stream's tokens with those of the whole answer, one client's
with the other's.
"""

from __future__ import annotations

import asyncio
import queue
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from fastapi import FastAPI
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.conformance.target import DEMO, demo_app
from tests.support.gateway import served
from tests.support.rpc_server import idle, is_final, output_ids, rpc_served, stop, tensor, tensors

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

DOCUMENT = Path(__file__).parents[2] / "docs" / "kserve.md"
PROMPT = [5, 6, 7]
LONG = 400
STREAMS = 32


@dataclass
class Asked:
    """A server, and both clients of it."""

    app: FastAPI
    url: str
    client: triton_aio.InferenceServerClient
    blocking: triton.InferenceServerClient

    async def whole(self, ids: list[int], output_len: int = 8, **scalars: Any) -> list[int]:
        """The tokens of an answer in one piece, the same from both clients."""
        inputs = tensors(ids, output_len, **scalars)
        first = await self.client.infer(DEMO, inputs)
        second = await asyncio.to_thread(self.blocking.infer, DEMO, inputs)
        assert output_ids(first) == output_ids(second)
        assert first.as_numpy("sequence_length").tolist() == [[len(output_ids(first))]]
        return output_ids(first)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asked() -> AsyncIterator[Asked]:
    async with demo_app() as app, rpc_served(app) as url, triton_aio.InferenceServerClient(url) as client:
        with triton.InferenceServerClient(url) as blocking:
            yield Asked(app, url, client, blocking)


@dataclass
class Answer:
    """What came of one id."""

    tokens: list[int] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


def request(id: str, inputs: list[Any], **options: Any) -> dict[str, Any]:
    return {"model_name": DEMO, "inputs": inputs, "request_id": id, **options}


async def stream(
    client: triton_aio.InferenceServerClient, requests: Sequence[dict[str, Any]], **options: Any
) -> tuple[dict[str, Answer], list[InferenceServerException]]:
    """What one stream answers to `requests`, by id, and its errors."""

    async def sent() -> AsyncIterator[dict[str, Any]]:
        for each in requests:
            yield each

    answers: dict[str, Answer] = {}
    errors: list[InferenceServerException] = []
    async for result, error in client.stream_infer(sent(), **options):
        if error is not None:
            errors.append(error)
            continue
        answer = answers.setdefault(result.get_response().id, Answer())
        answer.tokens += output_ids(result)
        answer.sizes.append(len(output_ids(result)))
        answer.finals.append(is_final(result))
    return answers, errors


def is_complete(answer: Answer) -> bool:
    """One response a token, and the last of them, alone, says that it is."""
    count = len(answer.tokens)
    return answer.sizes == [1] * count and answer.finals == [False] * (count - 1) + [True]


async def test_health_and_descriptions(asked: Asked) -> None:
    client = asked.client
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready(DEMO)
    assert await asyncio.to_thread(asked.blocking.is_model_ready, DEMO, "1")
    server = await client.get_server_metadata()
    assert server.name == "serve-app"
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(server.extensions)
    model = await client.get_model_metadata(DEMO)
    assert (model.name, list(model.versions), model.platform) == (DEMO, ["1"], "torch_transformers")
    assert {"input_ids", "request_output_len", "streaming"} <= {each.name for each in model.inputs}
    assert {"output_ids", "sequence_length"} <= {each.name for each in model.outputs}
    config = (await client.get_model_config(DEMO)).config
    assert config.max_batch_size > 1
    assert config.model_transaction_policy.decoupled
    assert [each.name for each in config.input] == [each.name for each in model.inputs]
    (entry,) = (await client.get_model_repository_index()).models
    assert (entry.name, entry.state) == (DEMO, "READY")
    await client.load_model(DEMO)
    statistics = await client.get_inference_statistics(DEMO)
    assert [each.name for each in statistics.model_stats] == [DEMO]
    assert len((await client.get_inference_statistics()).model_stats) == 1


async def test_descriptions_are_those_of_http(asked: Asked) -> None:
    import httpx

    transport = httpx.ASGITransport(asked.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for path, page in (
            (f"/v2/models/{DEMO}", await asked.client.get_model_metadata(DEMO, as_json=True)),
            ("/v2", await asked.client.get_server_metadata(as_json=True)),
        ):
            told = (await http.get(path)).json()
            for name in ("inputs", "outputs"):  # JSON of protobuf writes integers of 64 bits as strings
                for each in page.get(name, ()):
                    each["shape"] = [int(size) for size in each["shape"]]
            assert page == told


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
async def test_an_answer_in_one_piece(asked: Asked, compression: str | None) -> None:
    tokens = await asked.whole(PROMPT)
    assert len(tokens) == 8
    result = await asked.client.infer(
        DEMO, tensors(PROMPT), request_id="9001", compression_algorithm=compression
    )
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == (DEMO, "1", "9001")
    assert output_ids(result) == tokens
    assert [each.name for each in response.outputs] == ["output_ids", "sequence_length"]


async def test_wanted_outputs_and_log_probabilities(asked: Asked) -> None:
    wanted = [triton.InferRequestedOutput("cum_log_probs"), triton.InferRequestedOutput("output_log_probs")]
    result = await asked.client.infer(DEMO, tensors(PROMPT, return_log_probs=True), outputs=wanted)
    assert [each.name for each in result.get_response().outputs] == ["cum_log_probs", "output_log_probs"]
    each, together = result.as_numpy("output_log_probs"), result.as_numpy("cum_log_probs")
    assert each.shape == (1, 1, 8)
    assert together[0, 0] == pytest.approx(each.sum(), rel=1e-4)


async def test_an_answer_beyond_grpcs_usual_4_mib(asked: Asked) -> None:
    prompt = [5 + i % 50 for i in range(500)]
    inputs = tensors(prompt, 2, return_context_logits=True)
    first = await asked.client.infer(DEMO, inputs)
    second = await asyncio.to_thread(asked.blocking.infer, DEMO, inputs)
    (response,) = [each async for each, _ in asked.client.stream_infer(_one(request("1", inputs)))]
    assert first.get_response().ByteSize() > 4 * 2**20
    for result in (first, second, response):
        logits = result.as_numpy("context_logits")
        assert logits.shape[:2] == (1, len(prompt))
        assert logits[0, -1].argmax() == output_ids(result)[0]
        assert (logits == first.as_numpy("context_logits")).all()


async def _one(each: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield each


async def test_typed_contents_mean_the_same_as_raw_ones(asked: Asked) -> None:
    message = service_pb2.ModelInferRequest(model_name=DEMO)
    for name, values in (("input_ids", PROMPT), ("request_output_len", [8])):
        each = message.inputs.add(name=name, datatype="INT32", shape=[1, len(values)])
        each.contents.int_contents.extend(values)
    async with grpc.aio.insecure_channel(asked.url) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
            message, metadata=[("x-request-id", "mine_1")]
        )
        result = triton.InferResult(await call)
        trailing = dict(await call.trailing_metadata())
    assert output_ids(result) == await asked.whole(PROMPT)
    assert trailing["x-request-id"] == "mine_1"
    assert trailing["served-model-name"] == DEMO


async def test_a_stream_has_one_response_a_token_and_the_tokens_of_the_whole_answer(asked: Asked) -> None:
    answers, errors = await stream(asked.client, [request("1", tensors(PROMPT, streaming=True))])
    assert not errors
    assert is_complete(answers["1"])
    assert answers["1"].tokens == await asked.whole(PROMPT)


async def test_without_streaming_a_stream_answers_once(asked: Asked) -> None:
    answers, errors = await stream(asked.client, [request("1", tensors(PROMPT))])
    assert not errors
    assert answers == {"1": Answer(await asked.whole(PROMPT), [True], [8])}


async def test_the_blocking_client_streams_to_its_callback(asked: Asked) -> None:
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def talk() -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        with triton.InferenceServerClient(asked.url) as client:
            client.start_stream(callback=lambda result, error: heard.put((result, error)))
            for id in ("a", "b"):
                client.async_stream_infer(
                    DEMO,
                    tensors(PROMPT, streaming=True),
                    request_id=id,
                    enable_empty_final_response=True,
                )
            open_ids = {"a", "b"}
            while open_ids:
                result, error = heard.get(timeout=60)
                assert error is None
                id = result.get_response().id
                answer = answers.setdefault(id, Answer())
                answer.tokens += output_ids(result)
                answer.sizes.append(len(output_ids(result)))
                answer.finals.append(is_final(result))
                if answer.finals[-1]:
                    open_ids.remove(id)
            client.stop_stream()
        return answers

    answers = await asyncio.to_thread(talk)
    tokens = await asked.whole(PROMPT)
    assert all(is_complete(answer) and answer.tokens == tokens for answer in answers.values())
    assert heard.empty()


async def test_requests_of_one_stream_are_told_apart_by_their_ids(asked: Asked) -> None:
    prompts = {str(i): [5 + i, 6, 7 + i] for i in range(8)}
    requests = [
        request(id, tensors(ids, 4 + int(id), streaming=int(id) % 3 != 0)) for id, ids in prompts.items()
    ]
    answers, errors = await stream(asked.client, requests)
    assert not errors
    assert answers.keys() == prompts.keys()
    for id, ids in prompts.items():
        assert answers[id].tokens == await asked.whole(ids, 4 + int(id))
        assert answers[id].finals.count(True) == 1
        assert answers[id].finals[-1]


async def test_an_error_closes_its_request_alone(asked: Asked) -> None:
    bad = [
        request("unknown", [*tensors(PROMPT), tensor("bogus", [[1]])]),
        request("short", tensors(PROMPT)[:1]),
        {"model_name": "nobody", "inputs": tensors(PROMPT), "request_id": "nobody"},
        request("long", tensors([5] * 600)),
    ]
    good = request("good", tensors(PROMPT, streaming=True))
    answers, errors = await stream(asked.client, [*bad, good])
    assert answers.keys() == {"good"}
    assert answers["good"].tokens == await asked.whole(PROMPT)
    said = " ".join(str(error.message()) for error in errors)
    assert len(errors) == len(bad)
    for expected in ("bogus", "request_output_len: is required", "no such model", "600 tokens"):
        assert expected in said


async def test_an_error_in_a_stream_names_its_request(asked: Asked) -> None:
    message = service_pb2.ModelInferRequest(model_name=DEMO, id="mine")
    async with grpc.aio.insecure_channel(asked.url) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]))
        (response,) = [each async for each in call]
        assert await call.code() is grpc.StatusCode.OK
    assert response.error_message.startswith("inputs:")
    assert (response.infer_response.id, response.infer_response.model_name) == ("mine", DEMO)
    assert response.infer_response.parameters["triton_final_response"].bool_param


class Talk:
    """A stream that is written to while it is read."""

    def __init__(self, asked: Asked) -> None:
        self._sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.responses = asked.client.stream_infer(self._requests())

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        while (each := await self._sent.get()) is not None:
            yield each

    def say(self, each: dict[str, Any] | None) -> None:
        """None: that was all."""
        self._sent.put_nowait(each)

    async def hear(self) -> triton.InferResult:
        async with asyncio.timeout(60):
            result, error = await anext(self.responses)
        assert error is None, error
        return result


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_stop_of_the_same_id_ends_one_request_and_no_other(asked: Asked, streaming: bool) -> None:
    talk = Talk(asked)
    talk.say(request("other", tensors(PROMPT, 60, streaming=True)))
    talk.say(request("mine", tensors([9, 9], LONG, streaming=streaming)))
    while (await talk.hear()).get_response().id != ("mine" if streaming else "other"):
        pass
    talk.say(request("mine", stop()))
    talk.say(None)
    other: list[int] = []
    ends = 0
    async for result, error in talk.responses:
        assert error is None
        if result.get_response().id == "other":
            other += output_ids(result)
        elif is_final(result):
            assert output_ids(result) == []
            ends += 1
    assert ends == 2  # the canceller's, and that of what it cancelled
    whole = await asked.whole(PROMPT, 60)
    assert other
    assert other == whole[-len(other) :]
    await idle(asked.app)


async def test_a_stop_right_behind_its_request_ends_it(asked: Asked) -> None:
    requests = [request("mine", tensors(PROMPT, LONG, streaming=True)), request("mine", stop())]
    answers, errors = await stream(asked.client, requests)
    assert not errors
    assert answers["mine"].finals.count(True) == 2
    assert len(answers["mine"].tokens) < LONG
    await idle(asked.app)


async def test_a_stop_of_nothing_is_answered_all_the_same(asked: Asked) -> None:
    result = await asked.client.infer(DEMO, stop(), request_id="nobody")
    assert (output_ids(result), result.get_response().id) == ([], "nobody")


async def test_a_stop_comes_from_another_call_too(asked: Asked) -> None:
    talk = Talk(asked)
    talk.say(request("mine", tensors(PROMPT, LONG, streaming=True)))
    await talk.hear()
    talk.say(None)
    await asyncio.to_thread(asked.blocking.infer, DEMO, stop(), request_id="mine")
    *_, (last, error) = [each async for each in talk.responses]
    assert error is None
    assert is_final(last)
    assert output_ids(last) == []
    await idle(asked.app)


async def test_a_cancelled_call_frees_all_its_sequences(asked: Asked) -> None:
    talk = Talk(asked)
    for i in range(4):
        talk.say(request(str(i), tensors([5 + i], LONG, streaming=True)))
    heard = {(await talk.hear()).get_response().id for _ in range(12)}
    assert heard
    assert talk.responses.cancel()
    await idle(asked.app)
    unary = asyncio.ensure_future(asked.client.infer(DEMO, tensors(PROMPT, LONG)))
    async with asyncio.timeout(60):
        while not any(each.running for each in asked.app.state.services.backend.stats().values()):
            await asyncio.sleep(0.01)
    unary.cancel()
    await idle(asked.app)


STATUSES: dict[str, tuple[Any, str, str]] = {
    "no such model": (lambda c: c.infer("nobody", tensors(PROMPT)), "NOT_FOUND", "model"),
    "no such version": (lambda c: c.infer(DEMO, tensors(PROMPT), model_version="7"), "NOT_FOUND", "version"),
    "metadata": (lambda c: c.get_model_metadata("nobody"), "NOT_FOUND", "model"),
    "statistics": (lambda c: c.get_inference_statistics("nobody"), "NOT_FOUND", "model"),
    "unknown tensor": (
        lambda c: c.infer(DEMO, [*tensors(PROMPT), tensor("bogus", [[1]])]), "INVALID_ARGUMENT", "bogus"),
    "out of range": (
        lambda c: c.infer(DEMO, tensors(PROMPT, 0)), "INVALID_ARGUMENT", "request_output_len"),
    "too long": (lambda c: c.infer(DEMO, tensors([5] * 600)), "INVALID_ARGUMENT", "600 tokens"),
    "no such token": (lambda c: c.infer(DEMO, tensors([10**6])), "INVALID_ARGUMENT", "input_ids"),
    "one answer cannot stream": (
        lambda c: c.infer(DEMO, tensors(PROMPT, streaming=True)), "UNIMPLEMENTED", "streaming"),
    "late": (
        lambda c: c.infer(DEMO, tensors(PROMPT, LONG), timeout=1), "DEADLINE_EXCEEDED", "timeout"),
    "unload": (lambda c: c.unload_model(DEMO), "INVALID_ARGUMENT", "deploy file"),
    "load": (lambda c: c.load_model("nobody"), "INVALID_ARGUMENT", "load"),
    "shared memory": (lambda c: c.get_system_shared_memory_status(), "UNIMPLEMENTED", "method"),
}  # fmt: skip


@pytest.mark.parametrize("case", STATUSES)
async def test_a_refusal_has_a_status_and_names_what_is_wrong(asked: Asked, case: str) -> None:
    ask, status, named = STATUSES[case]
    with pytest.raises(InferenceServerException) as caught:
        await ask(asked.client)
    with pytest.raises(InferenceServerException) as blocking:
        await asyncio.to_thread(ask, asked.blocking)
    for error in (caught.value, blocking.value):
        assert error.status() == f"StatusCode.{status}"
        assert named in error.message()


async def test_concurrent_streams_lose_nothing(asked: Asked) -> None:
    """32 streams of two requests each, beside one another: the tokens of each alone, no block left."""

    async def one(number: int) -> dict[str, Answer]:
        requests = [
            request(f"{number}-{i}", tensors([5 + number, 6 + i], 24, streaming=True)) for i in range(2)
        ]
        async with triton_aio.InferenceServerClient(asked.url) as client:
            answers, errors = await stream(client, requests)
        assert not errors
        return answers

    found = await asyncio.gather(*(one(number) for number in range(STREAMS)))
    answers = {id: answer for each in found for id, answer in each.items()}
    assert len(answers) == 2 * STREAMS
    assert all(is_complete(answer) for answer in answers.values())
    stats = await idle(asked.app)
    assert stats.running == stats.blocks_used == 0
    for number in (0, 13, 31):
        for i in range(2):
            assert answers[f"{number}-{i}"].tokens == await asked.whole([5 + number, 6 + i], 24)


def blocks(language: str) -> list[str]:
    """The blocks of a language in the document for users."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)


async def printed(*command: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


async def test_what_the_document_shows_works(asked: Asked) -> None:
    (script,) = blocks("python")
    assert "127.0.0.1:8001" in script
    lines = (await printed(sys.executable, "-c", script.replace("127.0.0.1:8001", asked.url))).splitlines()
    tokens = await asked.whole(PROMPT)
    assert [int(token) for token in re.findall(r"\d+", lines[0])] == tokens
    for id in ("a", "b"):
        own = [line.removeprefix(f"{id} ") for line in lines[1:] if line.startswith(f"{id} ")]
        assert own == [f"[{token}] " for token in tokens[:-1]] + [f"[{tokens[-1]}] end"]
    (shell,) = blocks("sh")
    async with served(asked.app) as (host, port):
        said = await printed("bash", "-c", shell.replace("http://127.0.0.1:8000", f"http://{host}:{port}"))
    assert '"error"' not in said
    assert ",".join(map(str, tokens)) in said
    assert said.count("data: ") == 8
