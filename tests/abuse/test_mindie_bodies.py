"""Hostile bodies in MindIE's own form, with the protocol forced so that unknown fields are ignored."""

import json

import pytest

from serve_app.limits import MAX_ERROR_BYTES
from tests.abuse.corpus import MALFORMED, SECRET, SOUND
from tests.support.gateway import CHAT, gateway

GENERATE = "/mindie/v2/models/demo/generate"
ROUTES = ["/mindie" + CHAT, GENERATE, GENERATE + "_stream"]

# The corpus but for wrong values of fields that this protocol does not have.
NOT_OURS = {
    "true for a number",
    "fraction for an integer",
    "number for a string",
    "20 kB key in logit_bias",
}
FIELDS_OF_CHAT = {
    "number for a boolean",
    "string for a boolean",
    "list for a string",
    "nul in the model name",
}
CASES = [
    pytest.param(path, body, id=f"{name}-{path}")
    for path in ROUTES
    for name, body in MALFORMED
    if name not in NOT_OURS and not (name in FIELDS_OF_CHAT and path.startswith(GENERATE))
]


def in_form_of(path, body):
    """The corpus' body as one of the route: the fields of a text are in `parameters`."""
    if path.startswith(GENERATE):
        body = body.replace(
            b'{"model":"demo","prompt":"x","messages":[{"role":"user","content":"x"}]', OPENING
        )
        body = body[:-1] + b"}}" if body.startswith(OPENING) and body.endswith(b"}") else body
        body = body.replace(b'"max_tokens"', b'"max_new_tokens"')
    return body


OPENING = b'{"text_input":"x","parameters":{"details":false'


@pytest.mark.parametrize(("path", "body"), CASES)
async def test_hostile_bodies_get_a_short_422(path, body):
    async with gateway() as g:
        answer = await g.client.post(path, content=in_form_of(path, body))
        assert answer.status_code == 422, answer.text[:300]
        assert json.loads(answer.content)["error_type"] == "Input Validation Error"
        assert len(answer.content) < MAX_ERROR_BYTES
        assert SECRET not in answer.text
        assert not g.backend.requests
        await g.check()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("name", "body"), SOUND, ids=[name for name, _ in SOUND])
async def test_odd_but_sound_bodies_are_served(path, name, body):
    async with gateway() as g:
        answer = await g.client.post(path, content=in_form_of(path, body))
        # A temperature of zero is odd, sound, and not in this protocol's range.
        assert answer.status_code == (422 if name == "negative zero" else 200), answer.text[:300]
        await g.check()
