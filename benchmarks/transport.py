"""What it costs to move a token from a model replica to a gateway: our channel beside Serve's streams.

    python benchmarks/transport.py --rounds 5

A dummy engine steps every 30 ms; C requests of 128 tokens run at once. `channel`: one connection
and one frame a step for all requests. `stream`: one Serve stream a request, one item a step each.
Reported: CPU milliseconds per 1,000 tokens of the gateway's process (this one) and the replica's.
HTTP is left out on purpose.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing

from serve_app.config.secret_file import secret_file
from serve_app.deployments import environment

FOLDER = environment.private_folder()
TOKEN = str(secret_file(FOLDER / "token"))
environment.apply(environment.COMMON | {"RAY_AUTH_TOKEN_PATH": TOKEN})  # before Ray is imported

import psutil
import ray
from ray import serve

from serve_app.channel.frames import Refused, answer_decoder, encoder
from serve_app.channel.receiver import Receiver
from serve_app.config import ModelConfig
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.model.deployment import model_deployment
from serve_app.endpoints.endpoint import Endpoint
from serve_app.endpoints.rules import app_name
from serve_app.loopback import LOOPBACK
from serve_app.replica.server import DeltaSink
from serve_app.types import (
    EngineStats,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    Prompt,
    TokenDelta,
    Usage,
)

MODEL = "dummy"
APP = app_name(MODEL)
STEP_S = 0.03
TOKENS = 128


class DummyServer:
    """The interface of `ModelServer` over a metronome: one step serves all requests."""

    def __init__(self) -> None:
        self.info = ModelInfo(
            name=MODEL,
            created=0,
            context_window=4096,
            vocab_size=1000,
            has_chat_template=False,
            has_fim=False,
            dtype="float32",
            device="cpu",
        )
        self._open: dict[str, tuple[DeltaSink, asyncio.Future[None], int]] = {}
        self._metronome = asyncio.ensure_future(self._step())

    @classmethod
    async def start(cls, config: ModelConfig, progress: Callable[[str], None]) -> DummyServer:
        return cls()

    async def generate(self, request: GenerateRequest, sink: DeltaSink) -> None:
        done = asyncio.get_running_loop().create_future()
        self._open[request.id] = (sink, done, 0)
        await done

    async def _step(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            by_sink: dict[DeltaSink, list[TokenDelta]] = {}
            for key, (sink, done, count) in list(self._open.items()):
                last = count + 1 == TOKENS
                delta = TokenDelta(
                    request_id=key,
                    index=0,
                    text=" word",
                    token_ids=(count,),
                    finish=FinishReason.LENGTH if last else None,
                    usage=Usage(prompt_tokens=128, completion_tokens=count + 1),
                )
                by_sink.setdefault(sink, []).append(delta)
                if last:
                    del self._open[key]
                    done.set_result(None)
                else:
                    self._open[key] = (sink, done, count + 1)
            for sink, deltas in by_sink.items():
                sink.send(deltas)

    def stats(self) -> EngineStats:
        return EngineStats(steps=os.getpid())

    def check_health(self) -> None: ...

    async def stop(self) -> None:
        self._metronome.cancel()


def request(number: int) -> GenerateRequest:
    return GenerateRequest(id=f"{time.monotonic_ns()}-{number}", model=APP, prompt=Prompt(text="x " * 128))


async def by_stream(wanted: GenerateRequest) -> AsyncIterator[int]:
    handle = serve.get_app_handle(APP).options(stream=True)
    async for item in handle.stream.remote(encoder.encode(wanted)):
        message = answer_decoder.decode(item)
        if isinstance(message, Refused):
            raise RuntimeError(message.error.message)
        yield len(message.deltas)


async def by_channel(backend: ServeBackend, wanted: GenerateRequest) -> AsyncIterator[int]:
    with closing(backend.generate(wanted)) as stream:
        while deltas := await stream.get():
            yield len(deltas)


async def load(concurrency: int, ask: Callable[[GenerateRequest], AsyncIterator[int]]) -> int:
    async def one(number: int) -> int:
        return sum([count async for count in ask(request(number))])

    return sum(await asyncio.gather(*(one(number) for number in range(concurrency))))


async def measure(rounds: int, concurrencies: list[int]) -> list[str]:
    backend = ServeBackend(await Receiver.start(LOOPBACK))
    backend.serve([Endpoint(name=MODEL)])
    while backend.info(APP) is None:
        await asyncio.sleep(0.05)
    ways: dict[str, Callable[[GenerateRequest], AsyncIterator[int]]] = {
        "channel": lambda wanted: by_channel(backend, wanted),
        "stream": by_stream,
    }
    await load(2, ways["channel"])
    await load(2, ways["stream"])
    gateway = psutil.Process()
    while not backend.stats()[APP].steps:
        await asyncio.sleep(0.1)
    replica = psutil.Process(backend.stats()[APP].steps)
    seen: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for concurrency in concurrencies:
            for name, ask in ways.items():
                before = [sum(p.cpu_times()[:2]) for p in (gateway, replica)]
                tokens = await load(concurrency, ask)
                after = [sum(p.cpu_times()[:2]) for p in (gateway, replica)]
                costs = tuple((b - a) / tokens * 1e6 for a, b in zip(before, after, strict=True))
                seen.setdefault((name, concurrency), []).append((costs[0], costs[1]))
    await backend.close()
    lines = ["| C | way | gateway ms | replica ms | sum ms |", "|---|---|---|---|---|"]
    for (name, concurrency), costs in sorted(seen.items(), key=lambda item: (item[0][1], item[0][0])):
        own, other = (statistics.median(c[i] for c in costs) for i in (0, 1))
        lines.append(f"| {concurrency} | {name} | {own:.0f} | {other:.0f} | {own + other:.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 32])
    args = parser.parse_args()
    ray.init(address="local", include_dashboard=False, num_cpus=4, log_to_driver=False)
    try:
        config = ModelConfig(name=MODEL)
        deployment = model_deployment(config)
        serve.run(deployment.bind(config, DummyServer.start), name=APP, route_prefix=None)
        print("CPU milliseconds per 1,000 tokens, medians of", args.rounds, "rounds\n")
        print("\n".join(asyncio.run(measure(args.rounds, args.concurrency))))
    finally:
        ray.shutdown()  # and Serve with it; its handles belong to a loop that has ended
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    main()
