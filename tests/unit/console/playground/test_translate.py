"""One request in another protocol keeps what both have, and names the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from serve_app.console.playground.protocols import Protocol, protocol_named
from serve_app.console.playground.translate import Ask, translated
from tests.support.openapi import fake_document

DOCUMENT: Final[dict[str, Any]] = fake_document()
MESSAGES: Final = [{"role": "user", "content": "Hello!"}]
SCHEMA: Final = {"type": "object"}
# What the page writes in every shape of chats; here what a shape is called stands for what it writes.
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "chat": {
        "messages": MESSAGES,
        "tools": ["chat"],
        "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    },
    "messages": {
        "system": "Be brief",
        "messages": MESSAGES,
        "tools": ["messages"],
        "tool_choice": {"type": "any"},
        "output_config.format": {"type": "json_schema", "schema": SCHEMA},
    },
    "responses": {
        "instructions": "Be brief",
        "input": "Hello!",
        "tools": ["responses"],
        "tool_choice": "required",
        "text.format": {"type": "json_schema", "name": "answer", "schema": SCHEMA},
    },
}


def protocol(name: str) -> Protocol:
    found = protocol_named(name)
    assert found is not None
    return found


def chat(**options: Any) -> Ask:
    body = {"model": "demo", "messages": MESSAGES, "stream": True, **options}
    shapes = {
        "chat": {"messages": MESSAGES, **({"tools": options["tools"]} if "tools" in options else {})},
        "messages": {"messages": MESSAGES},
        "responses": {"input": "Hello!"},
    }
    return Ask(protocol("openai-chat"), "demo", stream=True, body=body, entity="new", shapes=shapes)


def shaped(name: str, **options: Any) -> Ask:
    """A chat with everything that shapes write in ways of their own, and `options` by dotted path."""
    asked = protocol(name)
    body: dict[str, Any] = {"model": "demo", "stream": True}
    for path, value in {**SHAPES[asked.shape], **options}.items():
        outer, _, inner = path.rpartition(".")
        (body.setdefault(outer, {}) if outer else body)[inner] = value
    return Ask(asked, "demo", True, body, None, SHAPES)


def text(**options: Any) -> Ask:
    return Ask(protocol("openai-text"), "demo", False, {"model": "demo", "prompt": "Once", **options})


def test_its_own_protocol_changes_nothing() -> None:
    ask = chat(top_k=4, unheard_of=1)
    assert translated(DOCUMENT, ask, ask.protocol) == (ask, ())


@pytest.mark.parametrize(
    ("target", "kept", "lost"),
    [
        ("databricks-chat", {"top_k": 4, "seed": 0, "tools": []}, ("min_tokens", "watermark")),
        ("mindie-chat", {"top_k": 4, "tools": []}, ("seed", "min_tokens", "watermark")),
        ("ovms-chat", {"top_k": 4, "seed": 0, "min_tokens": 2, "tools": []}, ("watermark",)),
    ],
)
def test_a_chat_in_another_protocol(target: str, kept: dict[str, Any], lost: tuple[str, ...]) -> None:
    """MindIE's seeds begin at 1."""
    ask = chat(top_k=4, seed=0, min_tokens=2, watermark=True, tools=[])
    found, missing = translated(DOCUMENT, ask, protocol(target))
    names = {} if target == "databricks-chat" else {"model": "demo"}
    assert found.body == {**names, "messages": MESSAGES, **kept, "stream": True}
    assert (missing, found.model, found.entity, found.stream) == (lost, "demo", "new", True)


CHAT_NAMES: Final[dict[str, Any]] = {
    "max_tokens": 5, "stop": ["x"], "top_k": 4, "reasoning_effort": "low", "thinking_token_budget": 9,
}  # fmt: skip
MESSAGE_NAMES: Final[dict[str, Any]] = {
    "max_tokens": 5, "stop_sequences": ["x"], "top_k": 4, "output_config.effort": "low",
    "thinking.budget_tokens": 9, "thinking.type": "enabled",
}  # fmt: skip
RESPONSE_NAMES: Final[dict[str, Any]] = {
    "max_output_tokens": 5, "stop": ["x"], "top_k": 4, "reasoning.effort": "low", "thinking_token_budget": 9,
}  # fmt: skip
ALL_NAMES: Final = {
    "openai-chat": CHAT_NAMES,
    "anthropic-messages": MESSAGE_NAMES,
    "openai-responses": RESPONSE_NAMES,
}


