"""MindIE's /infer and the routes of Text Generation Inference, which name no model."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from serve_app.errors import GenerationFailed, Overloaded
from serve_app.types import FinishReason, GenerateRequest
from tests.conformance.fields import Bounds, accepted, refused
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import gateway

ROUTES = ("/infer", "/generate", "/generate_stream", "/")
PROMPT = "The capital of Spain is"
module_loop = pytest.mark.asyncio(loop_scope="module")

# parameter -> (values at the edge of what is accepted, values just beyond it)
BOUNDS: Bounds = {
    "max_new_tokens": ([1, 3.0, None], []),
    "timeout": ([65_535, None], []),
    "stop": (["x", ["x"] * 1024, None], [[""], 5, ["x"] * 1025]),
    "stop_token_ids": ([[0, 5], None], [[-1], "x"]),
    "best_of": ([1, None], []),
    "decoder_input_details": ([False, None], []),
    "grammar": (
        [{"type": "regex", "value": "[a-z]+"}, {"type": "json", "value": {"type": "object"}}, None],
        [
            {"type": "lark", "value": "x"},
            {"type": []},
            {"type": "regex"},
            {"type": "json", "value": 5},
            "x",
            [],
        ],
    ),
    "adapter_id": (["None", None], ["", 1, "unknown"]),
}


def body(**parameters: Any) -> dict[str, Any]:
    return {"inputs": PROMPT, "parameters": {"max_new_tokens": 2, **parameters}}


def events(raw: str, prefix: str = "data:") -> list[Any]:
    parts = raw.split("\n\n")
    assert parts[-1] == ""
    assert all(part.startswith(prefix + "{") for part in parts[:-1])
    return [json.loads(part.removeprefix(prefix)) for part in parts[:-1]]


async def request_for(path: str = "/generate", config: Any = None, **parameters: Any) -> GenerateRequest:
    """What the model is asked."""
    async with gateway(mindie=config or {}) as g:
        answer = await g.post(path, body(**parameters))
        assert answer.status_code == 200, answer.text
        return g.backend.last


@module_loop
@pytest.mark.parametrize(("name", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_range_is_accepted(client: httpx.AsyncClient, name: str, value: Any) -> None:
    for path in ROUTES:
        answer = await client.post(path, json=body(**{name: value}))
        assert answer.status_code == 200, answer.text


@module_loop
@pytest.mark.parametrize(("name", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, name: str, value: Any) -> None:
    for path in ROUTES:
        answer = await client.post(path, json=body(**{name: value}))
        assert answer.status_code == (404 if value == "unknown" else 422), answer.text
        assert value == "unknown" or name in answer.json()["error"]


@pytest.mark.parametrize("inputs", [None, "", 5, ["x"], "x" * (512 * 1024 + 1)])
async def test_the_prompt_is_needed_and_bounded(inputs: Any) -> None:
    async with gateway() as g:
        for path in ROUTES:
            answer = await g.post(path, {"inputs": inputs})
            assert answer.status_code == 422
            assert "inputs" in answer.json()["error"]


@pytest.mark.parametrize("parameters", [5, "x", []])
async def test_members_of_the_wrong_type_are_refused(parameters: Any) -> None:
    async with gateway() as g:
        for wrong in ({"parameters": parameters}, {"stream": "true"}):
            answer = await g.post("/infer", {"inputs": PROMPT, **wrong})
            assert answer.status_code == 422
            assert answer.json()["error_type"] == "Input Validation Error"


async def test_infer_byte_by_byte() -> None:
    async with gateway(FakeBackend(words=(" in", "."))) as g:
        whole = await g.post("/infer", body())
        detailed = await g.post("/infer", body(details=True, do_sample=True, seed=7))
        plain = await g.post("/infer", {**body(), "stream": True})
        stream = await g.post("/infer", {**body(details=True, seed=7), "stream": True})
    assert whole.text == '{"generated_text":" in."}'
    assert detailed.text == (
        '{"generated_text":" in.","details":{"finish_reason":"length","generated_tokens":2,'
        '"generated_token_ids":[10,11],"seed":7}}'
    )
    assert stream.headers["content-type"] == "text/event-stream"
    first = 'data: {"prefill_time":20.0,"decode_time":null,"token":{"id":10,"text":" in"}}\n\n'
    last = 'data: {"prefill_time":null,"decode_time":3.0,"generated_text":" in.","details":'
    ended = '{"finish_reason":"length","generated_tokens":2,"seed":7}'
    token = ',"token":{"id":11,"text":null}}\n\n'
    assert stream.text == f"{first}{last}{ended}{token}"
    assert plain.text == f"{first}{last}null{token}"


async def test_tgi_byte_by_byte() -> None:
    async with gateway(FakeBackend(words=(" in", "."))) as g:
        whole = await g.post("/generate", body())
        listed = await g.post("/", body())
        stream = await g.post("/generate_stream", body())
        compatible = await g.post("/", {**body(), "stream": True})
    assert whole.text == '{"generated_text":" in."}'
    assert listed.text == '[{"generated_text":" in."}]'
    assert stream.text == compatible.text
    token = '{{"index":{},"token":{{"id":{},"text":"{}","logprob":null,"special":false}}'
    assert stream.text == (
        f'data:{token.format(1, 10, " in")},"generated_text":null,"details":null}}\n\n'
        f'data:{token.format(2, 11, ".")},"generated_text":" in.","details":null}}\n\n'
    )


@pytest.mark.parametrize("path", ["/infer", "/generate_stream", "/generate"])
@module_loop
async def test_a_benchmark_reads_the_whole_text_of_the_last_event(
    client: httpx.AsyncClient, path: str
) -> None:
    """What AISBench's modes for MindIE and TGI post, and how they read it: the last text counts."""
    parameters = {"temperature": 0.01, "ignore_eos": False, "max_new_tokens": 512}
    stream = {"stream": True} if path == "/infer" else {}
    answer = await client.post(path, json={"inputs": PROMPT, **stream, "parameters": parameters})
    assert answer.status_code == 200
    parts = [part.strip() for part in answer.text.split("\n\n") if part.strip()]
    told = [json.loads(part.removeprefix("data:").strip()) for part in parts if not part.startswith(":")]
    assert told[-1].get("generated_text", "") == " Madrid."


