"""Pictures of the console's pages, from a server that runs deploy/local.yaml and has no keys yet.

    serve-app serve deploy/local.yaml
    python -m docs.site screenshots docs/images

Makes what the pages show by the public API (keys, an endpoint of two versions, some traffic), and removes
the endpoint after it. Needs a Chromium of the system. The server has keys afterwards: use one whose state can
be thrown away.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

URL: Final = "http://127.0.0.1:8000"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZE: Final = ViewportSize(width=1200, height=760)
ENDPOINT: Final = "assistant"
READY_S: Final = 300.0
TRAFFIC_S: Final = 30.0
LOGGED_S: Final = 6.0  # until rows of the inference table are on the disk
QUESTIONS: Final = (
    "What is the capital of France?",
    "What is 2 + 2?",
    "What is the capital of Japan?",
)
TEAMS: Final = {"search-team": ["search"], "support-bot": ["support"], "evaluation": ["research"]}


def take(folder: Path) -> list[str]:
    """Write a picture of each page into `folder`. Returns what went wrong."""
    chromium = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if chromium is None:
        return ["there is no Chromium on this machine"]
    folder.mkdir(parents=True, exist_ok=True)
    with httpx.Client(base_url=URL, timeout=60.0) as client, _filled(client) as keys:
        _talk(keys, TRAFFIC_S)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            _shoot(page, "/console/sign-in", folder / "console-sign-in.png")
            _sign_in(page, keys["admin"])
            _playground(page, folder / "console-playground.png")
            with ThreadPoolExecutor(1) as pool:
                talking = pool.submit(_talk, keys, TRAFFIC_S)
                _shoot(page, "/console/endpoints", folder / "console-endpoints.png")
                _shoot(page, f"/console/endpoints/{ENDPOINT}", folder / "console-endpoint.png")
                _shoot(page, f"/console/endpoints/{ENDPOINT}?tab=query", folder / "console-query.png")
                _shoot(page, f"/console/live?endpoint={ENDPOINT}", folder / "console-live.png", wait_s=20.0)
                talking.result()
            _grant(client)
            _talk(keys, TRAFFIC_S / 2)
            time.sleep(LOGGED_S)
            for tab in ("permissions", "settings", "requests"):
                _shoot(page, f"/console/endpoints/{ENDPOINT}?tab={tab}", folder / f"console-{tab}.png")
            _shoot(page, "/console/usage", folder / "console-usage.png")
            _shoot(page, "/console/keys", folder / "console-keys.png")
            browser.close()
    return []


@contextmanager
def _filled(client: httpx.Client) -> Iterator[Mapping[str, str]]:
    """The keys that were made, by name; the first may do everything."""
    everything = ["inference", "routing", "metrics", "manage"]
    keys = {"admin": _post(client, "/api/2.0/keys", {"name": "admin", "scopes": everything})["key"]}
    client.headers["authorization"] = f"Bearer {keys['admin']}"
    for name, groups in TEAMS.items():
        key = {"name": name, "groups": groups, "budget": 100, "comment": f"for the {groups[0]} team"}
        keys[name] = _patiently(client, "/api/2.0/keys", key)["key"]
    entities = [
        {"name": name, "entity_name": "demo-chat", "entity_version": version, "workload_size": "Small"}
        for name, version in (("current", ""), ("candidate", "2"))
    ]
    routes = [
        {"served_model_name": name, "traffic_percentage": share}
        for name, share in (("current", 90), ("candidate", 10))
    ]
    config = {"served_entities": entities, "traffic_config": {"routes": routes}}
    _post(client, "/api/2.0/serving-endpoints", {"name": ENDPOINT, "config": config})
    try:
        _until_ready(client)
        yield keys
    finally:
        client.delete(f"/api/2.0/serving-endpoints/{ENDPOINT}")


def _grant(client: httpx.Client) -> None:
    """The endpoint is for the teams from now on, and limited."""
    path = f"/api/2.0/serving-endpoints/{ENDPOINT}"
    grants = [
        {"group_name": group, "permission_level": "CAN_QUERY"}
        for groups in TEAMS.values()
        for group in groups
    ]
    id = client.get(path).json()["id"]
    body = {"access_control_list": grants}
    client.put(f"/api/2.0/permissions/serving-endpoints/{id}", json=body).raise_for_status()
    limit = {"calls": 600, "key": "user", "renewal_period": "minute"}
    rules = {"output": {"invalid_keywords": ["top secret"]}}
    settings = {"rate_limits": [limit], "guardrails": rules, "inference_table_config": {"enabled": True}}
    client.put(f"{path}/ai-gateway", json=settings).raise_for_status()


def _until_ready(client: httpx.Client) -> None:
    give_up = time.monotonic() + READY_S
    while time.monotonic() < give_up:
        state = client.get(f"/api/2.0/serving-endpoints/{ENDPOINT}").json().get("state", {})
        if state.get("ready") == "READY" and state.get("config_update") != "IN_PROGRESS":
            return
        time.sleep(1.0)
    raise TimeoutError(f"the endpoint {ENDPOINT} did not become ready")


def _talk(keys: Mapping[str, str], seconds: float) -> None:
    """Requests of every key, two at a time."""
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        if time.monotonic() > end:
            return
        key = list(keys.values())[number % len(keys)]
        question = QUESTIONS[number % len(QUESTIONS)]
        messages = [{"role": "user", "content": question}]
        # Many end users: traffic is split between them, and each stays with its entity.
        body = {"model": ENDPOINT, "messages": messages, "stream": True, "user": f"user-{number}"}
        httpx.post(
            f"{URL}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=60.0
        )
        time.sleep(0.2)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, range(round(seconds * 10))))


def _sign_in(page: Page, key: str) -> None:
    page.goto(f"{URL}/console/sign-in")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{URL}/console/playground")


def _playground(page: Page, file: Path) -> None:
    page.goto(f"{URL}/console/playground")
    page.wait_for_selector("#playground[data-ready]")
    for question in QUESTIONS[:2]:
        page.locator("#prompt").fill(question)
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text(re.compile("^Answered"), timeout=60_000)
    page.screenshot(path=file)


def _shoot(page: Page, path: str, file: Path, wait_s: float = 2.0) -> None:
    page.goto(f"{URL}{path}")
    page.wait_for_timeout(wait_s * 1000)
    page.screenshot(path=file)


def _post(client: httpx.Client, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    if answer.is_error:
        raise RuntimeError(f"{path}: {answer.status_code}: {answer.text}")
    found: dict[str, Any] = answer.json()
    return found


def _patiently(client: httpx.Client, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """As `_post`, once the gateway knows the first key."""
    for _ in range(100):
        if (answer := client.get(path)).status_code != 401:
            break
        time.sleep(0.1)
    answer.raise_for_status()
    return _post(client, path, body)
