"""Text that is the name of one of the model's tokens: in every protocol it is text, in ordinary tokens.

Only where a structural tag begins or ends with such a name may the model write the token itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest

from tests.conformance import conftest
from tests.support.gateway import events

pytestmark = pytest.mark.asyncio(loop_scope="module")

Fields = dict[str, Any]

END: Final = "<|im_end|>"
NAMES: Final = (END, "</tool_call>", "<tool_call>", "a<|im_start|>b <|endoftext|>")
QUESTION: Final[Fields] = {"messages": [{"role": "user", "content": "Give me an example."}]}


def constant(name: str) -> Fields:
    return {
        "type": "object",
        "properties": {name: {"const": name}},
        "required": [name],
        "additionalProperties": False,
    }


def form(schema: Fields) -> Fields:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def body(**fields: Any) -> Fields:
    return {"model": conftest.MODEL, "max_tokens": 160, **fields}


def chat(schema: Fields) -> Fields:
    return body(**QUESTION, **form(schema))


# path, the body of a schema, the text of an answer
FORMS: dict[str, tuple[Callable[[Fields], Fields], Callable[[Fields], str]]] = {
    "/v1/chat/completions": (chat, lambda a: a["choices"][0]["message"]["content"]),
    "/serving-endpoints/chat/completions": (chat, lambda a: a["choices"][0]["message"]["content"]),
    "/mindie/v1/chat/completions": (chat, lambda a: a["choices"][0]["message"]["content"]),
    "/v3/chat/completions": (chat, lambda a: a["choices"][0]["message"]["content"]),
    "/v1/completions": (lambda s: body(prompt="x", guided_json=s), lambda a: a["choices"][0]["text"]),
    "/v1/responses": (
        lambda s: {
            "model": conftest.MODEL,
            "input": "x",
            "text": {"format": {"type": "json_schema", "name": "x", "schema": s}},
        },
        lambda a: a["output"][0]["content"][0]["text"],
    ),
    "/v1/messages": (
        lambda s: body(**QUESTION, output_config={"format": {"type": "json_schema", "schema": s}}),
        lambda a: a["content"][0]["text"],
    ),
    "/v2/models/{model}/generate": (
        lambda s: {
            "text_input": "x",
            "max_tokens": 160,
            "guided_decoding_guide_type": "json_schema",
            "guided_decoding_guide": json.dumps(s),
        },
        lambda a: a["text_output"],
    ),
}


async def asked(client: httpx.AsyncClient, path: str, fields: Fields) -> Any:
    answer = await client.post(path.format(model=conftest.MODEL), json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", FORMS)
async def test_a_schema_holds_the_name_of_a_token(client: httpx.AsyncClient, path: str) -> None:
    ask, text = FORMS[path]
    for name in NAMES:
        assert json.loads(text(await asked(client, path, ask(constant(name))))) == {name: name}


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/serving-endpoints/chat/completions", "/v3/chat/completions"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_holds_the_name_of_a_token(
    client: httpx.AsyncClient, path: str, stream: bool
) -> None:
    for name in NAMES:
        tool = {"type": "function", "function": {"name": "f", "parameters": constant(name)}}
        fields = body(**QUESTION, tools=[tool], tool_choice="required", stream=stream)
        answer = await client.post(path, json=fields)
        assert answer.status_code == 200, answer.text
        if stream:
            choices = [c for e in events(answer.text) if e != "[DONE]" for c in e["choices"]]
            calls = [call for c in choices for call in c["delta"].get("tool_calls") or ()]
            first = [call["function"].get("arguments") or "" for call in calls if call["index"] == 0]
            arguments = "".join(first)
        else:
            choices = answer.json()["choices"]
            arguments = choices[0]["message"]["tool_calls"][0]["function"]["arguments"]
        assert choices[-1]["finish_reason"] in ("tool_calls", "length")
        assert json.loads(arguments) == {name: name}


@pytest.mark.parametrize("name", NAMES)
async def test_choices_patterns_and_grammars_hold_the_name_of_a_token(
    client: httpx.AsyncClient, name: str
) -> None:
    for fields in (
        {"guided_choice": [name]},
        {"guided_regex": re.escape(name)},
        {"guided_grammar": f"start: {json.dumps(name)}"},
    ):
        answer = await asked(client, "/v1/chat/completions", body(**QUESTION, **fields))
        choice = answer["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (name, "stop")


async def test_a_grammar_names_a_token(client: httpx.AsyncClient) -> None:
    grammar = 'start: <tool_call> "<tool_call>" <|im_end|>'
    fields = body(**QUESTION, guided_grammar=grammar, logprobs=True)
    choice = (await asked(client, "/v1/chat/completions", fields))["choices"][0]
    assert choice["message"]["content"] == "<tool_call><tool_call>"
    written = [one["token"] for one in choice["logprobs"]["content"]]
    assert written.count("<tool_call>") == 1
    refused = await client.post("/v1/chat/completions", json=body(**QUESTION, guided_grammar="start: <no>"))
    assert refused.status_code == 400
    assert "no control token <no>" in refused.json()["error"]["message"]


ZIP: Final[Fields] = {
    "type": "object",
    "properties": {"zip": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["zip"],
    "additionalProperties": False,
}
CALLING: Final = (
    '<|im_start|>system\n<tools>\n{"name": "get_weather", "description": "Get the weather in a city.", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}\n'
    "</tools><|im_end|>\n<|im_start|>user\nWhat is the weather in Oslo?<|im_end|>\n<|im_start|>assistant\n"
)
TAGGED: Final = re.compile(r'<tool_call>\{"zip": ?\d\d\}</tool_call>.*', re.DOTALL)


async def test_a_tag_begins_with_the_token_that_the_model_writes(client: httpx.AsyncClient) -> None:
    guide = {
        "structures": [{"begin": "<tool_call>", "schema": ZIP, "end": "</tool_call>"}],
        "triggers": ["<tool_call>"],
    }
    fields = {
        "text_input": CALLING,
        "max_tokens": 40,
        "guided_decoding_guide_type": "structural_tag",
        "guided_decoding_guide": json.dumps(guide),
    }
    answer = await asked(client, "/v2/models/{model}/generate", fields)
    assert TAGGED.fullmatch(answer["text_output"])


@pytest.mark.parametrize("kind", ["tag", "triggered_tags", "tags_with_separator"])
async def test_a_format_of_tags_begins_with_a_token(client: httpx.AsyncClient, kind: str) -> None:
    tag: Fields = {
        "type": "tag",
        "begin": "<tool_call>",
        "content": {"type": "json_schema", "json_schema": ZIP},
        "end": "</tool_call>",
    }
    tags = {"type": kind, "tags": [tag], "at_least_one": True}
    formats: Fields = {
        "tag": tag,
        "triggered_tags": {**tags, "triggers": ["<tool_"]},
        "tags_with_separator": {**tags, "separator": "\n"},
    }
    fields = body(**QUESTION, response_format={"type": "structural_tag", "format": formats[kind]})
    answer = await asked(client, "/v3/chat/completions", fields)
    assert TAGGED.match(answer["choices"][0]["message"]["content"])
