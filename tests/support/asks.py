"""Requests of all protocols, each with what its client looks at: framing, end, usage, grammar, calls.

An answer is its events, in order, without what differs from run to run: ids, times, hits of the prefix cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import jsonschema
import tritonclient.grpc.aio as triton

from tests.support.message_events import message_events_of, message_of
from tests.support.response_events import events_of, unnamed_events_of
from tests.support.rpc_server import is_final, tensor, tensors

LENGTH: Final = 160  # tokens of most answers
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
DETOKENIZE: Final = "/detokenize"
PIRATE: Final = ":pirate"  # behind the model's name: its adapter
TEXT: Final = "-text"  # behind the model's name: an endpoint for Databricks' completions
ANSWER_S: Final = 180.0
QUESTION: Final = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
STORY: Final = {"messages": [{"role": "user", "content": "Tell me a story about a cat."}]}
LIST: Final = {
    "type": "array",
    "items": {"type": "string", "minLength": 8, "maxLength": 24},
    "minItems": 8,
    "maxItems": 12,
}
FORM: Final = {"type": "json_schema", "json_schema": {"name": "list", "schema": LIST}}
SEND: Final = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 60, "maxLength": 90}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS: Final[dict[str, Any]] = {
    "tools": [
        {"type": "function", "function": {"name": "send_message", "parameters": SEND}},
        {"type": "function", "function": {"name": "write_note", "parameters": SEND}},
    ],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
_COMMENTS: Final = re.compile(r"(?:\A|(?<=\n\n))(?::\n\n)+")
IDS: Final = [5, 17, 42, 99, 7, 300, 12]
# What differs between two runs of the same request.
UNLIKE: Final = {
    *("id", "created", "system_fingerprint", "prompt_tokens_details"),
    *("item_id", "call_id", "created_at", "completed_at", "input_tokens_details"),  # of a response
    *("first_token_cost", "decode_cost", "prefill_time", "decode_time", "queue_wait_time", "batch_size"),
}
ERRORS: Final = ("error", "error_code", "error_type")
BY_SEQUENCE: Final = ("batch_index", "sequence_index")


class Wrong(AssertionError):
    """An answer is not what its client may expect."""


@dataclass
class Answer:
    """One answer, as its client has it."""

    events: dict[Any, list[Any]] = field(default_factory=dict)  # by choice, without what is UNLIKE
    usage: list[dict[str, int]] = field(default_factory=list)  # as told, in order
    texts: dict[int, str] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)  # the reason, by choice
    calls: dict[int, dict[int, str]] = field(default_factory=dict)  # of tools: the arguments
    tokens: int = 0  # of all choices


@dataclass
class Client:
    """How asks reach the server."""

    http: httpx.AsyncClient
    grpc: triton.InferenceServerClient
    model: str


@dataclass(frozen=True)
class Ask:
    """One kind of request."""

    name: str
    send: Callable[[Client], Awaitable[Answer]]
    is_exact: bool  # greedy or seeded


@asynccontextmanager
async def connected(url: str, grpc_address: str, model: str) -> AsyncIterator[Client]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=ANSWER_S, limits=limits) as http,
        triton.InferenceServerClient(grpc_address) as grpc,
    ):
        yield Client(http, grpc, model)


# --- HTTP ----------------------------------------------------------------------------------


def chat(name: str, path: str = CHAT, *, is_exact: bool = True, done: bool = True, **body: Any) -> Ask:
    """A request whose answer, streamed or not, has `choices`."""

    async def send(client: Client) -> Answer:
        asked = {**body, "model": client.model + body.get("model", "")}
        found = await events(client, path, asked, done=done)
        answer = Answer()
        for event in found:
            _take(answer, event)
        if not answer.ends or len(answer.ends) != body.get("n", 1) * _prompts(body):
            raise Wrong(f"the choices that ended: {answer.ends}")
        if answer.usage:
            answer.tokens = answer.usage[-1]["completion_tokens"]
            _check_usage(answer)
        if "return_token_ids" in body:
            await _check_ids(client, answer)
        for choice, calls in answer.calls.items():
            if not calls:
                raise Wrong(f"choice {choice} has no call")
            for arguments in calls.values():
                _check_json(arguments, SEND)
        if "response_format" in body:
            for choice, text in answer.texts.items():
                if answer.ends[choice] == "length":  # white space may take all that an answer has
                    _check_beginning(text)
                else:
                    _check_json(text, LIST)
        if "tools" in body and not answer.calls:
            raise Wrong(f"no call: {answer.texts}")
        return answer

    return Ask(name, send, is_exact)


def respond(name: str, path: str = RESPONSES, **body: Any) -> Ask:
    """A stream of the Responses API of OpenAI or of OpenVINO Model Server, greedy or seeded."""

    async def send(client: Client) -> Answer:
        asked = {**body, "model": client.model, "stream": True}
        async with client.http.stream("POST", path, json=asked) as response:
            raw = await _read(response)
            if response.status_code != 200:
                raise Wrong(f"status {response.status_code}: {raw[:300]}")
        if path == RESPONSES:
            found = [event.model_dump(mode="json", exclude_unset=True) for event in events_of(raw)]
        else:
            found = unnamed_events_of(raw)
        last = found[-1]["response"]
        if last["status"] not in ("completed", "incomplete"):
            raise Wrong(f"after {len(found) - 1} events: {found[-1]}")
        answer = Answer(events={0: [alike(event) for event in found]}, tokens=last["usage"]["output_tokens"])
        answer.texts[0] = "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta")
        told = [part["text"] for item in last["output"] for part in item.get("content", ())]
        if answer.texts[0] != "".join(told):
            raise Wrong(f"{answer.texts[0]!r} is not {told!r}")
        calls = [item for item in last["output"] if item["type"] == "function_call"]
        if bool(calls) != ("tools" in body):
            raise Wrong(f"the calls: {calls}")
        for call in calls:
            _check_json(call["arguments"], SEND)
        return answer

    return Ask(name, send, is_exact=True)


def message(name: str, **body: Any) -> Ask:
    """A stream of Anthropic's messages, greedy or seeded."""

    async def send(client: Client) -> Answer:
        asked = {**body, "model": client.model, "stream": True}
        async with client.http.stream("POST", MESSAGES, json=asked) as response:
            raw = await _read(response)
            if response.status_code != 200:
                raise Wrong(f"status {response.status_code}: {raw[:300]}")
        found = message_events_of(raw)
        if found[-1]["type"] == "error":
            raise Wrong(f"after {len(found) - 1} events: {found[-1]}")
        whole = message_of(found)
        for event in (found[0]["message"], found[-2]):  # what the cache had differs from run to run
            event["usage"]["input_tokens"] += event["usage"].pop("cache_read_input_tokens")
        answer = Answer(events={0: [alike(event) for event in found]}, tokens=whole.usage.output_tokens)
        answer.texts[0] = "".join(block.text for block in whole.content if block.type == "text")
        calls = [block for block in whole.content if block.type == "tool_use"]
        if bool(calls) != ("tools" in body) or bool(calls) == bool(answer.texts[0]):
            raise Wrong(f"the content: {whole.content}")
        for call in calls:
            _check_json(json.dumps(call.input), SEND)
        return answer

    return Ask(name, send, is_exact=True)


