"""Guardrails of an endpoint, over every protocol: what is blocked, masked, refused, and what it costs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from anthropic.types import Message
from msgspec import structs
from openai.types.responses import Response

from serve_app.errors import Unavailable
from serve_app.types import FinishReason, GenerateRequest, TokenDelta, ToolCallDelta, Usage
from tests.support.fakes_backend import FakeBackend, embedder_info, model_info
from tests.support.gateway import CHAT, COMPLETIONS, Gateway, chat_body, events, gateway
from tests.support.message_events import message_events_of, message_of
from tests.support.response_events import events_of, unnamed_events_of
from tests.support.streams import streamed

EMAIL = "john.doe@example.com"
MASK = "<EMAIL_ADDRESS>"
MASKS: dict[str, Any] = {"pii": {"behavior": "MASK"}}
BLOCKS: dict[str, Any] = {"pii": {"behavior": "BLOCK"}}
KEYWORDS: dict[str, Any] = {"invalid_keywords": ["falcon"]}
TOLD = f"Write to {EMAIL}, please."
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
OVMS_RESPONSES = "/v3/responses"
JUDGE = "org/other"  # of the fake's models


@dataclass
class Scripted(FakeBackend):
    """Answers in the given words; as a judge, by what the judged text holds."""

    verdict: Callable[[str], str] = lambda text: "safe"
    judged: list[GenerateRequest] = field(default_factory=list)

    @property
    def prompts(self) -> list[GenerateRequest]:
        """What reached the model itself."""
        return [each for each in self.requests if each not in self.judged]

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        if "other" in request.model:
            self.judged.append(request)
            if self.refuse is not None:
                raise self.refuse
            word = self.verdict((request.prompt.messages or ())[-1]["content"])
            yield [TokenDelta(request_id=request.id, index=0, text=word, finish=FinishReason.EOS)]
            return
        self.requests.append(request)
        self.running += 1
        try:
            async for deltas in self._deltas(request):
                yield deltas
        finally:
            self.running -= 1


def in_pieces(text: str, size: int = 4) -> tuple[str, ...]:
    return tuple(text[start : start + size] for start in range(0, len(text), size))


@asynccontextmanager
async def guarded(
    *,
    input: dict[str, Any] | None = None,
    output: dict[str, Any] | None = None,
    backend: Scripted | None = None,
    text: str = TOLD,
    model: str | None = JUDGE,
    guardrails_model: str | None = None,
) -> AsyncIterator[tuple[Gateway, Scripted]]:
    """`model` judges for the endpoint `demo`, `guardrails_model` for all that name none."""
    backend = backend or Scripted()
    backend.words = in_pieces(text)
    guardrails = {"input": input, "output": output, "model": model}
    endpoints = [{"name": "demo", "ai_gateway": {"guardrails": guardrails}}, {"name": JUDGE}]
    settings: dict[str, Any] = {"trtllm": {"alias": ""}, "guardrails_model": guardrails_model}
    async with gateway(backend, endpoints=endpoints, **settings) as g:
        yield g, backend


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 50, **fields}


def generate(text: str, **fields: Any) -> dict[str, Any]:
    return {"text_input": text, "max_tokens": 50, **fields}


def respond(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "input": text, "max_output_tokens": 50, **fields}


# name -> path, body of a text
ROUTES: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "openai": (CHAT, chat),
    "openai completions": (COMPLETIONS, lambda text, **more: {"model": "demo", "prompt": text, **more}),
    "databricks": ("/serving-endpoints/demo/invocations", chat),
    "mindie": ("/mindie" + CHAT, chat),
    "mindie generate": (
        "/mindie/v2/models/demo/generate",
        lambda text, stream=False: {"text_input": text, "parameters": {"max_new_tokens": 50}},
    ),
    "ovms": ("/v3/chat/completions", chat),
    "triton": ("/v2/models/ensemble/generate", lambda text, **more: generate(text, **more)),
}
STREAMS = {
    name: (path.replace("/generate", "/generate_stream"), body) for name, (path, body) in ROUTES.items()
}


def texts(answer: str) -> str:
    """All text of an answer or a stream, put together, whichever members have it."""
    found = []
    for line in answer.splitlines():
        line = line.removeprefix("data:").strip()
        if not line.startswith("{"):
            continue
        told = json.loads(line)
        for choice in told.get("choices", []):
            part = choice.get("delta") or choice.get("message") or choice
            found.append(part.get("content") or part.get("text") or "")
        output = told.get("text_output", "")
        found.append(output if isinstance(output, str) else "".join(output))
    return "".join(found)


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_answers_are_masked(name: str, stream: bool) -> None:
    path, body = (STREAMS if stream else ROUTES)[name]
    async with guarded(output=MASKS) as (g, backend):
        answer = await g.post(path, body("Hi", **({"stream": True} if stream else {})))
        assert answer.status_code == 200, answer.text
        assert MASK in texts(answer.text), answer.text
        assert texts(answer.text).removesuffix("</s>") == TOLD.replace(EMAIL, MASK)
        assert "john" not in answer.text
        assert [each["completion_tokens"] for each in usages(answer.text)] in ([], [len(backend.words)])
        (record,) = g.journal.records
        assert (record.outcome, record.completion_tokens) == ("finished", len(backend.words))


def usages(answer: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data:").strip() for line in answer.splitlines()]
    return [
        told["usage"] for line in lines if line.startswith("{") and (told := json.loads(line)).get("usage")
    ]


@pytest.mark.parametrize("name", ROUTES)
async def test_prompts_are_masked_before_a_model_has_them(name: str) -> None:
    path, body = ROUTES[name]
    async with guarded(input=MASKS, text="ok") as (g, backend):
        answer = await g.post(path, body(f"I am {EMAIL}!"))
        assert answer.status_code == 200, answer.text
        (request,) = backend.prompts
        assert MASK in str(request.prompt)
        assert "john" not in str(request)


# protocol -> what a blocked prompt gets
ERRORS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "openai": lambda told: (
        told["error"]["code"] == "content_filter" and "personal" in told["error"]["message"]
    ),
    "databricks": lambda told: (
        told["error_code"] == "BAD_REQUEST"
        and json.loads(told["message"])["finishReason"] == "input_guardrail_triggered"
        and json.loads(told["message"])["input_guardrail"][0]["pii_detection"] is True
    ),
    "mindie": lambda told: "personal data" in json.dumps(told),
    "ovms": lambda told: "personal data" in told["error"],
    "triton": lambda told: "personal data" in told["error"],
}


@pytest.mark.parametrize("name", ROUTES)
async def test_e18_prompts_are_blocked_in_the_protocols_own_shape(name: str) -> None:
    path, body = ROUTES[name]
    async with guarded(input=BLOCKS) as (g, backend):
        answer = await g.post(path, body(f"I am {EMAIL}!"))
        assert answer.status_code == ERROR_STATUS.get(name, 400), answer.text
        assert ERRORS[name.split()[0]](answer.json()), answer.text
        assert "john" not in answer.text
        assert backend.requests == []
        (record,) = g.journal.records
        assert (record.outcome, record.prompt_tokens, record.status) == ("failed", 0, answer.status_code)
        page = (await g.client.get("/metrics")).text
        assert 'guardrails_triggered_total{check="pii",endpoint="demo",side="input"} 1.0' in page
        fine = await g.post(path, body("I am John."))
        assert fine.status_code == 200


ERROR_STATUS = {"mindie": 422, "mindie generate": 422}


@pytest.mark.parametrize("name", ROUTES)
async def test_e18_an_answer_that_is_blocked_ends_as_the_protocol_ends_answers(name: str) -> None:
    rules = {**KEYWORDS}
    async with guarded(output=rules, text="A long beginning, and then the falcon flies on.") as (g, backend):
        path, body = ROUTES[name]
        answer = await g.post(path, body("Hi"))
        if name.startswith("openai"):
            (choice,) = answer.json()["choices"]
            assert (choice["finish_reason"], texts(answer.text)) == ("content_filter", "")
        else:
            assert answer.status_code == ERROR_STATUS.get(name, 400), answer.text
        assert "falcon" not in answer.text.lower()
        path, body = STREAMS[name]
        stream = await g.post(path, body("Hi", stream=True))
        assert stream.status_code == 200
        assert texts(stream.text).startswith("A long beginning")
        assert "falcon" not in stream.text.lower().replace("`invalid_keywords`", "")
        assert "flies" not in stream.text
        if name.startswith("openai"):
            assert events(stream.text)[-1]["choices"][0]["finish_reason"] == "content_filter"
        else:
            assert "guardrail" in stream.text
        assert not backend.running


async def test_responses_are_masked_and_end_where_they_are_blocked() -> None:
    async with guarded(input=MASKS, output=MASKS) as (g, backend):
        whole = await g.post(RESPONSES, respond(f"I am {EMAIL}!"))
        assert Response.model_validate(whole.json()).output_text == TOLD.replace(EMAIL, MASK)
        stream = await g.post(RESPONSES, respond(f"I am {EMAIL}!", stream=True))
        assert events_of(stream.text)[-1].response.output_text == TOLD.replace(EMAIL, MASK)
        assert "john" not in whole.text + stream.text
        assert all(MASK in str(request.prompt) for request in backend.prompts)
    async with guarded(output=KEYWORDS, text="A long beginning, and then the falcon flies on.") as (g, _):
        stream = await g.post(RESPONSES, respond("Hi", stream=True))
        last = events_of(stream.text)[-1].response
        assert (last.status, last.incomplete_details.reason) == ("incomplete", "content_filter")
        assert last.output_text.startswith("A long beginning")
        assert "falcon" not in stream.text.lower()
    async with guarded(input=BLOCKS) as (g, backend):
        blocked = await g.post(RESPONSES, respond(f"I am {EMAIL}!"))
        assert (blocked.status_code, ERRORS["openai"](blocked.json())) == (400, True)
        assert backend.requests == []


async def test_the_model_servers_responses_are_masked_and_end_where_they_are_blocked() -> None:
    async with guarded(input=MASKS, output=MASKS) as (g, _):
        whole = await g.post(OVMS_RESPONSES, respond(f"I am {EMAIL}!"))
        stream = await g.post(OVMS_RESPONSES, respond(f"I am {EMAIL}!", stream=True))
        last = unnamed_events_of(stream.text)[-1]["response"]
        for response in (whole.json(), last):
            assert response["output"][0]["content"][0]["text"] == TOLD.replace(EMAIL, MASK)
        assert "john" not in whole.text + stream.text
    async with guarded(output=KEYWORDS, text="A long beginning, and then the falcon flies on.") as (g, _):
        stream = await g.post(OVMS_RESPONSES, respond("Hi", stream=True))
        last = unnamed_events_of(stream.text)[-1]["response"]
        assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
        assert "falcon" not in stream.text.lower()


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {**chat(text), "system": "Be brief.", **fields}


async def test_e18_messages_are_masked_and_end_where_they_are_blocked() -> None:
    async with guarded(input=MASKS, output=MASKS) as (g, backend):
        whole = await g.post(MESSAGES, message(f"I am {EMAIL}!"))
        stream = await g.post(MESSAGES, message(f"I am {EMAIL}!", stream=True))
        for found in (Message.model_validate(whole.json()), message_of(message_events_of(stream.text))):
            assert [block.model_dump()["text"] for block in found.content] == [TOLD.replace(EMAIL, MASK)]
        assert "john" not in whole.text + stream.text
        assert all(MASK in str(request.prompt) for request in backend.prompts)
    async with guarded(output=KEYWORDS, text="A long beginning, and then the falcon flies on.") as (g, _):
        stream = await g.post(MESSAGES, message("Hi", stream=True))
        ended = message_of(message_events_of(stream.text))
        assert (ended.stop_reason, ended.stop_details is not None) == ("refusal", True)
        assert "falcon" not in stream.text.lower()
    async with guarded(input=BLOCKS) as (g, backend):
        blocked = await g.post(MESSAGES, message(f"I am {EMAIL}!"))
        assert (blocked.status_code, blocked.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "personal data" in blocked.json()["error"]["message"]
        assert backend.requests == []


async def test_a_finding_at_the_beginning_of_a_stream_is_a_status() -> None:
    async with guarded(output=BLOCKS, text=f"{EMAIL} is it") as (g, _):
        path = "/serving-endpoints/demo/invocations"
        answer = await g.post(path, chat("Hi", stream=True))
        assert answer.status_code == 400
        told = json.loads(answer.json()["message"])
        assert told["finishReason"] == "output_guardrail_triggered"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, chat("Hi", logprobs=True), "logprobs"),
        (CHAT, chat("Hi", return_token_ids=True), "return_token_ids"),
        (RESPONSES, respond("Hi", top_logprobs=1), "top_logprobs"),
        (RESPONSES, respond("Hi", include=["message.output_text.logprobs"]), "include"),
        (OVMS_RESPONSES, respond("Hi", logprobs=True), "logprobs"),
        (COMPLETIONS, {"model": "demo", "prompt": "Hi", "echo": True}, "echo"),
        (COMPLETIONS, {"model": "demo", "prompt": "Hi", "prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v3/chat/completions", chat("Hi", detokenize=False), "detokenize"),
        ("/v2/models/demo/generate", generate("Hi"), "output_ids"),
        ("/v2/models/ensemble/generate", generate("Hi", return_log_probs=True), "return_log_probs"),
        (
            "/mindie/v2/models/demo/generate",
            {"text_input": "Hi", "parameters": {"details": True, "perf_stat": True}},
            "perf_stat",
        ),
    ],
)
async def test_what_shows_an_answer_in_another_way_is_refused_by_name(
    path: str, body: dict[str, Any], field: str
) -> None:
    async with guarded(output=MASKS) as (g, backend):
        answer = await g.post(path, body)
        assert answer.status_code in (400, 422), answer.text
        assert field in answer.text
        assert "guardrail" in answer.text
        assert backend.requests == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"model": "demo", "prompt": [1, 2, 3]}),
        ("/v2/models/demo/generate", {"input_ids": [1, 2], "max_tokens": 5}),
    ],
)
async def test_prompts_of_token_ids_are_refused_where_prompts_are_checked(
    path: str, body: dict[str, Any]
) -> None:
    async with guarded(input=BLOCKS) as (g, backend):
        answer = await g.post(path, body)
        assert answer.status_code == 400
        assert "token ids" in answer.text
        assert backend.requests == []


async def test_a_mask_would_break_a_form_so_the_answer_is_blocked() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    async with guarded(output=MASKS, text=json.dumps({"to": EMAIL})) as (g, _):
        answer = await g.chat(response_format=form)
        assert answer.json()["choices"][0]["finish_reason"] == "content_filter"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("rules", [MASKS, BLOCKS, {"invalid_keywords": [EMAIL]}])
async def test_an_escape_of_json_hides_nothing(rules: dict[str, Any], stream: bool) -> None:
    text = json.dumps({"to": EMAIL}).replace("@", "\\u0040").replace("j", "\\u006A")
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    for body in ({}, {"response_format": form}):
        async with guarded(output=rules, text=text) as (g, _):
            answer = await g.chat(stream=stream, **body)
            assert "example" not in answer.text
            masks = rules is MASKS and not body
            assert ("content_filter" in answer.text) is not masks
            assert (MASK in answer.text) is masks


@pytest.mark.parametrize("stop", ["fal", "falcon", "f"])
async def test_a_stop_string_does_not_tell_that_a_keyword_came(stop: str) -> None:
    async with guarded(output=KEYWORDS) as (g, backend):
        backend.words, backend.finish, backend.stop = ("a ",), FinishReason.STOP, stop
        answer = await g.chat(stop=[stop])
        assert answer.json()["choices"][0]["finish_reason"] == "content_filter"
        assert not answer.json()["choices"][0]["message"]["content"]
        assert answer.json()["choices"][0].get("stop_reason") is None
        backend.stop = "\n"
        answer = await g.chat(stop=["\n"])
        assert answer.json()["choices"][0]["finish_reason"] == "stop"


@dataclass
class Calling(Scripted):
    """Thinks, calls a tool with personal data in its arguments, and ends."""

    async def _deltas(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        base = TokenDelta(request_id=request.id, index=0, usage=Usage(prompt_tokens=5, completion_tokens=3))
        yield [structs.replace(base, reasoning=f"It is {EMAIL[:6]}")]
        yield [structs.replace(base, reasoning=f"{EMAIL[6:]} then.")]
        arguments = json.dumps({"to": EMAIL, "phone": 2125550134, "n": 3}).replace("@", "\\u0040")
        for k, part in enumerate(in_pieces(arguments)):
            first = {"id": "call_1", "name": "send"} if not k else {}
            yield [structs.replace(base, tool_calls=(ToolCallDelta(index=0, arguments=part, **first),))]
        yield [structs.replace(base, finish=FinishReason.TOOL_CALLS)]


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_and_arguments_of_calls_are_masked_too(stream: bool) -> None:
    async with guarded(output=MASKS, backend=Calling()) as (g, _):
        answer = await g.chat(stream=stream)
        assert answer.status_code == 200, answer.text
        assert "john" not in answer.text
        if stream:
            parts = [each["choices"][0]["delta"] for each in events(answer.text)]
            thought = "".join(part.get("reasoning_content", "") for part in parts)
            calls = [call for part in parts for call in part.get("tool_calls", [])]
            arguments = "".join(call["function"]["arguments"] for call in calls)
        else:
            message = answer.json()["choices"][0]["message"]
            thought = message["reasoning_content"]
            arguments = message["tool_calls"][0]["function"]["arguments"]
        assert thought == f"It is {MASK} then."
        assert json.loads(arguments) == {"to": MASK, "phone": "<PHONE_NUMBER>", "n": 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_whose_arguments_have_a_form_is_blocked(stream: bool) -> None:
    """As an answer under a grammar: a mask would not match what was asked for."""
    email = {"type": "string", "pattern": "^[a-z.]+@[a-z.]+$"}
    for schema, is_blocked in (({"type": "string"}, False), (email, True)):
        parameters = {"type": "object", "properties": {"to": schema}}
        tool = {"type": "function", "function": {"name": "send", "parameters": parameters}}
        for choice in ("required", {"type": "function", "function": {"name": "send"}}, "auto"):
            async with guarded(output=MASKS, backend=Calling()) as (g, _):
                answer = await g.chat(stream=stream, tools=[tool], tool_choice=choice)
                assert answer.status_code == 200, answer.text
                assert "john" not in answer.text
                assert ("content_filter" in answer.text) is (is_blocked and choice != "auto")


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_forced_call_of_a_custom_tool_with_a_grammar_is_blocked(choice: str) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}
    tool = {"type": "custom", "custom": {"name": "send", "format": form}}
    async with guarded(output=MASKS, backend=Calling()) as (g, _):
        answer = await g.chat(tools=[tool], tool_choice=choice)
        assert answer.status_code == 200, answer.text
        assert "john" not in answer.text
        assert ("content_filter" in answer.text) is (choice == "required")


async def test_each_choice_is_checked_by_itself() -> None:
    async with guarded(output=KEYWORDS) as (g, backend):
        backend.words = ("fal", "con", " is", " here")  # the first word of choice 1 is `fal1`
        answer = await g.chat(n=2)
        assert [each["finish_reason"] for each in answer.json()["choices"]] == ["content_filter", "length"]
        assert answer.json()["choices"][1]["message"]["content"] == "fal1con is here"


JUDGED = {"safety": True, "valid_topics": ["capitals"]}


def by_words(text: str) -> str:
    """safe or unsafe; yes or no, as the question's last line asks."""
    asks_safety = text.endswith("safe or unsafe.")
    bad = "bomb" in text if asks_safety else "sports" in text
    return ("unsafe" if bad else "safe") if asks_safety else ("no" if bad else "yes")


