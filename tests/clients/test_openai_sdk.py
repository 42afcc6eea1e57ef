"""The unmodified openai package against the gateway over a real socket: options, answers, exceptions."""

import asyncio
from contextlib import asynccontextmanager

import openai
import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import (
    DeadlineExceeded,
    GenerationFailed,
    Overloaded,
    PromptTooLong,
    QuotaExceeded,
    Unavailable,
)
from serve_app.types import FinishReason, Prompt
from tests.support.fakes_backend import CACHED_TOKENS, PROMPT_TOKENS, WORDS, FakeBackend
from tests.support.gateway import gateway, served

TEXT = "".join(WORDS)
HELLO = [{"role": "user", "content": "Hello!"}]


@asynccontextmanager
async def sdk(backend=None, keys="", api_key="unused", **config):
    """(gateway, asynchronous client, synchronous client)"""
    async with gateway(backend, keys=keys, **config) as g, served(g.app) as (host, port):
        settings = {
            "base_url": f"http://{host}:{port}/v1",
            "api_key": api_key,
            "max_retries": 0,
            "timeout": 20,
        }
        async with openai.AsyncOpenAI(**settings) as client:
            with openai.OpenAI(**settings) as blocking:
                yield g, client, blocking


CHAT_OPTIONS = {
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "max_completion_tokens": 7,
    "stop": ["x", "y"],
    "seed": -5,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"7": -100},
    "logprobs": True,
    "top_logprobs": 3,
    "user": "ann",
    "extra_body": {
        "top_k": 4,
        "min_p": 0.1,
        "typical_p": 0.8,
        "repetition_penalty": 1.1,
        "stop_token_ids": [3],
        "bad_words": ["no"],
        "min_tokens": 2,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "timeout": 9,
    },
}


def assert_chat_options(request, stream):
    s = request.sampling
    assert (s.temperature, s.top_p, s.max_tokens, s.seed) == (0.5, 0.9, 7, 2**64 - 5)
    assert (s.presence_penalty, s.frequency_penalty, s.logit_bias) == (0.5, -0.5, ((7, -100.0),))
    assert (s.top_k, s.min_p, s.typical_p, s.repetition_penalty) == (4, 0.1, 0.8, 1.1)
    assert (s.stop_token_ids, s.min_tokens, s.ignore_eos) == ((3,), 2, True)
    assert (request.n, request.stop, request.bad_words) == (2, ("x", "y"), ("no",))
    assert (request.include_stop, request.skip_special_tokens) == (True, False)
    assert (request.logprobs, request.timeout_s, request.stream) == (3, 9.0, stream)
    assert request.prompt == Prompt(messages=({"role": "user", "content": "Hello!"},))


def assert_chat_answer(answer):
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "demo")
    assert answer.system_fingerprint.startswith("fp_")
    assert [c.index for c in answer.choices] == [0, 1]
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[1].message.content == TEXT.replace("Grüße", "Grüße1")
    assert {c.message.role for c in answer.choices} == {"assistant"}
    assert {c.finish_reason for c in answer.choices} == {"length"}
    listed = answer.choices[0].logprobs.content
    assert "".join(bytes(entry.bytes).decode() for entry in listed) == TEXT
    assert [len(entry.top_logprobs) for entry in listed] == [3] * len(WORDS)
    assert_usage(answer.usage, 2 * len(WORDS))


def assert_usage(usage, completion_tokens):
    assert usage.prompt_tokens == PROMPT_TOKENS
    assert usage.completion_tokens == completion_tokens
    assert usage.total_tokens == PROMPT_TOKENS + completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == CACHED_TOKENS


def assert_chat_stream(chunks):
    texts = {0: "", 1: ""}
    finished = {}
    first_roles: dict[int, str] = {}
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        first_roles.setdefault(choice.index, choice.delta.role)
        texts[choice.index] += choice.delta.content or ""
        finished[choice.index] = choice.finish_reason
        assert chunk.usage is None
    assert first_roles == {0: "assistant", 1: "assistant"}
    assert texts == {0: TEXT, 1: TEXT.replace("Grüße", "Grüße1")}
    assert finished == {0: "length", 1: "length"}
    assert chunks[-1].choices == []
    assert_usage(chunks[-1].usage, 2 * len(WORDS))
    assert len({chunk.id for chunk in chunks}) == 1


async def test_chat_with_every_option_in_both_clients_streamed_and_whole():
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    options = {"model": "demo", "messages": HELLO, **CHAT_OPTIONS}
    async with sdk() as (g, client, blocking):
        assert_chat_answer(await client.chat.completions.create(**options))
        assert_chat_options(g.backend.last, stream=False)
        assert_chat_answer(await asyncio.to_thread(blocking.chat.completions.create, **options))
        assert_chat_stream([c async for c in await client.chat.completions.create(**options, **usage)])
        assert_chat_options(g.backend.last, stream=True)
        assert_chat_stream(
            await asyncio.to_thread(lambda: list(blocking.chat.completions.create(**options, **usage)))
        )
        await g.check()


