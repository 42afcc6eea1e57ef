"""Errors of every kind, searched for what they must not tell."""

import json
import logging
import re

import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import KINDS, from_info
from serve_app.telemetry import JsonFormatter
from serve_app.types import ErrorInfo
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import CHAT, COMPLETIONS, body_for, chat_body, gateway

TELLTALE = re.compile(
    r"0x[0-9a-f]{4,}|Traceback|File \"|/home/|/usr/|/tmp/|site-packages|\bself\.|Error\b.*\(|SELECT |"
    r"pydantic|starlette|uvicorn|msgspec|serve_app|Exception|ValidationError|replica[-_#]",
    re.IGNORECASE,
)
CRASHES = [
    RuntimeError("CUDA error at 0x7fffdeadbeef in /usr/lib/x.so"),
    OSError(2, "No such file", "/home/x/key"),
    AssertionError("self.blocks"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"),
    RecursionError("x"),
    MemoryError(),
]


def clean(answer):
    assert not TELLTALE.search(answer.text), answer.text
    for name, value in answer.headers.items():
        assert not TELLTALE.search(f"{name}: {value}")
    assert len(answer.content) < 3_000
    assert "server" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("crash", CRASHES, ids=lambda crash: type(crash).__name__)
async def test_crashes_are_told_in_fixed_words(path, stream, crash):
    for after in (0, 2):
        async with gateway(FakeBackend(fail_after=after if stream else 0, failure=crash)) as g:
            answer = await g.post(path, body_for(path, stream=stream))
            assert answer.status_code == (200 if stream and after else 500)
            if stream and after:
                assert '"error":{"message":"an internal error' in answer.text
            else:
                clean(answer)
            await g.check()


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_each_kind_of_error_is_clean(kind):
    error = from_info(ErrorInfo(kind=kind, reason="the model is busy", param="model"))
    async with gateway(FakeBackend(refuse=error)) as g:
        for path in (CHAT, COMPLETIONS):
            answer = await g.post(path, body_for(path))
            clean(answer)
            assert kind not in answer.text


async def test_a_long_message_of_ours_is_cut():
    error = from_info(ErrorInfo(kind="InvalidField", reason="é\x01" * 5_000, param="p" * 5_000))
    async with gateway(FakeBackend(refuse=error)) as g:
        answer = await g.chat()
        assert len(answer.content) < 2_000
        assert json.loads(answer.content)["error"]["param"] is None


async def test_errors_of_the_edge_are_clean():
    key, line = new_key("someone-else")
    async with gateway(keys=line) as g:
        auth = {"authorization": f"Bearer {key}"}
        for answer in (
            await g.client.get("/v1/models"),
            await g.client.get("/metrics", headers=auth),
            await g.client.get("/nope", headers=auth),
            await g.client.put(CHAT, headers=auth),
            await g.post(CHAT, {"model": "demo"}, headers=auth),
            await g.post(CHAT, chat_body(model="x"), headers=auth),
        ):
            clean(answer)
            assert "someone-else" not in answer.text


async def test_logs_hold_ids_and_neither_prompts_nor_keys(caplog):
    key, line = new_key("ann")
    with caplog.at_level(logging.DEBUG):
        async with gateway(FakeBackend(fail_after=1, failure=RuntimeError("boom")), keys=line) as g:
            headers = {"authorization": f"Bearer {key}", "x-request-id": "mine"}
            body = chat_body(stream=True, user="u\n\x1b[31m", stop="TOP-SECRET")
            body["messages"][0]["content"] = "MY-PROMPT"
            await g.post(CHAT, body, headers=headers)
    lines = [
        JsonFormatter().format(record) for record in caplog.records if record.name.startswith("serve_app")
    ]
    entry = next(json.loads(line) for line in lines if '"message": "request"' in line)
    assert (entry["client_request_id"], entry["key_id"], entry["outcome"]) == ("mine", "ann", "E12")
    for line in lines:
        assert not any(word in line for word in (key, "MY-PROMPT", "TOP-SECRET", "\n", "\x1b"))
