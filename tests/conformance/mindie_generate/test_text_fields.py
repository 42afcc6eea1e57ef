"""What a generate body may hold: the bounds of every number, the defaults, and whose body it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from serve_app.types import GenerateRequest, Overflow
from tests.conformance.conftest import MODEL
from tests.conformance.fields import Bounds, accepted, refused
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import Gateway, gateway

ROUTE = "/v2/models/demo/generate_stream"
VOCABULARY = model_info().vocab_size
WINDOW = model_info().context_window

module_loop = pytest.mark.asyncio(loop_scope="module")

# parameter -> (values at the edge of what is accepted, values just beyond it)
BOUNDS: Bounds = {
    "max_new_tokens": ([1, 3.0, None], []),
    "timeout": ([65_535, None], []),  # 1 is a test of its own: a second may pass
    "stop": (
        ["x", ["x"] * 1024, ["x" * 1024] * 32, None],
        [[""], 5, ["x"] * 1025, ["x" * 1024] * 32 + ["x"]],
    ),
    "stop_token_ids": ([[0, 5], None], [[-1], "x"]),
}
# The same, of what follows from the scripted model.
OF_THE_MODEL: Bounds = {
    "max_new_tokens": ([WINDOW], [WINDOW + 1]),
    "top_k": ([VOCABULARY - 1], [VOCABULARY]),
}


def brief(value: Any) -> str:
    return repr(value)[:30]


async def post(g: Gateway, body: Any = None, path: str = ROUTE, **parameters: Any) -> Any:
    given = {"text_input": "The tide", "parameters": parameters} if body is None else body
    return await g.post(path, given)


async def request_for(config: dict[str, Any] | None = None, **parameters: Any) -> GenerateRequest:
    """What the model is asked."""
    async with gateway(mindie=config or {}) as g:
        assert (await post(g, **parameters)).status_code == 200
        return g.backend.last


def body(**parameters: Any) -> dict[str, Any]:
    return {"text_input": "The tide", "parameters": {"max_new_tokens": 2, **parameters}}


@module_loop
@pytest.mark.parametrize(("name", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_range_is_accepted(client: httpx.AsyncClient, name: str, value: Any) -> None:
    answer = await client.post(f"/v2/models/{MODEL}/generate_stream", json=body(**{name: value}))
    assert answer.status_code == 200, answer.text


@module_loop
@pytest.mark.parametrize(("name", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, name: str, value: Any) -> None:
    answer = await client.post(f"/v2/models/{MODEL}/generate_stream", json=body(**{name: value}))
    check_refusal(answer, name)


@pytest.mark.parametrize(("name", "value"), accepted(OF_THE_MODEL))
async def test_what_the_model_can_is_accepted(name: str, value: Any) -> None:
    async with gateway() as g:
        answer = await post(g, **{name: value})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("name", "value"), refused(OF_THE_MODEL))
async def test_what_the_model_cannot_is_refused_by_name(name: str, value: Any) -> None:
    async with gateway() as g:
        check_refusal(await post(g, **{name: value}), name)
        await g.check()


def check_refusal(answer: httpx.Response, name: str) -> None:
    assert answer.status_code == 422
    assert answer.json()["error_type"] == "Input Validation Error"
    assert f"parameters.{name}" in answer.json()["error"]


async def test_the_shortest_timeout_is_a_second() -> None:
    async with gateway(FakeBackend(hang_after=0)) as g:
        answer = await post(g, timeout=1)
        assert (answer.status_code, answer.json()["error_type"]) == (500, "Incomplete Generation")


@pytest.mark.parametrize("name", ["id", "text_input", "parameters"])
@pytest.mark.parametrize("value", [5, [], True, ""])
async def test_members_of_the_wrong_type_are_refused(name: str, value: Any) -> None:
    async with gateway() as g:
        answer = await post(g, {"text_input": "x", name: value})
        assert answer.status_code == 422
        assert name in answer.json()["error"]


@pytest.mark.parametrize("id", ["x" * 257, "a b", "ä", "a/b", "a.b"])
async def test_ids_of_other_characters_are_refused(id: str) -> None:
    async with gateway() as g:
        assert (await post(g, {"text_input": "x", "id": id})).status_code == 422
        assert (await post(g, {"text_input": "x", "id": "A_z-9" + "x" * 251})).status_code == 200


async def test_the_prompt_is_needed_and_bounded() -> None:
    async with gateway() as g:
        for body in ({}, {"text_input": None}, {"text_input": "x" * 524_289}):
            answer = await post(g, body)
            assert answer.status_code == 422
            assert "text_input" in answer.json()["error"]
        assert (
            await post(g, {"text_input": "x" * 524_288, "id": None, "parameters": None})
        ).status_code == 200


async def test_the_defaults() -> None:
    asked = await request_for()
    sampling = asked.sampling
    assert sampling.max_tokens == 20
    assert sampling.greedy
    assert (sampling.repetition_penalty, sampling.typical_p, sampling.seed) == (1.0, 1.0, None)
    assert not sampling.watermark
    assert (asked.prompt.text, asked.priority, asked.overflow) == ("The tide", 0, Overflow.WINDOW)


async def test_the_default_length_gives_way_to_a_smaller_model() -> None:
    async with gateway(FakeBackend(infos=[replace(model_info(), max_output_tokens=7)])) as g:
        assert (await post(g)).status_code == 200
        assert g.backend.last.sampling.max_tokens == 7
        assert (await post(g, max_new_tokens=7)).status_code == 200
        assert (await post(g, max_new_tokens=8)).status_code == 422


async def test_sampling_reaches_the_model_when_it_is_on() -> None:
    sampling = (
        await request_for(
            do_sample=True, temperature=0.8, top_k=40, top_p=0.95, typical_p=0.9, seed=77,
            repetition_penalty=1.05,
            watermark=True, max_new_tokens=8, batch_size=4,
        )
    ).sampling  # fmt: skip
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.typical_p) == (0.8, 40, 0.95, 0.9)
    assert (sampling.seed, sampling.repetition_penalty, sampling.max_tokens) == (77, 1.05, 8)
    assert sampling.watermark


@pytest.mark.parametrize("do_sample", [False, None])
async def test_greedy_keeps_penalties_and_watermark_alone(do_sample: bool | None) -> None:
    drawn = {"temperature": 0.8, "top_k": 40, "top_p": 0.5, "typical_p": 0.5, "seed": 7}
    sampling = (
        await request_for(do_sample=do_sample, repetition_penalty=1.5, watermark=True, **drawn)
    ).sampling
    assert sampling.greedy
    assert (sampling.top_k, sampling.top_p, sampling.typical_p, sampling.seed) == (0, 1.0, 1.0, None)
    assert (sampling.repetition_penalty, sampling.watermark) == (1.5, True)


async def test_sampling_may_be_inferred() -> None:
    auto = {"do_sample_default": "auto"}
    assert (await request_for(auto)).sampling.greedy
    assert (await request_for(auto, do_sample=False, seed=1)).sampling.greedy
    for given in ({"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.5}, {"typical_p": 0.5}, {"seed": 5}):
        assert not (await request_for(auto, **given)).sampling.greedy, given


async def test_a_repetition_penalty_sees_the_prompt_unless_a_setting_takes_the_document_at_its_word() -> None:
    assert (await request_for(repetition_penalty=1.5)).sampling.repetition_sees_prompt
    generated = {"repetition_penalty_scope": "generated"}
    sampling = (await request_for(generated, repetition_penalty=1.5)).sampling
    assert (sampling.repetition_penalty, sampling.repetition_sees_prompt) == (1.5, False)


@pytest.mark.parametrize("extra", [{"max_tokens": 5}, {"bad_words": ["x"]}, {"nonsense": 1}])
async def test_other_members_are_another_protocols_unless_this_one_is_certain(extra: dict[str, Any]) -> None:
    async with gateway() as g:
        answer = await post(g, {"text_input": "x", "nobodys": 1, **extra})
        assert answer.status_code == 400
        assert set(answer.json()) == {"error"}
        assert not g.backend.requests
        for path, headers in (("/mindie" + ROUTE, {}), (ROUTE, {"x-api-dialect": "mindie"})):
            sure = await g.post(path, {"text_input": "x", **extra}, headers=headers)
            assert sure.status_code == 200


@pytest.mark.parametrize(
    "name", ["stream", "max_tokens", "bad_words", "stop_words", "return_log_probs", "beam_width"]
)
async def test_so_are_some_parameters(name: str) -> None:
    async with gateway() as g:
        answer = await post(g, **{name: {}})
        assert (answer.status_code, set(answer.json())) == (400, {"error"})
        assert (await post(g, path="/mindie" + ROUTE, **{name: 1})).status_code == 200
        assert (await post(g, nonsense=1)).status_code == 200
