"""Clients of the soak: actions in every protocol, drawn at random, and what the clients saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

MODEL: Final = "demo-chat"
QUESTIONS: Final = (
    "What is the capital of France?",
    "What is 2 + 2?",
    "Say hello to Ann.",
    "What is the capital of Japan?",
    "Repeat after me: the sea is wide.",
)
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FORM: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}},
    "required": ["name"],
}
BAD: Final = (
    b"", b"null", b"[]", b'{"model":', b'{"model":"demo-chat","messages":5}', b"\xff" * 100, b"[" * 200_000,
    b'{"model":"demo-chat","messages":[{"role":"user","content":"x"}],"n":1e9}',
    b'{"model":"nobody","messages":[{"role":"user","content":"x"}],"n":0}',
    b'{"x":"' + b"y" * 9_000_000 + b'"}',
)  # fmt: skip
MAX_KEPT: Final = 8 * 2**20  # bytes of a body
REFUSED: Final = (400, 404, 405, 413, 422, 429, 503)
PATHS: Final = (
    "/v1/chat/completions",
    "/v3/chat/completions",
    "/mindie/v1/chat/completions",
    f"/v2/models/{MODEL}/generate",
    f"/serving-endpoints/{MODEL}/invocations",
)


@dataclass
class Log:
    """What the clients saw."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)  # of answers that have one
    first: dict[str, Any] = field(default_factory=dict)  # a greedy question -> its first answer

    def same(self, question: str, answer: Any) -> None:
        if self.first.setdefault(question, answer) != answer:
            self.wrong.append(f"{question}: {answer!r} after {self.first[question]!r}")

    def refused(self, name: str, status: int) -> None:
        if status not in REFUSED:
            self.wrong.append(f"{name}: status {status}")


