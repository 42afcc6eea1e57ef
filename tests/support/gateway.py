"""The gateway's HTTP interface in this process: over plain ASGI calls, or over a real socket."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from serve_app.accounts.accounts import Accounts
from serve_app.api.app import build_app
from serve_app.api.backend import Journal, Management, Payloads
from serve_app.api.directory import Directory
from serve_app.api.services import Services, gateway_services
from serve_app.config import GatewayConfig
from serve_app.endpoints.catalogue import parse_catalogue
from tests.support.fakes_backend import FakeBackend
from tests.support.fakes_metering import ListJournal, LocalQuota

HOST = "gateway"  # the name by which the tests ask
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], **fields}


def completion_body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": "Once", **fields}


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    return (chat_body if path.endswith(CHAT) else completion_body)(**fields)


def events(raw: str) -> list[Any]:
    """The JSON objects of a stream, without the terminator, which must be there."""
    parts = raw.split("\n\n")
    if parts[-2:] != ["data: [DONE]", ""]:
        raise AssertionError(f"the stream does not end with its terminator: {raw[-200:]!r}")
    if not all(part.startswith("data: ") for part in parts[:-1]):
        raise AssertionError("a line is not an event")
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def filled(path: str) -> str:
    """The path of a route with every parameter set to what exists."""
    return re.sub(r"\{[a-z:]+\}", "demo", path.replace("{version}", "1"))


@dataclass
class Gateway:
    """An app over a fake backend, and a client for it."""

    app: FastAPI
    backend: FakeBackend
    directory: Directory
    journal: ListJournal
    client: httpx.AsyncClient

    @property
    def services(self) -> Services:
        found = self.app.state.services
        assert isinstance(found, Services)
        return found

    async def post(self, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **kwargs)

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.post(CHAT, chat_body(**fields))

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.post(COMPLETIONS, completion_body(**fields))

    async def check(self, headers: dict[str, str] | None = None) -> None:
        """The invariants: nothing runs, every permit is back, a fresh request is answered."""
        if self.backend.running:
            raise AssertionError(f"{self.backend.running} requests still run")
        fresh = FakeBackend()
        for name in ("words", "refuse", "fail_after", "failure", "error_delta", "hang_after", "burst"):
            setattr(self.backend, name, getattr(fresh, name))
        answer = await self.post(CHAT, chat_body(), headers=headers)
        if answer.status_code != 200:
            raise AssertionError(f"a fresh request got {answer.status_code}: {answer.text}")
        page = await self.client.get("/metrics", headers=headers)
        if self.journal.open:
            raise AssertionError(f"requests have no record of their end: {list(self.journal.open)}")
        if page.status_code == 200 and "serve_app_requests_in_flight 0.0" not in page.text:
            raise AssertionError("a permit was not given back")


@asynccontextmanager
async def gateway(
    backend: FakeBackend | None = None,
    keys: str = "",
    endpoints: Sequence[dict[str, Any]] | None = None,
    journal: Journal | None = None,
    payloads: Payloads | None = None,
    **config: Any,
) -> AsyncIterator[Gateway]:
    """A gateway called in-process, from a loopback address; by default an endpoint a model."""
    backend = backend or FakeBackend()
    directory, listed = directory_of(backend, endpoints), ListJournal()
    app = fake_app(backend, keys, directory, journal or listed, payloads=payloads, **config)
    before = asyncio.all_tasks()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        yield Gateway(app, backend, directory, listed, client)
    left = asyncio.all_tasks() - before
    if left:
        raise AssertionError(f"tasks outlived their requests: {left}")


def directory_of(backend: FakeBackend, endpoints: Sequence[dict[str, Any]] | None = None) -> Directory:
    """`endpoints`, or one for each model of `backend`."""
    listed = [{"name": info.name} for info in backend.infos] if endpoints is None else endpoints
    return Directory(parse_catalogue({"endpoints": listed}))


def fake_app(
    backend: FakeBackend,
    keys: str = "",
    directory: Directory | None = None,
    journal: Journal | None = None,
    **options: Any,
) -> FastAPI:
    """The app over `backend`; `options` are `build_app`'s, a `management`, `at_run_time`, or settings.

    Its services are in `app.state.services`.
    """
    peer = {"peer_of": options.pop("peer_of")} if "peer_of" in options else {}
    ids_are_echoed, payloads = options.pop("ids_are_echoed", False), options.pop("payloads", None)
    management: Management | None = options.pop("management", None)
    at_run_time = options.pop("at_run_time", False)
    settings = GatewayConfig(**{"allowed_hosts": (HOST,), **options})
    services = gateway_services(
        backend,
        Accounts(settings, {"SERVE_APP_API_KEYS": keys}, at_run_time=at_run_time),
        settings,
        directory=directory_of(backend) if directory is None else directory,
        quota=LocalQuota(),
        journal=journal or ListJournal(),
        management=management,
        payloads=payloads,
        **peer,
    )
    app = build_app(services, ids_are_echoed=ids_are_echoed)
    app.state.services = services
    return app


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[tuple[str, int]]:
    """`app` behind a real server on a free loopback port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    task = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    host, port = server.servers[0].sockets[0].getsockname()
    try:
        yield host, port
    finally:
        server.should_exit = True
        await task


def bearer(key: str) -> dict[str, str]:
    """The headers of a caller with this key."""
    return {"authorization": f"Bearer {key}"}
