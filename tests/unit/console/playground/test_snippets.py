"""A request as text: what is copied means what was asked, whatever the prompt holds."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
from typing import Any, Final

import pytest
from anthropic.resources.messages import Messages
from hypothesis import given
from hypothesis import strategies as st
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from openai.resources.responses import Responses

from serve_app.console.playground.clients import CLIENTS
from serve_app.console.playground.protocols import PROTOCOLS, Protocol, Shape, protocol_named
from serve_app.console.playground.snippets import curl, literal, python
from serve_app.console.playground.translate import Ask
from tests.support.openapi import fake_document

DOCUMENT: Final[dict[str, Any]] = fake_document()
MINDIE: Final[dict[str, Any]] = fake_document("mindie")
SERVER: Final = "http://127.0.0.1:8000"
HOSTILE: Final = "it's \"quoted\"\n$HOME `id` $(id) \\ ' \u2028 é😀 %s {x} '''\"\"\""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def ask(protocol: Protocol, *, stream: bool = True, **options: Any) -> Ask:
    prompt: Any = [{"role": "user", "content": HOSTILE}] if protocol.mode == "chat" else HOSTILE
    names = {"model": "org/demo"} if protocol.names_model else {}
    return Ask(protocol, "org/demo", stream, {**names, protocol.prompt: prompt, **options}, "it's")


def named(name: str) -> Protocol:
    found = protocol_named(name)
    assert found is not None
    return found


@given(json_values, st.integers(0, 3))
def test_python_reads_back_what_was_written(value: Any, depth: int) -> None:
    assert ast.literal_eval(literal(value, depth)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.id)
@pytest.mark.parametrize("stream", [True, False])
def test_curl_sends_the_body_and_no_key(protocol: Protocol, stream: bool) -> None:
    asked = ask(protocol, stream=stream, top_k=4)
    text = curl(DOCUMENT, asked, SERVER, keys=True)
    words = shlex.split(text)
    assert words[0] == "curl"
    assert words[1 + stream] == SERVER + protocol.url("org/demo", stream=stream)
    assert json.loads(words[words.index("-d") + 1]) == asked.body
    headers = [words[at + 1] for at, word in enumerate(words) if word == "-H"]
    assert headers[:2] == ["Content-Type: application/json", "Authorization: Bearer $SERVE_APP_API_KEY"]
    assert headers[-1] == "X-Served-Entity: it's"
    assert 'Bearer $SERVE_APP_API_KEY"' in text, "in double quotes, so that the shell fills it in"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.id)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("keys", [True, False])
def test_python_is_a_program_that_has_every_value(protocol: Protocol, stream: bool, keys: bool) -> None:
    text = python(DOCUMENT, ask(protocol, stream=stream, top_k=4, seed=2**63 - 1), SERVER, keys=keys)
    constants = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert {HOSTILE, 4, 2**63 - 1, "it's"} <= constants
    assert ("SERVE_APP_API_KEY" in constants) == keys
    assert max(len(line) for line in text.splitlines() if HOSTILE[:4] not in line) < 120


CREATES: Final[dict[Shape, Any]] = {
    "chat": ChatCompletions.create,
    "text": Completions.create,
    "responses": Responses.create,
    "messages": Messages.create,
}


@pytest.mark.parametrize("shape", CREATES)
def test_what_goes_into_the_clients_own_parameters_is_what_it_has(shape: Shape) -> None:
    assert set(inspect.signature(CREATES[shape]).parameters) > CLIENTS[shape].known


@pytest.mark.parametrize(
    ("document", "protocol", "header"),
    [
        (DOCUMENT, "openai-chat", None),
        (DOCUMENT, "mindie-chat", "mindie"),
        (DOCUMENT, "ovms-chat", None),
        (DOCUMENT, "databricks-chat", None),
        (DOCUMENT, "mindie-text", None),
        (DOCUMENT, "triton-text", "triton"),
        (MINDIE, "openai-chat", "openai"),
        (MINDIE, "mindie-chat", None),
    ],
)
def test_a_protocol_is_named_where_its_path_is_anothers(
    document: dict[str, Any], protocol: str, header: str | None
) -> None:
    asked = ask(named(protocol))
    for text in (curl(document, asked, SERVER, keys=False), python(document, asked, SERVER, keys=False)):
        assert ("X-API-Dialect" in text) == (header is not None)
        assert header is None or header in text