class Client:
    """Draws actions until the time is over."""

    def __init__(self, http: httpx.AsyncClient, log: Log, rng: random.Random) -> None:
        self.http, self.log, self.rng = http, log, rng
        self.actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self.chat), (4, self.stream), (3, self.completion), (3, self.mindie),
            (3, self.generate_stream), (3, self.ovms), (3, self.databricks), (3, self.tensors),
            (2, self.embed), (2, self.tools), (2, self.schema), (2, self.many), (2, self.pirate),
            (2, self.questions), (6, self.abort), (4, self.bad), (2, self.pages),
        ]  # fmt: skip

    async def run(self, until: float) -> None:
        weights = [weight for weight, _ in self.actions]
        while time.monotonic() < until:
            (_, action) = self.rng.choices(self.actions, weights)[0]
            try:
                await action()
            except httpx.HTTPError as error:
                self.log.wrong.append(f"{action.__name__}: {type(error).__name__}: {error}")
            self.log.done[action.__name__] += 1

    async def _post(self, name: str, path: str, body: Any) -> Any:
        answer = await self.http.post(path, json=body)
        if answer.status_code != 200:
            self.log.wrong.append(f"{name}: status {answer.status_code}: {answer.text[:200]}")
            return None
        found = answer.json()
        if isinstance(found, dict) and isinstance(found.get("id"), str):
            self.log.ids.add(found["id"].rpartition("-")[2])
        return found

    def _messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.rng.choice(QUESTIONS)}]

    async def _greedy(self, name: str, path: str, **body: Any) -> None:
        messages = self._messages()
        found = await self._post(name, path, {"model": MODEL, "messages": messages, "max_tokens": 40, **body})
        if found is not None:
            self.log.same(f"{name} {messages[0]['content']}", found["choices"][0]["message"]["content"])

    async def chat(self) -> None:
        await self._greedy("chat", "/v1/chat/completions", temperature=0)

    async def mindie(self) -> None:
        await self._greedy("mindie", "/mindie/v1/chat/completions", top_k=1)

    async def ovms(self) -> None:
        await self._greedy("ovms", "/v3/chat/completions")

    async def databricks(self) -> None:
        await self._greedy("databricks", f"/serving-endpoints/{MODEL}/invocations", temperature=0, model=None)

    async def pirate(self) -> None:
        await self._greedy("pirate", "/v1/chat/completions", temperature=0, model=f"{MODEL}:pirate")

    async def schema(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}}
        await self._greedy("schema", "/v1/chat/completions", temperature=0, response_format=form)

    async def tools(self) -> None:
        messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
        body = {"model": MODEL, "messages": messages, "tools": [TOOL], "temperature": 0, "max_tokens": 60}
        found = await self._post("tools", "/v1/chat/completions", body)
        if found is not None:
            calls = found["choices"][0]["message"].get("tool_calls") or []
            self.log.same("tools", [call["function"] for call in calls])

    async def many(self) -> None:
        body = {
            "model": MODEL,
            "messages": self._messages(),
            "max_tokens": 24,
            "n": 3,
            "seed": 7,
            "logprobs": True,
        }
        found = await self._post("many", "/v1/chat/completions", {**body, "temperature": 1.5})
        if found is not None:
            texts = [choice["message"]["content"] for choice in found["choices"]]
            self.log.same(f"many {body['messages']}", texts)

    async def completion(self) -> None:
        prompt = self.rng.choice(QUESTIONS)
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 24, "echo": True}
        found = await self._post("completion", "/v1/completions", body)
        if found is not None:
            self.log.same(f"completion {prompt}", found["choices"][0]["text"])

    async def stream(self) -> None:
        messages = self._messages()
        body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 40, "stream": True}
        text = ""
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    self.log.ids.add(chunk["id"].rpartition("-")[2])
                    text += chunk["choices"][0]["delta"].get("content") or ""
        self.log.same(f"chat {messages[0]['content']}", text)

    async def generate_stream(self) -> None:
        prompt = self.rng.choice(QUESTIONS)
        body = {"text_input": prompt, "parameters": {"max_new_tokens": 20, "do_sample": False}}
        text = ""
        async with self.http.stream("POST", f"/v2/models/{MODEL}/generate_stream", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    text += json.loads(line[5:])["text_output"]
        self.log.same(f"generate {prompt}", text)

    async def tensors(self) -> None:
        ids = [self.rng.randrange(5, 100) for _ in range(8)]
        inputs = [
            {"name": "input_ids", "datatype": "INT32", "shape": [1, len(ids)], "data": ids},
            {"name": "input_lengths", "datatype": "INT32", "shape": [1, 1], "data": [len(ids)]},
            {"name": "request_output_len", "datatype": "INT32", "shape": [1, 1], "data": [12]},
        ]
        await self._post("tensors", f"/v2/models/{MODEL}/infer", {"inputs": inputs})

    async def embed(self) -> None:
        body = {"model": "demo-embed", "input": list(QUESTIONS)}
        await self._post("embed", "/v1/embeddings", body)

    async def questions(self) -> None:
        found = await self._post("tokenize", "/tokenize", {"model": MODEL, "prompt": "the sea " * 200})
        if found is not None:
            await self._post("detokenize", "/detokenize", {"model": MODEL, "tokens": found["tokens"]})

    async def abort(self) -> None:
        """Hang up: before the first byte, or after some.

        On a connection of its own: a request that is cancelled can keep its place in a pool for ever.
        """
        body = {"model": MODEL, "messages": self._messages(), "temperature": 1.2, "max_tokens": 200,
                "ignore_eos": True, "stream": self.rng.random() < 0.7}  # fmt: skip
        patience = self.rng.choice([0.01, 0.1, 0.5])
        with contextlib.suppress(TimeoutError, httpx.TimeoutException):
            async with (
                httpx.AsyncClient(base_url=self.http.base_url) as own,
                asyncio.timeout(patience),
                own.stream("POST", "/v1/chat/completions", json=body) as answer,
            ):
                async for _ in answer.aiter_bytes():
                    pass

    async def bad(self) -> None:
        path, body = self.rng.choice(PATHS), self.rng.choice(BAD)
        try:
            if len(body) > MAX_KEPT:  # the server closes such a connection, which must not be another's
                async with httpx.AsyncClient(base_url=self.http.base_url, timeout=120) as own:
                    answer = await own.post(path, content=body)
            else:
                answer = await self.http.post(path, content=body)
        except (httpx.WriteError, httpx.ReadError):  # the connection of a body that is too large is closed
            return
        self.log.refused(f"bad {path}", answer.status_code)

    async def pages(self) -> None:
        for path in ("/v1/models", "/readyz", "/metrics", f"/v2/models/{MODEL}"):
            if (await self.http.get(path)).status_code != 200:
                self.log.wrong.append(f"page {path}")
