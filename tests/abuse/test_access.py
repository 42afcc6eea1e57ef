"""Every route, enumerated from the app, against callers without the right."""

from typing import Any

import pytest

from serve_app.accounts.keys import new_key
from serve_app.api.edge.auth import OPEN_PATHS, Scoped
from serve_app.api.protocol.family import DISCOVERY
from serve_app.types import Scope
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import CHAT, bearer, chat_body, fake_app, filled, gateway

pytestmark = pytest.mark.all_combinations

KEY, LINE = new_key("infer")
SCRAPER, SCRAPER_LINE = new_key("scraper", [Scope.METRICS])
CHOOSER, CHOOSER_LINE = new_key("chooser", [Scope.ROUTING])  # which alone is good for nothing
KEYS = f"{LINE} {SCRAPER_LINE} {CHOOSER_LINE}"


def routes():
    return fake_app(FakeBackend()).routes


CLOSED = [
    (method, filled(route.path), route.app.scopes)
    for route in routes()
    for method in sorted(route.methods)
    if route.path not in OPEN_PATHS
]


def test_exactly_the_probes_are_open():
    opened = {r.path for r in routes() if r.app.needed is None}
    assert opened == {"/livez", "/readyz", "/health"} == OPEN_PATHS - {DISCOVERY}


def test_every_route_names_the_scope_it_needs():
    for route in routes():
        assert isinstance(route.app, Scoped)
        assert route.app.needed is None or route.app.needed in Scope


@pytest.mark.parametrize(("method", "path", "scopes"), CLOSED)
async def test_closed_routes_refuse_strangers_and_wrong_scopes(method, path, scopes):
    async with gateway(keys=KEYS) as g:
        strangers = [
            {}, bearer("sk-wrong"), bearer(""), bearer(KEY[:-1]), bearer(KEY + "x"), bearer(KEY.upper()),
            {"authorization": KEY}, {"authorization": f"Basic {KEY}"}, {"x-api-key": KEY[:-1]},
            {"api-key": KEY}, {"cookie": f"key={KEY}"},
            *ODD_HEADERS,
        ]  # fmt: skip
        for headers in strangers:
            answer = await g.client.request(method, path, headers=headers, json=chat_body())
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"] == "Bearer"
            assert KEY not in answer.text
        wrong = CHOOSER if Scope.METRICS in scopes else SCRAPER if Scope.INFERENCE in scopes else KEY
        answer = await g.client.request(method, path, headers=bearer(wrong), json=chat_body())
        assert answer.status_code == 403
        assert not g.backend.requests
        await g.check(bearer(KEY))


ODD_PATHS = [
    "//v1/models", "/v1//models", "/v1/../metrics", "/livez/../v1/models", "/%2e%2e/v1/models",
    "/livez%2f..%2fv1/models",
    "/LIVEZ", "/livez/", "/livez/x", "/Livez", "/v1/models/", "/V1/models", "/", "/v1", "/admin", "/docs/",
    "/redoc", "/openapi.json/", "/livez\n",
    "/openai/livez", "/livez;x", "/livez%00", "/livez%3fx", "/-/routes", "/openai/metrics",
]  # fmt: skip


READS_A_BODY = ("POST", "/", 422)  # Text Generation Inference's route, for a body that it does not know
METHODS = ["GET", "POST", "HEAD", "OPTIONS", "DELETE", "TRACE"]
# Headers by which a request for a closed path passes itself off as one for an open path, or as one from here.
ODD_HEADERS = [
    {"host": "a/?x=", "x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1"},
    {"host": "livez", "x-original-url": "/livez", "x-forwarded-prefix": "/livez"},
    {"host": "127.0.0.1", "forwarded": "for=127.0.0.1;host=localhost", "x-http-method-override": "GET"},
    {"x-rewrite-url": "/livez", "x-forwarded-host": "localhost", "x-forwarded-uri": "/livez"},
]


async def as_sent(app, method, path, key=None):
    """Status and headers of the answer to a path that no client's library would send as it is."""
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"livez")], "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    if key is not None:
        scope["headers"].append((b"authorization", f"Bearer {key}".encode()))
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize("path", ODD_PATHS)
@pytest.mark.parametrize("method", METHODS)
async def test_nothing_but_the_exact_open_paths_answers_a_stranger(path, method):
    async with gateway(keys=KEYS) as g:
        status, _ = await as_sent(g.app, method, path)
        assert status == (404 if "\n" in path else 401)
        status, headers = await as_sent(g.app, method, path, KEY)
        assert status in (403, 404, 405) or (method, path, status) == READS_A_BODY
        assert b"location" not in headers


async def test_options_and_other_methods_are_not_open_either():
    async with gateway(keys=KEYS) as g:
        for method in ("OPTIONS", "DELETE", "PUT", "PATCH"):
            assert (await g.client.request(method, CHAT)).status_code == 401
            assert (await g.client.request(method, CHAT, headers=bearer(KEY))).status_code == 405


async def test_without_keys_only_the_hook_says_who_is_near():
    for peer, status in (("127.0.0.1", 200), ("10.1.2.3", 403), (None, 403)):
        app = fake_app(FakeBackend(), peer_of=lambda _, peer=peer: peer)
        sent: list[Any] = []

        async def receive():
            return {"type": "http.request", "body": b""}

        async def send(message, sent=sent):
            sent.append(message)

        headers = [(b"x-forwarded-for", b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1")]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/models",
            "headers": headers,
            "query_string": b"",
        }
        await app(scope, receive, send)
        assert sent[0]["status"] == status


async def test_two_tenants_have_different_salts_and_clients_only_add_to_theirs():
    """`cache_salt` divides what a tenant has; whatever it is, it leads to nobody else's."""
    other, other_line = new_key("other")
    async with gateway(keys=f"{LINE} {other_line}") as g:
        for key in (KEY, other):
            for body in (chat_body(), chat_body(user="same", cache_salt="same", salt="same")):
                headers = {**bearer(key), "x-request-id": "same"}
                assert (await g.post(CHAT, body, headers=headers)).status_code == 200
        salts = [request.salt for request in g.backend.requests]
        assert salts == [salts[0], f"{salts[0]}:same", salts[2], f"{salts[2]}:same"]
        assert salts[0] != salts[2]
        for crafted in (salts[0], f":{salts[0]}", f"{salts[0]}:same"):
            await g.post(CHAT, chat_body(cache_salt=crafted), headers=bearer(other))
            assert g.backend.last.salt == f"{salts[2]}:{crafted}"
