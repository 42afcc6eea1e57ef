"""The pages of endpoints in a real Chromium, over a real control plane whose cluster runs nothing."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from serve_app.types.control import (
    ConfigWanted,
    CreateEndpoint,
    DeleteEndpoint,
    EntityWanted,
    ListEndpoints,
)
from tests.console import everybody
from tests.console.conftest import MANAGER, Server
from tests.support.browser import LOAD_MS, Visit
from tests.support.fake_cluster import OPERATOR
from tests.support.gateway import CHAT, bearer, chat_body
from tests.support.waiting import eventually

expect.set_options(timeout=LOAD_MS)

NAME = "harbor"
REFUSED = "the server responded with a status of 400"


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def nothing_left(server: Server) -> AsyncIterator[None]:
    """Endpoints of one test are gone before the next, and the cluster does as it is told again."""
    yield
    server.service.cluster.held.clear()
    server.service.cluster.failing.clear()
    for shown in (await server.service.plane.do(ListEndpoints(), OPERATOR)).endpoints:
        if not shown.declared:
            await server.service.plane.do(DeleteEndpoint(name=shown.name), OPERATOR)


def forgive(visit: Visit, words: str) -> None:
    """Browsers note every answer that is an error. Fails unless that is what this one complained of."""
    assert visit.complaints
    assert all(words in complaint for complaint in visit.complaints), visit.complaints
    visit.complaints.clear()


def entity(page: Page, number: int) -> Locator:
    """The fields of the served entity `number`, from 1."""
    return page.get_by_role("group", name=f"Served entity {number}")


async def create(visit: Visit, *shares: int) -> None:
    """Make NAME with the versions 1, 2, ... of the model `demo`, by the form."""
    page = visit.page
    await visit.goto("/console/endpoint-new")
    await page.get_by_label("Name", exact=True).fill(NAME)
    for number, share in enumerate(shares, 1):
        if number > 1:
            await page.get_by_role("button", name="Add an entity").click()
        fields = entity(page, number)
        await fields.get_by_label("Model", exact=True).fill("demo")
        if number > 1:
            await fields.get_by_label("Version").fill(str(number))
        await fields.get_by_label("Name in the endpoint").fill(f"v{number}")
        await fields.get_by_label("Traffic, %").fill(str(share))
    await page.get_by_role("button", name="Create endpoint").click()


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))


def served_row(page: Page, name: str) -> Locator:
    """The row of an entity of the configuration that serves."""
    return page.get_by_role("region", name="Serving: entities").get_by_role("row").filter(has_text=name)


async def serves(page: Page) -> None:
    await expect(page.get_by_role("heading", name="Serving")).to_be_visible()


async def test_an_endpoint_is_made_shows_its_progress_and_takes_traffic(visit: Visit, server: Server) -> None:
    page, cluster = visit.page, server.service.cluster
    cluster.held.add("2")
    await create(visit, 90, 10)
    await expect(page).to_have_url(f"{server.url}/console/endpoints/{NAME}?done=created")
    await expect(page.get_by_text("1 of 2 entities are ready")).to_be_visible()
    await expect(page.get_by_role("heading", name="Move traffic")).to_have_count(0)
    await visit.goto("/console/endpoints")
    await expect(row(page, NAME)).to_contain_text("starting")
    cluster.held.clear()
    for spec in list(cluster.specs.values()):
        await cluster.deploy(spec)
    await expect(row(page, NAME)).to_contain_text("serving")
    await expect(row(page, NAME)).to_contain_text("v1 90 %")
    await page.get_by_role("link", name=NAME).click()
    await serves(page)
    await expect(served_row(page, "v2")).to_contain_text("10 %")
    now = page.get_by_role("region", name="Replicas and queue")
    await expect(now.get_by_role("rowheader", name="v2")).to_be_visible()

    await page.get_by_label("v1, %").fill("50")
    await expect(page.get_by_text("they must add up to 100 %")).to_be_visible()
    await expect(page.get_by_role("button", name="Move traffic")).to_be_disabled()
    await page.get_by_label("v2, %").fill("50")
    await page.get_by_role("button", name="Move traffic").click()
    await expect(page.get_by_text("Traffic moved.")).to_be_visible()
    await expect(served_row(page, "v2")).to_contain_text("50 %")

    await page.get_by_label("Or send all traffic to").select_option("v2")
    await page.get_by_role("button", name="Promote").click()
    await expect(served_row(page, "v2")).to_contain_text("100 %")
    await expect(served_row(page, "v1")).to_contain_text("0 %")

    await page.get_by_role("link", name="Try v1 in the Playground").click()
    await expect(page.get_by_label("Endpoint", exact=True)).to_have_value(NAME)
    await expect(page.get_by_label("Served entity", exact=True)).to_have_value("v1")


async def test_what_is_not_feasible_is_refused_in_the_words_of_the_api(visit: Visit) -> None:
    page = visit.page
    await visit.goto("/console/endpoint-new")
    await page.get_by_label("Name", exact=True).fill(NAME)
    await page.get_by_label("Tags").fill("team=sea")
    await page.get_by_label("Model", exact=True).fill("demo")
    await page.get_by_label("Units").fill("999")
    await page.get_by_role("button", name="Create endpoint").click()
    await expect(page.get_by_role("alert")).to_contain_text("takes 999 replicas; at most")
    units = page.get_by_label("Units")
    await expect(units).to_have_value("999")
    await expect(units).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Tags")).to_have_value("team=sea")
    await page.get_by_label("Name", exact=True).fill("chat")
    await units.fill("1")
    await page.get_by_role("button", name="Create endpoint").click()
    await expect(page.get_by_role("alert")).to_contain_text("chat")
    forgive(visit, REFUSED)


@pytest.mark.full
async def test_a_configuration_that_does_not_come_up_says_why(visit: Visit, server: Server) -> None:
    page = visit.page
    server.service.cluster.failing["2"] = "the weights are not there"
    await create(visit, 50, 50)
    await expect(page.get_by_text("the weights are not there").first).to_be_visible()
    await expect(page.get_by_text("failed", exact=True).first).to_be_visible()


@pytest.mark.full
async def test_entities_are_scaled_added_and_taken_away(visit: Visit, server: Server) -> None:
    page = visit.page
    await create(visit, 100)
    await serves(page)
    await page.get_by_role("link", name="Configuration").click()
    await entity(page, 1).get_by_label("Units").fill("2")
    await page.get_by_role("button", name="Add an entity").click()
    second = entity(page, 2)
    await second.get_by_label("Model", exact=True).fill("demo")
    await second.get_by_label("Version").fill("2")
    await page.get_by_role("button", name="Update configuration").click()
    await expect(page.get_by_text("Configuration accepted.")).to_be_visible()
    await page.get_by_role("link", name="Overview").click()
    await expect(served_row(page, "demo-2")).to_contain_text("0 %")
    await expect(served_row(page, "v1")).to_contain_text("2 units")
    await expect(page.get_by_role("heading", name="Move traffic")).to_be_visible()

    await page.get_by_role("link", name="Configuration").click()
    await entity(page, 1).get_by_role("button", name="Remove this entity").click()
    assert await page.get_by_role("button", name="Remove this entity").count() == 0, "one must stay"
    await page.get_by_role("button", name="Update configuration").click()
    await expect(page.get_by_text("Configuration accepted.")).to_be_visible()
    await page.get_by_role("link", name="Overview").click()
    await expect(served_row(page, "demo-2")).to_contain_text("100 %")

    await page.get_by_role("link", name="Configuration").click()
    await page.locator('[name="config_version"]').evaluate("field => { field.value = '1' }")
    await page.get_by_role("button", name="Update configuration").click()
    await expect(page.get_by_role("alert")).to_contain_text("has come into force since you opened this form")
    forgive(visit, "the server responded with a status of 409")


@pytest.mark.full
async def test_a_rollout_is_started_watched_and_stopped(visit: Visit) -> None:
    page = visit.page
    await create(visit, 100, 0)
    await serves(page)
    for tab in ("Overview", "Configuration", "Comparison", "Logs", "Permissions", "Settings", "Rollout"):
        await page.get_by_role("link", name=tab, exact=True).click()
        await everybody.check(visit)
    await page.get_by_label("Entity", exact=True).first.select_option("v2")
    await page.get_by_label("Steps, %").fill("10, 5")
    await page.get_by_role("button", name="Start rollout").click()
    await expect(page.get_by_role("alert")).to_contain_text("steps")
    await expect(page.get_by_label("Steps, %")).to_have_value("10, 5")
    forgive(visit, REFUSED)
    await page.get_by_label("Steps, %").fill("10, 50, 100")
    await page.get_by_role("button", name="Start rollout").click()
    await expect(page.get_by_role("heading", name="Rollout to v2 running")).to_be_visible()
    await everybody.check(visit)
    await expect(page.get_by_role("list", name="Steps").get_by_text("10 %")).to_have_attribute(
        "aria-current", "step"
    )
    await page.get_by_role("button", name="Stop and roll back").click()
    await expect(page.get_by_role("heading", name="Rollout to v2 stopped")).to_be_visible()
    await page.get_by_label("Entity", exact=True).last.select_option("v2")
    await page.get_by_role("button", name="Copy requests").click()
    await expect(page.get_by_text("are copied to v2")).to_be_visible()
    await page.get_by_role("button", name="Stop copying").click()
    await expect(page.get_by_text("Shadow traffic stopped.")).to_be_visible()


@pytest.mark.full
async def test_events_settings_and_the_end(visit: Visit, server: Server) -> None:
    page = visit.page
    await create(visit, 100)
    await serves(page)
    await page.get_by_role("link", name="Logs").click()
    await expect(page.locator("pre.log")).to_contain_text("v1")
    await page.get_by_label("Log", exact=True).select_option("service")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("pre.log")).to_contain_text("log of rt-")

    await page.get_by_role("link", name="Settings").click()
    await page.get_by_text("All settings, as JSON").click()
    await page.get_by_label("as JSON").fill('{"rate_limits": [{"calls": 5, "renewal_period": "minute"}]')
    await page.get_by_role("button", name="Replace settings").click()
    await expect(page.get_by_role("alert")).to_contain_text("this is not JSON")
    await page.get_by_label("as JSON").fill('{"rate_limits": [{"calls": -5, "renewal_period": "minute"}]}')
    await page.get_by_role("button", name="Replace settings").click()
    await expect(page.get_by_role("alert")).to_contain_text("rate_limits.0.calls")
    await page.get_by_label("as JSON").fill('{"rate_limits": [{"calls": 5, "renewal_period": "minute"}]}')
    await page.get_by_role("button", name="Replace settings").click()
    await expect(page.get_by_text("Settings saved.")).to_be_visible()
    await expect(page.get_by_label("as JSON")).to_have_value(re.compile('"calls": 5'))
    await page.get_by_label("key=value").fill("team=sea, spare")
    await page.get_by_role("button", name="Save tags").click()
    await page.get_by_label("key=value").fill("team=land")
    await page.get_by_role("button", name="Save tags").click()
    await expect(page.get_by_label("key=value")).to_have_value("team=land")

    await page.get_by_label(f"Type {NAME} to confirm").fill("something else")
    await page.get_by_role("button", name="Delete endpoint").click()
    await expect(page.get_by_role("alert")).to_contain_text("type the name of the endpoint")
    await page.get_by_label(f"Type {NAME} to confirm").fill(NAME)
    await page.get_by_role("button", name="Delete endpoint").click()
    await expect(page.get_by_text("Endpoint deleted.")).to_be_visible()
    await expect(row(page, NAME)).to_have_count(0)
    forgive(visit, REFUSED)


@pytest.mark.full
async def test_the_ai_gateway_is_set_by_fields(visit: Visit) -> None:
    page = visit.page
    await create(visit, 100)
    await serves(page)
    await page.get_by_role("link", name="Settings").click()
    limit = page.get_by_role("group", name="Limit 1")
    await limit.get_by_label("Applies to").select_option("user_group")
    await limit.get_by_label("Calls").fill("5")
    await page.get_by_label("Prompts: personal data").select_option("BLOCK")
    await page.get_by_label("Answers: blocked words").fill("secret, top secret")
    await page.get_by_label("Include this endpoint in usage reports").uncheck()
    await page.get_by_role("button", name="Save settings").click()
    await expect(page.get_by_role("alert")).to_contain_text("'user_group' must name its principal")
    await expect(limit.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    other = page.get_by_role("group", name="Limit 2").get_by_label("Name")
    await expect(other).not_to_have_attribute("aria-invalid", "true")
    await expect(limit.get_by_label("Calls")).to_have_value("5")
    await expect(page.get_by_label("Prompts: personal data")).to_have_value("BLOCK")
    forgive(visit, REFUSED)
    await limit.get_by_label("Name").fill("sea")
    await page.get_by_role("button", name="Save settings").click()
    await expect(page.get_by_text("Settings saved.")).to_be_visible()
    await expect(page.get_by_label("Include this endpoint in usage reports")).not_to_be_checked()
    await expect(limit.get_by_label("Name")).to_have_value("sea")
    await expect(page.get_by_label("Answers: blocked words")).to_have_value("secret, top secret")
    await everybody.check(visit)
    await limit.get_by_label("Calls").fill("")
    await limit.get_by_label("Name").fill("")
    await page.get_by_role("button", name="Save settings").click()
    await expect(limit.get_by_label("Applies to")).to_have_value("endpoint")


@pytest.mark.full
async def test_a_grant_is_given_and_taken_away(visit: Visit) -> None:
    page = visit.page
    await create(visit, 100)
    await serves(page)
    await page.get_by_role("link", name="Permissions").click()
    await expect(page.get_by_text("There is no grant")).to_be_visible()
    for kind, name, level in (("group_name", "sea", "CAN_QUERY"), ("user_name", "ann", "CAN_MANAGE")):
        await page.get_by_label("Grant to a").select_option(kind)
        await page.get_by_label("Name", exact=True).fill(name)
        await page.get_by_label("May", exact=True).select_option(level)
        await page.get_by_role("button", name="Grant", exact=True).click()
        await expect(row(page, name)).to_contain_text(level)
    await everybody.check(visit)
    await page.get_by_role("button", name="Take the grant of sea away").click()
    await expect(row(page, "sea")).to_have_count(0)
    await expect(row(page, "ann")).to_contain_text("user")
    await page.get_by_label("Grant to a").select_option("service_principal_name")
    await page.get_by_label("Name", exact=True).fill("x" * 300)
    await page.get_by_role("button", name="Grant", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("service_principal_name")
    await expect(page.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Grant to a")).to_have_value("service_principal_name")
    forgive(visit, REFUSED)


async def test_endpoints_are_searched_and_sorted_and_tags_lead_to_their_own(visit: Visit) -> None:
    page = visit.page
    await visit.goto("/console/endpoint-new")
    await page.get_by_label("Name", exact=True).fill(NAME)
    await page.get_by_label("Tags").fill("team=sea")
    await page.get_by_label("Model", exact=True).fill("demo")
    await page.get_by_role("button", name="Create endpoint").click()
    await serves(page)
    await visit.goto("/console/endpoints")
    names = page.get_by_role("rowheader")
    everything = await names.all_inner_texts()
    assert len(everything) > 2
    await page.get_by_role("link", name="Name", exact=True).click()
    await expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "descending")
    assert await names.all_inner_texts() == everything[::-1]
    await page.get_by_label("Search endpoints").fill("HARB")
    await expect(names).to_have_count(1)
    await page.get_by_label("Search endpoints").fill("no such thing")
    await expect(page.get_by_text("No endpoint matches.")).to_be_visible()
    await visit.goto("/console/endpoints")
    await page.get_by_role("link", name="team=sea").click()
    await expect(names).to_have_count(1)
    await expect(page.get_by_label("Search endpoints")).to_have_value("team=sea")
    await everybody.check(visit)


async def test_the_tab_query_has_a_request_that_works(visit: Visit, server: Server) -> None:
    """What stands there for curl is run as it is."""
    page = visit.page
    await visit.goto("/console/endpoints/demo?tab=query")
    await everybody.check(visit)
    for protocol, words in (("openai-chat", "chat.completions.create"), ("anthropic-messages", "Anthropic(")):
        await page.get_by_label("Protocol").select_option(protocol)
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator("#python-code")).to_contain_text(words)
        code = await page.locator("#curl-code").inner_text()
        assert MANAGER not in code
        ran = await asyncio.create_subprocess_exec(
            "bash", "-c", code, stdout=-1, stderr=-1, env={**os.environ, "SERVE_APP_API_KEY": MANAGER}
        )
        out, err = await ran.communicate()
        assert ran.returncode == 0, err
        assert "Grüße" in out.decode()
    await page.get_by_role("link", name="Open in the Playground").click()
    await expect(page.get_by_label("Endpoint", exact=True)).to_have_value("demo")


async def test_requests_are_read_out_of_the_inference_table(visit: Visit, server: Server) -> None:
    page = visit.page
    await visit.goto("/console/endpoints/demo?tab=requests")
    await expect(page.get_by_text("This endpoint does not keep requests.")).to_be_visible()
    async with httpx.AsyncClient(base_url=server.url, headers=bearer(MANAGER), timeout=60) as client:
        await create(visit, 100)
        await serves(page)
        settings = {"inference_table_config": {"enabled": True}}
        path = f"/api/2.0/serving-endpoints/{NAME}"
        (await client.put(f"{path}/ai-gateway", json=settings)).raise_for_status()

        async def logged() -> int:
            message = {"role": "user", "content": "<b>Ahoy</b>"}
            await client.post(CHAT, json=chat_body(model=NAME, messages=[message]))
            return len((await client.get(f"{path}/requests")).json()["requests"]) > 0

        await eventually(logged, True)
    await page.get_by_role("link", name="Requests").click()
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows.first).to_contain_text("200")
    await expect(rows.first).to_contain_text("manager")
    await everybody.check(visit)
    await rows.first.get_by_role("link").click()
    await expect(page.get_by_label("Request", exact=True)).to_contain_text("<b>Ahoy</b>")
    await expect(page.get_by_label("Response", exact=True)).to_contain_text("Grüße")
    await everybody.check(visit)
    await visit.goto(f"/console/endpoints/{NAME}?tab=requests&failed=on")
    await expect(page.get_by_text("No failed request here.")).to_be_visible()


async def test_without_keys_this_machine_makes_and_deletes_endpoints(open_visit: Visit) -> None:
    """The API lets no page of another site do that: a form of the console's own says where it comes from."""
    page = open_visit.page
    await create(open_visit, 100)
    await serves(page)
    await page.get_by_role("link", name="Settings").click()
    await page.get_by_label(f"Type {NAME} to confirm").fill(NAME)
    await page.get_by_role("button", name="Delete endpoint").click()
    await expect(page.get_by_text("Endpoint deleted.")).to_be_visible()


