"""deploy/pay_per_token.yaml: models that sleep, and limits that two gateways keep together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
import pytest_asyncio

from tests.deploy.answers import every_endpoint_answers, settled
from tests.deploy.deployment import (
    DEMO,
    Deployed,
    Raw,
    deploy_file,
    deployed,
    edited,
    endpoints_of,
)
from tests.support.invariants import WAIT_S, unharmed
from tests.support.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

FREE: Final = "free"  # without limits, for the invariants
LIMITS: Final[dict[str, Raw]] = {
    "ten-requests": {"requests_per_minute": 10},
    "some-output": {"output_tokens_per_minute": 400},
    "slow": {"requests_per_minute": 30},
    "narrow": {"output_tokens_per_minute": 50},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def as_it_is(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, deploy_file("pay_per_token"), usage) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(as_it_is: Deployed) -> Deployed:
    """With endpoints of smaller budgets, and one of none, on the same model. Nothing restarts."""

    def edit(raw: Raw) -> None:
        for name, limits in {FREE: None, **LIMITS}.items():
            endpoints_of(raw).append({"name": name, "served_entities": [{"model": DEMO}], "limits": limits})

    gateways = await as_it_is.gateways()
    await as_it_is.deploy(edited(as_it_is.raw, edit))
    for url in gateways.values():
        async with httpx.AsyncClient(base_url=url) as client, asyncio.timeout(WAIT_S):
            while (await client.get(f"/v1/models/{FREE}")).status_code != 200:
                await asyncio.sleep(0.05)
    assert await as_it_is.gateways() == gateways
    await as_it_is.until_balanced()
    as_it_is.model = FREE
    return as_it_is


async def test_every_endpoint_answers_and_the_one_that_sleeps_wakes(as_it_is: Deployed) -> None:
    asleep = (await as_it_is.client.get("/v1/models/demo-chat-2")).json()
    assert "max_model_len" not in asleep  # nobody has asked the model yet
    assert not [p for p in as_it_is.processes() if "model-demo-chat_v_2" in p.cmdline()[0]]
    await every_endpoint_answers(as_it_is, {"demo-chat", "demo-chat-trial", "demo-chat-2"})


async def answered(server: Deployed, endpoint: str, status: int = 200) -> dict[int, int]:
    """Answers with `status` so far, by the process id of the gateway."""
    start, end = f'serve_app_requests_total{{endpoint="{endpoint}"', f'status="{status}"'
    return {
        pid: int(sum(v for name, v in page.items() if name.startswith(start) and end in name))
        for pid, page in (await server.samples()).items()
    }


async def until_both_gateways_take_part(server: Deployed) -> None:
    """After a change Serve leaves a gateway out of its proxy's targets for a moment."""
    async with asyncio.timeout(WAIT_S):
        before = await answered(server, FREE)
        while not all(count > before[pid] for pid, count in (await answered(server, FREE)).items()):
            await asyncio.gather(*(server.chat(FREE, max_tokens=1) for _ in range(8)))


async def test_a16_two_gateways_admit_no_more_than_one_budget(server: Deployed) -> None:
    await until_both_gateways_take_part(server)
    began = time.monotonic()
    answers = await asyncio.gather(*(server.chat("ten-requests", max_tokens=2) for _ in range(200)))
    refilled = math.ceil((time.monotonic() - began) / 6)
    admitted = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(admitted) + len(refused) == 200
    assert 10 <= len(admitted) <= 10 + refilled
    for answer in refused:
        assert 1 <= int(answer.headers["retry-after"]) <= 6
        assert answer.headers["x-ratelimit-limit-requests"] == "10"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    told = await answered(server, "ten-requests", 429)
    assert len(told) == 2
    assert all(told.values()), "one gateway took no part"
    assert sum(told.values()) == len(refused)
    records = [record for record in await settled(server) if record.endpoint == "ten-requests"]
    assert len(records) == len(admitted)


async def test_a16_output_that_was_reserved_and_not_used_is_given_back(server: Deployed) -> None:
    async with unharmed(server) as watch:
        first = await asyncio.gather(*(server.chat("some-output", max_tokens=40) for _ in range(10)))
        used = sum(answer.json()["usage"]["completion_tokens"] for answer in first)
        assert {answer.status_code for answer in first} == {200}
        assert used <= 200  # else this proves nothing
        probes, count = 0, (400 - used) // 40 - 1  # one less, for the probes
        left = 0
        async with asyncio.timeout(WAIT_S):  # no answer waits until the limiter has heard of its settlement
            while left < 40 * count:
                await asyncio.sleep(0.2)  # fewer probes than are refilled
                probe = await server.chat("some-output", max_tokens=1)
                left, probes = int(probe.headers["x-ratelimit-remaining-output-tokens"]), probes + 1
        second = await asyncio.gather(*(server.chat("some-output", max_tokens=40) for _ in range(count)))
        assert {answer.status_code for answer in second} == {200}
        watch.sent += 10 + count + probes


def caller(server: Deployed, retries: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{server.client.base_url}/v1", api_key="none", max_retries=retries, timeout=WAIT_S
    )


async def ask(client: openai.AsyncOpenAI, model: str, max_tokens: int = 1) -> Any:
    """The raw answer, which knows how often it was asked for."""
    return await client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": "Hi!"}], max_tokens=max_tokens
    )


async def test_a17_the_sdk_waits_as_it_is_told_and_gets_through(server: Deployed) -> None:
    """A request every two seconds. First many who give up soon, then few who are patient."""
    async with unharmed(server) as watch:
        taken = await asyncio.gather(*(server.chat("slow", max_tokens=1) for _ in range(30)))
        assert {answer.status_code for answer in taken} == {200}
        watch.sent += 30
        told = sum((await answered(server, "slow", 429)).values())
        async with caller(server, 1) as hasty, caller(server, 5) as patient:
            results = await asyncio.gather(*(ask(hasty, "slow") for _ in range(12)), return_exceptions=True)
            failed = [r for r in results if isinstance(r, BaseException)]
            assert failed
            assert all(isinstance(error, openai.RateLimitError) for error in failed)
            results = [r for r in results if not isinstance(r, BaseException)]
            results += await asyncio.gather(*(ask(patient, "slow") for _ in range(4)))
        retries = sum(result.retries_taken for result in results)
        assert retries
        refused = sum((await answered(server, "slow", 429)).values()) - told
        assert refused == 2 * len(failed) + retries
        watch.sent += refused + len(results)


async def test_a17_what_never_fits_is_asked_for_once(server: Deployed) -> None:
    async with unharmed(server) as watch:
        async with caller(server, 5) as client:
            with pytest.raises(openai.RateLimitError, match="more than the limit of 50") as caught:
                await ask(client, "narrow", max_tokens=51)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert sum((await answered(server, "narrow", 429)).values()) == 1
        watch.sent += 1
