"""A request as text to copy: one command of curl, or one program in Python.

The key is never part of the text: both read it from the environment. Covers how to call a protocol's usual
client, but not how to translate a request to another protocol.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from serve_app.console.playground.clients import CLIENTS
from serve_app.console.playground.schemas import Json
from serve_app.console.playground.translate import Ask

KEY: Final = "SERVE_APP_API_KEY"
WIDTH: Final = 88  # columns of a line of Python

_BASES: Final = {
    "openai": "/v1", "mindie": "/v1", "databricks": "/serving-endpoints", "ovms": "/v3", "anthropic": "",
}  # fmt: skip


def curl(document: Json, ask: Ask, server: str, *, keys: bool) -> str:
    """A command that calls `server`, such as `http://127.0.0.1:8000`, with a key if `keys` is set."""
    url = shlex.quote(server + ask.protocol.url(ask.model, stream=ask.stream))
    lines = [f"curl {'-N ' if ask.stream else ''}{url}"]
    lines.append("-H 'Content-Type: application/json'")
    if keys:
        lines.append(f'-H "Authorization: Bearer ${KEY}"')
    lines += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in _headers(document, ask).items()]
    lines.append(f"-d {shlex.quote(json.dumps(ask.body, indent=2, ensure_ascii=False))}")
    return " \\\n  ".join(lines) + "\n"


def python(document: Json, ask: Ask, server: str, *, keys: bool) -> str:
    """A program that calls `server` and prints the answer, with its protocol's package or with `requests`."""
    if ask.protocol.dialect in _BASES and not ask.protocol.path.startswith("/v2"):
        return _with_client(document, ask, server, keys=keys)
    return _with_requests(document, ask, server, keys=keys)


def _with_client(document: Json, ask: Ask, server: str, *, keys: bool) -> str:
    client = CLIENTS[ask.protocol.shape]
    named: dict[str, Any] = {"model": ask.model}
    named |= {name: value for name, value in ask.body.items() if name in client.known}
    if ask.stream:
        named["stream"] = True
    extra = {name: value for name, value in ask.body.items() if name not in client.known}
    if extra:
        named["extra_body"] = extra
    headers = _headers(document, ask, of_client=True)
    if headers:
        named["extra_headers"] = headers
    arguments = "".join(f"    {name}={literal(value, 1)},\n" for name, value in named.items())
    key = f'os.environ["{KEY}"]' if keys else '"none"'
    base = literal(server + _BASES[ask.protocol.dialect])
    text = "import os\n\n" if keys else ""
    text += f"from {client.name.lower()} import {client.name}\n\n"
    text += f"client = {client.name}(base_url={base}, api_key={key})\n"
    text += f"answer = client.{client.call}(\n{arguments})\n"
    return text + (client.streamed if ask.stream else client.whole)


def _with_requests(document: Json, ask: Ask, server: str, *, keys: bool) -> str:
    headers = "".join(
        f"        {literal(name)}: {literal(value)},\n" for name, value in _headers(document, ask).items()
    )
    if keys:
        headers += f'        "Authorization": f"Bearer {{os.environ[{KEY!r}]}}",\n'
    imports = [*(["json"] if ask.stream else []), *(["os"] if keys else [])]
    text = "".join(f"import {name}\n" for name in imports) + ("\n" if imports else "")
    text += "import requests\n\nanswer = requests.post(\n"
    text += f"    {literal(server + ask.protocol.url(ask.model, stream=ask.stream))},\n"
    text += f"    json={literal(ask.body, 1)},\n"
    if headers:
        text += f"    headers={{\n{headers}    }},\n"
    text += "    stream=True,\n" if ask.stream else ""
    text += "    timeout=600,\n)\nanswer.raise_for_status()\n"
    if not ask.stream:
        return f'{text}print(answer.json()["text_output"])\n'
    return text + (
        'for line in answer.iter_lines():\n    if line.startswith(b"data:"):\n'
        '        print(json.loads(line[5:]).get("text_output", ""), end="", flush=True)\nprint()\n'
    )


def _headers(document: Json, ask: Ask, *, of_client: bool = False) -> dict[str, str]:
    """The headers that the request needs besides its key.

    If several protocols share a path, the server's settings choose the protocol that needs no header.
    `of_client`: the path is that of OpenAI's client, which may differ from the protocol's own path.
    """
    path = ask.protocol.path
    shared = path if not (of_client and ask.protocol.dialect == "databricks") else None
    headers = {}
    if shared is not None and _dialect_without_header(document, path) not in (None, ask.protocol.dialect):
        headers["X-API-Dialect"] = ask.protocol.dialect
    if ask.entity:
        headers["X-Served-Entity"] = ask.entity
    return headers


def _dialect_without_header(document: Json, path: str) -> str | None:
    operation = document["paths"].get(path, {}).get("post", {})
    for each in operation.get("parameters", ()):
        if each["name"] == "X-API-Dialect":
            default: str | None = each["schema"].get("default")
            return default
    return None


def literal(value: Any, depth: int = 0) -> str:
    """JSON as a Python literal, on one line if it fits, else indented for `depth`."""
    flat = repr(value) if not isinstance(value, str) else _quoted(value)
    if not isinstance(value, Mapping | list) or len(flat) + 4 * depth + 12 <= WIDTH or not value:
        return _flat(value)
    inner, outer = "    " * (depth + 1), "    " * depth
    if isinstance(value, Mapping):
        items = [f"{_quoted(name)}: {literal(each, depth + 1)}" for name, each in value.items()]
        return "{\n" + "".join(f"{inner}{item},\n" for item in items) + outer + "}"
    return "[\n" + "".join(f"{inner}{literal(each, depth + 1)},\n" for each in value) + outer + "]"


def _flat(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(name)}: {_flat(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flat(each) for each in value) + "]"
    return repr(value)


def _quoted(text: str) -> str:
    """A string, in double quotes if that needs no extra escapes."""
    shown = repr(text)
    if '"' in text or not shown.startswith("'"):
        return shown
    return f'"{shown[1:-1]}"'
