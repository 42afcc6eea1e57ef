"""A request to an endpoint of which nothing serves yet is told how it stands, and not that there is none."""

from __future__ import annotations

import pytest

from serve_app.types.control import Grant, Snapshot
from tests.support.gateway import CHAT, bearer, chat_body, gateway
from tests.support.run_time_keys import run_time_key, take

COMING = "comes up: its config_update is IN_PROGRESS; try again"
UNREADY = {"coming": COMING, "hidden": COMING}
KEY, KNOWN = run_time_key("alice")
LIMITED, LIMITED_KEY = run_time_key("bob", endpoints=("demo",))
GRANTS = {"hidden": (Grant(principal="carol", kind="user_name", level="CAN_QUERY"),)}


@pytest.mark.parametrize(
    "path", [CHAT, "/serving-endpoints/chat/completions", "/v1/messages", "/v1/responses"]
)
async def test_it_is_a_503_with_its_state_for_who_may_ask_it(path: str) -> None:
    async with gateway(at_run_time=True) as g:
        take(g.services, Snapshot(version=1, keys=(KNOWN, LIMITED_KEY), grants=GRANTS, unready=UNREADY))

        async def asked(model: str, key: str) -> tuple[int, str]:
            body = {"model": model, "input": "Hello!"}
            if not path.endswith("responses"):
                body = chat_body(model=model, max_tokens=1)
            answer = await g.post(path, body, headers=bearer(key))
            return answer.status_code, answer.text

        status, text = await asked("coming", KEY)
        assert status == 503
        assert COMING in text
        for model, key in (("hidden", KEY), ("coming", LIMITED), ("nobody", KEY)):
            status, text = await asked(model, key)
            assert status == 404, model
            assert COMING not in text
        take(g.services, Snapshot(version=2, keys=(KNOWN,)))
        assert (await asked("coming", KEY))[0] == 404
