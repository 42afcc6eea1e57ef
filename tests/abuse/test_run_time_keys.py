"""Every route, enumerated from the app and from gRPC's table, against keys that were made at run time."""

import itertools
import time
from dataclasses import replace

import grpc
import pytest

from serve_app.accounts.bad_keys import MOST
from serve_app.accounts.keys import new_key
from serve_app.api.edge.auth import OPEN_PATHS
from serve_app.api.protocol.family import DISCOVERY
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.methods import SERVICE
from serve_app.rpc.server import RpcServer
from serve_app.types import Scope
from serve_app.types.control import Grant, Snapshot
from tests.abuse import test_rpc as rpc
from tests.abuse.test_access import CLOSED, METHODS, ODD_HEADERS, ODD_PATHS, READS_A_BODY, as_sent
from tests.support.fakes_backend import FakeBackend
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import CHAT, bearer, chat_body, fake_app, gateway
from tests.support.run_time_keys import run_time_key, take

pytestmark = pytest.mark.all_combinations

OPERATOR, LINE = new_key("operator", ["inference", "manage"])
EVERY = tuple(scope.value for scope in Scope)
GOOD, GOOD_KEY = run_time_key("good", EVERY)
EXPIRED, EXPIRED_KEY = run_time_key("expired", EVERY, expires=time.time() - 1)
REVOKED, REVOKED_KEY = run_time_key("revoked", EVERY)
LIMITED, LIMITED_KEY = run_time_key("limited", ("inference", "routing"), endpoints=("org/other",))
STRANGER, STRANGER_KEY = run_time_key("stranger", ("inference", "routing"))
VIEWER, VIEWER_KEY = run_time_key("viewer", ("inference", "routing"), groups=("lab",))
METERED, METERED_KEY = run_time_key("metered", ("metrics",))
AT_ONCE = MOST // 2  # routes that are asked with a revoked key in one minute: fewer than are too many
KEYS = (GOOD_KEY, EXPIRED_KEY, LIMITED_KEY, STRANGER_KEY, VIEWER_KEY, METERED_KEY)
GRANTS = {
    "demo": (
        Grant(principal="somebody", kind="user_name", level="CAN_MANAGE"),
        Grant(principal="lab", kind="group_name", level="CAN_VIEW"),
    )
}


def known(version=1, keys=KEYS):
    return Snapshot(version=version, keys=keys, grants=GRANTS)


@pytest.mark.parametrize(("method", "path", "scopes"), CLOSED)
async def test_ended_keys_and_wrong_scopes_open_no_route(method, path, scopes):
    async with gateway(keys=LINE, management=FakeManagement(), at_run_time=True) as g:
        take(g.services, known(1, (*KEYS, REVOKED_KEY)))
        take(g.services, known(2))

        async def asked(key):
            return await g.client.request(method, path, headers=bearer(key), json=chat_body())

        for ended in (EXPIRED, REVOKED):
            answer = await asked(ended)
            assert answer.status_code == 401
            assert ended not in answer.text
        for scope in Scope:
            secret, one = run_time_key("one", [scope.value])
            take(g.services, known(3, (*KEYS, one)))
            status = (await asked(secret)).status_code
            assert status != 401
            if scope not in scopes:
                assert status == 403
        assert (await asked(GOOD)).status_code not in (401, 403)


async def test_no_path_comes_around_the_keys():
    async with gateway(management=FakeManagement(), at_run_time=True) as g:
        take(g.services, known())
        for path, method in itertools.product(ODD_PATHS, METHODS):
            for ended in (None, EXPIRED):
                assert (await as_sent(g.app, method, path, ended))[0] == (404 if "\n" in path else 401)
            for key in (LIMITED, STRANGER):  # a path that nobody serves, or one that takes another scope
                status, headers = await as_sent(g.app, method, path, key)
                assert status in (403, 404, 405) or (method, path, status) == READS_A_BODY
                assert b"location" not in headers


@pytest.mark.parametrize("odd", ODD_HEADERS)
@pytest.mark.parametrize("first", range(0, len(CLOSED), AT_ONCE))
async def test_no_header_comes_around_the_keys(first, odd):
    async with gateway(management=FakeManagement(), at_run_time=True) as g:
        take(g.services, known())
        for method, path, scopes in CLOSED[first : first + AT_ONCE]:
            asked = [(None, 401), (REVOKED, 401), (EXPIRED, 401)]
            asked += [] if Scope.METRICS in scopes else [(METERED, 403)]
            for key, status in asked:
                headers = odd if key is None else {**odd, **bearer(key)}
                answer = await g.client.request(method, path, headers=headers, json=chat_body())
                assert answer.status_code == status, (method, path, answer.text)
        assert not g.backend.requests
        assert not g.services.management.commands


async def test_no_bad_key_asks_the_control_plane():
    management = FakeManagement()
    async with gateway(management=management, at_run_time=True) as g:
        take(g.services, known())
        told = [await g.client.get("/api/2.0/keys", headers=bearer(f"sk-{n}")) for n in range(MOST + 50)]
        assert [answer.status_code for answer in told] == [401] * MOST + [429] * 50
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in told[MOST:])
        assert (await g.client.get("/v1/models", headers=bearer(GOOD))).status_code == 200
        assert not management.commands


MODELS = [(method, path) for method, path, scopes in CLOSED if Scope.INFERENCE in scopes]


