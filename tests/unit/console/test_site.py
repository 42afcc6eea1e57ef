"""The console over plain ASGI calls: sessions, tokens, origins, the policy, and the way to the public API."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import httpx
import pytest

from serve_app import console
from serve_app.accounts.keys import new_key
from serve_app.console.forms import MAX_FIELDS, MAX_FORM_BYTES
from serve_app.console.public_api import PublicApi
from serve_app.console.security_policy import CONTENT_SECURITY_POLICY
from serve_app.console.session import COOKIE, Session, Sessions
from tests.support.gateway import CHAT, chat_body, events, gateway

KEY, LINE = new_key("infer")
VENDOR = Path(console.__file__).parent / "static" / "vendor"
LOCAL = "http://127.0.0.1:8000"
SECRET = "0123456789abcdef" * 2


def token_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf-token" content="([^"]+)"', page.text)
    assert found is not None
    return found[1]


async def signed_in(client: httpx.AsyncClient, key: str = KEY) -> str:
    """The token of the session that begins."""
    page = await client.get("/console/sign-in")
    answer = await client.post("/console/sign-in", data={"csrf": token_of(page), "key": key})
    assert answer.status_code == 303
    return token_of(await client.get("/console/playground"))


def test_what_others_wrote_is_what_they_published() -> None:
    table = (VENDOR / "README.md").read_text("utf-8")
    told = dict(re.findall(r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", table, re.MULTILINE))
    files = [path for path in VENDOR.iterdir() if path.suffix in {".js", ".css"}]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == told


def test_a_session_is_read_by_its_own_server_alone() -> None:
    sessions, others = Sessions(SECRET, 60), Sessions(SECRET[::-1], 60)
    session = sessions.begin(KEY)
    sealed = sessions.seal(session)
    assert KEY not in sealed
    assert sessions.read(sealed) == session
    assert others.read(sealed) is None
    changed = sealed[:-4] + ("A" if sealed[-4] != "A" else "B") + sealed[-3:]
    for wrong in (None, "", "x", changed, sealed[:-1], "é", sealed * 50):
        assert sessions.read(wrong) is None
    assert Sessions(SECRET, -1).read(sealed) is None, "it is too old"
    assert sessions.begin(KEY).csrf != session.csrf


async def test_every_answer_has_the_policy() -> None:
    async with gateway(keys=LINE) as g:
        style = re.search(
            r'href="(/console/static/[^"]+\.css)"', (await g.client.get("/console/sign-in")).text
        )
        assert style is not None
        for path in ("/console", "/console/sign-in", "/console/none", "/console/api/v1/models", style[1]):
            answer = await g.client.get(path)
            assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            is_file = path == style[1]
            assert answer.headers["cache-control"].endswith("immutable" if is_file else "no-store")
        assert "content-security-policy" not in (await g.client.get("/livez")).headers


async def test_scripts_reach_the_public_api_with_the_sessions_key() -> None:
    async with gateway(keys=LINE) as g:
        path = f"/console/api{CHAT}"
        assert (await g.post(path, chat_body())).status_code == 401
        token = await signed_in(g.client)
        stream = await g.post(path, chat_body(stream=True), headers={"x-csrf-token": token})
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert events(stream.text)
        refused = await g.post(path, chat_body(temperature=9), headers={"x-csrf-token": token})
        assert refused.status_code == 400
        assert "temperature" in refused.json()["error"]["message"]
        forbidden = await g.client.get("/console/api/metrics")
        assert forbidden.status_code == 403
        assert (await g.client.get("/console/api/console")).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-csrf-token": "wrong"},
        {"x-csrf-token": "TOKEN", "sec-fetch-site": "cross-site"},
        {"x-csrf-token": "TOKEN", "sec-fetch-site": "same-site"},
        {"x-csrf-token": "TOKEN", "origin": "http://evil.example"},
        {"x-csrf-token": "TOKEN", "origin": "null"},
    ],
)
async def test_a_change_needs_the_token_and_its_own_origin(headers: dict[str, str]) -> None:
    async with gateway(keys=LINE) as g:
        token = await signed_in(g.client)
        sent = {name: token if value == "TOKEN" else value for name, value in headers.items()}
        for path in (f"/console/api{CHAT}", "/console/sign-out"):
            assert (await g.post(path, chat_body(), headers=sent)).status_code == 403
        assert not g.backend.requests
        same = {"x-csrf-token": token, "origin": "http://gateway"}
        assert (await g.post(f"/console/api{CHAT}", chat_body(), headers=same)).status_code == 200


async def test_without_keys_only_this_machine_by_its_own_name() -> None:
    async with gateway() as g:
        for base, status in ((LOCAL, 200), ("http://localhost:8000", 200), ("http://rebound.example", 403)):
            assert (await g.client.get(f"{base}/console/playground")).status_code == status
        token = token_of(await g.client.get(f"{LOCAL}/console/playground"))
        path = f"{LOCAL}/console/api{CHAT}"
        assert (await g.post(path, chat_body())).status_code == 403
        assert (await g.post(path, chat_body(), headers={"x-csrf-token": token})).status_code == 200
    for elsewhere in ("192.0.2.7", None):
        async with gateway(peer_of=lambda scope, peer=elsewhere: peer, allow_remote_without_keys=True) as g:
            assert (await g.client.get(f"{LOCAL}/console")).status_code == 403


async def test_a_name_of_the_server_may_be_allowed() -> None:
    for allowed, status in (((), 403), (("models.internal",), 200)):
        async with gateway(allowed_hosts=allowed) as g:
            answer = await g.client.get("/console/playground", headers={"host": "models.internal:8000"})
            assert answer.status_code == status


async def test_the_address_of_the_server_leads_a_browser_to_the_console() -> None:
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with gateway() as g:
        page, script = await g.client.get("/", headers=browser), await g.client.get("/")
        posted = await g.client.post("/", headers=browser)
    assert (page.status_code, page.headers["location"]) == (307, "/console")
    assert (script.status_code, posted.status_code) == (405, 422)  # Text Generation Inference's route
    async with gateway(console={"enabled": False}) as g:
        assert (await g.client.get("/", headers=browser)).status_code == 405


async def test_a_revoked_key_ends_the_session() -> None:
    sessions = Sessions(SECRET, 60)
    async with gateway(keys=LINE) as g:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SERVE_APP_CONSOLE_SECRET", SECRET)
            g.client.cookies.set(COOKIE, sessions.seal(Session("sk-revoked", "token")))
            answer = await g.client.get("/console")
            assert answer.status_code == 303
            assert "Max-Age=0" in answer.headers["set-cookie"]
            g.client.cookies.set(COOKIE, sessions.seal(Session("sk-revoked", "token")))
            place = "http://gateway/console/usage?by=key"
            part = await g.client.get("/console", headers={"hx-request": "true", "hx-current-url": place})
            assert part.status_code == 401
            assert part.headers["hx-redirect"] == "/console/sign-in?next=/console/usage%3Fby%3Dkey"


async def test_signing_in_leads_back_to_the_page_that_was_asked_for() -> None:
    async with gateway(keys=LINE) as g:
        asked = await g.client.get("/console/none?a=1&b=%C3%A9")
        assert asked.headers["location"] == "/console/sign-in?next=/console/none%3Fa%3D1%26b%3D%25C3%25A9"
        page = await g.client.get(asked.headers["location"])
        assert 'name="next" value="/console/none?a=1&amp;b=%C3%A9"' in page.text


async def test_a_link_of_another_site_leads_to_a_page_and_changes_nothing() -> None:
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with gateway() as g:
        assert (await g.client.get(f"{LOCAL}/console/playground", headers=linked)).status_code == 200
        path = f"{LOCAL}/console/api/api/2.0/keys"
        assert (await g.client.get(path, headers=linked)).status_code == 403


async def test_a_refusal_of_the_api_is_shown_in_its_own_words() -> None:
    chooser, line = new_key("chooser", ["routing"])
    async with gateway(keys=line) as g:
        page = await g.client.get("/console/sign-in")
        answer = await g.client.post("/console/sign-in", data={"csrf": token_of(page), "key": chooser})
        assert answer.status_code == 403
        for scope in ("inference", "metrics", "manage"):
            assert f"&#39;{scope}&#39;" in answer.text


@pytest.mark.parametrize(
    ("scopes", "menu"),
    [
        (["metrics"], ["live"]),
        (["inference"], ["playground", "endpoints", "usage"]),
        (["manage"], ["endpoints", "live", "usage", "keys"]),
        (["inference", "manage"], ["playground", "endpoints", "live", "usage", "keys"]),
    ],
)
async def test_the_menu_has_the_pages_that_a_key_may_see(scopes: list[str], menu: list[str]) -> None:
    key, line = new_key("some", scopes)
    async with gateway(keys=line) as g:
        page = await g.client.get("/console/sign-in")
        await g.client.post("/console/sign-in", data={"csrf": token_of(page), "key": key})
        assert (await g.client.get("/console")).headers["location"] == f"/console/{menu[0]}"
        shown = await g.client.get("/console/live")
        assert re.findall(r'<li><a href="/console/([a-z]+)"', shown.text) == menu
        assert shown.status_code == (200 if "live" in menu else 403)


async def test_what_fails_inside_tells_nothing_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: PublicApi, path: str, **query: object) -> None:
        raise RuntimeError("a secret of the inside")

    async with gateway(keys=LINE) as g:
        await signed_in(g.client)
        monkeypatch.setattr(PublicApi, "get", fail)
        answer = await g.client.get("/console/playground")
    assert answer.status_code == 500
    assert "a secret of the inside" not in answer.text
    assert "a secret of the inside" in caplog.text
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


async def test_a_form_is_bounded() -> None:
    async with gateway(keys=LINE) as g:
        token = token_of(await g.client.get("/console/sign-in"))
        large = await g.client.post("/console/sign-in", data={"csrf": token, "key": "x" * MAX_FORM_BYTES})
        assert large.status_code == 413
        many = await g.client.post("/console/sign-in", content="&".join(["a=1"] * (MAX_FIELDS + 1)))
        assert many.status_code == 400
        odd = await g.client.post("/console/sign-in", data={"csrf": token, "key": "é\n\x00"})
        assert odd.status_code == 401


async def test_the_console_can_be_switched_off() -> None:
    async with gateway(keys=LINE, console={"enabled": False}) as g:
        assert (await g.client.get("/console")).status_code == 401
        answer = await g.client.get("/console", headers={"authorization": f"Bearer {KEY}"})
        assert answer.status_code == 404


@pytest.mark.parametrize("path", ["/consolex", "/Console", "//console", "/x/console"])
async def test_other_paths_are_not_the_consoles(path: str) -> None:
    async with gateway(keys=LINE) as g:
        assert (await g.client.get(path)).status_code == 401


@pytest.mark.parametrize(
    "next", ["//evil.example", "https://evil.example", "/v1", "/console\\x", "/consolex"]
)
async def test_signing_in_leads_to_the_console_alone(next: str) -> None:
    async with gateway(keys=LINE) as g:
        page = await g.client.get("/console/sign-in", params={"next": next})
        form = {"csrf": token_of(page), "key": KEY, "next": next}
        answer = await g.client.post("/console/sign-in", data=form)
        assert answer.headers["location"] == "/console"
