"""Code to copy that calls an endpoint: a short request in each of its protocols. Independent of routes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from serve_app.console.playground.protocols import Protocol, protocols_of
from serve_app.console.playground.snippets import KEY, curl, literal, python
from serve_app.console.playground.translate import Ask
from serve_app.console.views import Json

EMBEDDINGS_TASK: Final = "llm/v1/embeddings"
EMBEDDINGS: Final = "openai-embeddings"
QUESTION: Final = "What is the capital of France?"
BEGINNING: Final = "Once upon a time"
ANSWER_TOKENS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryView:
    """One request."""

    protocols: Sequence[tuple[str, str]]  # id and title, to choose from
    protocol: str
    curl: str
    python: str


def query_view(document: Json, endpoint: Json, protocol: str, server: str, *, keys: bool) -> QueryView | None:
    """A request to `endpoint` in `protocol`, or in the first that it speaks; None while its task is unknown.

    `document`: of OpenAPI. `server`: such as `http://127.0.0.1:8000`; `keys`: whether it needs a key.
    """
    name, task = endpoint["name"], endpoint.get("task", "")
    if task == EMBEDDINGS_TASK:
        return QueryView(
            protocols=[(EMBEDDINGS, "OpenAI")],
            protocol=EMBEDDINGS,
            curl=_embeddings_curl(name, server, keys=keys),
            python=_embeddings_python(name, server, keys=keys),
        )
    spoken = protocols_of(task)
    if not spoken:
        return None
    chosen = next((each for each in spoken if each.id == protocol), spoken[0])
    ask = Ask(chosen, name, False, _body(chosen, name))
    return QueryView(
        protocols=[(each.id, each.title + ("" if each.mode == "chat" else ", text")) for each in spoken],
        protocol=chosen.id,
        curl=curl(document, ask, server, keys=keys),
        python=python(document, ask, server, keys=keys),
    )


def _body(protocol: Protocol, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model} if protocol.names_model else {}
    if protocol.mode == "text":
        body[protocol.prompt] = BEGINNING
    elif protocol.shape == "responses":
        body[protocol.prompt] = QUESTION
    else:
        body[protocol.prompt] = [{"role": "user", "content": QUESTION}]
    if protocol.id == "mindie-text":
        return body | {"parameters": {"max_new_tokens": ANSWER_TOKENS}}
    length = "max_output_tokens" if protocol.shape == "responses" else "max_tokens"
    return body | {length: ANSWER_TOKENS}


def _embeddings_curl(model: str, server: str, *, keys: bool) -> str:
    lines = [f"curl {shlex.quote(server + '/v1/embeddings')}", "-H 'Content-Type: application/json'"]
    if keys:
        lines.append(f'-H "Authorization: Bearer ${KEY}"')
    lines.append(f"-d {shlex.quote(json.dumps({'model': model, 'input': [QUESTION]}, ensure_ascii=False))}")
    return " \\\n  ".join(lines) + "\n"


def _embeddings_python(model: str, server: str, *, keys: bool) -> str:
    key = f'os.environ["{KEY}"]' if keys else '"none"'
    return (
        ("import os\n\n" if keys else "")
        + f"from openai import OpenAI\n\nclient = OpenAI(base_url={literal(server + '/v1')}, api_key={key})\n"
        + f"answer = client.embeddings.create(model={literal(model)}, input=[{literal(QUESTION)}])\n"
        + "print(answer.data[0].embedding)\n"
    )
