"""Routes that ask a model one question: shapes, bounds, whose entity answers, failures and permits."""

import asyncio
from typing import Any

import pytest

from serve_app import limits
from serve_app.errors import GenerationFailed, InvalidField, Overloaded, Unavailable
from serve_app.types import DetectRequest, DetokenizeRequest, Prompt, Templating, TokenizeRequest
from tests.support.fakes_backend import WORDS, FakeBackend, model_info
from tests.support.gateway import gateway

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/tokenize": {"model": "demo", "prompt": "Hi"},
    "/v1/tokenize": {"model": "demo", "messages": MESSAGES},
    "/detokenize": {"model": "demo", "tokens": [1]},
    "/v1/detokenize": {"model": "demo", "tokens": [1]},
    "/v1/watermark/detect": {"model": "demo", "text": "Hi"},
}
EVERY = pytest.mark.parametrize("path", BODIES)


async def test_tokenize_has_this_shape():
    async with gateway() as g:
        answer = await g.post("/tokenize", BODIES["/tokenize"])
        assert answer.status_code == 200
        assert list(answer.json().items()) == [
            ("count", 2), ("max_model_len", 256), ("tokens", [10, 11]), ("token_strs", None),
        ]  # fmt: skip
        (asked,) = g.backend.questions
        assert isinstance(asked, TokenizeRequest)
        assert (asked.prompt, asked.add_special_tokens, asked.texts) == (Prompt(text="Hi"), True, False)
        assert len(asked.id) == 32
        assert (asked.timeout_s or 0) > 0


async def test_tokenize_passes_its_options_on():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with gateway() as g:
        answer = await g.post(
            "/v1/tokenize",
            {
                "model": "demo", "messages": MESSAGES, "tools": [tool], "return_token_strs": True,
                "add_generation_prompt": False, "chat_template_kwargs": {"enable_thinking": False},
                "add_special_tokens": False,
            },
        )  # fmt: skip
        assert answer.json()["token_strs"] == list(WORDS[:2])
        await g.post("/tokenize", {"model": "demo", "prompt": "", "add_special_tokens": False})
        chat, text = g.backend.questions
        assert chat.prompt.messages == tuple(MESSAGES)
        assert [tool["function"]["name"] for tool in chat.prompt.tools] == ["f"]
        assert chat.prompt.templating == Templating(
            variables={"enable_thinking": False}, add_generation_prompt=False
        )
        assert (text.prompt.text, text.add_special_tokens) == ("", False)


async def test_detokenize_has_this_shape():
    async with gateway() as g:
        answer = await g.post("/detokenize", {"model": "demo", "tokens": [5, 6.0]})
        assert answer.json() == {"prompt": "".join(WORDS)}
        assert "Grüße".encode() in answer.content
        (asked,) = g.backend.questions
        assert isinstance(asked, DetokenizeRequest)
        assert asked.token_ids == (5, 6)
        assert (await g.post("/detokenize", {"model": "demo", "tokens": []})).status_code == 200


async def test_detect_has_this_shape():
    async with gateway() as g:
        answer = await g.post("/v1/watermark/detect", {"model": "demo", "text": "Hi"})
        assert answer.json() == {
            "z_score": 4.0, "green_fraction": 0.75, "num_tokens": 64, "detected": True,
        }  # fmt: skip
        (asked,) = g.backend.questions
        assert isinstance(asked, DetectRequest)
        assert asked.text == "Hi"


REFUSED = [
    ("/tokenize", {"prompt": None}, "prompt"),
    ("/tokenize", {"messages": MESSAGES}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": "x" * (limits.MAX_PROMPT_CHARS + 1)}, "prompt"),
    ("/tokenize", {"add_special_tokens": 1}, "add_special_tokens"),
    ("/tokenize", {"return_token_strs": "yes"}, "return_token_strs"),
    ("/v1/tokenize", {"messages": []}, "messages"),
    ("/v1/tokenize", {"messages": [{"role": "root", "content": "x"}]}, "messages"),
    ("/v1/tokenize", {"add_special_tokens": True}, "add_special_tokens"),
    ("/v1/tokenize", {"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs"),
    ("/v1/tokenize", {"tools": 5}, "tools"),
    ("/detokenize", {"tokens": None}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [2**31]}, "tokens"),
    ("/detokenize", {"tokens": "1"}, "tokens"),
    ("/v1/watermark/detect", {"text": None}, "text"),
    ("/v1/watermark/detect", {"text": ""}, "text"),
    ("/v1/watermark/detect", {"text": "x" * (limits.MAX_PROMPT_CHARS + 1)}, "text"),
    *((path, {"model": None}, "model") for path in BODIES),
    *((path, {"model": ""}, "model") for path in BODIES),
]


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED, ids=lambda value: repr(value)[:40])
async def test_refusals_name_the_field(path, fields, param):
    async with gateway() as g:
        answer = await g.post(path, {**BODIES[path], **fields})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].split(".")[0] == param
        assert not g.backend.questions
        await g.check()


@EVERY
async def test_unknown_models_wrong_methods_and_no_json(path):
    async with gateway() as g:
        assert (await g.post(path, {**BODIES[path], "model": "nobody"})).status_code == 404
        assert (await g.client.get(path)).status_code == 405
        assert (await g.client.post(path, content=b"{")).status_code == 400


@EVERY
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable("the model is loading", retry_after_s=2.0), 503),
        (Overloaded("full", retry_after_s=1.0), 503),
        (GenerationFailed("it failed"), 500),
        (InvalidField("tokens", "must be small"), 400),
    ],
)
async def test_what_the_model_says_is_told(path, error, status):
    async with gateway(FakeBackend(refuse=error)) as g:
        answer = await g.post(path, BODIES[path])
        assert answer.status_code == status
        assert answer.json()["error"]["message"] == error.message
        await g.check()


@EVERY
async def test_a_question_has_a_deadline_and_then_nothing_runs(path):
    async with gateway(FakeBackend(hang_after=0), request_timeout_s=0.05) as g:
        assert (await g.post(path, BODIES[path])).status_code == 504
        assert g.backend.aborted == [question.id for question in g.backend.questions]
        await g.check()


@EVERY
async def test_a_question_takes_a_permit(path):
    async with gateway(FakeBackend(hang_after=0), max_in_flight=1, request_timeout_s=5.0) as g:
        first = asyncio.ensure_future(g.post(path, BODIES[path]))
        async with asyncio.timeout(60):
            while not g.backend.running:
                await asyncio.sleep(0.001)
        assert (await g.post(path, BODIES[path])).status_code == 503
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        async with asyncio.timeout(60):
            while g.backend.running:
                await asyncio.sleep(0.001)


async def test_another_entity_answers_when_the_first_cannot():
    endpoints = [
        {
            "name": "ab",
            "fallback": True,
            "served_entities": [{"name": "a", "model": "one"}, {"name": "b", "model": "two"}],
            "traffic": {"a": 100},
        }
    ]
    backend = FakeBackend(infos=[model_info("one"), model_info("two")], loading={"one"})
    async with gateway(backend, endpoints=endpoints) as g:
        answer = await g.post("/tokenize", {"model": "ab", "prompt": "x"})
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "b")


async def test_errors_below_v1_have_the_protocols_own_shape():
    async with gateway(v1_dialect="mindie") as g:
        answer = await g.post("/v1/tokenize", {"model": "demo"})
        assert (answer.status_code, answer.json()["error_type"]) == (422, "Input Validation Error")
