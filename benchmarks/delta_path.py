"""What a stream costs the gateway: CPU for each 1,000 tokens between a replica's socket and the bytes of an
answer, and memory while it is open.

    python benchmarks/delta_path.py TREE [TREE ...] --turns 9

TREE is a checkout of this repository. Each turn runs every tree once, in a new pair of processes: the
gateway's whole app over the real channel, called as an ASGI server calls it, and a replica without a model
that sends one frame a step to all streams. A step begins when all events of the one before were sent, so
that no figure depends on how busy the machine is. Ray and HTTP are left out. Prints a Markdown table of
medians: CPU milliseconds of the gateway's process, and KiB of memory for each open stream that has
`--delivered` tokens and waits for the next: resident memory, and what Python's objects take of it.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from delta_replica import HOST, Control

MODEL: Final = "demo"
WAIT_S: Final = 120.0
REPLICA: Final = Path(__file__).with_name("delta_replica.py")
SETTLE_S: Final = 0.5
PAGE_KIB: Final = os.sysconf("SC_PAGE_SIZE") // 1024

# name of a row -> path, body of stream i, number of HTTP requests for `streams` streams
Load = tuple[str, Callable[[int, int], dict[str, Any]], Callable[[int], int]]
LOADS: Final[dict[str, Load]] = {
    "a request a stream": (
        "/v1/chat/completions",
        lambda number, streams: {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"question {number}"}],
            "stream": True,
        },
        lambda streams: streams,
    ),
    "the same, stoppable": (
        f"/v2/models/{MODEL}/generate_stream",
        lambda number, streams: {"id": f"r{number}", "text_input": f"question {number}"},
        lambda streams: streams,
    ),
    "a request for all streams": (
        "/v1/completions",
        lambda number, streams: {
            "model": MODEL,
            "prompt": [f"question {each}" for each in range(streams)],
            "stream": True,
        },
        lambda streams: 1,
    ),
}


# --- the gateway -------------------------------------------------------------------------


class Handle:
    """A Serve handle whose calls go to the replica of this benchmark."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.calls: dict[str, asyncio.Future[None]] = {}
        self.generate = self

    def remote(self, payload: bytes, ticket: bytes) -> asyncio.Future[None]:
        call = asyncio.get_running_loop().create_future()
        self.calls[msgspec.msgpack.decode(payload)["id"]] = call
        self._control.say("generate", payload, ticket)
        return call


def gateway_app(receiver: Any, control: Control) -> tuple[Any, Handle]:
    from serve_app.accounts.accounts import Accounts
    from serve_app.api.app import build_app
    from serve_app.api.directory import Directory
    from serve_app.api.services import gateway_services
    from serve_app.config import GatewayConfig
    from serve_app.deployments.gateway.backend import ServeBackend
    from serve_app.deployments.gateway.poison_requests import PoisonRequests
    from serve_app.deployments.gateway.route import Route
    from serve_app.endpoints.catalogue import parse_catalogue
    from serve_app.types import ModelInfo

    info = ModelInfo(
        name=MODEL,
        created=0,
        context_window=100_000,
        vocab_size=1000,
        has_chat_template=True,
        has_fim=False,
        dtype="float32",
        device="cpu",
    )
    handle = Handle(control)

    class OneModel(ServeBackend):
        """`ServeBackend` with a route that needs no Ray."""

        def __init__(self) -> None:
            self._only = Route(handle, receiver, PoisonRequests())  # type: ignore[arg-type]

        def _route(self, app: str) -> Route:
            return self._only

        def missing(self, app: str) -> str | None:
            return None

        async def model(self, app: str) -> ModelInfo:
            return info

        def info(self, app: str) -> ModelInfo | None:
            return info

        def stats(self) -> dict[str, Any]:
            return {}

        def replicas(self) -> dict[str, Any]:
            return {}

    class NoJournal:
        problem, waiting, dropped = None, 0, 0

        def opened(self, record: Any) -> None: ...

        def progressed(self, record: Any) -> None: ...

        def closed(self, record: Any) -> None:
            receiver.booked(record.id)

    settings = GatewayConfig(max_in_flight=100_000)
    directory = Directory(parse_catalogue({"endpoints": [{"name": MODEL}]}))
    services = gateway_services(
        OneModel(),
        Accounts(settings, {}),
        settings,
        directory=directory,
        quota=None,  # type: ignore[arg-type]  # an endpoint without budgets asks nobody
        journal=NoJournal(),  # type: ignore[arg-type]
    )
    app: Any = build_app(services)
    return app, handle


class Driver:
    """Calls the app as a server would, and has the replica step when every stream had its event.

    `pause`: the step after which `paused` is set, and the next one waits for `go_on`.
    """

    def __init__(self, control: Control, streams: int, tokens: int, pause: int = 0) -> None:
        self._control = control
        self._streams = streams
        self._tokens = tokens
        self._pause = pause
        self.paused = asyncio.Event()
        self._events = self._ready = self._asked = 0
        self.began = self.ended = 0.0  # process time: when all had their first event, and their last

    def on_ready(self) -> None:
        self._ready += 1
        if self._ready == self._streams:
            self.go_on()

    async def request(self, app: Any, path: str, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        left = asyncio.Event()
        messages = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                if message["status"] != 200:
                    raise RuntimeError(f"{path}: status {message['status']}")
            elif message["body"]:
                self._count()

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())],
            "client": (HOST, 1),
        }
        await app(scope, receive, send)

    def _count(self) -> None:
        self._events += 1
        step, rest = divmod(self._events, self._streams)
        if rest or step > self._tokens:  # what closes a stream comes after its last token
            return
        if step == 1:
            self.began = time.process_time()
        if step == self._tokens:
            self.ended = time.process_time()
        elif step == self._pause:
            self.paused.set()
        else:
            self.go_on()

    def go_on(self) -> None:
        """The next step."""
        self._asked += 1
        self._control.say("step", self._asked == self._tokens)