@pytest.mark.parametrize(
    ("prompt", "check"),
    [("Where is Paris?", None), ("Build a bomb", "safety"), ("Who won sports?", "valid_topics")],
)
async def test_a_model_judges_prompts(prompt: str, check: str | None) -> None:
    async with guarded(input=JUDGED, backend=Scripted(verdict=by_words), text="ok") as (g, backend):
        answer = await g.post(CHAT, chat(prompt))
        assert answer.status_code == (200 if check is None else 400)
        for asked in backend.judged:
            assert asked.grammar is not None
            assert json.loads(asked.grammar.text) in (["safe", "unsafe"], ["yes", "no"])
            assert asked.sampling.temperature == 0
        if check is not None:
            assert check in answer.text
            assert backend.prompts == []
        records = g.journal.records
        assert [record.endpoint for record in records] == ["demo"], "a verdict is not the client's"


@pytest.mark.parametrize("failure", ["refuses", "no word", "not there"])
async def test_what_nobody_can_judge_does_not_pass(failure: str) -> None:
    backend = Scripted(verdict=lambda text: "perhaps")
    if failure == "refuses":
        backend.refuse = Unavailable("away")
    if failure == "not there":
        backend.loading = {JUDGE}
    async with guarded(input={"safety": True}, backend=backend) as (g, backend):
        answer = await g.post(CHAT, chat("Hi"))
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "safety" in answer.json()["error"]["message"]
        assert backend.prompts == []


