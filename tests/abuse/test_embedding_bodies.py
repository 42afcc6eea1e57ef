"""Hostile bodies to /v1/embeddings: the corpus of all bodies, and forms of `input` alone."""

import json

import pytest

from serve_app.limits import MAX_ERROR_BYTES, MAX_PROMPT_CHARS
from tests.abuse.corpus import MALFORMED, SECRET, SOUND
from tests.support.fakes_backend import FakeBackend, embedder_info
from tests.support.gateway import gateway

PATH = "/v1/embeddings"
ENDPOINTS = [{"name": "demo", "task": "llm/v1/embeddings", "served_entities": [{"model": "embedder"}]}]

# Wrong values of fields that an embedding has not: those are listed as ignored, whatever they hold.
OF_GENERATION = {
    "true for a number",
    "string for a number",
    "fraction for an integer",
    "number for a boolean",
    "string for a boolean",
    "object for a list",
    "20 kB value",
    "20 kB key in logit_bias",
}
OTHERS = 2  # the field itself, and `messages`


def embedders():
    return FakeBackend(infos=[embedder_info()])


def with_input(body):
    return body.replace(b'"prompt":"x"', b'"input":"x"')


def unharmed(g):
    """Nothing runs, and every request that was opened was closed."""
    return not g.backend.running and not g.journal.open


@pytest.mark.parametrize(("name", "body"), MALFORMED, ids=[name for name, _ in MALFORMED])
async def test_hostile_bodies_get_a_short_400(name, body):
    async with gateway(embedders(), endpoints=ENDPOINTS) as g:
        answer = await g.client.post(PATH, content=with_input(body))
        if name in OF_GENERATION:
            assert (answer.status_code, len(answer.headers["x-ignored-fields"].split())) == (200, OTHERS)
            return
        assert answer.status_code == 400, answer.text[:300]
        assert list(json.loads(answer.content)) == ["error"]
        assert len(answer.content) < MAX_ERROR_BYTES
        assert SECRET not in answer.text
        assert not g.backend.questions
        assert unharmed(g)


@pytest.mark.parametrize(("name", "body"), SOUND, ids=[name for name, _ in SOUND])
async def test_odd_but_sound_bodies_are_served(name, body):
    async with gateway(embedders(), endpoints=ENDPOINTS) as g:
        answer = await g.client.post(PATH, content=with_input(body))
        assert answer.status_code == 200, answer.text[:300]
        assert unharmed(g)


@pytest.mark.parametrize(
    "value",
    [
        '"' + "x" * (MAX_PROMPT_CHARS + 1) + '"',
        "[" + ",".join(['"x"'] * 200_000) + "]",
        "[" + ",".join(["[1]"] * 50_000) + "]",
        "[" + "9" * 5_000 + "]",
        "[1e400]",
        "[NaN]",
        '[["x"]]',
        "[[[1]]]",
        "[null]",
        '{"0": "x"}',
        "true",
        '"\\ud800"',
    ],
    ids=lambda value: value[:20],
)
async def test_hostile_inputs_are_refused_shortly(value):
    async with gateway(embedders(), endpoints=ENDPOINTS) as g:
        answer = await g.client.post(PATH, content=f'{{"model":"demo","input":{value}}}'.encode())
        assert answer.status_code == 400, answer.text[:300]
        assert len(answer.content) < MAX_ERROR_BYTES
        assert not g.backend.questions
        assert unharmed(g)


async def test_a_million_token_ids_are_one_text():
    async with gateway(embedders(), endpoints=ENDPOINTS) as g:
        content = b'{"model":"demo","input":[' + b",".join([b"7"] * 1_000_000) + b"]}"
        answer = await g.client.post(PATH, content=content)
        assert answer.status_code == 200, answer.text[:300]
        assert [len(each) for each in g.backend.questions[0].inputs] == [1_000_000]
