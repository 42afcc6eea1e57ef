"""Probes and metrics."""

import logging

from serve_app.accounts.keys import new_key
from serve_app.types.control import Snapshot
from tests.support.fakes_backend import FakeBackend
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import CHAT, bearer, chat_body, gateway
from tests.support.run_time_keys import run_time_key, take


async def test_live_and_ready():
    async with gateway() as g:
        assert (await g.client.get("/livez")).json() == {"status": "live"}
        for path in ("/readyz", "/health"):
            answer = await g.client.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


async def test_not_ready_is_503_and_tells_the_reasons_to_callers_only():
    key, line = new_key("a")
    async with gateway(FakeBackend(loading={"demo"}), keys=line) as g:
        anonymous = await g.client.get("/readyz")
        assert (anonymous.status_code, anonymous.json()) == (503, {"status": "not ready"})
        known = await g.client.get("/readyz", headers={"authorization": f"Bearer {key}"})
        (reason,) = known.json()["reasons"]
        assert reason == "endpoint demo has no entity that can answer: model-demo: loading"
        assert (await g.client.get("/livez")).status_code == 200


async def test_keys_that_nobody_confirms_are_refused_with_503_and_the_gateway_says_so():
    key, line = new_key("operator", ("inference", "metrics"))
    secret, known = run_time_key("alice")
    async with gateway(keys=line, at_run_time=True, control={"max_snapshot_age_s": 60}) as g:
        take(g.app.state.services, Snapshot(version=1, keys=(known,)))
        assert (await g.post(CHAT, chat_body(), headers=bearer(secret))).status_code == 200
        g.app.state.services.accounts.snapshot_age_s = lambda: 61.0
        refused = await g.post(CHAT, chat_body(), headers=bearer(secret))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert "control plane" in refused.json()["error"]["message"]
        assert (await g.post(CHAT, chat_body(), headers=bearer(key))).status_code == 200
        health = await g.client.get("/readyz", headers=bearer(key))
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert "control.max_snapshot_age_s" in health.json()["reasons"][0]
        assert "serve_app_bad_keys_total 0.0" in (await g.client.get("/metrics", headers=bearer(key))).text
        await g.post(CHAT, chat_body(), headers=bearer("sk-nobody"))
        g.app.state.services.accounts.snapshot_age_s = lambda: 0.0
        await g.post(CHAT, chat_body(), headers=bearer("sk-nobody"))
        assert "serve_app_bad_keys_total 1.0" in (await g.client.get("/metrics", headers=bearer(key))).text


async def test_a_control_plane_that_does_nothing_is_told_with_its_reason():
    management = FakeManagement()
    async with gateway(management=management) as g:
        assert (await g.client.get("/readyz")).json() == {"status": "ready"}
        management.problem = "the database /x/control.db does not answer: file is not a database"
        answer = await g.client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        assert management.problem in answer.json()["reasons"][0]


async def test_a_gateway_that_knows_no_keys_yet_is_ready_for_those_of_its_file_alone():
    key, line = new_key("operator")
    async with gateway(at_run_time=True) as g:
        assert (await g.post(CHAT, chat_body())).status_code == 503
        answer = await g.client.get("/readyz")
        assert answer.status_code == 503
        assert "has not answered yet" in answer.json()["reasons"][0]
        rebound = await g.client.get("/readyz", headers={"host": "evil.example"})
        assert rebound.json() == {"status": "not ready"}
        take(g.app.state.services, Snapshot(version=1))
        assert (await g.client.get("/readyz")).json() == {"status": "ready"}
    async with gateway(keys=line, at_run_time=True) as g:
        assert (await g.post(CHAT, chat_body(), headers=bearer(key))).status_code == 200
        answer = await g.client.get("/readyz", headers=bearer(key))
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        assert "has not answered yet" in answer.json()["reasons"][0]


SPLIT = {
    "name": "split",
    "served_entities": [{"model": "demo"}, {"model": "org/other"}],
    "traffic": {"demo": 100, "org/other": 0},
}


