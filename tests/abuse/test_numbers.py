"""Every number a client may send, at its bounds and far beyond them."""

import json

import pytest

from serve_app import limits
from tests.support.gateway import CHAT, COMPLETIONS, body_for, gateway

INT = 2**31 - 1
# name -> (lowest, highest, routes, other fields needed)
BOTH = (CHAT, COMPLETIONS)
NUMBERS = {
    "n": (1, limits.MAX_N, BOTH, {}),
    "best_of": (1, limits.MAX_BEST_OF, BOTH, {}),
    "max_tokens": (1, limits.MAX_TOKENS, BOTH, {}),
    "max_completion_tokens": (1, limits.MAX_TOKENS, (CHAT,), {}),
    "min_tokens": (0, limits.MAX_TOKENS, BOTH, {}),
    "thinking_token_budget": (0, limits.MAX_TOKENS, (CHAT,), {}),
    "logprobs": (0, limits.MAX_LOGPROBS, (COMPLETIONS,), {}),
    "top_logprobs": (0, limits.MAX_LOGPROBS, (CHAT,), {"logprobs": True}),
    "prompt_logprobs": (0, limits.MAX_LOGPROBS, BOTH, {}),
    "top_k": (-1, limits.MAX_TOKENS, BOTH, {}),
    "seed": (-(2**63), 2**63 - 1, BOTH, {}),
    "temperature": (0, limits.MAX_TEMPERATURE, BOTH, {}),
    "presence_penalty": (-limits.MAX_PENALTY, limits.MAX_PENALTY, BOTH, {}),
    "frequency_penalty": (-limits.MAX_PENALTY, limits.MAX_PENALTY, BOTH, {}),
    "min_p": (0, 1, BOTH, {}),
    # above zero: 0 itself is refused
    "top_p": (1e-9, 1, BOTH, {}),
    "typical_p": (1e-9, 1, BOTH, {}),
    "repetition_penalty": (1e-9, limits.MAX_REPETITION_PENALTY, BOTH, {}),
    "length_penalty": (-limits.MAX_LENGTH_PENALTY, limits.MAX_LENGTH_PENALTY, BOTH, {}),
    "diversity_penalty": (0, limits.MAX_DIVERSITY_PENALTY, BOTH, {}),
    "num_beam_groups": (1, limits.MAX_BEAM_WIDTH, BOTH, {}),
    "no_repeat_ngram_size": (0, limits.MAX_NO_REPEAT_NGRAM, BOTH, {}),
    "truncate_prompt_tokens": (-1, limits.MAX_TOKENS, BOTH, {}),
    "priority": (-limits.MAX_PRIORITY, limits.MAX_PRIORITY, BOTH, {}),
    "timeout": (1e-3, limits.MAX_TIMEOUT_S, BOTH, {}),
}
PROBES = [0, -1, 2**31, 2**63, 2**64, 10**30, -(2**63) - 1, -(10**30), 1e308, -1e308]


@pytest.mark.parametrize("name", NUMBERS)
async def test_numbers_at_and_beyond_their_bounds(name):
    low, high, paths, others = NUMBERS[name]
    async with gateway() as g:
        for path in paths:
            for value in (low, high):
                if name == "timeout" and value == low:
                    continue  # accepted, but it may be over before the answer is
                answer = await g.post(path, body_for(path, **others, **{name: value}))
                assert answer.status_code == 200, (name, value, answer.text)
            asked = len(g.backend.requests)
            step = 1e-6 if isinstance(high, float) or name.endswith("_p") else 1
            for value in [high + step, low - 1, *PROBES]:
                if low <= value <= high:
                    continue
                answer = await g.post(path, body_for(path, **others, **{name: value}))
                assert answer.status_code == 400, (name, value)
                error = answer.json()["error"]
                assert error["param"] == name
                assert error["message"].startswith(f"{name}: must be")
                assert any(character.isdigit() for character in error["message"])
            assert len(g.backend.requests) == asked
        await g.check()


def test_every_number_of_the_bodies_is_covered():
    from serve_app.api.dialects.openai.chat import ChatBody
    from serve_app.api.dialects.openai.completions import CompletionBody

    numeric = {
        name
        for body in (ChatBody, CompletionBody)
        for name, field in body.model_fields.items()
        if "int | None" in str(field.annotation) or "float | None" in str(field.annotation)
    }
    tuples = {"stop_token_ids", "allowed_token_ids", "logit_bias"}
    assert numeric - tuples == set(NUMBERS)


LISTS = [
    ("stop", ["x"] * limits.MAX_STOP_STRINGS, ["x"] * (limits.MAX_STOP_STRINGS + 1)),
    ("stop", "x" * limits.MAX_STOP_CHARS, "x" * (limits.MAX_STOP_CHARS + 1)),
    ("stop", [], [""]),
    ("bad_words", ["x"] * limits.MAX_BAD_WORDS, ["x"] * (limits.MAX_BAD_WORDS + 1)),
    ("stop_token_ids", [0] * limits.MAX_STOP_TOKEN_IDS, [0] * (limits.MAX_STOP_TOKEN_IDS + 1)),
    ("stop_token_ids", [INT], [INT + 1]),
    ("stop_token_ids", [0], [-1]),
    ("stop_token_ids", [0], [10**30]),
    (
        "logit_bias",
        {str(i): 1 for i in range(limits.MAX_LOGIT_BIAS)},
        {str(i): 1 for i in range(limits.MAX_LOGIT_BIAS + 1)},
    ),
    ("logit_bias", {str(INT): 1}, {str(INT + 1): 1}),
    ("logit_bias", {"1": 100}, {"1": 100.5}),
    ("logit_bias", {"1": -100}, {"1": -(10**30)}),
    ("logit_bias", {"1": 0}, {"-1": 0}),
    ("logit_bias", {}, {"9" * 5_000: 0}),
    ("user", "x" * limits.MAX_USER_CHARS, "x" * (limits.MAX_USER_CHARS + 1)),
]


@pytest.mark.parametrize(("name", "accepted", "refused"), LISTS)
async def test_lists_and_strings_at_and_beyond_their_bounds(name, accepted, refused):
    async with gateway() as g:
        for path in BOTH:
            assert (await g.post(path, body_for(path, **{name: accepted}))).status_code == 200
            answer = await g.post(path, body_for(path, **{name: refused}))
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
            assert len(answer.content) < limits.MAX_ERROR_BYTES
        await g.check()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_bias_must_be_finite(value):
    async with gateway() as g:
        for path in BOTH:
            raw = json.dumps(body_for(path, logit_bias={"1": value}))
            assert (await g.client.post(path, content=raw)).status_code == 400
