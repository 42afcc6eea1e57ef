"""What both routes of OpenAI's protocol must do, asked of either: bounds, defaults, streams.

A suite makes a class `Test...` of `SharedRules` and says which route it asks.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import pytest

from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason
from tests.conformance import conftest
from tests.conformance.fields import accepted, by_name, refused
from tests.conformance.openai_bounds import DEFAULTS, ENDS, LOOPS, SHARED, TOGETHER, VARIED
from tests.conformance.openai_errors import INVALID, error_of
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import events, gateway

module_loop = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True)
class Route:
    """One route, and a short question to it."""

    path: str
    question: dict[str, Any]
    length: str = "max_tokens"  # the field of the answer's length

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"model": conftest.MODEL, **self.question, self.length: 2, **fields}

    async def ask(self, client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
        return await client.post(f"/openai{self.path}", json=self.body(**fields))

    async def answer(self, client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
        """The body of an answer, which must be one."""
        found = await self.ask(client, **fields)
        if found.status_code != 200:
            raise AssertionError(f"{found.status_code}: {found.text}")
        body: dict[str, Any] = found.json()
        return body

    async def texts(self, client: httpx.AsyncClient, **fields: Any) -> list[str]:
        return [text_of(choice) for choice in (await self.answer(client, **fields))["choices"]]

    async def streamed(self, client: httpx.AsyncClient, **fields: Any) -> list[Any]:
        """The events of a stream."""
        found = await self.ask(client, stream=True, **fields)
        if found.status_code != 200:
            raise AssertionError(f"{found.status_code}: {found.text}")
        return events(found.text)

    async def accepts(self, client: httpx.AsyncClient, field: str, value: Any) -> None:
        found = await self.ask(client, **{field: value})
        assert found.status_code == 200, found.text

    async def refuses(self, client: httpx.AsyncClient, field: str, value: Any) -> None:
        """With the field's name, perhaps followed by a place inside of it."""
        found = await self.ask(client, **{field: value})
        assert found.status_code == 400
        assert str(error_of(found)["param"]).split(".")[0] == field

    async def judges(self, client: httpx.AsyncClient, fields: dict[str, Any], complaint: str | None) -> None:
        """`complaint`: the field that is named; None: all is accepted."""
        found = await self.ask(client, **fields)
        assert found.status_code == (200 if complaint is None else 400), found.text
        if complaint is not None:
            assert error_of(found)["param"] == complaint


def text_of(choice: dict[str, Any]) -> str:
    """The text of a choice, or of a chunk of one, of either route."""
    if "text" in choice:
        return str(choice["text"])
    return str(choice.get("message", choice.get("delta", {})).get("content") or "")


