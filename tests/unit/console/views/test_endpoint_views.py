from __future__ import annotations

from typing import Any

import pytest

from serve_app.console.views.endpoint_form import tags_body, tags_text
from serve_app.console.views.endpoints import endpoint_view, endpoint_views, known_models, size_of
from serve_app.console.views.status import Tone
from tests.support.console_forms import form_of


def entity(name: str, version: str = "1", state: str = "READY", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "entity_name": "harbor",
        "entity_version": version,
        "scale_to_zero_enabled": False,
        "state": {"deployment": f"DEPLOYMENT_{state}"},
        **fields,
    }


def config(*entities: dict[str, Any], shares: dict[str, int]) -> dict[str, Any]:
    routes = [{"served_entity_name": name, "traffic_percentage": share} for name, share in shares.items()]
    return {"config_version": 3, "served_entities": list(entities), "traffic_config": {"routes": routes}}


def endpoint(name: str = "talk", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "id": "e-1",
        "creator": "ada",
        "creation_timestamp": 1_000,
        "last_updated_timestamp": 2_000,
        "kind": "provisioned_throughput",
        "task": "llm/v1/chat",
        "declared": False,
        "state": {"ready": "READY", "config_update": "NOT_UPDATING"},
        "description": "",
        "tags": [{"key": "team", "value": "sea"}],
        "ai_gateway": {},
        "permission_level": "CAN_MANAGE",
        **fields,
    }


def test_what_serves_and_what_comes_up() -> None:
    view = endpoint_view(
        endpoint(
            config=config(entity("old"), entity("new", "2"), shares={"old": 90, "new": 10}),
            pending_config={
                **config(entity("old"), entity("third", "3", "CREATING"), shares={"old": 0, "third": 100}),
                "start_time": 1_500,
            },
            state={"ready": "READY", "config_update": "IN_PROGRESS"},
            shadow={"entity": "new", "percentage": 5},
        )
    )
    assert (view.status.word, view.status.tone, view.is_busy) == ("updating", Tone.BUSY, True)
    assert view.kind == "own replicas"
    assert view.task == "chat"
    assert view.is_changeable
    assert view.config is not None
    assert view.pending is not None
    assert [(each.name, each.share) for each in view.config.entities] == [("old", 90), ("new", 10)]
    assert (view.pending.ready, len(view.pending.entities), view.pending.started) == (1, 2, 1_500)
    assert [each.name for each in view.pending.split] == ["third"]
    assert view.entity_names == ["old", "new"]
    assert view.shadow == {"entity": "new", "percentage": 5}
    assert view.tags == (("team", "sea"),)


@pytest.mark.parametrize(
    ("ready", "update", "word", "tone"),
    [
        ("READY", "NOT_UPDATING", "serving", Tone.GOOD),
        ("NOT_READY", "IN_PROGRESS", "starting", Tone.BUSY),
        ("READY", "UPDATE_FAILED", "serving; update failed", Tone.BAD),
        ("NOT_READY", "UPDATE_FAILED", "failed", Tone.BAD),
        ("READY", "UPDATE_CANCELED", "serving; update canceled", Tone.IDLE),
        ("NOT_READY", "NOT_UPDATING", "not ready", Tone.IDLE),
        ("NOT_READY", "A_NEW_WORD", "not ready", Tone.IDLE),
    ],
)
def test_the_status_of_an_endpoint(ready: str, update: str, word: str, tone: Tone) -> None:
    view = endpoint_view(endpoint(state={"ready": ready, "config_update": update}))
    assert (view.status.word, view.status.tone) == (word, tone)


def test_a_declared_endpoint_and_a_key_without_manage_change_nothing() -> None:
    assert not endpoint_view(endpoint(declared=True)).is_changeable
    assert not endpoint_view(endpoint(permission_level="CAN_QUERY")).is_changeable
    assert endpoint_view(endpoint()).newest is None
    assert endpoint_view(endpoint()).entity_names == []


def test_the_list_is_by_name_and_offers_each_model_once() -> None:
    first = config(entity("a"), entity("b", "2"), shares={"a": 100, "b": 0})
    answer = {
        "endpoints": [endpoint("zoo", config=first), endpoint("ant", pending_config=first), endpoint("moth")]
    }
    assert [each.name for each in endpoint_views(answer)] == ["ant", "moth", "zoo"]
    assert [(each.name, each.version) for each in known_models(answer)] == [("harbor", "1"), ("harbor", "2")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"provisioned_model_units": 1}, "1 unit"),
        ({"provisioned_model_units": 1200}, "1,200 units"),
        ({"min_provisioned_throughput": 0, "max_provisioned_throughput": 950}, "0 to 950 tokens/s"),
        ({"min_provisioned_concurrency": 4, "max_provisioned_concurrency": 4}, "4 requests at once"),
        ({"max_provisioned_concurrency": 4}, "at most 4 requests at once"),
        ({"min_provisioned_throughput": 4}, "at least 4 tokens/s"),
        ({"workload_size": "Small"}, "Small workload"),
    ],
)
def test_the_size_of_an_entity_in_words(fields: dict[str, Any], words: str) -> None:
    assert size_of(entity("a", **fields)) == words


def test_tags_that_nobody_touched_stay_as_they_are() -> None:
    tags = [{"key": "owner", "value": "Smith, Ann"}, {"key": "a=b", "value": "c"}, {"key": "spare"}]
    shown = tags_text(tuple((tag["key"], tag.get("value", "")) for tag in tags))
    assert tags_body(form_of([("tags", shown)]), {"tags": tags}) == {"add_tags": [], "delete_tags": []}
    changed = tags_body(form_of([("tags", f"{shown}, team=sea")]), {"tags": tags})
    assert changed == {"add_tags": [{"key": "team", "value": "sea"}], "delete_tags": []}