def generate(name: str, body: dict[str, Any], *, is_exact: bool = True, counted: bool) -> Ask:
    """`generate_stream`, of MindIE or of Triton. `counted`: its events count the tokens."""

    async def send(client: Client) -> Answer:
        found = await events(client, f"/v2/models/{client.model}/generate_stream", body, done=False)
        answer = Answer()
        for event in found:
            answer.events.setdefault(0, []).append(alike(event))
            if counted:
                answer.tokens += 1
                if event["details"]["generated_tokens"] != answer.tokens:
                    raise Wrong(f"token {answer.tokens}: {event}")
            else:
                ids = event["output_ids"]
                answer.tokens += len(ids) if isinstance(ids, list) else 1
        if counted and not found[-1]["details"]["finish_reason"]:
            raise Wrong(f"the last event is {found[-1]}")
        return answer

    return Ask(name, send, is_exact)


async def _read(response: httpx.Response) -> str:
    """The body without comments, which a stream has where nothing was said for a while."""
    return _COMMENTS.sub("", (await response.aread()).decode())


async def events(client: Client, path: str, body: dict[str, Any], *, done: bool) -> list[Any]:
    """Every event of a stream, or the one answer. None is an error. `done`: a stream says its end."""
    is_stream = body.get("stream", "generate_stream" in path)
    path = path.replace("{model}", client.model)
    async with client.http.stream("POST", path, json=body) as response:
        raw = await _read(response)
        if response.status_code != 200:
            raise Wrong(f"status {response.status_code}: {raw[:300]}")
    if not is_stream:
        return [json.loads(raw)]
    parts = raw.split("\n\n")
    if parts.pop() or (done and parts.pop() != "data: [DONE]"):
        raise Wrong(f"the stream does not end: {raw[-300:]!r}")
    if not all(part.startswith("data:") for part in parts):
        raise Wrong(f"not an event: {raw[:300]!r}")
    found = [json.loads(part.removeprefix("data:")) for part in parts]
    for event in found:
        if any(event.get(name) for name in ERRORS):
            raise Wrong(f"after {len(found) - 1} events: {event}")
    return found