async def test_an_answer_is_sent_piece_by_piece_as_it_is_judged() -> None:
    text = "word " * 300 + "a bomb " + "word " * 300
    async with guarded(output={"safety": True}, backend=Scripted(verdict=by_words), text=text) as (
        g,
        backend,
    ):
        stream = await g.post(CHAT, chat("Hi", stream=True, max_tokens=5000))
        sent = texts(stream.text)
        assert text.startswith(sent)
        assert 900 < len(sent) <= 1000, "the first piece passes, the second is not sent"
        assert events(stream.text)[-1]["choices"][0]["finish_reason"] == "content_filter"
        fine = texts((await g.post(CHAT, chat("Hi"))).text)
        assert fine == ""
        backend.words = in_pieces("word " * 600)
        assert texts((await g.post(CHAT, chat("Hi", stream=True))).text) == "word " * 600


async def test_embeddings_have_an_input_guardrail() -> None:
    backend = FakeBackend(infos=[model_info(), embedder_info()])
    rules = {"ai_gateway": {"guardrails": {"input": BLOCKS}}}
    endpoints = [{"name": "embedder", "task": "llm/v1/embeddings", **rules}]
    async with gateway(backend, endpoints=endpoints) as g:
        body = {"model": "embedder", "input": ["Hi", f"I am {EMAIL}"]}
        assert (await g.post("/v1/embeddings", body)).status_code == 400
        assert backend.questions == []
        assert (await g.post("/v1/embeddings", {**body, "input": [[1, 2]]})).status_code == 400
        assert (await g.post("/v1/embeddings", {**body, "input": "Hi"})).status_code == 200


async def test_endpoints_without_guardrails_are_as_they_were() -> None:
    async with gateway() as g:
        assert EMAIL in str(g.backend.last) if g.backend.requests else True
        answer = await g.post(CHAT, chat_body(messages=[{"role": "user", "content": EMAIL}], logprobs=True))
        assert answer.status_code == 200
        assert EMAIL in str(g.backend.last.prompt)