@pytest.mark.parametrize("source", ALL_NAMES)
@pytest.mark.parametrize("target", ALL_NAMES)
def test_a_chat_in_another_shape_means_the_same(source: str, target: str) -> None:
    """The same prompt, tools, form, limits and thoughts, in the words of each."""
    found, lost = translated(DOCUMENT, shaped(source, **ALL_NAMES[source]), protocol(target))
    assert (found.body, lost) == (shaped(target, **ALL_NAMES[target]).body, ())


@pytest.mark.parametrize("source", ALL_NAMES)
def test_a_protocol_without_a_budget_of_thoughts_says_so(source: str) -> None:
    found, lost = translated(DOCUMENT, shaped(source, **ALL_NAMES[source]), protocol("ovms-responses"))
    kept = {name: value for name, value in RESPONSE_NAMES.items() if name != "thinking_token_budget"}
    assert found.body == shaped("ovms-responses", **kept).body
    assert lost == tuple(path for path in ALL_NAMES[source] if "budget" in path)


@pytest.mark.parametrize("path", ["tools", "tool_choice", "response_format"])
def test_what_only_one_shape_has_is_named(path: str) -> None:
    """Such as a choice among allowed tools, which the page writes in no other shape."""
    ask = shaped("openai-chat")
    place = "output_config.format" if path == "response_format" else path
    less = {each: value for each, value in SHAPES["messages"].items() if each != place}
    found, lost = translated(
        DOCUMENT, replace(ask, shapes={**SHAPES, "messages": less}), protocol("anthropic-messages")
    )
    assert lost == (path,)
    assert place.split(".")[0] not in found.body


def test_a_word_that_another_protocol_does_not_have_is_named() -> None:
    found, lost = translated(DOCUMENT, chat(reasoning_effort="none"), protocol("anthropic-messages"))
    assert (found.body, lost) == (
        {"model": "demo", "messages": MESSAGES, "max_tokens": 1024, "stream": True},
        ("reasoning_effort",),
    )


def test_a_priority_is_never_carried_over() -> None:
    """-4 is urgent in one protocol, and 1 in another."""
    _, lost = translated(DOCUMENT, chat(priority=1), protocol("mindie-chat"))
    assert lost == ("priority",)


def test_options_have_other_names_elsewhere() -> None:
    ask = text(max_tokens=5, stop=["x"], top_p=0.5)
    mindie, _ = translated(DOCUMENT, ask, protocol("mindie-text"))
    assert mindie.body == {
        "text_input": "Once",
        "parameters": {"max_new_tokens": 5, "stop": ["x"], "top_p": 0.5, "do_sample": True},
    }
    triton, _ = translated(DOCUMENT, ask, protocol("triton-text"))
    assert triton.body == {"text_input": "Once", "max_tokens": 5, "stop_words": ["x"], "top_p": 0.5}
    back, lost = translated(DOCUMENT, mindie, protocol("openai-text"))
    assert back.body == {"model": "demo", "prompt": "Once", "max_tokens": 5, "stop": ["x"], "top_p": 0.5}
    assert lost == ("parameters.do_sample",)


def test_greedy_stays_greedy() -> None:
    """MindIE's default is greedy, and its temperatures are above 0."""
    found, lost = translated(DOCUMENT, text(temperature=0, top_k=3, max_tokens=5), protocol("mindie-text"))
    assert found.body["parameters"] == {"max_new_tokens": 5}
    assert lost == ("temperature",)


def test_what_a_protocol_demands_is_there() -> None:
    found, _ = translated(DOCUMENT, text(), protocol("triton-text"))
    assert found.body == {"text_input": "Once", "max_tokens": 64}


def test_a_chat_is_no_text() -> None:
    with pytest.raises(ValueError, match="do not accept the same prompt"):
        translated(DOCUMENT, chat(), protocol("triton-text"))
