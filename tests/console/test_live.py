"""The page Live: lines and figures of what happens, renewed by itself; A and B side by side."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import pytest_asyncio
from playwright.async_api import Page, Route, expect

from serve_app.api.management.live import FiguresJson, LiveApplicationJson
from serve_app.console.pages import live
from serve_app.live.latencies import FINE_LONG, FINE_SHORT, LatencyCounts, since
from serve_app.live.ring import newest_settled
from serve_app.types.control import EntityCounts, LiveSlot, ReplicaLoad, TellLive
from tests.console.conftest import MANAGER, Server
from tests.support.browser import Visit
from tests.support.fake_cluster import OPERATOR
from tests.support.gateway import CHAT, bearer, chat_body
from tests.support.invariants import WAIT_S

PATH: Final = "/console/live"
NASTY: Final = '<img src=x onerror="alert(1)">'


def latencies(bounds: tuple[float, ...], seconds: float) -> dict[int, int]:
    counts = LatencyCounts(bounds)
    for _ in range(20):
        counts.observe(seconds)
    return since(counts.counts, ())


def counts(entity: str, step_s: float, **fields: Any) -> EntityCounts:
    return EntityCounts(
        endpoint="watched",
        entity=entity,
        first_token=latencies(FINE_LONG, step_s * 5),
        inter_token=latencies(FINE_SHORT, step_s),
        **fields,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def busy(server: Server) -> AsyncIterator[Server]:
    """Another gateway told of two minutes in which two entities of `watched` answered, one hostile."""
    newest = newest_settled(time.time())
    slots = tuple(
        LiveSlot(
            number=number,
            entities=(
                counts("demo", 0.02, requests=8, completion_tokens=800, in_flight=3),
                counts(NASTY, 0.03, requests=4, errors=1, completion_tokens=300, in_flight=2),
            ),
            replicas={"r1": ReplicaLoad(app="model-demo", running=5, blocks_total=100, blocks_used=40)},
        )
        for number in range(newest - 60, newest + 20)
    )
    await server.service.plane.do(TellLive(gateway="other", slots=slots, is_all=True), OPERATOR)
    yield server


async def cell(page: Page, row: str, column: int) -> str:
    """The text of one figure: `column` counts those of the row, from 0."""
    found = page.locator("#figures tbody tr").filter(has=page.get_by_text(row, exact=True))
    return await found.locator("td").nth(column).inner_text()


async def points(page: Page, figure: str) -> int:
    """How many colours the picture of `figure` has: none, before something is drawn."""
    return int(
        await page.locator(f'figure[data-figure="{figure}"] canvas').evaluate(
            """canvas => {
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const seen = new Set();
                for (let i = 0; i < data.length; i += 4) {
                    if (data[i + 3] === 255) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
                }
                return seen.size;
            }"""
        )
    )


async def test_two_entities_are_two_lines_with_their_figures(visit: Visit, busy: Server) -> None:
    page = visit.page
    await visit.goto(f"{PATH}?endpoint=watched")
    await expect(page.get_by_label("Endpoint")).to_have_value("watched")
    await expect(page.locator("#figures tbody tr")).to_have_count(3)
    assert await cell(page, "demo", 0) == "4"  # requests a second
    assert await cell(page, "demo", 4) == "400"  # tokens
    assert await cell(page, NASTY, 1) == "0.5"  # errors
    assert await cell(page, "all", 0) == "6"
    slower = float((await cell(page, NASTY, 10)).removesuffix(" ms"))  # between tokens, p95
    faster = float((await cell(page, "demo", 10)).removesuffix(" ms"))
    assert 1.2 * faster < slower
    assert await page.locator("#figures .swatch-1, #figures .swatch-2").count() == 2
    readout = page.locator('figure[data-figure="tokens_per_s"] .readout')
    await expect(readout.locator(":scope > span")).to_have_text(["demo 400", f"{NASTY} 150"])
    assert await readout.evaluate("(each) => each.scrollWidth <= each.clientWidth"), "the legend is whole"
    assert await points(page, "inter_token_s") > 2
    await expect(page.locator("#applications tbody tr")).to_contain_text("40 %")
    await expect(page.locator("#one")).to_be_hidden()


async def test_it_renews_itself_until_it_is_paused(visit: Visit, busy: Server) -> None:
    page = visit.page
    await visit.goto(PATH)
    await expect(page.locator("#figures tbody tr")).not_to_have_count(0)
    as_of = page.locator("#as-of")
    first = await as_of.inner_text()
    await expect(as_of).not_to_have_text(first)
    since_asked = [url for url in visit.asked if "since=" in url]
    assert since_asked, "only what is new is asked for"
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("#state")).to_have_text("paused")
    shown, asked = await as_of.inner_text(), len(visit.asked)
    await asyncio.sleep(2.5)  # longer than from one look to the next
    assert (await as_of.inner_text(), len(visit.asked)) == (shown, asked)
    await page.get_by_role("button", name="Resume").click()
    await expect(as_of).not_to_have_text(shown)


async def test_figures_that_nothing_follows_are_shown_as_stale(visit: Visit, busy: Server) -> None:
    page = visit.page
    await visit.goto(PATH)
    await expect(page.locator("#figures tbody tr")).not_to_have_count(0)
    await expect(page.locator("#state")).to_have_text("live")
    await page.route("**/api/2.0/live*", lambda route: route.abort())
    await expect(page.locator("#state")).to_have_text("stale")
    await expect(page.locator("#problem")).to_be_visible()
    await expect(page.locator("#figures")).to_have_class(re.compile("stale"))
    await page.unroute("**/api/2.0/live*")
    await expect(page.locator("#state")).to_have_text("live")
    await expect(page.locator("#figures")).not_to_have_class(re.compile("stale"))

    # An answer that brings no new point is no news either.
    async def old(route: Route) -> None:
        answer = await route.fetch()
        body = await answer.json()
        await route.fulfill(
            response=answer,
            json={
                **body,
                "times": [],
                "endpoints": [{**each, "series": {}, "entities": []} for each in body["endpoints"]],
                "applications": [],
            },
        )

    await page.route("**/api/2.0/live*", old)
    await page.evaluate("Date.now = ((now) => () => now() + 60_000)(Date.now)")  # a minute passes
    await expect(page.locator("#state")).to_have_text("stale")
    await page.unroute_all(behavior="ignoreErrors")  # one may be under way
    visit.forgive()  # the browser notes requests that fail


async def test_a_request_shows_within_seconds_beside_the_other_endpoints(visit: Visit, busy: Server) -> None:
    page = visit.page
    await visit.goto(PATH)
    row = page.locator("#figures tbody tr").filter(has_text="org/other")
    before = float(
        await row.locator("td").first.inner_text()
    )  # other tests may have asked it; that only falls
    async with httpx.AsyncClient(base_url=busy.url, headers=bearer(MANAGER), timeout=60) as client:
        answer = await client.post(CHAT, json=chat_body(model="org/other", stream=True))
        assert answer.status_code == 200
    async with asyncio.timeout(WAIT_S):
        while float(await row.locator("td").first.inner_text()) <= before:
            await asyncio.sleep(0.1)
    await row.get_by_role("link").click()
    await expect(page.get_by_label("Endpoint")).to_have_value("org/other")
    await page.get_by_label("Endpoint").select_option("watched")
    await expect(page).to_have_url(f"{busy.url}{PATH}?endpoint=watched")
    await expect(page.locator("#figures tbody tr")).to_have_count(3)


async def test_points_are_put_together_from_answers(visit: Visit, busy: Server) -> None:
    """Entities come and go, old points leave, and what does not continue is refused."""
    await visit.goto(PATH)
    found = await visit.page.evaluate(
        """async () => {
            const script = document.querySelector('script[src$="live/page.js"]').src;
            const { History } = await import(script.replace("page.js", "history.js"));
            const series = (...values) => ({ requests_per_s: values, first_token_s: { p50: values } });
            const answer = (times, entities, gateways = "all") => ({
                gateways, slot_s: 2, times, applications: [],
                endpoints: [{
                    endpoint: "e", series: series(...times),
                    entities: Object.keys(entities).map((entity) => ({
                        entity, series: series(...entities[entity]),
                    })),
                }],
            });
            const history = new History();
            const taken = [
                history.take(answer([2, 4], { a: [1, 2] })),
                history.take(answer([6], { a: [3], b: [7] })),
                history.take(answer([], { b: [] })),
                history.take(answer([100], { b: [1] })),
                history.take(answer([8], { b: [1] }, "one")),
            ];
            const first = (name) => [...history.values(`entity/e/${name}`, "first_token_s.p50")];
            const values = [first("a"), first("b")];
            const times = Array.from({ length: 160 }, (_, place) => 8 + 2 * place);
            history.take(answer(times, { b: times }));
            const last = history.values("entity/e/b", "requests_per_s");
            return { taken, values, kept: history.times.length, same: last.join() === history.times.join() };
        }"""
    )
    assert found["taken"] == [True, True, True, False, False]
    assert found["values"] == [[None, None, None], [None, None, 7]]
    assert (found["kept"], found["same"]) == (150, True)


async def test_a_key_without_the_scope_is_told_which_it_needs(reader: Visit) -> None:
    await reader.goto(PATH)
    await expect(reader.page.get_by_role("alert")).to_be_visible()
    await expect(reader.page.locator("main")).to_contain_text("metrics")
    reader.forgive()  # the browser notes an answer of 403


def test_every_figure_of_the_page_is_one_of_the_api() -> None:
    assert {name for name, _, _ in live.PICTURES} <= set(FiguresJson.__annotations__)
    assert {name for name, _, _ in live.PICTURES_OF_APPLICATIONS} <= set(LiveApplicationJson.__annotations__)
