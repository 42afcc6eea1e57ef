"""Requests as code: what the dialog shows is run as it is, by a shell and by Python, over the real engine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json

from playwright.async_api import Page, expect

from tests.console.playground.conftest import READER, Demo, Scripted, choose, open_playground
from tests.console.playground.test_page import CAPITAL, PARIS


async def test_the_same_request_in_every_protocol_answers_the_same_when_copied(tab: Page, demo: Demo) -> None:
    """What the dialog shows is run as it is: by a shell, and by Python."""
    await open_playground(tab, demo.url)
    await choose(tab, "Sampling", temperature="0")
    await tab.locator("#prompt").fill(CAPITAL)
    ran = await run_codes(tab)
    # MindIE's temperatures are above 0, so the option is named and left out, and its answer is drawn.
    assert {name: text for name, text in ran.items() if "mindie" not in name[0]} == {
        (protocol, language): PARIS
        for protocol in (
            "openai-chat",
            "databricks-chat",
            "ovms-chat",
            "anthropic-messages",
            "openai-responses",
            "databricks-responses",
            "ovms-responses",
        )
        for language in ("curl", "python")
    }
    assert all(ran["mindie-chat", language] for language in ("curl", "python"))
    await tab.get_by_role("button", name="Close").click()

    await tab.locator("#protocol").select_option("openai-text")
    await expect(tab.locator("#options")).to_have_attribute("data-mode", "text")
    await choose(tab, "Length and end", max_tokens="3")
    await tab.locator("#prompt").fill("2 + 2 =")
    ran = await run_codes(tab)
    assert {protocol for protocol, _ in ran} == {"openai-text", "ovms-text", "mindie-text", "triton-text"}
    assert len(set(ran.values())) == 1, ran


async def run_codes(page: Page) -> dict[tuple[str, str], str]:
    """The text of every answer, by protocol and language."""
    await page.get_by_role("button", name="Code", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator("[data-part=text]")).not_to_be_empty()
    found = {}
    protocols = await dialog.locator("[data-part=protocol] option").evaluate_all(
        "(all) => all.map((each) => each.value)"
    )
    for protocol in protocols:
        await dialog.locator("[data-part=protocol]").select_option(protocol)
        for language, run in (("curl", by_shell), ("python", by_python)):
            await dialog.locator("[data-part=language]").select_option(language)
            code = await dialog.locator("[data-part=text]").text_content()
            found[protocol, language] = await run(code or "")
    return found


async def by_shell(code: str) -> str:
    ran = await asyncio.create_subprocess_exec("bash", "-c", code, stdout=-1, stderr=-1)
    out, err = await ran.communicate()
    assert ran.returncode == 0, err
    events = [
        json.loads(line[5:])
        for line in out.decode().splitlines()
        if line.startswith("data:") and "[DONE]" not in line
    ]
    text = ""
    for event in events:
        for choice in event.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        text += event.get("text_output", "")
        if event.get("type") == "content_block_delta":
            text += event["delta"].get("text", "")
        if event.get("type") == "response.output_text.delta":
            text += event["delta"]
    return text.strip()


async def by_python(code: str) -> str:
    """In this process: what it imports is imported once."""
    out = io.StringIO()

    def run() -> None:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "copied", "exec"), {"__name__": "__main__"})  # noqa: S102

    await asyncio.to_thread(run)
    return out.getvalue().strip()


async def test_code_of_what_is_no_request_is_refused(tab: Page, scripted: Scripted) -> None:
    await open_playground(tab, scripted.url, READER)
    script = """
        async (request) => {
          const token = document.querySelector('meta[name="csrf-token"]').content;
          const body = new URLSearchParams({ request });
          const asked = { method: "POST", headers: { "x-csrf-token": token }, body };
          const answer = await fetch("/console/playground/code", asked);
          return [answer.status, await answer.json()];
        }
    """
    for request in (
        "",
        "[]",
        "{}",
        '{"protocol": "x", "body": {}}',
        '{"protocol": "openai-chat", "body": []}',
    ):
        status, told = await tab.evaluate(script, request)
        assert status == 400
        assert "not a request of the Playground" in told["error"]
