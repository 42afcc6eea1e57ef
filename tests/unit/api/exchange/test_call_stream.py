"""The stream of one call: merged over its prompts, checked, stopped, cut and closed."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.api.exchange.call_stream import CallStream
from serve_app.api.exchange.merge import UNREAD, MergedStream
from serve_app.errors import GenerationFailed, Overloaded
from serve_app.types import FinishReason, GenerateRequest, Overflow, Prompt, TokenDelta, Usage
from tests.support.fakes_backend import CACHED_TOKENS, PROMPT_TOKENS, WORDS, FakeBackend

ASKED = GenerateRequest(id="r", model="model-demo", prompt=Prompt(text="a"), stream=True)
END = [(FinishReason.ABORT, "")]


def prompts(count: int, **fields: Any) -> list[GenerateRequest]:
    return [replace(ASKED, id=f"r-{number}", **fields) for number in range(count)]


async def read(stream: CallStream) -> dict[tuple[int, int], list[TokenDelta]]:
    """The deltas of each prompt and choice."""
    found: dict[tuple[int, int], list[TokenDelta]] = {}
    while deltas := await stream.get():
        for prompt, delta in deltas:
            found.setdefault((prompt, delta.index), []).append(delta)
    return found


def text(deltas: list[TokenDelta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize(("count", "n"), [(1, 1), (1, 3), (5, 2)])
async def test_every_choice_of_every_prompt_comes_whole(count: int, n: int) -> None:
    backend = FakeBackend()
    with closing(CallStream(backend, prompts(count, n=n), at_once=2)) as stream:
        found = await read(stream)
        assert await stream.get() == []
    assert sorted(found) == [(prompt, index) for prompt in range(count) for index in range(n)]
    assert all(text(deltas).endswith("".join(WORDS[1:])) for deltas in found.values())
    assert stream.usage.completion_tokens == count * n * len(WORDS)
    assert not backend.running
    assert not backend.aborted


async def test_no_more_prompts_are_under_way_than_may_be() -> None:
    backend = FakeBackend(hang_after=1)
    with closing(CallStream(backend, prompts(5), at_once=2)) as stream:
        assert [prompt for _ in range(2) for prompt, _ in await stream.get()] == [0, 1]
        await asyncio.sleep(0)
        assert len(backend.requests) == backend.running == 2
    await backend.closed.wait()
    with pytest.raises(GenerationFailed):  # and does not wait
        await stream.get()


async def test_what_a_slow_client_leaves_waits_where_each_prompt_has_its_limit() -> None:
    taken = 0

    class Endless:
        migrations = 0

        async def get(self) -> list[TokenDelta]:
            nonlocal taken
            taken += 1
            return [TokenDelta(request_id="r", index=0, text="a")]

        def close(self) -> None: ...

    backend = SimpleNamespace(generate=lambda request: Endless())
    with closing(MergedStream(backend, prompts(3), at_once=3)) as stream:  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        assert taken == UNREAD + 3  # each prompt has one in its hands
        for _ in range(10):
            await stream.get()
        await asyncio.sleep(0.05)
        assert taken == UNREAD + 3 + 10


async def test_progress_is_noted_and_not_delivered() -> None:
    backend = FakeBackend(progress=Usage(prompt_tokens=3), hang_after=0)
    with closing(CallStream(backend, [ASKED])) as stream:
        reading = asyncio.ensure_future(stream.get())
        while not stream.usage.prompt_tokens:
            await asyncio.sleep(0)
        assert not reading.done()
        reading.cancel()
    assert stream.usage == Usage(prompt_tokens=3)


@pytest.mark.parametrize("count", [1, 3])
async def test_an_end_before_its_choices_ended_is_a_failure(count: int) -> None:
    stream = CallStream(FakeBackend(fail_after=2), prompts(count))
    with closing(stream), pytest.raises(GenerationFailed):
        await read(stream)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("told_by", ["error_delta", "failure", "refuse"])
async def test_a_failure_is_raised_and_aborts_the_other_prompts(count: int, told_by: str) -> None:
    backend = FakeBackend(fail_after=2, **{told_by: Overloaded("full")})  # type: ignore[arg-type]
    with closing(CallStream(backend, prompts(count))) as stream, pytest.raises(Overloaded):
        await read(stream)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not backend.running


@pytest.mark.parametrize("count", [1, 3])
async def test_a_stop_delivers_what_came_and_aborts_every_open_choice(count: int) -> None:
    backend = FakeBackend(hang_after=2)
    with closing(CallStream(backend, prompts(count, n=2), at_once=2)) as stream:
        begun = [await stream.get() for _ in range(2 * min(count, 2))]
        reading = asyncio.ensure_future(read(stream))
        await asyncio.sleep(0)
        stream.stop()
        found = await asyncio.wait_for(reading, 60)
        usage = stream.usage
    assert {key: [(d.finish, d.text) for d in deltas] for key, deltas in found.items()} == {
        (prompt, index): END for prompt in range(count) for index in range(2)
    }
    assert usage.prompt_tokens == PROMPT_TOKENS * min(count, 2)  # the third had not begun
    assert sum(len(deltas) for deltas in begun) == 2 * 2 * min(count, 2)
    assert found[0, 0][0].usage.cached_tokens == CACHED_TOKENS
    assert len(backend.requests) == min(count, 2)


async def test_a_stop_after_the_end_changes_nothing() -> None:
    with closing(CallStream(FakeBackend(), [ASKED])) as stream:
        await read(stream)
        stream.stop()
        assert await stream.get() == []


@pytest.mark.parametrize(("overflow", "ends"), [(Overflow.TRUNCATE, 2), (Overflow.ERROR, 0)])
async def test_a_cut_ends_open_choices_where_all_prompts_ask_for_it(overflow: Overflow, ends: int) -> None:
    backend = FakeBackend(hang_after=1)
    with closing(CallStream(backend, prompts(2, overflow=overflow))) as stream:
        await stream.get()
        cut = stream.cut()
    assert [(prompt, delta.finish) for prompt, delta in cut] == [
        (i, FinishReason.LENGTH) for i in range(ends)
    ]


async def test_closing_while_nobody_reads_aborts() -> None:
    backend = FakeBackend(hang_after=1)
    stream = CallStream(backend, [ASKED])
    await stream.get()
    stream.close()
    await backend.closed.wait()
    assert backend.aborted == ["r"]