async def test_streamed_logprobs_are_those_of_the_whole_answer():
    options = {"model": "demo", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    async with sdk() as (_, client, _):
        whole = (await client.chat.completions.create(**options)).choices[0].logprobs.content
        streamed = [
            entry
            async for chunk in await client.chat.completions.create(**options, stream=True)
            if chunk.choices[0].logprobs
            for entry in chunk.choices[0].logprobs.content
        ]
        assert streamed == whole


async def test_the_stream_helper_accumulates_a_whole_message():
    async with sdk(FakeBackend(finish=FinishReason.EOS)) as (_, client, _):
        async with client.chat.completions.stream(model="demo", messages=HELLO) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == TEXT
        assert final.choices[0].finish_reason == "stop"


async def test_parts_tools_history_and_developer_messages_pass():
    conversation = [
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
        {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":2}'}}
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]  # fmt: skip
    async with sdk() as (g, client, _):
        await client.chat.completions.create(model="demo", messages=conversation)
        roles = [message["role"] for message in g.backend.last.prompt.messages]
        assert roles == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Once", [Prompt(text="Once")]),
        (["Once", "Twice"], [Prompt(text="Once"), Prompt(text="Twice")]),
        ([1, 2], [Prompt(token_ids=(1, 2))]),
        ([[1], [2, 3]], [Prompt(token_ids=(1,)), Prompt(token_ids=(2, 3))]),
    ],
)
async def test_completions_of_every_form_of_prompt_streamed_and_whole(prompt, expected):
    async with sdk() as (g, client, blocking):
        options = {"model": "demo", "prompt": prompt, "max_tokens": 5, "n": 2}
        whole = await client.completions.create(**options)
        assert [request.prompt for request in g.backend.requests] == expected
        assert {request.sampling.max_tokens for request in g.backend.requests} == {5}
        assert whole.id.startswith("cmpl-")
        assert whole.object == "text_completion"
        assert [choice.index for choice in whole.choices] == list(range(2 * len(expected)))
        assert (await asyncio.to_thread(blocking.completions.create, **options)).choices == whole.choices
        texts = [""] * len(whole.choices)
        async for chunk in await client.completions.create(**options, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [choice.text for choice in whole.choices]
        await g.check()


async def test_completions_echo_logprobs_suffix_and_best_of():
    async with sdk() as (g, client, _):
        options = {"model": "demo", "prompt": "x", "echo": True, "logprobs": 2, "suffix": "end", "best_of": 3}
        choice = (await client.completions.create(**options)).choices[0]
        request = g.backend.last
        assert (request.echo, request.logprobs, request.prompt_logprobs, request.best_of) == (True, 2, 2, 3)
        assert request.prompt == Prompt(text="x", suffix="end")
        assert choice.text == "The question" + TEXT
        listed = choice.logprobs
        assert "".join(listed.tokens) == choice.text
        assert [
            choice.text[offset:][: len(token)]
            for token, offset in zip(listed.tokens, listed.text_offset, strict=True)
        ] == listed.tokens
        assert listed.token_logprobs[0] is None
        assert [len(top) for top in listed.top_logprobs[1:]] == [2] * (len(WORDS) + 1)


async def test_prompt_logprobs_are_an_extension_of_the_answer():
    async with sdk() as (_, client, _):
        answer = await client.chat.completions.create(
            model="demo", messages=HELLO, extra_body={"prompt_logprobs": 1}
        )
        first, second = answer.prompt_logprobs
        assert first is None
        assert " question" in [entry["decoded_token"] for entry in second.values()]


async def test_models():
    async with sdk() as (_, client, blocking):
        assert [model.id async for model in client.models.list()] == ["demo", "org/other"]
        one = await asyncio.to_thread(blocking.models.retrieve, "org/other")
        assert (one.id, one.object, one.owned_by) == ("org/other", "model", "serve-app")
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nope")


@pytest.mark.parametrize(
    ("error", "raised", "code"),
    [
        (
            PromptTooLong("messages", "prompt: too long", joint=None),
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        (QuotaExceeded("quota", retry_after_s=3), openai.RateLimitError, "rate_limit_exceeded"),
        (Overloaded("full"), openai.InternalServerError, "server_is_overloaded"),
        (Unavailable("loading"), openai.InternalServerError, "service_unavailable"),
        (DeadlineExceeded("late"), openai.InternalServerError, "deadline_exceeded"),
        (GenerationFailed("broken"), openai.InternalServerError, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_the_backend_are_typed_exceptions(error, raised, code, stream):
    async with sdk(FakeBackend(refuse=error)) as (_, client, blocking):
        options = {"model": "demo", "messages": HELLO, "stream": stream}
        with pytest.raises(raised) as caught:
            await client.chat.completions.create(**options)
        assert (caught.value.code, caught.value.param) == (code, error.param)
        assert error.message in str(caught.value)
        assert caught.value.request_id.startswith("req_")
        with pytest.raises(raised):
            await asyncio.to_thread(blocking.chat.completions.create, **options)


@pytest.mark.parametrize(
    ("options", "raised", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"top_logprobs": 21}, openai.BadRequestError, "top_logprobs"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"logit_bias": {"x": 1}}, openai.BadRequestError, "logit_bias"),
        ({"model": "nope"}, openai.NotFoundError, "model"),
        ({"tools": [{"type": "f"}]}, openai.BadRequestError, "tools.0.type"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "response_format"),
    ],
)
async def test_bad_input_is_a_typed_exception_that_names_the_field(options, raised, param):
    async with sdk() as (g, client, _):
        with pytest.raises(raised) as caught:
            await client.chat.completions.create(**{"model": "demo", "messages": HELLO, **options})
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"
        assert not g.backend.requests


async def test_keys():
    key, line = new_key("ann")
    async with sdk(keys=line, api_key=key) as (g, client, _):
        await client.chat.completions.create(model="demo", messages=HELLO)
        assert g.backend.last.salt
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.with_options(api_key="sk-wrong").models.list()
        assert caught.value.code == "invalid_api_key"
    _, metrics_line = new_key("scraper", ["metrics"])
    scraper, metrics_line = new_key("scraper", ["metrics"])
    async with sdk(keys=metrics_line, api_key=scraper) as (_, client, _):
        with pytest.raises(openai.PermissionDeniedError):
            await client.models.list()


@pytest.mark.parametrize("fault", [GenerationFailed("the model's process ended"), None])
async def test_a_broken_stream_raises_and_never_just_ends(fault):
    async with sdk(FakeBackend(fail_after=2, failure=fault)) as (g, client, blocking):
        options = {"model": "demo", "messages": HELLO, "stream": True}
        seen = []

        async def read():
            async for chunk in await client.chat.completions.create(**options):
                seen.append(chunk.choices[0].delta.content)

        with pytest.raises(openai.APIError) as caught:
            await read()
        assert seen == ["", *WORDS[:2]]
        assert caught.value.type == "server_error"
        with pytest.raises(openai.APIError):
            await asyncio.to_thread(lambda: list(blocking.chat.completions.create(**options)))
        await g.check()


async def test_a_refusal_for_lack_of_room_is_retried_until_it_succeeds():
    async with sdk(FakeBackend(refuse=Overloaded("full", retry_after_s=0.01))) as (g, client, _):
        generate = g.backend.generate

        def recover(request):
            if len(g.backend.requests) >= 1:
                g.backend.refuse = None
            return generate(request)

        g.backend.generate = recover
        answer = await client.with_options(max_retries=2).chat.completions.create(
            model="demo", messages=HELLO
        )
        assert answer.choices[0].message.content == TEXT
        assert len(g.backend.requests) == 2


async def test_closing_a_stream_early_frees_the_request():
    async with sdk(FakeBackend(hang_after=2)) as (g, client, _):
        stream = await client.chat.completions.create(model="demo", messages=HELLO, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await asyncio.wait_for(g.backend.closed.wait(), 60)
        assert g.backend.aborted == [g.backend.last.id]


async def test_two_streams_of_one_client_do_not_mix():
    async with sdk() as (g, client, _):

        async def one(n):
            stream = await client.chat.completions.create(model="demo", messages=HELLO, stream=True, n=n)
            return [(c.choices[0].index, c.choices[0].delta.content) async for c in stream]

        alone = [await one(n) for n in (1, 2, 3)]
        assert await asyncio.gather(*(one(n) for n in (1, 2, 3))) == alone
        await g.check()


@pytest.mark.parametrize(
    ("base", "readable"), [("/v1", True), ("/serving-endpoints", True), ("/v3", False), ("/mindie/v1", False)]
)
async def test_errors_of_other_protocols_tell_what_was_wrong(base, readable):
    """In `str(error)` where the protocol has a member `message`; where its error is text, in `body`."""
    async with sdk() as (_, client, _):
        other = client.with_options(base_url=str(client.base_url).replace("/v1/", base))
        with pytest.raises(openai.APIStatusError) as caught:
            await other.chat.completions.create(model="demo", messages=HELLO, temperature=2.5)
    told = str(caught.value) if readable else caught.value.body
    assert isinstance(told, str)
    assert "temperature: must be a number" in told
