"""The form of options says what the OpenAPI document says: members, ranges, defaults."""

from __future__ import annotations

from typing import Any, Final

import pytest

from serve_app.console.playground.options import GROUPS, MORE, Option, groups_of, options_of
from serve_app.console.playground.protocols import PROTOCOLS, Protocol, protocol_named, protocols_of
from serve_app.console.playground.schemas import members_of
from tests.support.openapi import fake_document

DOCUMENT: Final[dict[str, Any]] = fake_document()
# Members that the page itself writes, and names that have another one.
NOT_OPTIONS: Final = {
    "model", "messages", "system", "input", "instructions", "prompt", "text_input", "id", "stream",
    "stream_options", "tools",
}  # fmt: skip
OTHER_NAMES: Final = {
    "chat": {"functions", "function_call", "max_completion_tokens"},
    "messages": {"stop", "output_format"},
    "responses": {"response_format"},
    "text": {"max_completion_tokens"},
}


def option(protocol: str, path: str) -> Option:
    found = protocol_named(protocol)
    assert found is not None
    return next(each for each in options_of(DOCUMENT, found, {}) if each.path == path)


@pytest.mark.parametrize(
    "protocol", [each for each in PROTOCOLS if each.dialect != "triton"], ids=lambda p: p.id
)
def test_every_member_of_a_body_has_a_control_once(protocol: Protocol) -> None:
    shown = [each.path for group in groups_of(DOCUMENT, protocol, {}) for each in group.options]
    assert len(shown) == len(set(shown))
    assert set(shown) == (members_of(DOCUMENT, protocol).keys() - NOT_OPTIONS - OTHER_NAMES[protocol.shape])


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.id)
def test_every_range_and_choice_is_that_of_the_document(protocol: Protocol) -> None:
    for each in options_of(DOCUMENT, protocol, {}):
        schema = members_of(DOCUMENT, protocol)[each.path]
        first = next(one for one in schema.get("anyOf", [schema]) if one.get("type") != "null")
        if each.kind == "number":
            assert each.minimum == first.get("minimum", first.get("exclusiveMinimum")), each.path
            assert each.maximum == first.get("maximum"), each.path
            assert each.above == ("exclusiveMinimum" in first), each.path
            assert each.integer == (first["type"] == "integer"), each.path
        if each.kind == "choice":
            assert len(each.choices) >= 2, each.path


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.id)
def test_a_group_named_here_is_one_of_some_protocol(protocol: Protocol) -> None:
    groups = [group.title for group in groups_of(DOCUMENT, protocol, {})]
    assert groups == [title for title in [*GROUPS, MORE] if title in groups]
    assert groups[:2] == ["Sampling", "Length and end"]


def test_no_name_of_a_group_is_unknown_to_all_protocols() -> None:
    known = {each.name for protocol in PROTOCOLS for each in options_of(DOCUMENT, protocol, {})}
    assert {name for names in GROUPS.values() for name in names} <= known


def test_bounds_in_words() -> None:
    assert option("openai-chat", "temperature").range == "0 to 2"
    assert option("openai-chat", "top_p").range == "above 0 to 1"
    assert option("mindie-text", "parameters.max_new_tokens").range == "1 or more"
    assert option("mindie-text", "parameters.temperature").range == "above 0"
    assert option("openai-chat", "top_k").range == "-1 or more"
    assert option("openai-chat", "seed").range == "any whole number"
    assert option("openai-chat", "stop").range == ""


@pytest.mark.parametrize(
    ("protocol", "path", "kind"),
    [
        ("openai-chat", "seed", "number"),
        ("openai-chat", "watermark", "choice"),
        ("openai-chat", "early_stopping", "choice"),
        ("openai-chat", "stop", "lines"),
        ("openai-chat", "guided_choice", "lines"),
        ("openai-chat", "stop_token_ids", "numbers"),
        ("openai-chat", "guided_regex", "text"),
        ("openai-chat", "logit_bias", "json"),
        ("openai-chat", "guided_json", "json"),
        ("openai-chat", "logits_processors", "json"),
        ("openai-chat", "tool_choice", "tool_choice"),
        ("ovms-chat", "response_format", "format"),
        ("anthropic-messages", "tool_choice", "tool_choice"),
        ("anthropic-messages", "output_config.format", "format"),
        ("anthropic-messages", "output_config.effort", "choice"),
        ("anthropic-messages", "thinking.budget_tokens", "number"),
        ("anthropic-messages", "stop_sequences", "lines"),
        ("databricks-chat", "thinking.type", "choice"),
        ("openai-responses", "text.format", "format"),
        ("openai-responses", "reasoning.effort", "choice"),
        ("ovms-responses", "text.verbosity", "choice"),
        ("ovms-responses", "best_of", "number"),
        ("databricks-chat", "reasoning_effort", "choice"),
        ("triton-text", "return_log_probs", "choice"),
        ("triton-text", "stop_words", "lines"),
    ],
)
def test_the_kind_of_a_control_follows_from_the_schema(protocol: str, path: str, kind: str) -> None:
    assert option(protocol, path).kind == kind


def test_words_that_a_member_takes_beside_json() -> None:
    assert option("openai-chat", "tool_choice").choices == ("auto", "none", "required")
    assert option("anthropic-messages", "tool_choice").choices == ("auto", "any", "none")
    assert option("openai-chat", "early_stopping").choices == ("true", "false", '"never"')


def test_a_default_of_the_model_is_shown_where_the_protocol_takes_it() -> None:
    openai, ovms = protocol_named("openai-chat"), protocol_named("ovms-chat")
    assert openai is not None
    assert ovms is not None
    by_model = {
        each.path: each.default for each in options_of(DOCUMENT, openai, {"temperature": 0.7, "top_k": 20})
    }
    assert by_model["temperature"] == "0.7, the model's"
    assert by_model["top_k"] == "20, the model's"
    assert by_model["top_p"] == "the model's, else 1.0"
    of_protocol = {each.path: each.default for each in options_of(DOCUMENT, ovms, {"temperature": 0.7})}
    assert of_protocol["temperature"] == "0"


def test_only_what_a_protocol_demands_is_required() -> None:
    required = {(p.id, each.path) for p in PROTOCOLS for each in options_of(DOCUMENT, p, {}) if each.required}
    assert required == {("triton-text", "max_tokens"), ("anthropic-messages", "max_tokens")}


def test_an_option_of_an_object_is_called_by_both_names() -> None:
    assert option("mindie-text", "parameters.top_p").name == "top_p"
    assert option("openai-responses", "reasoning.effort").name == "reasoning.effort"


def test_which_protocols_an_endpoint_speaks() -> None:
    assert [each.id for each in protocols_of("llm/v1/chat")] == [
        "openai-chat",
        "databricks-chat",
        "mindie-chat",
        "ovms-chat",
        "anthropic-messages",
        "openai-responses",
        "databricks-responses",
        "ovms-responses",
        "openai-text",
        "ovms-text",
        "mindie-text",
        "triton-text",
    ]
    assert "databricks-text" in [each.id for each in protocols_of("llm/v1/completions")]
    assert protocols_of("llm/v1/embeddings") == []


def test_a_document_without_the_protocol_is_an_error() -> None:
    triton = protocol_named("triton-text")
    assert triton is not None
    path = "/v2/models/{model}/generate"
    body: dict[str, Any] = {"content": {"application/json": {"schema": {"properties": {"text_input": {}}}}}}
    with pytest.raises(LookupError, match="does not describe triton-text"):
        members_of({"paths": {path: {"post": {"requestBody": body}}}}, triton)
