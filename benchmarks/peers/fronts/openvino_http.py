"""OpenAI's completions over OpenVINO GenAI's ContinuousBatchingPipeline, as thin as it can be.

    python openvino_http.py MODEL PORT THREADS

Runs in the environment of the peer, so it imports nothing of this project. It exists so that the engine pays
for HTTP, JSON and detokenising as every other server does.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from aiohttp import web
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

KV_CACHE_GIB = 4
BATCHED_TOKENS = 2048
SEQUENCES = 64
MAX_BODY_BYTES = 2**24


class Request(NamedTuple):
    """One prompt on its way to the engine."""

    number: int
    ids: list[int]
    max_tokens: int
    ignore_eos: bool


class Progress(NamedTuple):
    """What one request got in one step."""

    number: int
    tokens: list[int]
    over: bool


def engine(model: str, threads: int, front: Connection) -> None:
    """A process of its own: a step holds Python's lock, and answers would have to wait for it."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = KV_CACHE_GIB
    scheduler.enable_prefix_caching = True
    scheduler.max_num_batched_tokens = BATCHED_TOKENS
    scheduler.max_num_seqs = SEQUENCES
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    front.send("ready")
    live: dict[int, Any] = {}
    while True:
        while not live or front.poll():
            request = Request(*front.recv())
            config = genai.GenerationConfig(
                max_new_tokens=request.max_tokens, do_sample=False, ignore_eos=request.ignore_eos
            )
            ids = openvino.Tensor(np.array([request.ids], dtype=np.int64))
            live[request.number] = pipeline.add_request(request.number, ids, config)
        pipeline.step()
        progress = []
        for number, handle in list(live.items()):
            tokens: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    tokens += output.generated_ids
            over = handle.get_status() != genai.GenerationStatus.RUNNING
            if over:
                del live[number]
            if tokens or over:
                progress.append((number, tokens, over))
        if progress:
            front.send(progress)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class Front:
    """Bodies in, events out; the engine at the other end of a pipe."""

    def __init__(self, engine: Connection, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._numbers = count()
        self._inboxes: dict[int, asyncio.Queue[Progress]] = {}

    async def listen(self, _: web.Application) -> None:
        asyncio.get_running_loop().add_reader(self._engine.fileno(), self._read)

    def _read(self) -> None:
        while self._engine.poll():
            for item in self._engine.recv():
                progress = Progress(*item)
                self._inboxes[progress.number].put_nowait(progress)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        number = next(self._numbers)
        inbox = self._inboxes[number] = asyncio.Queue()
        self._engine.send(Request(number, prompt, body["max_tokens"], bool(body.get("ignore_eos"))))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        decoder, answered, over = DecodeStream(skip_special_tokens=False), 0, False
        while not over:
            _, tokens, over = await inbox.get()
            answered += len(tokens)
            text = "".join(decoder.step(self._tokenizer, token) or "" for token in tokens)
            if text:
                await response.write(event({"choices": [{"index": 0, "text": text, "finish_reason": None}]}))
        del self._inboxes[number]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": answered}
        await response.write(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({})


def main() -> None:
    model, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=engine, args=(model, threads, theirs), daemon=True
    )
    process.start()
    theirs.close()  # so that an engine that ends is an end of file here
    ours.recv()
    front = Front(ours, Tokenizer.from_file(f"{model}/tokenizer.json"))
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.on_startup.append(front.listen)
    app.add_routes([web.get("/health", front.health), web.post("/v1/completions", front.completions)])
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main()