@pytest.mark.parametrize(("method", "path"), MODELS)
async def test_no_route_serves_or_shows_an_endpoint_that_is_not_the_keys(method, path):
    async with gateway(keys=LINE, at_run_time=True) as g:
        take(g.services, known())
        for key in (LIMITED, STRANGER, VIEWER):
            answer = await g.client.request(method, path, headers=bearer(key), json=chat_body())
            assert not g.backend.requests
            assert not g.backend.questions
            if answer.status_code == 200:
                assert '"demo"' not in answer.text or path == "/openapi.json"
            else:
                assert answer.status_code in (400, 403, 404, 405, 422)


async def test_a_hidden_endpoint_and_none_are_told_apart_by_nothing():
    async with gateway(keys=LINE, at_run_time=True) as g:
        take(g.services, known())
        for key in (LIMITED, STRANGER):
            told = []
            for name in ("demo", "nope"):
                answer = await g.post(CHAT, chat_body(model=name), headers=bearer(key))
                told.append((answer.status_code, answer.text))
            assert told[0] == told[1]
            assert told[0][0] == 404
            listed = await g.client.get("/v1/models", headers=bearer(key))
            assert [each["id"] for each in listed.json()["data"]] == ["org/other"]
            other = await g.post(CHAT, chat_body(model="org/other"), headers=bearer(key))
            assert other.status_code == 200
        seen = await g.post(CHAT, chat_body(), headers=bearer(VIEWER))
        assert seen.status_code == 403
        assert "CAN_QUERY" in seen.json()["error"]["message"]
        for key in (OPERATOR, GOOD):
            assert (await g.post(CHAT, chat_body(), headers=bearer(key))).status_code == 200


async def test_a_grant_is_in_force_with_the_next_snapshot():
    async with gateway(keys=LINE, at_run_time=True) as g:
        take(g.services, known())
        assert (await g.post(CHAT, chat_body(), headers=bearer(STRANGER))).status_code == 404
        grant = Grant(principal="stranger", kind="user_name", level="CAN_QUERY")
        take(g.services, replace(known(2), grants={"demo": (grant,)}))
        assert (await g.post(CHAT, chat_body(), headers=bearer(STRANGER))).status_code == 200
        take(g.services, known(3))
        assert (await g.post(CHAT, chat_body(), headers=bearer(STRANGER))).status_code == 404


async def test_nothing_but_probes_answers_before_the_keys_are_known():
    async with gateway(at_run_time=True) as g:
        for method, path, _ in CLOSED[::7]:
            for headers in ({}, bearer(GOOD)):
                answer = await g.client.request(method, path, headers=headers, json=chat_body())
                assert answer.status_code == 503
                assert "retry-after" in answer.headers
        for path in OPEN_PATHS:
            status = {"/livez": 200, DISCOVERY: 404}.get(path, 503)  # who has a key is not known yet
            assert (await g.client.get(path)).status_code == status
        take(g.services, known())
        assert (await g.post(CHAT, chat_body(), headers=bearer(GOOD))).status_code == 200


async def test_tenants_share_no_prefix_no_id_and_no_usage():
    """Two keys of one user are two tenants; the same id and the same text of a client change nothing."""
    twin, twin_key = run_time_key("twin", EVERY, user="good")
    async with gateway(keys=LINE, at_run_time=True) as g:
        take(g.services, known(1, (*KEYS, twin_key)))
        for key in (GOOD, twin, OPERATOR):
            headers = {**bearer(key), "x-request-id": "same"}
            body = chat_body(user="same", cache_salt="same", salt="same")
            assert (await g.post(CHAT, body, headers=headers)).status_code == 200
        assert len({request.salt for request in g.backend.requests}) == 3
        assert len({request.id for request in g.backend.requests}) == 3
        assert "same" not in {request.id for request in g.backend.requests}
        assert [record.key_id for record in g.journal.records] == ["good", "twin", "operator"]
        assert len({record.id for record in g.journal.records}) == 3


def test_the_salt_is_the_same_on_every_gateway():
    apps = [fake_app(FakeBackend(), at_run_time=True).state.services for _ in range(2)]
    for services in apps:
        take(services, known())
    first, second = (services.accounts.authenticate(f"Bearer {GOOD}", None) for services in apps)
    assert first.salt == second.salt


async def test_grpc_serves_and_shows_only_what_is_the_keys():
    backend = FakeBackend()
    services = fake_app(backend, LINE, at_run_time=True).state.services
    take(services, known())
    server = RpcServer(services)
    await server.start("127.0.0.1", 0)
    message = rpc.ids().SerializeToString()
    index = pb.RepositoryIndexRequest().SerializeToString()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:

            async def ask(path, key, body):
                call = channel.unary_unary(path)(
                    body, metadata=[("authorization", f"Bearer {key}")], timeout=30
                )
                code = await call.code()
                return code, await call if code is grpc.StatusCode.OK else b""

            for key, code in (
                (LIMITED, grpc.StatusCode.NOT_FOUND),
                (STRANGER, grpc.StatusCode.NOT_FOUND),
                (VIEWER, grpc.StatusCode.PERMISSION_DENIED),
                (EXPIRED, grpc.StatusCode.UNAUTHENTICATED),
            ):
                assert (await ask(rpc.INFER, key, message))[0] is code
                assert not backend.requests
            for key in (LIMITED, STRANGER, VIEWER):
                code, raw = await ask(f"/{SERVICE}/RepositoryIndex", key, index)
                assert code is grpc.StatusCode.OK
                listed = pb.RepositoryIndexResponse.FromString(raw)
                assert [model.name for model in listed.models] == ["org/other"]
            assert (await ask(rpc.INFER, GOOD, message))[0] is grpc.StatusCode.OK
    finally:
        await server.stop(5)
