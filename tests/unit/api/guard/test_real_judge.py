"""A real model judges, under the grammar of two words. The demo model is too small to judge well."""

from __future__ import annotations

import httpx

from serve_app.api.directory import Directory
from serve_app.config import ModelConfig
from serve_app.endpoints.catalogue import parse_catalogue
from serve_app.guardrails.judging import PIECE_CHARS
from serve_app.replica.served_model import start
from tests.support.gateway import CHAT, fake_app
from tests.support.local_backend import LocalBackend


async def test_every_verdict_is_one_of_two_words() -> None:
    server = await start(ModelConfig(name="demo-chat", threads=1), lambda _: None)
    rules = {"safety": True}
    guardrails = {"input": rules, "output": rules, "model": "demo-chat"}
    endpoints = [{"name": "demo-chat", "ai_gateway": {"guardrails": guardrails}}]
    directory = Directory(parse_catalogue({"endpoints": endpoints}))
    try:
        app = fake_app(LocalBackend(server), directory=directory)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            for text in ("What is the capital of France?", "A long text. " * (PIECE_CHARS // 4)):
                messages = [{"role": "user", "content": text}]
                answer = await client.post(CHAT, json={"model": "demo-chat", "messages": messages[:1]})
                told = answer.json()
                if answer.status_code == 200:
                    assert told["choices"][0]["finish_reason"] in ("stop", "length", "content_filter")
                else:  # the model called it unsafe; a verdict that is no word of the grammar would be 503
                    assert (answer.status_code, told["error"]["code"]) in (
                        (400, "content_filter"),
                        (400, "context_length_exceeded"),
                    )
    finally:
        await server.stop()