def alike(event: Any) -> Any:
    """`event` without what differs from run to run."""
    if isinstance(event, dict):
        made = {name: alike(value) for name, value in event.items() if name not in UNLIKE}
        if isinstance(statistics := made.get("perf_stat"), list):
            made["perf_stat"] = [token for token, _ in statistics]
        return made
    return [alike(each) for each in event] if isinstance(event, list) else event


def _take(answer: Answer, event: dict[str, Any]) -> None:
    """Add one event, or a whole answer, to what its choices have."""
    same = alike(event)
    if usage := same.pop("usage", None):
        answer.usage.append({name: value for name, value in usage.items() if isinstance(value, int)})
    if not same["choices"]:
        return
    for choice in event["choices"]:
        index = choice["index"]
        part = choice.get("delta") or choice.get("message") or {}
        text = choice["text"] if "text" in choice else part.get("content") or ""
        answer.texts[index] = answer.texts.get(index, "") + text
        answer.ids.setdefault(index, []).extend(choice.get("token_ids") or ())
        for number, call in enumerate(part.get("tool_calls") or ()):
            calls = answer.calls.setdefault(index, {})
            number = call.get("index", number)
            calls[number] = calls.get(number, "") + (call["function"].get("arguments") or "")
        if reason := choice["finish_reason"]:
            if index in answer.ends:
                raise Wrong(f"choice {index} ends twice")
            answer.ends[index] = reason
        elif index in answer.ends and text:
            raise Wrong(f"choice {index} goes on behind its end: {text!r}")
    for choice in same.pop("choices"):
        answer.events.setdefault(choice["index"], []).append({**same, "choice": choice})


def _check_usage(answer: Answer) -> None:
    told = [usage["completion_tokens"] for usage in answer.usage]
    if told != sorted(told):
        raise Wrong(f"usage does not count: {told}")
    if len({usage["prompt_tokens"] for usage in answer.usage}) != 1:
        raise Wrong(f"the prompt changes: {answer.usage}")


async def _check_ids(client: Client, answer: Answer) -> None:
    """The ids are as many as usage says, and their text is the text."""
    if sum(map(len, answer.ids.values())) != answer.tokens:
        raise Wrong(f"{answer.tokens} tokens, but the ids {answer.ids}")
    for index, ids in answer.ids.items():
        response = await client.http.post(DETOKENIZE, json={"model": client.model, "tokens": ids})
        if (text := response.json()["prompt"]) != answer.texts[index]:
            raise Wrong(f"{answer.texts[index]!r} is not {text!r}")


def _check_json(text: str, schema: dict[str, Any]) -> None:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        raise Wrong(f"not of the schema: {text!r}") from error


def _check_beginning(text: str) -> None:
    """Whether a text is the beginning of a list in JSON: it is wrong nowhere but at its end."""
    try:
        whole = isinstance(json.loads(text), list)
    except json.JSONDecodeError as error:
        at_the_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        whole = text.startswith("[") and at_the_end
    if not whole:
        raise Wrong(f"no beginning of a list: {text!r}")


def _prompts(body: dict[str, Any]) -> int:
    return len(prompt) if isinstance(prompt := body.get("prompt"), list) else 1


# --- gRPC ----------------------------------------------------------------------------------


def over_grpc(name: str, *, stream: bool = True, length: int = LENGTH, **scalars: Any) -> Ask:
    """Tensors of ids, by the unmodified tritonclient."""
    seed = scalars.pop("seed", None)

    async def send(client: Client) -> Answer:
        inputs = tensors(IDS, length, **({"streaming": True} if stream else {}), **scalars)
        if seed is not None:
            inputs.append(tensor("random_seed", [[seed]], "UINT64", "uint64"))
        answer = Answer()
        try:
            if stream:
                await _listen(client, inputs, answer)
            else:
                _take_tensors(await client.grpc.infer(client.model, inputs), answer)
        except triton.InferenceServerException as error:
            raise Wrong(str(error)) from error
        count = scalars.get("num_return_sequences", 1)
        if answer.tokens != length * count:
            raise Wrong(f"{answer.tokens} tokens instead of {count} times {length}")
        return answer

    return Ask(name, send, True)


async def _listen(client: Client, inputs: list[Any], answer: Answer) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": client.model, "inputs": inputs, "request_id": "1"}

    ended = False
    async for result, error in client.grpc.stream_infer(requests()):
        if error is not None:
            raise Wrong(str(error))
        if ended:
            raise Wrong("a response behind the final one")
        ended = is_final(result)
        _take_tensors(result, answer)
    if not ended:
        raise Wrong("no response was final")


def _take_tensors(result: Any, answer: Answer) -> None:
    found = {output.name: result.as_numpy(output.name).tolist() for output in result.get_response().outputs}
    key = tuple(json.dumps(found.pop(name, None)) for name in BY_SEQUENCE)
    answer.events.setdefault(key, []).append(found)
    answer.tokens += sum(len(row) for beams in found["output_ids"] for row in beams)
