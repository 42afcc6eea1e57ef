"""The other process of delta_path.py: a replica without a model, which makes a step when it is told to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import uvloop

HOST: Final = "127.0.0.1"
LENGTH: Final = 4  # bytes of the length of a message on the control connection


class Control(asyncio.Protocol):
    """A connection of messages: lists, as msgpack behind their length."""

    def __init__(self, on_message: Callable[[list[Any]], None]) -> None:
        self._on_message = on_message
        self._buffer = bytearray()
        self.lost = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= LENGTH:
            end = LENGTH + int.from_bytes(self._buffer[:LENGTH], "big")
            if len(self._buffer) < end:
                return
            message = msgspec.msgpack.decode(bytes(self._buffer[LENGTH:end]))
            del self._buffer[:end]
            self._on_message(message)

    def say(self, *message: Any) -> None:
        payload = msgspec.msgpack.encode(message)
        self.transport.write(len(payload).to_bytes(LENGTH, "big") + payload)


async def replica(port: int) -> None:
    """Answer what the gateway's control connection says, until it ends."""
    from serve_app.channel.frames import request_decoder, ticket_decoder
    from serve_app.channel.sender import Sender
    from serve_app.types import EngineStats, FinishReason, StepTiming, TokenDelta, Usage

    running: dict[str, tuple[Any, asyncio.Future[None], StepTiming | None]] = {}
    sender = Sender(replica="replica", app="app", stats=EngineStats)
    tasks = set()
    timing = StepTiming(batch_size=16, wait_s=0.0001, run_s=0.02)
    step = 0

    async def answer(payload: bytes, ticket: bytes) -> None:
        request = request_decoder.decode(payload)
        outlet = await sender.to(ticket_decoder.decode(ticket))
        done = asyncio.get_running_loop().create_future()
        running[request.id] = outlet, done, timing if request.per_token else None
        control.say("ready", request.id)

        async def work() -> None:
            await done

        await outlet.run(request.id, work(), request.record)
        control.say("done", request.id)

    def take_step(is_last: bool) -> None:
        nonlocal step
        step += 1
        deltas = [
            TokenDelta(
                request_id=key,
                index=0,
                text=" word",
                token_ids=(step,),
                finish=FinishReason.LENGTH if is_last else None,
                usage=Usage(prompt_tokens=32, completion_tokens=step),
                step=timed,
            )
            for key, (_, _, timed) in running.items()
        ]
        next(iter(running.values()))[0].send(deltas)
        if is_last:
            for _, done, _ in running.values():
                done.set_result(None)
            running.clear()
            step = 0

    def on_message(message: list[Any]) -> None:
        if message[0] == "step":
            take_step(*message[1:])
        else:
            task = asyncio.ensure_future(answer(*message[1:]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    control = Control(on_message)
    await asyncio.get_running_loop().create_connection(lambda: control, HOST, port)
    await control.lost.wait()
    await sender.close()


if __name__ == "__main__":
    uvloop.run(replica(int(sys.argv[1])))
