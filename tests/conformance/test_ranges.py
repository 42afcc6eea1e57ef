"""The ranges of the numbers and flags in every body: as the vendors document them, and kept to the edge.

What a field means beside others is a matter of its protocol's own suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from tests.conformance import conftest
from tests.support.openapi import fake_document
from tests.support.ranges import Range, ranges_of
from tests.support.vendor_ranges import USUAL, range_of

module_loop = pytest.mark.asyncio(loop_scope="module")

SCHEMAS: Final = fake_document()["components"]["schemas"]
CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "Tell me!"}], "max_tokens": 2}
TEXT: Final[dict[str, Any]] = {"prompt": "The sea is", "max_tokens": 2}
INPUT: Final[dict[str, Any]] = {"input": "Tell me!", "max_output_tokens": 2}

# Edges at which a field is allowed beside others alone, or makes the answer another one.
BESIDE: Final = {
    *("stream", "echo", "use_beam_search", "best_of", "n", "num_beam_groups", "top_logprobs"),
    *("max_completion_tokens", "add_generation_prompt", "continue_final_message", "decoder_input_details"),
    *(
        "max_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "min_tokens",
        "prompt_logprobs",
        "store",
        "timeout",
    ),
    *("truncate_prompt_tokens", "length_penalty"),
}


@dataclass(frozen=True, slots=True)
class Body:
    """How a body is asked: its path, what it says at the least, and the status of a refusal."""

    path: str
    least: dict[str, Any]
    status: int = 400
    inside: str | None = None  # the member that has the fields
    of_the_model: str = ""  # the field whose highest value depends on the model

    async def ask(self, client: httpx.AsyncClient, fields: Mapping[str, Any]) -> httpx.Response:
        path = self.path.format(model=conftest.MODEL)
        body = self.least if "{model}" in self.path else {"model": conftest.MODEL, **self.least}
        if self.inside is None:
            return await client.post(path, json={**body, **fields})
        return await client.post(path, json={**body, self.inside: {**body[self.inside], **fields}})


SHORT: Final = {"max_new_tokens": 2}
BODIES: Final = {
    "OpenAIChatBody": Body("/openai/v1/chat/completions", CHAT),
    "OpenAICompletionBody": Body("/openai/v1/completions", TEXT),
    "ResponsesResponseBody": Body("/openai/v1/responses", INPUT),
    "MessageBody": Body("/v1/messages", CHAT),
    "MindIEChatBody": Body("/mindie/v1/chat/completions", CHAT, 422),
    "Parameters": Body(
        "/v2/models/{model}/generate",
        {"text_input": "The tide", "parameters": SHORT},
        422,
        "parameters",
        "top_k",
    ),
    "ContinueParameters": Body("/infer", {"inputs": "The tide", "parameters": SHORT}, 422, "parameters"),
    "DatabricksChatBody": Body("/serving-endpoints/{model}/invocations", CHAT),
    "OpenVINOChatBody": Body("/v3/chat/completions", CHAT),
    "OpenVINOCompletionBody": Body("/v3/completions", TEXT),
    "OpenVINOResponseBody": Body("/v3/responses", INPUT),
}


def ranges(name: str) -> dict[str, Range]:
    return ranges_of(SCHEMAS[name])


@pytest.mark.parametrize("name", [*BODIES, "DatabricksCompletionBody"])
def test_they_are_those_of_the_vendor(name: str) -> None:
    found = {field: str(each) for field, each in ranges(name).items()}
    assert found == {field: range_of(name, field) for field in found}


@module_loop
@pytest.mark.parametrize("edge", ["lowest", "highest", "whole", "null"])
@pytest.mark.parametrize("name", BODIES)
async def test_edges_are_accepted(client: httpx.AsyncClient, name: str, edge: str) -> None:
    """All fields at once."""
    values = {
        field: getattr(each, edge, None)
        for field in USUAL
        if (each := ranges(name).get(field)) and field not in {*BESIDE, BODIES[name].of_the_model}
    }
    answer = await BODIES[name].ask(client, values)
    assert answer.status_code == 200, answer.text


@module_loop
@pytest.mark.parametrize("name", BODIES)
async def test_what_is_just_beyond_or_of_another_type_is_refused_by_name(
    client: httpx.AsyncClient, name: str
) -> None:
    body, own = BODIES[name], ranges(name)
    wrong = []
    for field in USUAL.keys() & own:
        for value in own[field].beyond():
            answer = await body.ask(client, {field: value})
            if answer.status_code != body.status or field not in answer.text:
                wrong.append(f"{field}={value!r}: {answer.status_code} {answer.text[:200]}")
    assert wrong == []
