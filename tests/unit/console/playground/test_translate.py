"""One request in another protocol keeps what both have, and names the rest."""

from __future__ import annotations

from typing import Any, Final

import pytest

from serve_app.console.playground.protocols import Protocol, protocol_named
from serve_app.console.playground.translate import Ask, translated
from tests.support.openapi import fake_document

DOCUMENT: Final[dict[str, Any]] = fake_document()
MESSAGES: Final = [{"role": "user", "content": "Hello!"}]


def protocol(name: str) -> Protocol:
    found = protocol_named(name)
    assert found is not None
    return found


def chat(**options: Any) -> Ask:
    body = {"model": "demo", "messages": MESSAGES, "stream": True, **options}
    return Ask(protocol("openai-chat"), "demo", stream=True, body=body, entity="new")


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
    with pytest.raises(ValueError, match="do not take the same prompt"):
        translated(DOCUMENT, chat(), protocol("triton-text"))