async def test_a_declared_endpoint_is_read_only_and_says_so(visit: Visit) -> None:
    page = visit.page
    for tab in ("overview", "config", "rollout", "logs", "settings"):
        await visit.goto(f"/console/endpoints/org/other?tab={tab}")
        await expect(page.get_by_text("The deploy file declares this endpoint")).to_be_visible()
        assert await page.locator('main form[method="post"]').count() == 0
    await visit.goto("/console/endpoints")
    await expect(row(page, "org/other")).to_contain_text("declared")


async def test_a_key_without_the_scope_changes_nothing(reader: Visit, server: Server) -> None:
    page = reader.page
    config = ConfigWanted(entities=(EntityWanted(entity_name="demo", name="v1"),), traffic={"v1": 100})
    await server.service.plane.do(CreateEndpoint(name=NAME, config=config, is_provisioned=False), OPERATOR)
    for path in (
        "/console/endpoints",
        "/console/endpoint-new",
        f"/console/endpoints/{NAME}",
        "/console/key-new",
    ):
        await reader.goto(path)
        await expect(page.get_by_text("lacks the scope manage")).to_be_visible()
        assert await page.locator('main form[method="post"]').count() == 0
    token = await page.locator('meta[name="csrf-token"]').get_attribute("content")
    answer = await page.request.post(
        f"{reader.url}/console/endpoint/delete/{NAME}",
        form={"csrf": token or "", "confirmed": NAME},
        headers={"origin": reader.url},
    )
    assert answer.status == 403
    assert "manage" in await answer.text()
