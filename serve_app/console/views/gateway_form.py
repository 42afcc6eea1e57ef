"""The form for an endpoint's AI gateway: its fields from the settings, and the settings from its fields.

Each field is named by its path in the API's body, such as `rate_limits.0.calls`, so an API error names the
field that it is about. Settings that have no field stay as they are. Does not depend on routes or templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.console.forms import Form, listed, number, words
from serve_app.console.views import Json
from serve_app.endpoints.ai_gateway import PARTS

FORM: Final = "gateway_form"  # the field that distinguishes this form from the JSON form
USAGE: Final = "usage_tracking_config"
FALLBACK: Final = "fallback_config"
TABLE: Final = "inference_table_config"
GUARDRAILS: Final = "guardrails"
# part -> whether it is on by default
SWITCHES: Final[Mapping[str, bool]] = {USAGE: True, FALLBACK: True, TABLE: False}
TABLE_NAMES: Final = ("catalog_name", "schema_name", "table_name_prefix")
SIDES: Final = ("input", "output")
BEHAVIORS: Final = {"NONE": "allow", "BLOCK": "block", "MASK": "mask"}
KEYS: Final = {
    "endpoint": "all callers together",
    "user": "each user, or one by name",
    "user_group": "a group by name",
    "service_principal": "a service principal by name",
}
LIMITS: Final = ("key", "principal", "calls", "tokens")
BLANK_ROWS: Final = 2  # for new limits; a row left empty adds no limit
MAX_ROWS: Final = 100 + BLANK_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """The fields of one rate limit, as texts."""

    index: int
    values: Mapping[str, str]

    def field(self, name: str) -> str:
        """The name of a field of this row."""
        return f"rate_limits.{self.index}.{name}"

    @property
    def is_blank(self) -> bool:
        return not any(self.values.get(name) for name in LIMITS[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFields:
    """The values of the form's fields."""

    switches: frozenset[str]  # the parts that are on
    texts: Mapping[str, str]
    limits: tuple[LimitRow, ...]

    def text(self, name: str) -> str:
        return self.texts.get(name, "")

    @property
    def rows(self) -> tuple[LimitRow, ...]:
        """The limits, and some empty rows."""
        count = len(self.limits)
        blank = (LimitRow(index=count + place, values={}) for place in range(BLANK_ROWS))
        return (*self.limits, *blank)


def fields_of(settings: Json) -> GatewayFields:
    """The fields of a form that edits `settings`, the settings as the API shows them."""
    table = settings.get(TABLE) or {}
    texts = {f"{TABLE}.{name}": table.get(name) or "" for name in TABLE_NAMES}
    for side in SIDES:
        rules = _rules(settings, side)
        texts[f"{GUARDRAILS}.{side}.pii.behavior"] = (rules.get("pii") or {}).get("behavior", "NONE")
        texts[f"{GUARDRAILS}.{side}.invalid_keywords"] = listed(rules.get("invalid_keywords", ()))
    limits = (
        {name: str(limit[name]) for name in LIMITS if limit.get(name) is not None}
        for limit in settings.get("rate_limits") or ()
    )
    return GatewayFields(
        switches=frozenset(part for part in SWITCHES if _is_on(settings, part)),
        texts=texts,
        limits=tuple(LimitRow(index=index, values=values) for index, values in enumerate(limits)),
    )


def fields_in(form: Form) -> GatewayFields:
    """The fields of a form as it was sent. Limits are numbered as in the body, without empty rows."""
    rows = [row for row in _sent_rows(form) if not row.is_blank]
    return GatewayFields(
        switches=frozenset(part for part in SWITCHES if form.text(f"{part}.enabled")),
        texts={name: form.text(name) for name in _texts()},
        limits=tuple(LimitRow(index=index, values=row.values) for index, row in enumerate(rows)),
    )


def settings_body(form: Form, former: Json) -> dict[str, Any]:
    """The settings described by a form, to replace `former`."""
    fields = fields_in(form)
    body: dict[str, Any] = {part: former[part] for part in PARTS if part in former}
    body["rate_limits"] = [_limit(row) for row in fields.limits]
    sides = {side: _side(fields, former, side) for side in SIDES}
    rules = {**(former.get(GUARDRAILS) or {}), **sides}
    body[GUARDRAILS] = {name: value for name, value in rules.items() if value}
    table = {name: text for name in TABLE_NAMES if (text := fields.text(f"{TABLE}.{name}"))}
    for part in SWITCHES:
        is_on = part in fields.switches
        if part in former or is_on != SWITCHES[part] or (part == TABLE and table):
            body[part] = {"enabled": is_on} | (table if part == TABLE else {})
    return {part: value for part, value in body.items() if value}


def _limit(row: LimitRow) -> dict[str, Any]:
    limit: dict[str, Any] = {"renewal_period": "minute"}
    limit |= {name: text for name in ("key", "principal") if (text := row.values.get(name))}
    for name in ("calls", "tokens"):
        if (value := number(row.values.get(name, ""))) is not None:
            limit[name] = value
    return limit


def _side(fields: GatewayFields, former: Json, side: str) -> dict[str, Any]:
    """The guardrails of one side, including the ones in `former` that have no field."""
    rules = dict(_rules(former, side))
    pii = {**(rules.pop("pii", None) or {}), "behavior": fields.text(f"{GUARDRAILS}.{side}.pii.behavior")}
    rules.pop("invalid_keywords", None)
    if keywords := words(fields.text(f"{GUARDRAILS}.{side}.invalid_keywords")):
        rules["invalid_keywords"] = keywords
    if pii["behavior"] not in ("", "NONE"):
        rules["pii"] = pii
    return rules


def _rules(settings: Json, side: str) -> Json:
    rules: Json = (settings.get(GUARDRAILS) or {}).get(side) or {}
    return rules


def _is_on(settings: Json, part: str) -> bool:
    found = settings.get(part)
    return SWITCHES[part] if found is None else bool(found.get("enabled"))


def _texts() -> Iterator[str]:
    yield from (f"{TABLE}.{name}" for name in TABLE_NAMES)
    for side in SIDES:
        yield from (f"{GUARDRAILS}.{side}.pii.behavior", f"{GUARDRAILS}.{side}.invalid_keywords")


def _sent_rows(form: Form) -> Iterator[LimitRow]:
    for index in range(MAX_ROWS):
        row = LimitRow(index=index, values={})
        if row.field("key") in form:
            yield LimitRow(index=index, values={name: form.text(row.field(name)) for name in LIMITS})
