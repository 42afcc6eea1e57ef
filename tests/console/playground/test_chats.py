"""The Playground as a chat: it fills the page and follows the answer; chats stay with their key."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page, expect

from tests.console.everybody import PHONE, grave
from tests.console.playground.conftest import READER, ROUTER, Scripted, ask, choose, open_playground
from tests.support.browser import LOAD_MS

LONG: Final = tuple(f"line {number}\n\n" for number in range(60))
AT_END: Final = "(each) => each.scrollHeight - each.scrollTop - each.clientHeight < 32"
SECRET: Final = "the launch code is 12345"


async def sign_out(page: Page) -> None:
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/console/sign-in")


async def test_the_log_fills_the_page_and_follows_until_the_reader_scrolls(
    tab: Page, scripted: Scripted
) -> None:
    usual = scripted.backend.words
    scripted.backend.words = LONG
    try:
        await open_playground(tab, scripted.url, READER)
        log, newest = tab.get_by_role("log"), tab.get_by_role("button", name="Newest")
        await ask(tab, "Tell me")
        await expect(log).to_contain_text("line 59")
        assert await log.evaluate(AT_END)
        await expect(newest).to_be_hidden()
        box, page = await log.bounding_box(), tab.viewport_size
        assert box is not None
        assert page is not None
        assert box["height"] > page["height"] / 2
        assert await tab.evaluate("document.documentElement.scrollHeight <= innerHeight")

        scripted.backend.pauses = {20: 1.0}
        await tab.locator("#prompt").fill("More")
        await tab.keyboard.press("Enter")
        await expect(log.get_by_text("line 10", exact=True)).to_have_count(2)
        await log.evaluate("(each) => { each.scrollTop -= 200 }")
        await expect(newest).to_be_visible()
        place = await log.evaluate("(each) => each.scrollTop")
        await expect(tab.locator("#status")).to_contain_text("Answered")
        assert await log.evaluate("(each) => each.scrollTop") == place, "what is read stays where it is"
        await newest.click()
        assert await log.evaluate(AT_END)
        await tab.set_viewport_size(PHONE)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        await expect(tab.locator("#prompt")).to_be_in_viewport()
        for panel in ("Chats", "Options"):
            await tab.get_by_role("button", name=panel, exact=True).click()
            assert await tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            assert await grave(tab) == []
        await tab.keyboard.press("Escape")
        await expect(tab.locator("#settings")).to_be_hidden()
    finally:
        scripted.backend.words, scripted.backend.pauses = usual, {}


async def test_enter_sends_and_shift_breaks_the_line_unless_the_setting_is_off(
    tab: Page, scripted: Scripted
) -> None:
    await open_playground(tab, scripted.url, READER)
    prompt = tab.locator("#prompt")
    await prompt.fill("one")
    await tab.keyboard.press("Shift+Enter")
    await tab.keyboard.type("two")
    await expect(tab.locator(".turn")).to_have_count(0)
    await tab.keyboard.press("Enter")
    await expect(tab.locator(".asked")).to_contain_text("one\ntwo")
    await expect(prompt).to_have_value("")
    await expect(tab.locator("#status")).to_contain_text("Answered")
    await tab.get_by_label("Enter sends").uncheck()
    await tab.reload()
    await tab.wait_for_selector("#playground[data-ready]")
    await expect(tab.get_by_label("Enter sends")).not_to_be_checked()
    await prompt.fill("three")
    await tab.keyboard.press("Enter")
    await expect(prompt).to_have_value("three\n")
    await tab.keyboard.press("Control+Enter")
    await expect(tab.locator(".turn")).to_have_count(2)


async def test_a_second_column_goes_on_from_the_same_conversation(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, ROUTER)
    await ask(tab, "First")
    await tab.get_by_role("button", name="Compare").click()
    log = tab.get_by_role("log", name="Conversation of column 2")
    await expect(log.locator(".asked")).to_have_text("YouFirst")
    bodies: list[dict[str, Any]] = []
    tab.on("request", lambda request: bodies.append(json.loads(request.post_data or "{}")))
    await ask(tab, "Second")
    one, other = bodies
    assert one["messages"] == other["messages"]
    assert [each["content"] for each in other["messages"]][::2] == ["First", "Second"]


async def test_chats_are_listed_renamed_exported_and_deleted(
    tab: Page, scripted: Scripted, tmp_path: Path
) -> None:
    await open_playground(tab, scripted.url, ROUTER)
    chats = tab.locator("#chat-list li")
    await tab.locator("summary", has_text="System prompt").click()
    await tab.locator("#system").fill("Be brief")
    await ask(tab, "First <b>chat</b>")
    await expect(tab.locator("#chat-title")).to_have_text("First <b>chat</b>")
    await tab.get_by_role("button", name="New chat").click()
    await expect(tab.locator(".turn")).to_have_count(0)
    await expect(tab.locator("#chat-title")).to_have_text("New chat")
    await ask(tab, "Second")
    await expect(chats.get_by_role("button", name="First")).to_be_visible()
    await expect(chats).to_have_count(2)
    await expect(chats.first).to_contain_text("Second")

    await chats.last.get_by_role("button").first.click()
    await expect(tab.locator(".asked")).to_contain_text("First <b>chat</b>")
    await chats.last.get_by_role("button", name="Rename").click()
    await tab.get_by_role("dialog").get_by_role("textbox").fill("Capitals")
    await tab.keyboard.press("Enter")
    await expect(tab.locator("#chat-title")).to_have_text("Capitals")
    async with tab.expect_download() as started:
        await chats.last.get_by_role("button", name="Export").click()
    download = await started.value
    assert download.suggested_filename == "Capitals.json"
    await download.save_as(tmp_path / "chat.json")
    kept = json.loads(await asyncio.to_thread((tmp_path / "chat.json").read_text))
    (column,) = kept["columns"]
    assert (kept["title"], column["endpoint"]) == ("Capitals", "assistant")
    assert [each["role"] for each in column["messages"]] == ["system", "user", "assistant"]

    await tab.reload()
    await tab.wait_for_selector("#playground[data-ready]")
    await expect(tab.locator("#chat-title")).to_have_text("Capitals")
    await chats.last.get_by_role("button", name="Delete").click()
    await expect(chats).to_have_count(2)
    await chats.last.get_by_role("button", name="Really delete").click()
    await expect(chats).to_have_count(1)
    await expect(tab.locator(".turn")).to_have_count(0)
    await tab.reload()
    await tab.wait_for_selector("#playground[data-ready]")
    await expect(chats).to_have_count(1)


async def test_whoever_signs_in_with_another_key_can_read_nothing(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER)
    await ask(tab, SECRET)
    await tab.locator("#prompt").fill(f"{SECRET}, again")
    await expect(tab.locator("#chat-list li")).to_have_count(1)
    await sign_out(tab)
    stored = "JSON.stringify([{ ...localStorage }, { ...sessionStorage }])"
    assert SECRET not in await tab.evaluate(stored)
    await open_playground(tab, scripted.url, ROUTER)
    assert SECRET not in await tab.evaluate(stored)
    await expect(tab.locator("#chat-list li")).to_have_count(0)
    await expect(tab.locator(".turn")).to_have_count(0)
    await expect(tab.locator("#prompt")).to_have_value("")
    await sign_out(tab)
    await open_playground(tab, scripted.url, READER)
    await expect(tab.locator("#chat-list li")).to_contain_text(SECRET)


async def test_presets_of_options_are_saved_chosen_and_deleted(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER)
    await choose(tab, "Sampling", temperature="0.2", top_p="0.5")
    await tab.get_by_role("button", name="Save as").click()
    await tab.get_by_role("dialog").get_by_role("textbox").fill("Calm")
    await tab.keyboard.press("Enter")
    preset = tab.get_by_label("Preset", exact=True)
    await expect(preset).to_have_value("Calm")
    await preset.select_option("Defaults")
    await expect(tab.locator("#option-temperature")).to_have_value("")
    await tab.reload()
    await tab.wait_for_selector("#playground[data-ready]")
    await preset.select_option("Calm")
    await expect(tab.locator("#option-temperature")).to_have_value("0.2")
    await expect(tab.locator("#option-top_p")).to_have_value("0.5")
    await tab.locator("#preset-delete").click()
    await expect(preset.locator("option")).to_have_text(["Defaults"])


async def test_a_link_to_what_is_not_there_says_so(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, ROUTER, "?endpoint=%3Cb%3Enone")
    await expect(tab.get_by_role("alert")).to_contain_text("no endpoint <b>none that generates text")
    await open_playground(tab, scripted.url, None, "?endpoint=vectors")
    await expect(tab.get_by_role("alert")).to_contain_text("no endpoint vectors that generates text")
    await open_playground(tab, scripted.url, None, "?endpoint=assistant&entity=none")
    await expect(tab.get_by_role("alert")).to_contain_text("has no served entity none")
    await open_playground(tab, scripted.url, None, "?endpoint=assistant&entity=new")
    await expect(tab.get_by_role("alert")).to_have_count(0)
    await expect(tab.get_by_label("Served entity")).to_have_value("new", timeout=LOAD_MS)
