"""Limits of the AI gateway, and keys that have spent their budget, as clients meet them."""

import pytest

from serve_app.accounts.keys import new_key
from serve_app.types.control import Snapshot
from tests.support.fakes_backend import PROMPT_TOKENS, WORDS
from tests.support.gateway import CHAT, bearer, chat_body, gateway
from tests.support.run_time_keys import run_time_key, take

_, LINE = new_key("operator", ["manage"])
ANN, ANN_KEY = run_time_key("ann-1", user="ann", groups=("lab",))
ANN_TOO, ANN_TOO_KEY = run_time_key("ann-2", user="ann")
BEA, BEA_KEY = run_time_key("bea", groups=("lab", "ops"))
BOT, BOT_KEY = run_time_key("bot-1", user="ann", is_service_principal=True)
KEYS = (ANN_KEY, ANN_TOO_KEY, BEA_KEY, BOT_KEY)


def limited(*rules, **more):
    return [{"name": "demo", "ai_gateway": {"rate_limits": list(rules)}, **more}]


async def statuses(rules, *keys, **more):
    """What one request of each of `keys` gets, in turn."""
    async with gateway(keys=LINE, endpoints=limited(*rules, **more)) as g:
        take(g.services, Snapshot(version=1, keys=KEYS))
        return [(await g.post(CHAT, chat_body(), headers=bearer(key))).status_code for key in keys]


@pytest.mark.parametrize(
    ("rules", "keys", "expected"),
    [
        ([{"calls": 2}], [ANN, BEA, BOT], [200, 200, 429]),  # of the endpoint
        ([{"calls": 1, "key": "user"}], [ANN, BEA, ANN_TOO, BOT], [200, 200, 429, 200]),  # of each user
        ([{"calls": 1, "key": "user", "principal": "ann"}], [ANN, ANN_TOO, BEA, BEA], [200, 429, 200, 200]),
        (
            [{"calls": 1, "key": "service_principal", "principal": "ann"}],
            [BOT, BOT, ANN, ANN],
            [200, 429, 200, 200],
        ),
        (  # members of a group share
            [{"calls": 1, "key": "user_group", "principal": "lab"}],
            [ANN, BEA, ANN_TOO, ANN_TOO],
            [200, 429, 200, 200],
        ),
        (  # the largest of a caller's groups
            [
                {"calls": 1, "key": "user_group", "principal": "lab"},
                {"calls": 2, "key": "user_group", "principal": "ops"},
            ],
            [BEA, BEA, BEA],
            [200, 200, 429],
        ),
        (  # the caller's own goes before its groups, and these before the default
            [
                {"calls": 9, "key": "user", "principal": "ann"},
                {"calls": 1, "key": "user_group", "principal": "lab"},
                {"calls": 1, "key": "user"},
            ],
            [ANN, ANN, BEA, BEA, BOT, BOT],
            [200, 200, 200, 429, 200, 429],
        ),
        ([{"calls": 0, "key": "user", "principal": "ann"}], [ANN, BEA], [429, 200]),
        (
            [{"calls": 9}, {"calls": 2}, {"calls": 8}],
            [ANN, BEA, BOT],
            [200, 200, 429],
        ),  # the least of several
        ([{"calls": 3}, {"calls": 1, "key": "user"}], [ANN, ANN, BEA, BOT], [200, 429, 200, 200]),
    ],
)
async def test_a_limit_counts_for_whom_it_names(rules, keys, expected):
    assert await statuses(rules, *keys) == expected


async def test_tokens_are_reserved_and_settled_as_they_were():
    rules = [{"tokens": 100}]
    async with gateway(endpoints=limited(*rules)) as g:
        first = await g.chat(max_tokens=5000)  # larger than a minute: takes all of it
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-tokens"] == "100"
        assert first.headers["x-ratelimit-remaining-tokens"] == "0"
        second = await g.chat(max_tokens=1)
        left = int(second.headers["x-ratelimit-remaining-tokens"])
        assert 100 - left >= PROMPT_TOKENS + len(WORDS)
        assert second.status_code == 200


async def test_headers_tell_the_tightest_of_several_limits():
    rules = [{"calls": 10}, {"calls": 3, "key": "user"}]
    limits = {"requests_per_minute": 5}
    async with gateway(endpoints=limited(*rules, limits=limits)) as g:
        answer = await g.chat()
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == "2"
        await g.chat()
        await g.chat()
        refused = await g.chat()
        assert refused.status_code == 429
        assert "limit of 3 requests a minute" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "20"


async def test_a_limit_of_zero_says_so_and_is_not_repeated():
    async with gateway(endpoints=limited({"tokens": 0})) as g:
        answer = await g.chat()
        assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
        assert "0 tokens a minute" in answer.json()["error"]["message"]


@pytest.mark.parametrize("limit", [1, 123])
async def test_a_refusal_tells_the_limit_as_it_was_set(limit):
    async with gateway(endpoints=limited({"calls": limit})) as g:
        answers = [await g.chat() for _ in range(limit + 1)]
        assert f"limit of {limit} requests" in answers[-1].json()["error"]["message"]


SPENT = "the key's budget of 5 USD for 2026-11 (UTC) is spent"
SHAPES = {
    CHAT: (429, lambda body: (body["error"]["type"], body["error"]["code"]), ("insufficient_quota",) * 2),
    "/serving-endpoints/demo/invocations": (400, lambda body: body["error_code"], "REQUEST_LIMIT_EXCEEDED"),
    "/mindie/v1/chat/completions": (429, lambda body: body["error_type"], "Overloaded"),
    "/v3/chat/completions": (429, lambda body: body["error"], SPENT),
    "/v2/models/demo/generate": (429, lambda body: body["error"], SPENT),
}
TENSORS = "/v2/models/demo/generate"
BODIES = {TENSORS: {"text_input": "Hello!", "request_output_len": 4}}


@pytest.mark.parametrize("path", SHAPES)
async def test_a_spent_budget_is_told_in_each_protocols_words_and_not_repeated(path):
    secret, key = run_time_key("poor", over_budget=SPENT)
    async with gateway(keys=LINE) as g:
        take(g.services, Snapshot(version=1, keys=(key,)))
        headers = {**bearer(secret), **({"x-api-dialect": "triton"} if path == TENSORS else {})}
        answer = await g.post(path, BODIES.get(path, chat_body()), headers=headers)
        status, told, expected = SHAPES[path]
        assert answer.status_code == status, answer.text
        assert told(answer.json()) == expected
        assert SPENT in answer.text
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        assert not g.backend.requests
        assert not g.journal.records
        assert (await g.client.get("/v1/models", headers=bearer(secret))).status_code == 200


async def test_a_soft_budget_is_a_header_and_no_refusal():
    warning = "the key's soft budget of 4 USD\nfor 2026-11 is sp€nt"
    secret, key = run_time_key("warned", over_soft_budget=warning)
    async with gateway(keys=LINE) as g:
        take(g.services, Snapshot(version=1, keys=(key, ANN_KEY)))
        answer = await g.post(CHAT, chat_body(), headers=bearer(secret))
        assert answer.status_code == 200
        assert answer.headers["x-budget-warning"] == "the key's soft budget of 4 USD for 2026-11 is sp?nt"
        other = await g.post(CHAT, chat_body(), headers=bearer(ANN))
        assert "x-budget-warning" not in other.headers
