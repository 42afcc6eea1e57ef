from __future__ import annotations

from typing import Any

from serve_app.console.forms import Form
from serve_app.console.views import config_form
from tests.support.console_forms import form_of

CONFIG: dict[str, Any] = {
    "config_version": 4,
    "served_entities": [
        {
            "name": "old",
            "entity_name": "harbor",
            "entity_version": "1",
            "provisioned_model_units": 2,
            "scale_to_zero_enabled": True,
            "environment_vars": {"A": "b"},
            "creator": "ada",
            "creation_timestamp": 1,
            "state": {"deployment": "DEPLOYMENT_READY"},
        },
        {"name": "new", "entity_name": "harbor", "entity_version": "2", "min_provisioned_concurrency": 4},
    ],
    "traffic_config": {
        "routes": [
            {"served_entity_name": "old", "served_model_name": "old", "traffic_percentage": 90},
            {"served_entity_name": "new", "served_model_name": "new", "traffic_percentage": 10},
        ]
    },
}


def sent(rows: list[config_form.EntityRow], **changes: str) -> Form:
    """What a browser sends of a form with these rows; `changes` are fields typed over, `_` for a dot."""
    fields: dict[str, str] = {}
    for row in rows:
        fields[row.field("was")] = row.was
        fields[row.field("traffic_percentage")] = row.share
        names = (*config_form.TEXTS, *config_form.NUMBERS)
        fields |= {row.field(name): row.values.get(name, "") for name in names}
        fields |= {row.field(name): "on" for name in row.flags}
    return form_of({**fields, **{name.replace("__", "."): text for name, text in changes.items()}}.items())


def test_a_form_that_nobody_touched_asks_for_what_there_is() -> None:
    body = config_form.config_body(sent(config_form.rows_of(CONFIG)), CONFIG)
    assert body == {
        "served_entities": [
            {
                "name": "old",
                "entity_name": "harbor",
                "entity_version": "1",
                "provisioned_model_units": 2,
                "scale_to_zero_enabled": True,
                "environment_vars": {"A": "b"},
            },
            {"name": "new", "entity_name": "harbor", "entity_version": "2", "min_provisioned_concurrency": 4},
        ],
        "traffic_config": {
            "routes": [
                {"served_entity_name": "old", "traffic_percentage": 90},
                {"served_entity_name": "new", "traffic_percentage": 10},
            ]
        },
    }


def test_fields_that_are_emptied_are_left_out_and_wrong_ones_stay_for_the_api() -> None:
    rows = config_form.rows_of(CONFIG)
    form = sent(
        rows,
        served_entities__0__provisioned_model_units="",
        served_entities__1__min_provisioned_concurrency="many",
        served_entities__1__traffic_percentage="ten",
    )
    body = config_form.config_body(form, CONFIG)
    assert "provisioned_model_units" not in body["served_entities"][0]
    assert body["served_entities"][1]["min_provisioned_concurrency"] == "many"
    assert body["traffic_config"]["routes"][1]["traffic_percentage"] == "ten"
    kept = config_form.rows_in(form)
    assert kept[1].values["min_provisioned_concurrency"] == "many"
    assert kept[1].share == "ten"
    assert kept[0].flags == {"scale_to_zero_enabled"}


def test_a_single_entity_has_no_split_and_a_row_without_a_name_gets_the_apis() -> None:
    alone = sent([config_form.blank_row()], served_entities__0__entity_name="harbor")
    assert config_form.config_body(alone) == {
        "served_entities": [{"entity_name": "harbor", "provisioned_model_units": 1}]
    }
    two = sent(
        [config_form.blank_row(0, 60), config_form.blank_row(7, 40)],
        served_entities__0__entity_name="harbor",
        served_entities__7__entity_name="harbor",
        served_entities__7__entity_version="2",
    )
    routes = config_form.config_body(two)["traffic_config"]["routes"]
    assert [(each["served_entity_name"], each["traffic_percentage"]) for each in routes] == [
        ("harbor", 60),
        ("harbor-2", 40),
    ]
    assert [row.index for row in config_form.rows_in(two)] == [0, 1], "as the errors of the API number them"


def test_a_row_says_whether_its_size_is_more_than_units() -> None:
    old, new = config_form.rows_of(CONFIG)
    assert not old.is_sized_finely
    assert new.is_sized_finely


def test_the_split_alone() -> None:
    rows = config_form.share_rows(CONFIG)
    assert [(row.entity, row.share) for row in rows] == [("old", "90"), ("new", "10")]
    form = form_of([("entity", "old"), ("share", "50"), ("entity", "new"), ("share", "50"), ("csrf", "x")])
    assert config_form.traffic_body(form) == {
        "traffic_config": {
            "routes": [
                {"served_entity_name": "old", "traffic_percentage": 50},
                {"served_entity_name": "new", "traffic_percentage": 50},
            ]
        }
    }
    wrong = form_of([("entity", "old"), ("share", "fifty"), ("entity", "new"), ("share", "50")])
    assert [row.share for row in config_form.share_rows_in(wrong)] == ["fifty", "50"]


def test_a_promotion_leaves_the_others_without_traffic() -> None:
    routes = config_form.promotion_body(CONFIG, "new")["traffic_config"]["routes"]
    assert [(each["served_entity_name"], each["traffic_percentage"]) for each in routes] == [
        ("old", 0),
        ("new", 100),
    ]
