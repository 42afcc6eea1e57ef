"""A request's way to replicas: which errors it meets, when it moves on, and what is cancelled."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import BackPressureError

from serve_app.channel.frames import Refused, encoder, request_decoder
from serve_app.channel.receiver import Receiver
from serve_app.channel.sender import Sender
from serve_app.deployments.gateway import calls as calls_module
from serve_app.deployments.gateway.next_step import ATTEMPTS
from serve_app.deployments.gateway.poison_requests import PoisonRequests
from serve_app.deployments.gateway.route import Route
from serve_app.deployments.gateway.routed_stream import RoutedStream
from serve_app.errors import EngineRefused, GenerationFailed, InvalidField, Overloaded, Unavailable
from serve_app.types import EngineStats, FinishReason, GenerateRequest, Prompt, TokenDelta

ASKED = GenerateRequest(id="r", model="m", prompt=Prompt(text="a"))
WAIT_S = 60.0


class Response(asyncio.Future[bytes | None]):
    """As Serve's: awaited, and cancelled."""

    def __init__(self, request: GenerateRequest) -> None:
        super().__init__()
        self.request = request


class Handle:
    """A handle whose calls stay open until a test ends them."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.generate = self

    def remote(self, payload: bytes, ticket: bytes) -> Response:
        self.responses.append(Response(request_decoder.decode(payload)))
        return self.responses[-1]


class Setup:
    """A route to one handle, and the replica's end of the channel."""

    def __init__(self, receiver: Receiver, sender: Sender) -> None:
        self.receiver = receiver
        self.sender = sender
        self.handle = Handle()
        self.is_there = True
        self.route = Route(self.handle, receiver, PoisonRequests(), lambda: self.is_there)  # type: ignore[arg-type]

    async def deliver(self, text: str, key: str = "r", finish: FinishReason | None = None) -> None:
        """Send one delta, and wait until the gateway's socket had its turn."""
        outlet = await self.sender.to(self.receiver.ticket)
        outlet.send([TokenDelta(request_id=key, index=0, text=text, finish=finish)])
        if finish is not None:
            await outlet.run(key, _nothing())

    def fail(self, error: Exception) -> None:
        """End the newest call with `error`."""
        self.handle.responses[-1].set_exception(error)


async def _nothing() -> None: ...


@pytest.fixture
async def setup() -> Any:
    receiver = await Receiver.start("127.0.0.1")
    sender = Sender(replica="r", app="m", stats=EngineStats)
    yield Setup(receiver, sender)
    await sender.close()
    await receiver.close()


async def get(stream: RoutedStream) -> list[TokenDelta]:
    return await asyncio.wait_for(stream.get(), WAIT_S)


async def test_deltas_come_to_their_end_and_nothing_is_cancelled(setup: Setup) -> None:
    with closing(setup.route.generate(ASKED)) as stream:
        await setup.deliver("a")
        assert [d.text for d in await get(stream)] == ["a"]
        await setup.deliver("b", finish=FinishReason.EOS)
        assert [d.text for d in await get(stream)] == ["b"]
        assert await get(stream) == []
    (response,) = setup.handle.responses
    assert not response.cancelled()
    assert not setup.receiver._inboxes
    response.set_result(None)


async def test_a_failure_before_the_first_delta_moves_the_request_under_a_new_key(setup: Setup) -> None:
    with closing(setup.route.generate(ASKED)) as stream:
        reading = asyncio.ensure_future(get(stream))
        await asyncio.sleep(0)
        setup.fail(RayError("gone"))
        while len(setup.handle.responses) < 2:
            await asyncio.sleep(0)
        assert [response.request.id for response in setup.handle.responses] == ["r", "r~1"]
        await setup.deliver("late", "r")  # of the replica that was given up
        await setup.deliver("a", "r~1")
        assert [(d.request_id, d.text) for d in await reading] == [("r", "a")]
    assert setup.handle.responses[1].cancelled()


async def test_attempts_are_bounded_and_need_a_model_to_go_to(setup: Setup) -> None:
    for is_there, attempts in ((True, ATTEMPTS), (False, 1)):
        setup.is_there = is_there
        setup.handle.responses.clear()
        with closing(setup.route.generate(ASKED)) as stream:
            reading = asyncio.ensure_future(get(stream))
            while not reading.done():
                if not setup.handle.responses[-1].done():
                    setup.fail(RayError("gone"))
                await asyncio.sleep(0)
            with pytest.raises(Unavailable):
                await reading
        assert len(setup.handle.responses) == attempts


