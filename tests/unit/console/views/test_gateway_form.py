"""The form of an AI gateway: what it shows of the settings, and the settings that it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.api.management.endpoints.gateway_body import AiGatewayBody
from serve_app.console.views.gateway_form import fields_in, fields_of, settings_body
from serve_app.console.views.problem import is_wrong
from serve_app.endpoints.ai_gateway import PARTS
from tests.support.console_forms import form_of

SETTINGS: dict[str, Any] = {
    "rate_limits": [
        {"calls": 5, "key": "user", "renewal_period": "minute"},
        {"tokens": 0, "key": "user_group", "principal": "sea", "renewal_period": "minute"},
    ],
    "guardrails": {
        "model": "judge",
        "input": {"safety": True, "pii": {"behavior": "MASK", "phone_regions": ["DE"]}},
        "output": {"invalid_keywords": ["secret", "top secret"]},
    },
    "usage_tracking_config": {"enabled": False},
    "inference_table_config": {"enabled": True, "catalog_name": "main", "table_name_prefix": "chat"},
}


def sent(settings: Any, **changes: str) -> Any:
    """The form of `settings` as a browser sends it, with some fields changed. An empty switch is off."""
    fields = fields_of(settings)
    pairs = {f"{part}.enabled": "on" for part in fields.switches} | dict(fields.texts)
    for row in fields.rows:
        pairs |= {row.field(name): row.values.get(name, "") for name in ("principal", "calls", "tokens")}
        pairs[row.field("key")] = row.values.get("key", "endpoint")
    pairs |= {name.replace("__", "."): value for name, value in changes.items()}
    return form_of((name, value) for name, value in pairs.items() if value or not name.endswith("enabled"))


def test_the_parts_are_those_of_the_api() -> None:
    assert set(PARTS) == set(AiGatewayBody.model_fields)


@pytest.mark.parametrize("settings", [SETTINGS, {}, {"fallback_config": {"enabled": True}}])
def test_a_form_that_nobody_changed_asks_for_what_there_is(settings: dict[str, Any]) -> None:
    body = settings_body(sent(settings), settings)
    assert body == settings
    assert AiGatewayBody.model_validate(body)


def test_what_is_changed_is_asked_for_and_what_has_no_field_stays() -> None:
    changes = {
        "rate_limits__0__calls": "",
        "rate_limits__0__key": "endpoint",
        "rate_limits__3__tokens": "many",
        "guardrails__input__pii__behavior": "NONE",
        "guardrails__input__invalid_keywords": "one, two words",
        "guardrails__output__invalid_keywords": "",
        "usage_tracking_config__enabled": "on",
        "fallback_config__enabled": "",
    }
    form = sent(SETTINGS, **changes)
    body = settings_body(form, SETTINGS)
    assert body["rate_limits"] == [
        SETTINGS["rate_limits"][1],
        {"key": "endpoint", "tokens": "many", "renewal_period": "minute"},  # the API says what is wrong
    ]
    rules = {"safety": True, "invalid_keywords": ["one", "two words"]}
    assert body["guardrails"] == {"model": "judge", "input": rules}
    assert (body["usage_tracking_config"], body["fallback_config"]) == ({"enabled": True}, {"enabled": False})
    rows = [row.field("tokens") for row in fields_in(form).limits]
    assert rows == ["rate_limits.0.tokens", "rate_limits.1.tokens"]


def test_a_refusal_of_a_part_or_of_the_whole_marks_a_field() -> None:
    assert is_wrong("rate_limits.0.calls", "rate_limits.0")
    assert is_wrong("guardrails.input.invalid_keywords", "guardrails.input.invalid_keywords.3")
    assert not is_wrong("rate_limits.1.calls", "rate_limits.10")
    assert not is_wrong("rate_limits.1.calls", None)
