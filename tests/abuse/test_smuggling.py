"""What must not reach a template, an engine, a file system or a metric label by way of a field."""

import pytest

from tests.support.gateway import CHAT, COMPLETIONS, body_for, gateway

FIELDS = {
    "chat_template": "{{ x }}",
    "prompt_embeds": "gASVAAAA",
    "guided_decoding_backend": "x:evil",
    "salt": "another tenant",
    "request_id": "chosen",
    "id": "chosen",
    "parent_id": "chosen",
    "lora_request": {"path": "/etc/passwd"},
    "kv_transfer_params": {"host": "169.254.169.254"},
    "__class__": "x",
    "model_config": {"extra": "ignore"},
    "timeout_s": 1e9,
    "include_stop": True,
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", FIELDS)
async def test_fields_nobody_offers_change_nothing_and_are_listed(path, name):
    async with gateway() as g:
        await g.post(path, body_for(path))
        answer = await g.post(path, body_for(path, **{name: FIELDS[name]}))
        assert answer.status_code == 200
        assert answer.headers["x-ignored-fields"] == name
        plain, sent = ({**_fields(request), "id": ""} for request in g.backend.requests)
        assert plain == sent
        await g.check()


REFUSED = {
    "priority": -1_000,
    "chat_template_kwargs": {"tokenize": True},
    "logits_processors": [{"qualname": "os.system", "args": ["id"]}],
}


@pytest.mark.parametrize("name", [*REFUSED, "chat_template", "messages", "tools", "add_generation_prompt"])
async def test_fields_that_would_go_too_far_are_refused(name):
    value = REFUSED.get(name, {name: "{{ x }}"})
    field = name if name in REFUSED else "chat_template_kwargs"
    async with gateway() as g:
        answer = await g.chat(**{field: value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
        assert not g.backend.requests


def _fields(request):
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


NAMES = [
    "../../etc/passwd", "a/../b", "/etc/passwd", "demo\x00", "x" * 257, "x" * 10_000, "dеmo", "demo ",
    " demo", "DEMO",
    "org/other/", "./demo", "file:///demo", "demo\n", "%64emo", "{{7*7}}", "models",
    "\u202edemo",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_model_names_are_looked_up_and_nothing_else(name):
    async with gateway() as g:
        for path in (CHAT, COMPLETIONS):
            answer = await g.post(path, body_for(path, model=name))
            assert answer.status_code == (400 if len(name) > 256 else 404)
            assert len(answer.content) < 300
        assert not g.backend.requests
        await g.check()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "x" * 10_000, "demo%00", "%2e%2e/demo", "demo/", "demo%0a"]
)
async def test_model_pages_are_looked_up_and_nothing_else(name):
    async with gateway() as g:
        answer = await g.client.get(f"/v1/models/{name}")
        assert answer.status_code == 404


async def test_many_names_leave_nothing_behind():
    async with gateway() as g:
        await g.chat(model="demo:adapter-x")
        before = (await g.client.get("/metrics")).text.count("\n")
        for i in range(200):
            assert (await g.chat(model=f"demo:adapter-{i}")).status_code == 404
        assert (await g.client.get("/metrics")).text.count("\n") <= before + 10