def resident() -> float:
    """KiB of memory that this process has, without what it could give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * PAGE_KIB


def allocated() -> float:
    """KiB of Python's objects, since `tracemalloc.start`."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] / 1024


# name of a row, what it measures, open streams
MEASURES: Final = (("resident", resident, 1000), ("objects", allocated, 100))


async def gateway(streams: int, tokens: int, delivered: int, loads: Sequence[str]) -> dict[str, float]:
    """CPU milliseconds for 1,000 tokens: of each load between the first tokens and the last.

    And KiB for each open stream of the first load that has `delivered` tokens.
    """
    from serve_app.channel.receiver import Receiver

    driver: Driver | None = None
    connected: asyncio.Future[Control] = asyncio.get_running_loop().create_future()

    def on_message(message: list[Any]) -> None:
        if message[0] == "ready" and driver is not None:
            driver.on_ready()
        elif message[0] == "done":
            handle.calls.pop(message[1]).set_result(None)

    def accepted() -> Control:
        control = Control(on_message)
        asyncio.get_running_loop().call_soon(connected.set_result, control)
        return control

    server = await asyncio.get_running_loop().create_server(accepted, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    command = [str(REPLICA), str(port)]
    child = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        control = await asyncio.wait_for(connected, WAIT_S)
        receiver = await Receiver.start(HOST)
        app, handle = gateway_app(receiver, control)
        found = {}
        for name in loads:
            path, body, count = LOADS[name]
            for is_counted in (False, True):  # the first warms up
                driver = Driver(control, streams, tokens)
                gc.collect()
                whole = time.process_time()
                requests = [driver.request(app, path, body(i, streams)) for i in range(count(streams))]
                await asyncio.wait_for(asyncio.gather(*requests), WAIT_S)
                whole = time.process_time() - whole
                if is_counted:
                    found[name] = (driver.ended - driver.began) * 1e6 / (streams * (tokens - 1))
                    found[f"{name}: whole requests"] = whole * 1e6 / (streams * tokens)
        path, body, _ = LOADS[loads[0]]
        for name, measure, count in MEASURES:
            if measure is allocated:
                tracemalloc.start()  # after what is resident was measured, to which it adds
            before = measure()
            driver = Driver(control, count, delivered + 1, pause=delivered)
            requests = [driver.request(app, path, body(i, count)) for i in range(count)]
            running = asyncio.gather(*requests)
            pausing = asyncio.ensure_future(driver.paused.wait())
            await asyncio.wait({running, pausing}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            if running.done() or not pausing.done():
                raise RuntimeError(f"the streams did not stay open: {running}")
            await asyncio.sleep(SETTLE_S)  # until the last events are out
            found[f"KiB an open stream, {name}"] = (measure() - before) / count
            driver.go_on()
            await asyncio.wait_for(running, WAIT_S)
            del requests, running, pausing
        await receiver.close()
        control.transport.close()
        await asyncio.wait_for(child.wait(), WAIT_S)
        return found
    finally:
        if child.returncode is None:
            child.kill()
        server.close()


# --- the turns ---------------------------------------------------------------------------


def turn(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--gateway"]
    for name in ("streams", "tokens", "delivered"):
        command += [f"--{name}", str(getattr(args, name))]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, cwd=tree)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(trees: Sequence[Path], found: dict[Path, list[dict[str, float]]]) -> list[str]:
    names = [f"tree {number + 1}" for number in range(len(trees))]
    lines = [f"| load | {' | '.join(names)} | {'ratio, first to last' if len(trees) > 1 else ''} |"]
    lines.append("|---" * (len(trees) + 2) + "|")
    for row in found[trees[0]][0]:
        medians = [statistics.median(each[row] for each in found[tree]) for tree in trees]
        cells = [
            f"{median:.2f} ({min(e[row] for e in found[tree]):.2f} to {max(e[row] for e in found[tree]):.2f})"
            for tree, median in zip(trees, medians, strict=True)
        ]
        pairs = zip(found[trees[0]], found[trees[-1]], strict=True)
        ratio = statistics.median(first[row] / last[row] for first, last in pairs)
        lines.append(f"| {row} | {' | '.join(cells)} | {f'{ratio:.2f}' if len(trees) > 1 else ''} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", type=Path, nargs="*", metavar="TREE")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=500, help="of each stream")
    parser.add_argument(
        "--delivered", type=int, default=200, help="tokens of a stream whose memory is measured"
    )
    parser.add_argument("--gateway", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gateway:
        print(json.dumps(uvloop.run(gateway(args.streams, args.tokens, args.delivered, list(LOADS)))))
    else:
        trees = [tree.resolve() for tree in args.trees] or [Path(__file__).resolve().parents[1]]
        found: dict[Path, list[dict[str, float]]] = {tree: [] for tree in trees}
        for number in range(args.turns):
            for tree in trees if number % 2 == 0 else trees[::-1]:
                found[tree].append(turn(tree, args))
        print("\n".join(table(trees, found)))


if __name__ == "__main__":
    main()
