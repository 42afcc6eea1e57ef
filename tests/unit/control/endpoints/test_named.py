"""A key that is limited to endpoints gets nothing of another endpoint by naming it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.control.plane import ControlPlane
from serve_app.errors import InvalidField, PermissionDenied
from serve_app.types import Caller, Scope
from serve_app.types.control import ConfigWanted, CreateEndpoint, EntityWanted, PutAiGateway
from tests.support.fake_cluster import OPERATOR, FakeCluster, plane_over

LIMITED = Caller(
    key_id="team", scopes=frozenset({Scope.INFERENCE, Scope.MANAGE}), salt="t", endpoints=frozenset({"mine"})
)
DECLARED = {
    "endpoints": [
        {"name": "demo-chat"},
        {"name": "logged", "ai_gateway": {"inference_table_config": {"table_name_prefix": "audit"}}},
    ]
}


def making(name: str, **settings: Any) -> CreateEndpoint:
    config = ConfigWanted(entities=(EntityWanted(entity_name="demo-chat"),), traffic={})
    return CreateEndpoint(name=name, config=config, is_provisioned=False, ai_gateway=settings)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with plane_over(tmp_path, FakeCluster(), declared=DECLARED) as (found, _):
        await found.do(making("theirs", inference_table_config={"schema_name": "team"}), OPERATOR)
        await found.do(making("a/b"), OPERATOR)
        await found.do(making("mine"), LIMITED)
        yield found


def table(prefix: str | None = None, schema: str | None = None) -> dict[str, Any]:
    named = {"table_name_prefix": prefix, "schema_name": schema}
    return {"inference_table_config": {name: each for name, each in named.items() if each is not None}}


@pytest.mark.parametrize(
    "settings",
    [
        table("audit"),  # that an endpoint of the deploy file names
        table("demo-chat"),  # that one would have by its name
        table("theirs", "team"),  # of run time, by name and schema
        table("a_b"),  # of a name that is not a folder's
    ],
)
async def test_a_table_of_another_endpoint_is_refused_to_a_limited_key(
    plane: ControlPlane, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidField, match="is of another endpoint") as caught:
        await plane.do(PutAiGateway(name="mine", settings=settings), LIMITED)
    assert caught.value.param == "inference_table_config.table_name_prefix"
    with pytest.raises(InvalidField, match="is of another endpoint"):
        await plane.do(making("other", **settings), Caller(**_as(LIMITED, endpoints=frozenset({"other"}))))
    await plane.do(PutAiGateway(name="mine", settings=settings), OPERATOR)  # who may manage both


async def test_a_table_of_its_own_is_free(plane: ControlPlane) -> None:
    for settings in (table(), table("mine"), table("theirs"), table("audit", "mine")):
        await plane.do(PutAiGateway(name="mine", settings=settings), LIMITED)


@pytest.mark.parametrize(
    ("judge", "caller"), [("theirs", LIMITED), ("nobody", LIMITED), ("nobody", OPERATOR)]
)
async def test_a_judge_that_the_key_may_not_use_is_as_unknown_as_none(
    plane: ControlPlane, judge: str, caller: Caller
) -> None:
    rules = {"guardrails": {"model": judge, "input": {"safety": True}}}
    said = f"there is no endpoint '{judge}' that the API key may use"
    with pytest.raises(InvalidField, match=said) as caught:
        await plane.do(PutAiGateway(name="mine", settings=rules), caller)
    assert caught.value.param == "guardrails.model"


async def test_a_judge_that_the_key_may_use_is_taken(plane: ControlPlane) -> None:
    for judge, caller in (("mine", LIMITED), ("theirs", OPERATOR), ("demo-chat", OPERATOR)):
        rules = {"guardrails": {"model": judge, "input": {"safety": True}}}
        await plane.do(PutAiGateway(name="mine", settings=rules), caller)


SAFETY: dict[str, Any] = {"guardrails": {"input": {"safety": True}}}
TOPICS: dict[str, Any] = {"guardrails": {"output": {"valid_topics": ["ships"]}}}


@pytest.mark.parametrize(("rules", "side"), [(SAFETY, "input"), (TOPICS, "output")])
async def test_without_any_judge_the_error_names_both_ways_to_have_one(
    plane: ControlPlane, rules: dict[str, Any], side: str
) -> None:
    said = f"endpoint that chats, because {side} has .*`guardrails_model`.* for all endpoints"
    with pytest.raises(InvalidField, match=said) as caught:
        await plane.do(PutAiGateway(name="mine", settings=rules), OPERATOR)
    assert caught.value.param == "guardrails.model"
    with pytest.raises(InvalidField, match=said) as caught:
        await plane.do(making("new", **rules), OPERATOR)
    assert caught.value.param == "ai_gateway.guardrails.model"
    keywords = {"guardrails": {"input": {"safety": False, "invalid_keywords": ["falcon"]}}}
    await plane.do(PutAiGateway(name="mine", settings=keywords), OPERATOR)  # needs no judge


@pytest.mark.parametrize("judge", ["demo-chat", "nobody yet"])
async def test_a_server_wide_judge_is_anybodys(tmp_path: Path, judge: str) -> None:
    """Also of a key that may not use it, and before it is there: the operator chose it."""
    cluster = FakeCluster()
    async with plane_over(tmp_path, cluster, declared=DECLARED, guardrails_model=judge) as (plane, _):
        await plane.do(making("mine", **SAFETY), LIMITED)
        shown = await plane.do(PutAiGateway(name="mine", settings=TOPICS), LIMITED)
        assert shown.ai_gateway == TOPICS
        own = {"guardrails": {"model": judge, **SAFETY["guardrails"]}}  # by name it is somebody else's
        with pytest.raises(InvalidField, match="there is no endpoint"):
            await plane.do(PutAiGateway(name="mine", settings=own), LIMITED)


async def test_other_settings_change_while_a_judge_is_gone(tmp_path: Path) -> None:
    """The operator has taken the server-wide judge away; what is not changed is not checked again."""
    calls = {"rate_limits": [{"calls": 3}]}
    async with plane_over(tmp_path, FakeCluster(), guardrails_model="demo-chat") as (plane, _):
        await plane.do(making("mine", **SAFETY), OPERATOR)
    async with plane_over(tmp_path, FakeCluster()) as (plane, _):
        shown = await plane.do(PutAiGateway(name="mine", settings=calls), LIMITED)
        assert shown.ai_gateway == {**SAFETY, "rate_limits": [{"calls": 3}]}
        with pytest.raises(InvalidField, match="guardrails_model"):
            await plane.do(PutAiGateway(name="mine", settings=SAFETY), LIMITED)


async def test_a_limited_key_makes_no_other_endpoint(plane: ControlPlane) -> None:
    for name in ("new", "theirs", "demo-chat"):
        with pytest.raises(PermissionDenied, match="is limited to endpoints"):
            await plane.do(making(name), LIMITED)


def _as(caller: Caller, **fields: Any) -> dict[str, Any]:
    return {**{name: getattr(caller, name) for name in ("key_id", "scopes", "salt")}, **fields}