async def test_what_met_two_deaths_may_come_again_once_and_is_refused_after_the_third(setup: Setup) -> None:
    """Two may have been bad luck."""
    responses = setup.handle.responses

    async def meet(deaths: int) -> None:
        with closing(setup.route.generate(ASKED)) as stream:
            reading = asyncio.ensure_future(get(stream))
            for _ in range(deaths):
                while not responses or responses[-1].done():
                    await asyncio.sleep(0)
                error = ActorDiedError()
                error.actor_id = f"{len(responses)}"
                setup.fail(error)
            await reading

    with pytest.raises(Unavailable):
        await meet(2)
    assert len(responses) == 2
    with pytest.raises(EngineRefused):
        await meet(1)
    with pytest.raises(EngineRefused):
        setup.route.generate(ASKED)
    assert len(responses) == 3


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (
            lambda r: r.set_exception(BackPressureError(num_queued_requests=1, max_queued_requests=1)),
            Overloaded,
        ),
        (lambda r: r.set_result(encoder.encode(Refused(InvalidField(None, "no").info()))), InvalidField),
        (lambda r: r.cancel(), GenerationFailed),
        (lambda r: r.set_exception(KeyError("ours")), GenerationFailed),
    ],
)
async def test_other_ends_of_a_call_are_raised(
    setup: Setup, end: Callable[[Response], object], error: type[Exception]
) -> None:
    with closing(setup.route.generate(ASKED)) as stream:
        end(setup.handle.responses[0])
        with pytest.raises(error):
            await get(stream)
    assert len(setup.handle.responses) == 1


async def test_a_replica_that_does_not_take_what_it_was_sent_is_left_for_another(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that waits for Serve to choose a replica may take its time, and so may one that was taken."""
    queued: set[Response] = set()
    silences: list[None] = []
    monkeypatch.setattr(calls_module, "SILENCE_S", 0.05)
    monkeypatch.setattr(calls_module, "LOOK_S", 0.01)
    monkeypatch.setattr(calls_module, "is_sent", lambda handle, response: response not in queued)
    route = Route(
        setup.handle,  # type: ignore[arg-type]
        setup.receiver,
        PoisonRequests(),
        on_silence=lambda: silences.append(None),
    )
    with closing(route.generate(ASKED)) as stream:
        responses = setup.handle.responses
        queued.add(responses[0])
        reading = asyncio.ensure_future(get(stream))
        await asyncio.sleep(0.2)
        assert len(responses) == 1
        queued.clear()
        while len(responses) < 2:
            await asyncio.sleep(0.01)
        assert responses[0].cancelled()
        assert silences
        told = len(silences)
        (await setup.sender.to(setup.receiver.ticket)).take("r~1")
        await asyncio.sleep(0.2)
        assert (len(responses), len(silences)) == (2, told)
        await setup.deliver("a", "r~1")
        assert [d.text for d in await reading] == ["a"]


async def test_closing_cancels_the_call_once_and_ends_who_waits(setup: Setup) -> None:
    stream = setup.route.generate(ASKED)
    await setup.deliver("a")
    await get(stream)
    reading = asyncio.ensure_future(get(stream))
    await asyncio.sleep(0)
    stream.close()
    stream.close()
    assert await reading == []
    assert setup.handle.responses[0].cancelled()
    assert not setup.receiver._inboxes


async def test_nothing_holds_a_finished_request(setup: Setup) -> None:
    """Not even while the wait for its last deltas would last."""
    stream = setup.route.generate(ASKED)
    await setup.deliver("a")
    await get(stream)
    inbox = weakref.ref(stream._call.inbox)
    setup.handle.responses.pop().set_result(None)
    while setup.route._calls.watching:
        await asyncio.sleep(0)
    stream.close()
    del stream
    gc.collect()
    assert inbox() is None


async def test_a_call_that_returned_without_an_end_fails_after_a_while(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "LAST_DELTA_WAIT_S", 0.01)
    with closing(setup.route.generate(ASKED)) as stream:
        await setup.deliver("a")
        await get(stream)
        setup.is_there = False
        setup.handle.responses[0].set_result(None)
        with pytest.raises(GenerationFailed):
            await get(stream)


async def test_who_waits_for_a_model_that_is_gone_is_let_go(setup: Setup) -> None:
    setup.is_there = False
    with closing(setup.route.generate(ASKED)) as stream:
        (response,) = setup.handle.responses
        response._replica_result_future = asyncio.get_running_loop().create_future()  # type: ignore[attr-defined]
        assert setup.route.is_waited_for
        setup.route.let_go()
        with pytest.raises(Unavailable):
            await get(stream)
    assert response.cancelled()
    assert not setup.route.is_waited_for
