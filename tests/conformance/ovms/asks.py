"""How this folder's tests ask for chat, and read what comes back."""

from __future__ import annotations

from typing import Any, Final

import httpx

from tests.conformance import conftest

PATH: Final = "/v3/chat/completions"
# The demo model is sure of itself: such requests let it say different things.
VARIED: Final = {"temperature": 2, "max_tokens": 24, "messages": [{"role": "user", "content": "Tell me!"}]}


def body(**fields: Any) -> dict[str, Any]:
    """A short question."""
    messages = [{"role": "user", "content": "Tell me about the sea."}]
    return {"model": conftest.MODEL, "messages": messages, "max_tokens": 2, **fields}


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(PATH, json=body(**fields))


async def answer(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """The body of an answer, which must be one."""
    found = await ask(client, **fields)
    if found.status_code != 200:
        raise AssertionError(f"{found.status_code}: {found.text}")
    body: dict[str, Any] = found.json()
    return body


async def text(client: httpx.AsyncClient, **fields: Any) -> str:
    found = await answer(client, **fields)
    return str(found["choices"][0]["message"]["content"])


def names(refusal: httpx.Response, field: str) -> None:
    """A 400 in this protocol's form whose text has the field."""
    assert refusal.status_code == 400
    assert list(refusal.json()) == ["error"]
    assert field in refusal.json()["error"]