class SharedRules:
    """Every field that both routes have."""

    route: ClassVar[Route]

    @module_loop
    @pytest.mark.parametrize(("field", "value"), accepted(SHARED))
    async def test_what_is_inside_its_bounds_is_accepted(
        self, client: httpx.AsyncClient, field: str, value: Any
    ) -> None:
        await self.route.accepts(client, field, value)

    @module_loop
    @pytest.mark.parametrize(("field", "value"), refused(SHARED))
    async def test_what_is_outside_is_refused_by_name(
        self, client: httpx.AsyncClient, field: str, value: Any
    ) -> None:
        found = await self.route.ask(client, **{field: value})
        assert found.status_code == 400
        error = error_of(found)
        assert error["type"] == INVALID
        assert error["param"] == field
        assert field in error["message"]

    @module_loop
    @pytest.mark.parametrize(("value", "member"), LOOPS)
    async def test_what_is_no_rule_of_loops_is_refused_by_name(
        self, client: httpx.AsyncClient, value: Any, member: str
    ) -> None:
        found = await self.route.ask(client, repetition_detection=value)
        assert found.status_code == 400
        assert error_of(found)["param"] == "repetition_detection"
        assert member in error_of(found)["message"]

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize(
        ("finish", "stop", "told"),
        [
            (FinishReason.STOP, '"\n', '"\n'),
            (FinishReason.STOP, 0, 0),
            (FinishReason.STOP, None, None),  # a sequence of tokens
            (FinishReason.EOS, None, None),
            (FinishReason.REPETITION, None, "repetition_detected"),
        ],
    )
    async def test_what_stopped_an_answer_is_told(
        self, finish: FinishReason, stop: str | int | None, told: str | int | None, stream: bool
    ) -> None:
        async with gateway(FakeBackend(finish=finish, stop=stop)) as g:
            found = await g.post(self.route.path, self.route.body(model="demo", stream=stream))
        choice = (events(found.text) if stream else [found.json()])[-1]["choices"][0]
        assert choice.get("stop_reason") == told
        assert ("stop_reason" in choice) is (told is not None)

    @module_loop
    @pytest.mark.own_server
    async def test_a_prompt_is_cut_to_its_last_tokens(self, client: httpx.AsyncClient) -> None:
        whole = await self.route.answer(client, return_token_ids=True)
        cut = await self.route.answer(client, return_token_ids=True, truncate_prompt_tokens=3)
        found = [
            found.get("prompt_token_ids") or found["choices"][0]["prompt_token_ids"] for found in (whole, cut)
        ]
        assert (found[1], cut["usage"]["prompt_tokens"]) == (found[0][-3:], 3)

    async def test_a_salt_of_the_clients_is_below_that_of_its_key(self) -> None:
        async with gateway(FakeBackend()) as g:
            for salt in (None, "mine", None):
                await g.post(self.route.path, self.route.body(model="demo", cache_salt=salt))
            first, own, again = (request.salt for request in g.backend.requests)
        assert first == again
        assert (own, len(first) > 8) == (f"{first}:mine", True)

    @module_loop
    @pytest.mark.own_server
    async def test_a_stop_token_is_told(self, client: httpx.AsyncClient) -> None:
        (choice,) = (
            await self.route.answer(client, allowed_token_ids=[300], stop_token_ids=[300], max_tokens=9)
        )["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 300)

    @module_loop
    @pytest.mark.own_server
    @pytest.mark.parametrize("stream", [True, False])
    async def test_an_answer_that_repeats_itself_ends(self, client: httpx.AsyncClient, stream: bool) -> None:
        fields = {"allowed_token_ids": [300], "max_tokens": 30, "stream": stream}
        rule = {"max_pattern_size": 2, "min_count": 4}
        counted = {"stream_options": {"include_usage": True}} if stream else {}
        found = await self.route.ask(client, repetition_detection=rule, **fields, **counted)
        chunks = events(found.text) if stream else [found.json()]
        ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert (ends, chunks[-1]["usage"]["completion_tokens"]) == (["repetition"], 4)

    @module_loop
    @pytest.mark.parametrize(("fields", "complaint"), TOGETHER.values(), ids=TOGETHER.keys())
    async def test_fields_beside_each_other(
        self, client: httpx.AsyncClient, fields: dict[str, Any], complaint: str | None
    ) -> None:
        await self.route.judges(client, fields, complaint)

    @module_loop
    @pytest.mark.own_server  # which differences another model shows nobody knows
    @pytest.mark.parametrize(("field", "default", "other", "beside"), by_name(DEFAULTS))
    async def test_absent_is_the_default(
        self, client: httpx.AsyncClient, field: str, default: Any, other: Any, beside: dict[str, Any]
    ) -> None:
        absent = {key: value for key, value in {**VARIED, **beside}.items() if key != field}
        plain = await self.route.texts(client, **absent)
        assert await self.route.texts(client, **{**absent, field: default}) == plain
        assert await self.route.texts(client, **{**absent, field: other}) != plain

    @module_loop
    async def test_stream_n_logprobs_and_usage_of_streams_are_off(self, client: httpx.AsyncClient) -> None:
        assert (await self.route.ask(client)).headers["content-type"] == "application/json"
        (choice,) = (await self.route.answer(client))["choices"]
        assert choice["logprobs"] is None
        assert "prompt_logprobs" not in choice
        assert all("usage" not in event for event in await self.route.streamed(client))

    @module_loop
    async def test_a_seed_is_drawn_by_default(self, client: httpx.AsyncClient) -> None:
        options = {**VARIED, "seed": None}
        texts = await asyncio.gather(*(self.route.texts(client, **options) for _ in range(12)))
        assert len({text for (text,) in texts}) > 1

    @module_loop
    async def test_unknown_fields_are_ignored_and_listed(self, client: httpx.AsyncClient) -> None:
        found = await self.route.ask(client, nonsense=1, more=None)
        assert (found.status_code, found.headers["x-ignored-fields"]) == (200, "nonsense")

    @module_loop
    async def test_more_output_than_the_window_has_is_clamped_and_named(
        self, client: httpx.AsyncClient
    ) -> None:
        window = (await client.get(f"/openai/v1/models/{conftest.MODEL}")).json()["max_model_len"]
        found = await self.route.ask(client, max_tokens=window)
        assert found.status_code == 200
        name, _, most = found.headers["x-clamped-fields"].partition("=")
        assert (name, 0 < int(most) < window) == ("max_tokens", True)

    async def test_a_failure_after_the_first_byte_is_an_event(self) -> None:
        backend = FakeBackend(fail_after=2, failure=GenerationFailed("the engine failed"))
        async with gateway(backend) as g:
            found = await g.post(self.route.path, self.route.body(model="demo", stream=True))
            assert found.status_code == 200
            error = events(found.text)[-1]["error"]
            assert (error["message"], error["param"], error["code"]) == ("the engine failed", None, None)
            assert b'"finish_reason":"' not in found.content
            await g.check()

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize(("reason", "word"), [*ENDS, (FinishReason.REPETITION, "repetition")])
    async def test_the_words_for_an_end(self, reason: FinishReason, word: str, stream: bool) -> None:
        async with gateway(FakeBackend(finish=reason)) as g:
            found = await g.post(self.route.path, self.route.body(model="demo", stream=stream))
        last = events(found.text)[-1] if stream else found.json()
        assert last["choices"][0]["finish_reason"] == word

    @module_loop
    async def test_the_same_seed_gives_the_same_text_alone_and_among_others(
        self, client: httpx.AsyncClient
    ) -> None:
        alone = [await self.route.texts(client, **VARIED) for _ in range(2)]
        together = await asyncio.gather(
            *(self.route.texts(client, **VARIED) for _ in range(8)),
            *(self.route.texts(client, **{**VARIED, "seed": seed}) for seed in range(11, 19)),
        )
        assert all(found == alone[0] for found in [*alone, *together[:8]])
        assert len({text for (text,) in together}) > 1

    @module_loop
    async def test_a_stream_has_the_text_of_a_whole_answer(self, client: httpx.AsyncClient) -> None:
        for seed in (1, 2, 3):
            options = {**VARIED, "seed": seed, "n": 2}
            texts, ends = ["", ""], ["", ""]
            for event in await self.route.streamed(client, **options):
                (choice,) = event["choices"]
                texts[choice["index"]] += text_of(choice)
                ends[choice["index"]] += choice["finish_reason"] or ""
            whole = (await self.route.answer(client, **options))["choices"]
            assert texts == [text_of(choice) for choice in whole]
            assert ends == [choice["finish_reason"] for choice in whole]

    @module_loop
    async def test_include_usage_comes_last_and_counts_as_a_whole_answer_does(
        self, client: httpx.AsyncClient
    ) -> None:
        options = {"stream_options": {"include_usage": True}}
        *chunks, last = await self.route.streamed(client, **options)
        assert all(chunk["usage"] is None for chunk in chunks)
        assert last["choices"] == []
        totals = ("prompt_tokens", "completion_tokens", "total_tokens")
        usage = (await self.route.answer(client))["usage"]
        assert [last["usage"][name] for name in totals] == [usage[name] for name in totals]

    @module_loop
    async def test_continuous_usage_stats_count_up_in_every_chunk(self, client: httpx.AsyncClient) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = await self.route.streamed(client, **VARIED, n=2, stream_options=options)
        made = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert made == sorted(made)
        assert len(set(made)) > 2
        end = last["usage"]
        assert chunks[-1]["usage"] == {name: end[name] for name in chunks[-1]["usage"]}
        alone = {"continuous_usage_stats": True}  # which has no meaning by itself
        assert all("usage" not in c for c in await self.route.streamed(client, stream_options=alone))

    @module_loop
    async def test_return_token_ids_are_those_of_prompt_and_output(self, client: httpx.AsyncClient) -> None:
        options = {**VARIED, "n": 2, "return_token_ids": True}
        found = await self.route.answer(client, **options)
        ids = [choice["token_ids"] for choice in found["choices"]]
        assert sum(map(len, ids)) == found["usage"]["completion_tokens"]
        # On one of two levels: a chat has one prompt, and completions may have many.
        (prompt,) = {tuple((found | choice)["prompt_token_ids"]) for choice in found["choices"]}
        assert len(prompt) == found["usage"]["prompt_tokens"]
        streamed: list[list[int]] = [[], []]
        prompts: list[Any] = []
        for chunk in await self.route.streamed(client, **options):
            (choice,) = chunk["choices"]
            streamed[choice["index"]] += choice.get("token_ids", [])
            prompts += [(chunk | choice)["prompt_token_ids"]] if "prompt_token_ids" in chunk | choice else []
        assert streamed == ids
        assert prompts == [list(prompt)] * 2

    @module_loop
    async def test_prompt_logprobs_are_listed_by_id(self, client: httpx.AsyncClient) -> None:
        found = await self.route.answer(client, prompt_logprobs=1, return_token_ids=True)
        (choice,) = found["choices"]
        first, *entries = (found | choice)["prompt_logprobs"]
        assert first is None
        ids = (found | choice)["prompt_token_ids"][1:]
        assert len(entries) == len(ids) > 0
        for token, entry in zip(ids, entries, strict=True):
            assert all(list(each) == ["logprob", "rank", "decoded_token"] for each in entry.values())
            assert str(token) in entry
            assert entry[str(token)]["logprob"] <= 0
            likeliest, *others = sorted(each["rank"] for each in entry.values())
            assert likeliest == 1
            assert all(other > 1 for other in others)

    @module_loop
    async def test_beams_are_the_best_of_their_width(self, client: httpx.AsyncClient) -> None:
        options = {"use_beam_search": True, "best_of": 4, "max_tokens": 8}
        many = await self.route.texts(client, **options, n=4)
        assert many[:2] == await self.route.texts(client, **options, n=2)
        together = await asyncio.gather(*(self.route.texts(client, **options, n=4) for _ in range(8)))
        assert all(found == many for found in together)

    @module_loop
    async def test_every_answer_says_which_weights_made_it(self, client: httpx.AsyncClient) -> None:
        found = await self.route.answer(client)
        assert found["model"] == conftest.MODEL
        assert re.fullmatch("fp_[0-9a-f]{10}", found["system_fingerprint"])
        assert type(found["created"]) is int
