"""Errors of these routes alone: bodies that name no protocol, prompts by characters, and stopInfer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.errors.test_conditions import MALFORMED
from tests.conformance.mindie_errors import told
from tests.support.gateway import gateway

MODEL = "/v2/models/demo"
PATHS = [f"{MODEL}/generate_stream", f"{MODEL}/generate"]
INVALID = "Input Validation Error"

each_route = pytest.mark.parametrize("path", PATHS)


def body(**parameters: Any) -> dict[str, Any]:
    return {"text_input": "The tide", "parameters": parameters}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
async def test_e1_a_stop_that_is_no_json_object(raw: bytes) -> None:
    async with gateway() as g:
        answer = await g.client.post(f"{MODEL}/stopInfer", content=raw, headers={"x-api-dialect": "mindie"})
        told(answer, 422, INVALID, "JSON")


@each_route
async def test_e1_what_is_no_json_object_is_mindies_without_a_word(path: str) -> None:
    async with gateway() as g:
        for raw in (b"", b"{", b"[]", b"null"):
            told(await g.client.post(path, content=raw), 422, INVALID, "JSON")


async def test_e3_and_e4_a_stop_of_an_unknown_model_or_version() -> None:
    async with gateway() as g:
        for model in ("/v2/models/nobody", f"{MODEL}/versions/2", f"{MODEL}/versions/x"):
            answer = await g.post(f"{model}/stopInfer", {"id": "a"}, headers={"x-api-dialect": "mindie"})
            told(answer, 404, "NotFoundError")


@each_route
async def test_e5_a_prompt_of_too_many_characters(path: str) -> None:
    async with gateway(mindie={"max_input_chars": 3}) as g:
        told(await g.post(path, body()), 422, INVALID, "text_input: must be a string of 1 to 3 characters")