async def test_an_endpoint_that_lacks_one_of_two_is_degraded_and_answers():
    backend = FakeBackend(loading={"demo"})
    async with gateway(backend, endpoints=[SPLIT]) as g:
        answer = await g.client.get("/readyz")
        assert answer.status_code == 200
        assert answer.json() == {"status": "degraded", "reasons": ["endpoint split: model-demo: loading"]}
        assert (await g.complete(model="split")).headers["served-model-name"] == "org/other"
        backend.loading.add("org/other")
        answer = await g.client.get("/readyz")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "model-demo: loading; model-org_2fother: loading" in answer.json()["reasons"][0]


async def test_a_model_with_a_replica_that_does_not_answer_is_degraded():
    backend = FakeBackend(lacking={"model-demo": "1 of 2 replicas does not answer"})
    async with gateway(backend) as g:
        answer = await g.client.get("/readyz")
        assert answer.status_code == 200
        reason = "endpoint demo: model-demo: 1 of 2 replicas does not answer"
        assert answer.json() == {"status": "degraded", "reasons": [reason]}


async def test_an_endpoint_without_a_fallback_needs_one_that_has_traffic():
    async with gateway(FakeBackend(loading={"demo"}), endpoints=[{**SPLIT, "fallback": False}]) as g:
        assert (await g.client.get("/readyz")).status_code == 503


async def test_what_waits_for_applications_is_said():
    async with gateway() as g:
        g.directory.take(g.directory, {"demo": ("model-demo_v_2",)})
        assert (await g.client.get("/readyz")).json() == {
            "status": "degraded",
            "reasons": ["endpoint demo changes once these can answer: model-demo_v_2"],
        }


async def test_metrics_show_requests_tokens_latencies_and_the_engine():
    async with gateway() as g:
        await g.chat(stream=True)
        await g.complete()
        await g.chat(model="../../etc/passwd")
        page = (await g.client.get("/metrics")).text
        assert "passwd" not in page
        chat = 'route="/v1/chat/completions"'
        for line in (
            f'serve_app_requests_total{{endpoint="demo",entity="demo",{chat},status="200"}} 1.0',
            f'serve_app_requests_total{{endpoint="unknown",entity="unknown",{chat},status="404"}} 1.0',
            'serve_app_prompt_tokens_total{endpoint="demo",entity="demo"} 10.0',
            'serve_app_completion_tokens_total{endpoint="demo",entity="demo"} 12.0',
            'serve_app_cached_tokens_total{endpoint="demo",entity="demo"} 6.0',
            'serve_app_time_to_first_token_seconds_count{endpoint="demo",entity="demo"} 1.0',
            'serve_app_inter_token_latency_seconds_count{endpoint="demo",entity="demo"} 5.0',
            'serve_app_request_seconds_count{endpoint="demo",entity="demo"} 2.0',
            'serve_app_queue_seconds_count{endpoint="demo",entity="demo"} 2.0',
            'serve_app_running_sequences{application="model-demo"} 2.0',
            'serve_app_waiting_sequences{application="model-demo"} 1.0',
            'serve_app_kv_blocks_used{application="model-demo"} 4.0',
            'serve_app_prefix_hit_tokens_total{application="model-demo"} 7.0',
        ):
            assert line in page


async def test_metrics_need_their_scope():
    (key, line), (scraper, other) = new_key("a"), new_key("b", ["metrics"])
    async with gateway(keys=f"{line} {other}") as g:
        for auth, status in ((None, 401), (key, 403), (scraper, 200)):
            headers = {"authorization": f"Bearer {auth}"} if auth else {}
            assert (await g.client.get("/metrics", headers=headers)).status_code == status


async def test_probes_that_succeed_leave_no_line_in_the_log(caplog):
    backend = FakeBackend(loading={"demo"})
    async with gateway(backend) as g:
        with caplog.at_level(logging.INFO):
            for path in ("/livez", "/metrics", "/readyz"):
                await g.client.get(path)
    routes = [record.fields["route"] for record in caplog.records if record.getMessage() == "request"]
    assert routes == ["/readyz"]
