"""A question's way to a replica: which errors it meets, and when it moves on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import BackPressureError

from serve_app.channel.calls import decode_question, encode_reply
from serve_app.channel.frames import Refused
from serve_app.channel.receiver import Receiver
from serve_app.deployments.gateway import calls as calls_module
from serve_app.deployments.gateway.next_step import ATTEMPTS
from serve_app.deployments.gateway.poison_requests import PoisonRequests
from serve_app.deployments.gateway.route import Route
from serve_app.errors import EngineRefused, InvalidField, Overloaded, Unavailable
from serve_app.types import Embeddings, EmbedRequest, Tensor

ASKED = EmbedRequest(id="q", inputs=("a",))
ANSWERED = Embeddings(vectors=Tensor(dtype="FP32", shape=(1, 1), data=b"\0" * 4), prompt_tokens=1)


class Response:
    """As Serve's: awaited, and cancelled."""

    def __init__(self, outcome: bytes | Exception | None) -> None:
        self._outcome = outcome
        self.cancelled = False

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> bytes:
        if self._outcome is None:
            await asyncio.Event().wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome or b""

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A handle whose replica answers with one outcome after another."""

    def __init__(self, *outcomes: bytes | Exception | None) -> None:
        self._outcomes = list(outcomes)
        self.asked: list[EmbedRequest] = []
        self.responses: list[Response] = []
        self.ask = self

    def remote(self, payload: bytes, ticket: bytes) -> Response:
        question = decode_question(payload)
        assert isinstance(question, EmbedRequest)
        self.asked.append(question)
        self.responses.append(Response(self._outcomes.pop(0)))
        return self.responses[-1]


@pytest.fixture
async def route() -> Any:
    receiver = await Receiver.start("127.0.0.1")
    yield lambda handle: Route(handle, receiver, PoisonRequests())
    await receiver.close()


Routes = Callable[[Handle], Route]


async def test_the_answer_is_what_the_replica_said(route: Routes) -> None:
    handle = Handle(encode_reply(ANSWERED))
    assert await route(handle).ask(ASKED) == ANSWERED
    assert handle.asked == [ASKED]


async def test_a_refusal_is_the_error_that_the_replica_raised(route: Routes) -> None:
    refused = encode_reply(Refused(InvalidField("input", "no").info()))
    with pytest.raises(InvalidField, match="input: no"):
        await route(Handle(refused)).ask(ASKED)


async def test_a_dead_replica_is_left_for_another(route: Routes) -> None:
    handle = Handle(ActorDiedError(), encode_reply(ANSWERED))
    assert await route(handle).ask(ASKED) == ANSWERED
    assert len(handle.asked) == 2


async def test_attempts_are_bounded(route: Routes) -> None:
    handle = Handle(*[RayError("gone")] * ATTEMPTS)
    with pytest.raises(Unavailable):
        await route(handle).ask(ASKED)
    assert len(handle.asked) == ATTEMPTS


async def test_what_kills_replicas_is_not_tried_for_ever(route: Routes) -> None:
    killer: list[bytes | Exception | None] = []
    for letter in ("a", "b", "c"):
        death = ActorDiedError()
        death.actor_id = letter  # type: ignore[misc]
        killer.append(death)
    handle = Handle(*killer)
    way = route(handle)
    with pytest.raises(Unavailable):  # two deaths may be bad luck
        await way.ask(ASKED)
    assert len(handle.asked) == 2
    for _ in range(2):
        with pytest.raises(EngineRefused):
            await way.ask(ASKED)
    assert len(handle.asked) == 3


async def test_a_full_queue_is_an_error_at_once(route: Routes) -> None:
    handle = Handle(BackPressureError(num_queued_requests=1, max_queued_requests=1))
    with pytest.raises(Overloaded):
        await route(handle).ask(ASKED)
    assert len(handle.asked) == 1


async def test_cancelling_takes_the_question_back(route: Routes) -> None:
    handle = Handle(None)
    task = asyncio.ensure_future(route(handle).ask(ASKED))
    while not handle.asked:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handle.responses[0].cancelled


async def test_a_replica_that_does_not_take_the_question_is_left_for_another(
    route: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "SILENCE_S", 0.02)
    monkeypatch.setattr(calls_module, "LOOK_S", 0.01)
    monkeypatch.setattr(calls_module, "is_sent", lambda handle, response: True)
    handle = Handle(None, encode_reply(ANSWERED))
    assert await asyncio.wait_for(route(handle).ask(ASKED), 60) == ANSWERED
    assert [asked.id for asked in handle.asked] == ["q", "q~1"]
    assert handle.responses[0].cancelled
