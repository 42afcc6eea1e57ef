"""Hostile bodies in Databricks' own form: unknown keys are errors, and messages exclude prompts."""

import json

import pytest

from serve_app.limits import MAX_ERROR_BYTES
from tests.abuse.corpus import MALFORMED, SECRET, SOUND
from tests.support.gateway import gateway

CHAT = "/serving-endpoints/demo/invocations"
TEXT = "/serving-endpoints/text/invocations"
ENDPOINTS = [
    {"name": "demo"},
    {"name": "text", "task": "llm/v1/completions", "served_entities": [{"model": "demo"}]},
]
NOT_OURS = {"100000 unknown keys"}  # sound elsewhere


def in_form_of(path, body):
    drop = b'"prompt":"x",' if path == CHAT else b',"messages":[{"role":"user","content":"x"}]'
    return body.replace(drop, b"")


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("name", "body"), MALFORMED, ids=[name for name, _ in MALFORMED])
async def test_hostile_bodies_get_a_short_400(path, name, body):
    async with gateway(endpoints=ENDPOINTS) as g:
        answer = await g.client.post(path, content=in_form_of(path, body))
        if name in ("list for a string", "nul in the model name"):  # of `model`, which is ignored here
            assert answer.status_code == 200
            return
        assert answer.status_code == 400, answer.text[:300]
        assert list(json.loads(answer.content)) == ["error_code", "message", "error"]
        assert len(answer.content) < MAX_ERROR_BYTES
        assert SECRET not in answer.text
        assert not g.backend.requests
        await g.check()


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("name", "body"), SOUND, ids=[name for name, _ in SOUND])
async def test_odd_but_sound_bodies_are_served(path, name, body):
    async with gateway(endpoints=ENDPOINTS) as g:
        answer = await g.client.post(path, content=in_form_of(path, body))
        if name in NOT_OURS:
            assert answer.json()["message"] == 'json: unknown field "k0"'
            return
        assert answer.status_code == 200, answer.text[:300]
        await g.check()


@pytest.mark.parametrize(
    "extra",
    [
        {"x": "[" * 10_000},
        {"x" * 10_000: "1"},
        {f"k{i}": "1" for i in range(10_000)},
        {"logit_bias": '{"1": 1e400}'},
        {"seed": "9" * 5_000},
        {"messages": "[]"},
        {"user": '"\\ud800"'},
    ],
    ids=lambda extra: next(iter(extra))[:20],
)
async def test_hostile_extra_params(extra):
    body = {"messages": [{"role": "user", "content": "x"}], "extra_params": extra}
    async with gateway(endpoints=ENDPOINTS) as g:
        answer = await g.post(CHAT, body)
        if extra.get("user"):  # no JSON, so it is the text itself
            assert answer.status_code == 200
            return
        assert answer.status_code == 400, answer.text[:300]
        assert len(answer.content) < MAX_ERROR_BYTES
        await g.check()
