"""The Playground in a real Chromium: over the real engine, and over a backend that plays a part."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, Literal

import pytest
from playwright.async_api import Page, Request, expect

from tests.console.everybody import grave
from tests.console.playground.conftest import (
    READER,
    ROUTER,
    SPLIT,
    Demo,
    Scripted,
    ask,
    choose,
    open_playground,
)
from tests.support.browser import LOAD_MS
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import directory_of, fake_app, served

CAPITAL: Final = "What is the capital of France?"
PARIS: Final = "The capital of France is Paris."


async def speak(page: Page, protocol: str) -> None:
    """Chooses a protocol, and waits for its options."""
    await page.locator("#protocol").select_option(protocol)
    await expect(page.locator("#options")).to_have_attribute("data-protocol", protocol)


def sent(request: Request) -> dict[str, Any]:
    """The body of a request, as JSON."""
    found: dict[str, Any] = json.loads(request.post_data or "")
    return found


async def test_a_chat_streams_with_its_figures_and_goes_on(tab: Page, demo: Demo) -> None:
    await open_playground(tab, demo.url)
    await choose(tab, "Sampling", temperature="0")
    await ask(tab, CAPITAL)
    turn = tab.locator(".turn").first
    await expect(turn.locator(".answer-text").first).to_have_text(PARIS)
    figures = turn.locator(".turn-figures")
    for name in ("First token", "Pace", "Answer", "Prompt", "Time", "End", "Entity"):
        await expect(figures.locator("dt", has_text=name)).to_have_count(1)
    await expect(figures).to_contain_text("10 tokens")  # the server's own count
    async with tab.expect_request("**/console/api/v1/chat/completions") as asked:
        await ask(tab, "2 + 2 =")
    body = sent(await asked.value)
    assert [each["role"] for each in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == PARIS
    assert body["temperature"] == 0
    assert body["stream_options"] == {"include_usage": True}


async def test_stop_frees_the_sequence(tab: Page, demo: Demo) -> None:
    """Esc while the answer comes: the engine has no sequence and no block of it any more."""
    await open_playground(tab, demo.url)
    await choose(tab, "Length and end", max_tokens="950", ignore_eos="true")
    for stop in (
        lambda: tab.keyboard.press("Escape"),
        lambda: tab.get_by_role("button", name="Stop").click(),
    ):
        await tab.locator("#prompt").fill("Tell me more")
        await tab.get_by_role("button", name="Send").click()
        await expect(tab.locator(".turn").last.locator(".answer-text").first).not_to_be_empty(timeout=LOAD_MS)
        assert demo.stats.running == 1
        generated = demo.stats.generated_tokens
        await stop()
        await expect(tab.locator("#status")).to_contain_text("Stopped")
        await expect(tab.locator(".turn").last.locator(".turn-figures")).to_contain_text("stopped by you")
        async with asyncio.timeout(60):
            while demo.stats.running or demo.stats.blocks_used:
                await asyncio.sleep(0.05)
        assert demo.stats.generated_tokens < generated + 900, "it did not run to its end"
        await tab.get_by_role("button", name="New chat").click()
        await expect(tab.locator(".turn")).to_have_count(0)


async def test_two_entities_answer_beside_each_other(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, ROUTER)
    await tab.get_by_role("button", name="Compare").click()
    assert await tab.get_by_label("Served entity of column 1").input_value() == "old"
    assert await tab.get_by_label("Served entity of column 2").input_value() == "new"
    await ask(tab, "Hello!")
    for column, entity in (("1", "old"), ("2", "new")):
        log = tab.get_by_role("log", name=f"Conversation of column {column}")
        await expect(log.locator(".answer-text").first).to_contain_text("Grüße")
        await expect(log.locator(".turn-figures div", has_text="Entity")).to_contain_text(entity)
    await tab.get_by_role("button", name="Remove column").last.click()
    await expect(tab.locator(".pane")).to_have_count(1)


async def test_a_key_without_routing_may_not_choose_an_entity(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER)
    await expect(tab.get_by_label("Served entity")).to_be_disabled()
    await ask(tab, "Hello!")
    await expect(tab.locator(".answer-text").first).to_contain_text("Grüße")


async def test_the_endpoints_task_decides_over_the_protocols(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER, "?endpoint=writer")
    offered = tab.locator("#protocol option:not([disabled])")
    assert await offered.evaluate_all("(all) => all.map((each) => each.value)") == [
        "openai-text", "databricks-text", "ovms-text", "mindie-text", "triton-text",
    ]  # fmt: skip
    assert await tab.get_by_label("Endpoint").locator("option").all_text_contents() == ["assistant", "writer"]
    await expect(tab.locator("#prompt-label")).to_have_text("Prompt, as the model gets it")
    await expect(tab.locator("#system")).to_be_hidden()


@pytest.mark.full
async def test_every_protocol_answers_streamed_or_whole(tab: Page, scripted: Scripted) -> None:
    """The same words, and the header of the protocol that was chosen."""
    await open_playground(tab, scripted.url, READER)
    spoken = tab.locator("#protocol option:not([disabled])")
    for protocol in await spoken.evaluate_all("(all) => all.map((each) => each.value)"):
        await speak(tab, protocol)
        for stream in (True, False):
            await tab.locator("#stream").set_checked(stream)
            async with tab.expect_request("**/console/api/**") as asked:
                await ask(tab, "Once")
            request = await asked.value
            assert request.headers["x-api-dialect"] == protocol.partition("-")[0]
            turn = tab.locator(".turn").last
            form = ".plain" if protocol.endswith("text") else ":not(.plain)"
            await expect(turn.locator(f".answer-text{form}")).to_contain_text('Grüße aus "Köln" 😀')
            await expect(turn.locator(".turn-figures dt", has_text="First token")).to_have_count(int(stream))
            await expect(turn.locator(".turn-figures div", has_text="Answer")).to_have_count(
                int(stream or protocol != "mindie-text")
            )


async def test_keys_in_the_dialog_of_code_send_and_stop_nothing(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER)
    await tab.locator("#prompt").fill("Hello!")
    await tab.get_by_role("button", name="Code", exact=True).click()
    await expect(tab.get_by_role("dialog")).to_be_visible()
    await tab.keyboard.press("Control+Enter")
    await tab.keyboard.press("Escape")
    await expect(tab.get_by_role("dialog")).to_be_hidden()
    await expect(tab.locator(".turn")).to_have_count(0)


async def test_log_probabilities_are_shown_on_the_tokens(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER)
    await choose(tab, "Log-probabilities", logprobs="true", top_logprobs="2")
    await ask(tab, "Hello!")
    await tab.get_by_role("button", name="Tokens", exact=True).click()
    tokens = tab.get_by_role("group", name="Tokens by probability").get_by_role("button")
    await expect(tokens.first).to_have_attribute("title", '"Grüße", 60.7 %')
    await tokens.first.focus()
    await expect(tab.locator(".token-panel tbody tr")).to_have_count(2)
    await expect(tab.locator(".token-panel")).to_contain_text('"Grüße~1"')
    await tab.keyboard.press("ArrowRight")
    await expect(tokens.nth(1)).to_be_focused()
    await expect(tab.locator(".token-panel .chosen")).to_contain_text('" aus"')


async def test_errors_are_the_apis_own_words(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER)
    await choose(tab, "Log-probabilities", top_logprobs="3")
    await tab.locator("#prompt").fill("Hello!")
    async with tab.expect_response("**/console/api/v1/chat/completions") as refused:
        await tab.keyboard.press("Control+Enter")
    message = (await (await refused.value).json())["error"]["message"]
    problem = tab.get_by_role("alert")
    await expect(problem).to_contain_text(message)
    await expect(problem).to_contain_text("HTTP 400")
    # The question that failed leaves no trace in the conversation.
    await choose(tab, "Log-probabilities", top_logprobs="")
    async with tab.expect_request("**/console/api/v1/chat/completions") as asked:
        await ask(tab, "Again")
    assert [each["content"] for each in sent(await asked.value)["messages"]] == ["Again"]


async def test_an_option_out_of_its_range_is_said_before_it_is_sent(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER)
    await choose(tab, "Sampling", top_p="0", temperature="3")
    await tab.locator("#prompt").fill("Hello!")
    await tab.keyboard.press("Control+Enter")
    await expect(tab.locator("#option-temperature-problem")).to_have_text(
        "temperature: must be a number from 0 to 2"
    )
    await expect(tab.locator("#option-top_p-problem")).to_have_text(
        "top_p: must be a number above 0 and up to 1"
    )
    await expect(tab.locator("#option-temperature")).to_be_focused()
    await expect(tab.locator(".turn")).to_have_count(0)


async def test_what_a_protocol_demands_is_not_taken_along(tab: Page, scripted: Scripted) -> None:
    """Anthropic's messages need `max_tokens`, and a chat's default is another. What was typed goes along."""
    await open_playground(tab, scripted.url, READER)
    await speak(tab, "anthropic-messages")
    await expect(tab.locator("#option-max_tokens")).to_have_value("1024")
    await speak(tab, "openai-chat")
    await expect(tab.locator("#option-max_tokens")).to_have_value("")
    await choose(tab, "Length and end", max_tokens="7")
    await speak(tab, "anthropic-messages")
    await expect(tab.locator("#option-max_tokens")).to_have_value("7")


@pytest.mark.parametrize(
    ("protocol", "stream"),
    [
        ("anthropic-messages", True),
        pytest.param("openai-chat", True, marks=pytest.mark.full),
        pytest.param("openai-responses", False, marks=pytest.mark.full),
        pytest.param("openai-responses", True, marks=pytest.mark.full),
        pytest.param("anthropic-messages", False, marks=pytest.mark.full),
        pytest.param("openai-chat", False, marks=pytest.mark.full),
    ],
)
async def test_tools_are_called_and_answered(tab: Page, demo: Demo, protocol: str, stream: bool) -> None:
    """What is inserted as an example, and the word for a call, hold in every protocol."""
    await open_playground(tab, demo.url)
    await speak(tab, protocol)
    await tab.locator("#stream").set_checked(stream)
    await choose(tab, "Sampling", temperature="0")
    await choose(tab, "Tools", tool_choice="required")
    await tab.locator("[data-for=option-tools]").click()
    await ask(tab, "What is the weather in Paris?")
    call = tab.locator(".call")
    await expect(call.locator(".call-name")).to_have_text("get_weather")
    assert set(json.loads(await call.locator("pre").inner_text())) == {"city"}
    await call.get_by_label("Result").fill('{"celsius": 12}')
    await choose(tab, "Tools", tool_choice="none")
    async with tab.expect_request(lambda request: "/console/api/" in request.url) as asked:
        await ask(tab, "")
    call_id, name, result_id, result = call_and_result(sent(await asked.value))
    assert (name, result) == ("get_weather", '{"celsius": 12}')
    assert call_id == result_id != ""
    await expect(tab.locator(".turn").last.locator(".answer-text").first).not_to_be_empty()


def call_and_result(body: dict[str, Any]) -> tuple[str, str, str, str]:
    """The last call of a conversation and its result: ids, name and text, in whatever shape."""
    *_, call, result = body.get("input") or body["messages"]
    if "input" in body:
        return call["call_id"], call["name"], result["call_id"], result["output"]
    if result["role"] == "tool":
        (called,) = call["tool_calls"]
        return called["id"], called["function"]["name"], result["tool_call_id"], result["content"]
    (called,), (returned,) = call["content"], result["content"]
    return called["id"], called["name"], returned["tool_use_id"], returned["content"]


YES_OR_NO: Final = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("protocol", "place"),
    [
        pytest.param("openai-chat", "response_format", marks=pytest.mark.full),
        pytest.param("anthropic-messages", "output_config-format", marks=pytest.mark.full),
        ("ovms-responses", "text-format"),
    ],
)
async def test_an_answer_has_the_form_that_was_asked_for(
    tab: Page, demo: Demo, protocol: str, place: str
) -> None:
    await open_playground(tab, demo.url)
    await speak(tab, protocol)
    await choose(tab, "Sampling", temperature="0")
    await tab.locator("#options details", has=tab.locator("summary", has_text="Form of the answer")).evaluate(
        "(each) => (each.open = true)"
    )
    await tab.locator("#format-type").select_option("json_schema")
    await tab.locator("[data-for=format-schema]").click()
    assert json.loads(await tab.locator("#format-schema").input_value())["type"] == "object"
    await tab.locator("#format-schema").fill(json.dumps(YES_OR_NO))
    await ask(tab, "Is Paris the capital of France?")
    answer = tab.locator(".answer-text.plain").first
    assert json.loads(await answer.inner_text())["answer"] in ("yes", "no")
    await tab.locator("#format-schema").fill("{")
    await tab.locator("#prompt").focus()  # whoever leaves a field learns what is wrong in it
    await expect(tab.locator(f"#option-{place}-problem")).to_contain_text("must be JSON")


async def test_the_tab_keeps_what_is_typed_and_another_tab_begins_a_chat(
    tab: Page, scripted: Scripted
) -> None:
    await open_playground(tab, scripted.url, ROUTER)
    await tab.get_by_role("button", name="Compare").click()
    await tab.locator("summary", has_text="System prompt").click()
    await tab.locator("#system").fill("Be brief")
    await choose(tab, "Sampling", temperature="0.5")
    await speak(tab, "mindie-chat")
    await ask(tab, "Hello!")
    await tab.locator("#prompt").fill("half a thou")
    await tab.reload()
    await tab.wait_for_selector("#playground[data-ready]")
    await expect(tab.locator(".turn")).to_have_count(2)
    await expect(tab.locator(".answer-text").first).to_contain_text("Grüße")
    await expect(tab.locator("#system")).to_have_value("Be brief")
    await expect(tab.locator("#prompt")).to_have_value("half a thou")
    await expect(tab.locator("#option-temperature")).to_have_value("0.5")
    await expect(tab.locator("#protocol")).to_have_value("mindie-chat")
    await expect(tab.get_by_label("Served entity of column 2")).to_have_value("new")
    other = await tab.context.new_page()
    await other.goto(f"{scripted.url}/console/playground")
    await other.wait_for_selector("#playground[data-ready]")
    await expect(other.locator(".turn")).to_have_count(0)
    await expect(other.locator("#prompt")).to_have_value("")
    # The chat is in its list, and opens there as it was.
    await other.locator("#chat-list").get_by_role("button", name="Hello!").click()
    await expect(other.locator(".turn")).to_have_count(2)
    await expect(other.locator("#option-temperature")).to_have_value("0.5")
    await expect(other.get_by_label("Served entity of column 2")).to_have_value("new")


HOSTILE: Final = (
    "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "[a](javascript:alert(1))", "![i](https://x.test/i.png)",
    "<svg/onload=alert(1)>", "`<b>`", "**<iframe src=//x.test>**", "</textarea><script>alert(1)</script>",
)  # fmt: skip


async def test_what_a_model_writes_is_text(tab: Page, scripted: Scripted) -> None:
    words = scripted.backend.words
    scripted.backend.words = tuple(f"{each}\n\n" for each in HOSTILE)
    dialogs: list[str] = []
    tab.on("dialog", lambda dialog: dialogs.append(dialog.message))
    try:
        await open_playground(tab, scripted.url, READER)
        await choose(tab, "Log-probabilities", logprobs="true")
        await ask(tab, HOSTILE[0])
        await tab.get_by_role("button", name="Tokens", exact=True).click()
        await tab.get_by_role("button", name="Plain text").click()
        await tab.reload()
        await tab.wait_for_selector("#playground[data-ready]")
    finally:
        scripted.backend.words = words
    inside = tab.locator(
        ".turn img, .turn script, .turn iframe, .turn svg, .turn [onerror], .turn a[href^=javascript]"
    )
    await expect(inside).to_have_count(0)
    await expect(tab.locator(".turn").first).to_contain_text("<svg/onload=alert(1)>")
    assert dialogs == []


async def test_without_an_endpoint_that_generates_the_page_says_what_to_do(tab: Page) -> None:
    backend = FakeBackend()
    app = fake_app(backend, directory=directory_of(backend, SPLIT[2:]))
    async with served(app) as (host, port):
        await tab.goto(f"http://{host}:{port}/console/playground")
        await expect(tab.locator(".empty")).to_contain_text("Name one in the deploy file")


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.full), "dark"])
async def test_axe_finds_nothing_grave_in_a_page_that_is_used(
    tab: Page, scripted: Scripted, theme: Literal["light", "dark"]
) -> None:
    """Two columns with answers, tokens, an error, every option unfolded, and the dialog of code."""
    await tab.emulate_media(color_scheme=theme)
    words = scripted.backend.words
    scripted.backend.words = (
        "# A\n\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
        "```py\nx\n```\n\n> q [l](https://x.test)",
    )
    try:
        await open_playground(tab, scripted.url, ROUTER)
        await tab.get_by_role("button", name="Compare").click()
        await choose(tab, "Log-probabilities", logprobs="true", top_logprobs="2")
        await ask(tab, "Hello!")
        await tab.get_by_role("button", name="Tokens", exact=True).last.click()
        await tab.get_by_role("group", name="Tokens by probability").get_by_role("button").first.focus()
        await choose(tab, "Log-probabilities", logprobs="")
        await tab.locator("#prompt").fill("Hello!")
        await tab.keyboard.press("Control+Enter")
        await expect(tab.get_by_role("alert")).to_have_count(2)
        await choose(tab, "Sampling", temperature="hot")
        await tab.locator("details").evaluate_all("(all) => all.forEach((each) => (each.open = true))")
        assert await grave(tab) == []
        await choose(tab, "Sampling", temperature="")
        await tab.get_by_role("button", name="Code", exact=True).click()
        await expect(tab.get_by_role("dialog").locator("[data-part=text]")).not_to_be_empty()
        assert await grave(tab) == []
    finally:
        scripted.backend.words = words
