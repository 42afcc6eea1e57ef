"""A stream is written down before its first token is delivered, and from then on while it goes on."""

import asyncio

import httpx
import pytest

from serve_app.api.admission import progress
from tests.support.fakes_backend import FakeBackend
from tests.support.fakes_metering import ListJournal
from tests.support.gateway import CHAT, chat_body, fake_app, gateway, served


async def test_the_first_token_is_in_the_journal_before_its_client_has_it():
    journal = ListJournal()
    app = fake_app(FakeBackend(hang_after=1), journal=journal)
    async with (
        served(app) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as client,
        client.stream("POST", CHAT, json=chat_body(stream=True)) as answer,
    ):
        await anext(answer.aiter_bytes())
        (first,) = journal.progress
        assert (first.outcome, first.status, first.completion_tokens) == ("lost", 200, 1)
        assert first.user == first.key_id


async def test_a_whole_answer_has_none_as_its_client_has_nothing_before_its_end():
    async with gateway(FakeBackend()) as running:
        await running.chat()
        assert running.journal.progress == []


async def test_a_stream_that_goes_on_is_written_down_again_when_it_has_more(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    backend = FakeBackend(hang_after=2)
    async with gateway(backend) as running:

        async def read():
            async with running.client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
                async for _ in answer.aiter_bytes():
                    pass

        reading = asyncio.create_task(read())
        while len(running.journal.progress) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # nothing is new, so nothing is written
        tokens = [each.completion_tokens for each in running.journal.progress]
        assert tokens == sorted(set(tokens))
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
