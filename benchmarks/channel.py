"""Our channel between gateway and replica beside one bidirectional `grpc.aio` stream of our own.

    python benchmarks/channel.py --turns 9

Two processes, one connection, the same msgpack messages: the replica sends one frame a step with a delta
for each stream, and a step begins when the one before was read by a task a stream in the gateway. Both ways
take turns in new processes. Prints a Markdown table: CPU milliseconds for 1,000 deltas at both ends, and
the time from the call that sends a step to its last reader; medians, in brackets the least and the most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc
import uvloop
from delta_path import WAIT_S
from delta_replica import HOST, Control

from serve_app.channel.frames import delta_frames, encoder, from_replica, ticket_decoder
from serve_app.channel.receiver import Receiver
from serve_app.channel.sender import Sender
from serve_app.types import EngineStats, TokenDelta, Usage

WAYS: Final = ("channel", "grpc.aio")
METHOD: Final = "/channel/Deltas"
WARM_UP: Final = 200  # steps


def deltas_of(step: int, streams: int) -> list[TokenDelta]:
    return [
        TokenDelta(
            request_id=f"r{number}",
            index=0,
            text=" word",
            token_ids=(step,),
            usage=Usage(prompt_tokens=32, completion_tokens=step),
        )
        for number in range(streams)
    ]


Send = Callable[[list[TokenDelta]], None]
Close = Callable[[], Coroutine[Any, Any, None]]


async def sender_by_channel(ticket: bytes) -> tuple[Send, Close]:
    sender = Sender(replica="replica", app="app", stats=EngineStats)
    outlet = await sender.to(ticket_decoder.decode(ticket))
    return outlet.send, sender.close


async def sender_by_grpc(ticket: bytes) -> tuple[Send, Close]:
    to = ticket_decoder.decode(ticket)
    channel = grpc.aio.insecure_channel(f"{to.host}:{to.port}")
    call = channel.stream_stream(METHOD)()
    frames: asyncio.Queue[bytes] = asyncio.Queue()

    async def write() -> None:  # `send` never waits, so a task does
        while True:
            await call.write(await frames.get())

    task = asyncio.ensure_future(write())

    def send(deltas: list[TokenDelta]) -> None:
        for payload in delta_frames(deltas):
            frames.put_nowait(payload)

    async def close() -> None:
        task.cancel()
        call.cancel()
        await channel.close()

    return send, close


async def replica(port: int, streams: int) -> None:
    """Send a step for each that the gateway's control connection asks for."""
    ready: asyncio.Future[tuple[Send, Close]] = asyncio.get_running_loop().create_future()
    tasks = []
    begun = 0.0

    async def connect(way: str, ticket: bytes) -> None:
        open_way = sender_by_grpc if way == "grpc.aio" else sender_by_channel
        ready.set_result(await open_way(ticket))
        control.say("ready")

    def on_message(message: list[Any]) -> None:
        nonlocal begun
        if message[0] == "step":
            if message[1] == WARM_UP:
                begun = time.process_time()
            deltas = deltas_of(message[1], streams)
            control.say("sent", time.monotonic_ns())
            ready.result()[0](deltas)
        elif message[0] == "over":
            control.say("cpu", time.process_time() - begun)
        else:
            tasks.append(asyncio.ensure_future(connect(message[1], message[2])))

    control = Control(on_message)
    await asyncio.get_running_loop().create_connection(lambda: control, HOST, port)
    await control.lost.wait()
    await ready.result()[1]()


async def listen_by_grpc(receiver: Receiver) -> tuple[bytes, Close]:
    """A server whose one method delivers to the inboxes of `receiver`. Its ticket, and how to stop it."""

    async def deltas(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while (payload := await context.read()) is not grpc.aio.EOF:
            receiver._deliver(None, from_replica.decode(payload).deltas)  # type: ignore[arg-type, union-attr]

    handler = grpc.stream_stream_rpc_method_handler(deltas)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("channel", {"Deltas": handler}),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    ticket = receiver.ticket
    own = type(ticket)(HOST, port, ticket.gateway, ticket.token)
    return encoder.encode(own), lambda: server.stop(0)


async def gateway(way: str, streams: int, steps: int) -> dict[str, float]:
    connected: asyncio.Future[Control] = asyncio.get_running_loop().create_future()
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    spent: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    sent: list[int] = []
    read: list[int] = []
    count, done = 0, asyncio.Event()
    cpu = 0.0

    def on_message(message: list[Any]) -> None:
        if message[0] == "sent":
            sent.append(message[1])
        elif message[0] == "ready":
            ready.set_result(None)
        else:
            spent.set_result(message[1])

    def accepted() -> Control:
        control = Control(on_message)
        asyncio.get_running_loop().call_soon(connected.set_result, control)
        return control

    async def stream(number: int) -> None:
        nonlocal count, cpu
        inbox = receiver.open(f"r{number}")
        while True:
            deltas = await inbox.get()
            count += len(deltas)
            step, rest = divmod(count, streams)
            if rest:
                continue
            read.append(time.monotonic_ns())
            if step == WARM_UP:
                cpu = time.process_time()
            if step == WARM_UP + steps:
                cpu = time.process_time() - cpu
                done.set()
            else:
                control.say("step", step)

    server = await asyncio.get_running_loop().create_server(accepted, HOST, 0)
    command = [__file__, "--replica", str(server.sockets[0].getsockname()[1]), "--streams", str(streams)]
    child = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        control = await asyncio.wait_for(connected, WAIT_S)
        receiver = await Receiver.start(HOST)
        ticket, close = encoder.encode(receiver.ticket), receiver.close
        if way == "grpc.aio":
            ticket, close = await listen_by_grpc(receiver)
        control.say("connect", way, ticket)
        await asyncio.wait_for(ready, WAIT_S)
        tasks = [asyncio.ensure_future(stream(number)) for number in range(streams)]
        await asyncio.sleep(0)
        control.say("step", 0)
        await asyncio.wait_for(done.wait(), WAIT_S)
        control.say("over")
        other = await asyncio.wait_for(spent, WAIT_S)
        for task in tasks:
            task.cancel()
        control.transport.close()
        await asyncio.wait_for(child.wait(), WAIT_S)
        await close()
    finally:
        if child.returncode is None:
            child.kill()
        server.close()
    waits = [(r - s) / 1e3 for s, r in zip(sent[WARM_UP:], read[WARM_UP:], strict=True)]
    each = 1e6 / (streams * steps)
    return {
        "gateway, CPU ms": cpu * each,
        "replica, CPU ms": other * each,
        "together, CPU ms": (cpu + other) * each,
        "p50, µs": statistics.median(waits),
        "p99, µs": statistics.quantiles(waits, n=100)[98],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--replica", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.replica is not None:
        uvloop.run(replica(args.replica, args.streams))
        return
    if args.way is not None:
        print(json.dumps(uvloop.run(gateway(args.way, args.streams, args.steps))))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(args.turns):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            command = [__file__, "--way", way, "--streams", str(args.streams), "--steps", str(args.steps)]
            done = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE)
            found[way].append(json.loads(done.stdout.splitlines()[-1]))
    rows = list(found[WAYS[0]][0])
    print(f"| way | {' | '.join(rows)} |\n{'|---' * (len(rows) + 1)}|")
    for way, turns in found.items():
        seen = [sorted(turn[row] for turn in turns) for row in rows]
        cells = [f"{statistics.median(each):.1f} ({each[0]:.1f} to {each[-1]:.1f})" for each in seen]
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