@module_loop
async def test_details_tell_every_token(client: httpx.AsyncClient) -> None:
    asked = {"max_new_tokens": 8, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
    answer = (await client.post("/generate", json=body(**asked))).json()
    details = answer["details"]
    assert answer["generated_text"] == " Madrid."
    assert (details["finish_reason"], details["seed"]) == ("eos_token", None)
    tokens = details["tokens"]
    assert "".join(token["text"] for token in tokens if not token["special"]) == " Madrid."
    assert [token["special"] for token in tokens] == [False] * (len(tokens) - 1) + [True]
    assert all(token["logprob"] <= 0 for token in tokens)
    assert "".join(token["text"] for token in details["prefill"]) == PROMPT
    assert [token["logprob"] is None for token in details["prefill"]][:2] == [True, False]
    assert [top[0]["id"] for top in details["top_tokens"]] == [token["id"] for token in tokens]  # greedy
    assert {len(top) for top in details["top_tokens"]} == {2}
    del asked["decoder_input_details"]
    streamed = events((await client.post("/generate_stream", json=body(**asked))).text)
    assert [event["token"] for event in streamed] == tokens
    assert [event["top_tokens"] for event in streamed] == details["top_tokens"]
    assert [event["index"] for event in streamed] == list(range(1, len(tokens) + 1))
    assert streamed[-1]["generated_text"] == " Madrid."
    assert streamed[-1]["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": len(tokens),
        "input_length": details["prompt_tokens"],
        "seed": None,
    }


@module_loop
async def test_the_prompt_may_be_cut_and_repeated(client: httpx.AsyncClient) -> None:
    full = (await client.post("/generate", json=body(max_new_tokens=8, return_full_text=True))).json()
    assert full["generated_text"] == f"{PROMPT} Madrid."
    cut = (await client.post("/generate", json=body(truncate=2, decoder_input_details=True))).json()
    assert len(cut["details"]["prefill"]) == 2
    assert PROMPT.endswith("".join(token["text"] for token in cut["details"]["prefill"]))


@module_loop
async def test_an_answer_matches_its_grammar(client: httpx.AsyncClient) -> None:
    form = {"type": "regex", "value": "[a-c]{3}"}
    answer = (await client.post("/generate", json=body(max_new_tokens=9, grammar=form))).json()
    assert len(answer["generated_text"]) == 3
    assert set(answer["generated_text"]) <= set("abc")


@module_loop
async def test_a_length_that_does_not_fit_is_clamped(client: httpx.AsyncClient) -> None:
    for path in ROUTES:
        answer = await client.post(path, json=body(max_new_tokens=100_000))
        assert answer.headers["x-clamped-fields"].startswith("parameters.max_new_tokens=")


@module_loop
async def test_the_best_of_several_is_kept(client: httpx.AsyncClient) -> None:
    asked = {"do_sample": True, "temperature": 2.0, "seed": 3, "max_new_tokens": 6, "best_of": 4}
    for path in ("/infer", "/generate", "/"):
        assert (await client.post(path, json=body(**asked))).status_code == 200
    answer = await client.post("/generate_stream", json=body(**asked))
    assert answer.json()["error"] == "parameters.best_of: must be 1 in a stream"
    prefill = await client.post("/generate_stream", json=body(decoder_input_details=True))
    assert prefill.json()["error"] == "parameters.decoder_input_details: must not be true in a stream"


async def test_sampling_is_inferred_in_tgi_and_needs_a_word_in_mindie() -> None:
    assert (await request_for("/generate", temperature=0.5)).sampling.temperature == 0.5
    assert (await request_for("/generate", temperature=0.5, do_sample=False)).sampling.greedy
    assert (await request_for("/infer", temperature=0.5)).sampling.greedy
    assert (await request_for("/infer", temperature=0.5, do_sample=True)).sampling.temperature == 0.5
    inferred = await request_for("/infer", {"do_sample_default": "auto"}, temperature=0.5)
    assert inferred.sampling.temperature == 0.5
    assert (await request_for()).sampling.greedy


async def test_what_reaches_the_model() -> None:
    asked = {"ignore_eos": True, "frequency_penalty": 0.5, "stop": ["x"], "priority": 2, "typical_p": 0.5}
    found = await request_for(**asked, repetition_penalty=1.5, watermark=True, truncate=5)
    sampling = found.sampling
    assert (sampling.ignore_eos, sampling.frequency_penalty, sampling.typical_p) == (True, 0.5, 0.5)
    assert (sampling.repetition_penalty, sampling.watermark, found.truncate_prompt) == (1.5, True, 5)
    assert (found.stop, found.priority) == (("x",), 3)
    async with gateway() as g:
        await g.post("/generate", {"inputs": PROMPT})
        assert g.backend.last.sampling.max_tokens == 20


async def test_a_drawn_seed_is_told_and_draws_the_same() -> None:
    async with gateway() as g:
        asked = body(do_sample=True, temperature=2.0, details=True)
        seeds = {(await g.post("/generate", asked)).json()["details"]["seed"] for _ in range(2)}
        assert len(seeds) == 2
        assert g.backend.last.sampling.seed in seeds


async def test_the_first_endpoint_that_generates_answers() -> None:
    endpoints = [
        {"name": "vectors", "task": "llm/v1/embeddings", "served_entities": [{"model": "demo"}]},
        {"name": "texts", "task": "llm/v1/completions", "served_entities": [{"model": "demo"}]},
    ]
    async with gateway(endpoints=endpoints) as g:
        assert (await g.post("/infer", body())).headers["served-model-name"]
    async with gateway(endpoints=endpoints[:1]) as g:
        answer = await g.post("/infer", body())
        assert (answer.status_code, answer.json()["error_type"]) == (404, "NotFoundError")


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.EOS, "eos_token"),
        (FinishReason.STOP, "stop_sequence"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CONTEXT, "length"),
    ],
)
async def test_the_words_for_an_end(reason: FinishReason, word: str) -> None:
    async with gateway(FakeBackend(finish=reason)) as g:
        for path in ("/infer", "/generate"):
            answer = await g.post(path, body(details=True))
            assert answer.json()["details"]["finish_reason"] == word
        last = events((await g.post("/generate_stream", body(details=True))).text)[-1]
        assert last["details"]["finish_reason"] == word


async def test_errors_have_a_message_and_a_type() -> None:
    async with gateway(FakeBackend(refuse=Overloaded("full"))) as g:
        for path in ROUTES:
            answer = await g.post(path, body())
            assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
    failing = FakeBackend(fail_after=1, failure=GenerationFailed("broken"))
    async with gateway(failing) as g:
        last = events((await g.post("/generate_stream", body())).text)[-1]
        assert last == {"error": "broken", "error_type": "Incomplete Generation"}


async def test_a_guardrail_sees_no_answer_with_token_ids() -> None:
    rules = {"output": {"pii": {"behavior": "BLOCK"}}}
    endpoints = [
        {"name": "demo", "ai_gateway": {"guardrails": rules}, "served_entities": [{"model": "demo"}]}
    ]
    async with gateway(endpoints=endpoints) as g:
        assert (await g.post("/generate", body())).status_code == 200
        for path, asked in (("/generate", body(details=True)), ("/generate_stream", body())):
            answer = await g.post(path, asked)
            assert answer.status_code == 422
            assert "output guardrail" in answer.json()["error"]
