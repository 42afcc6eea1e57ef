"""Guarded answers whose time runs out while a model judges them: what had passed is sent, the rest is cut."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.api.guard.answers import GuardedStream
from serve_app.api.guard.guard import Rules
from serve_app.api.protocol.dialect import PromptDelta
from serve_app.endpoints.ai_gateway import GuardrailRules
from serve_app.guardrails.judging import Inquest
from serve_app.types import FinishReason, GenerateRequest, Overflow, Prompt, TokenDelta, Usage

RULES = Rules(GuardrailRules(safety=True), "output")


def delta(index: int, text: str, finish: FinishReason | None = None) -> TokenDelta:
    return TokenDelta(request_id="r", index=index, text=text, finish=finish, usage=Usage(prompt_tokens=3))


class Source:
    """All deltas at once, and then nothing."""

    migrations = 0
    usage = Usage()

    def __init__(self, deltas: list[TokenDelta], open: tuple[int, ...]) -> None:
        self._deltas: list[PromptDelta] = [(0, each) for each in deltas]
        self._open = open
        self.is_closed = False

    async def get(self) -> list[PromptDelta]:
        found, self._deltas = self._deltas, []
        return found

    def stop(self) -> None: ...

    def cut(self) -> list[PromptDelta]:
        return [(0, delta(index, "", FinishReason.LENGTH)) for index in self._open]

    def close(self) -> None:
        self.is_closed = True


async def slow(inquest: Inquest, text: str) -> bool:
    """A judge who knows short texts at once, and thinks about long ones for ever."""
    if len(text) > 10:
        await asyncio.sleep(3600)
    return True


def guarded(source: Source, overflow: Overflow) -> GuardedStream:
    request = GenerateRequest(id="r", model="m", prompt=Prompt(text="a"), n=2, overflow=overflow)
    call: Any = SimpleNamespace(tells_filtered=True)
    return GuardedStream(source, call, [request], RULES, slow, lambda check: None)


async def cut_short(source: Source, overflow: Overflow) -> list[PromptDelta]:
    """What there is when time runs out."""
    stream = guarded(source, overflow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stream.get()
    return stream.cut()


def told(deltas: list[PromptDelta]) -> list[tuple[int, str, FinishReason | None]]:
    return [(each.index, each.text, each.finish) for _, each in deltas]


async def test_a_choice_that_had_passed_is_not_lost() -> None:
    source = Source([delta(0, "first", FinishReason.STOP), delta(1, "long " * 300)], open=(1,))
    found = await cut_short(source, Overflow.TRUNCATE)
    assert told(found) == [(0, "first", FinishReason.STOP), (1, "", FinishReason.LENGTH)]


async def test_a_choice_whose_own_end_is_being_judged_ends_without_it() -> None:
    """The source has ended it, and cuts nothing."""
    end = delta(1, "a long end of the answer", FinishReason.STOP)
    found = await cut_short(Source([delta(0, "first", FinishReason.STOP), end], open=()), Overflow.TRUNCATE)
    assert told(found) == [(0, "first", FinishReason.STOP), (1, "", FinishReason.LENGTH)]
    assert found[1][1].usage == Usage(prompt_tokens=3)


async def test_where_nothing_may_be_cut_nothing_is_sent() -> None:
    source = Source([delta(0, "first", FinishReason.STOP), delta(1, "long " * 300)], open=(1,))
    assert await cut_short(source, Overflow.ERROR) == []
