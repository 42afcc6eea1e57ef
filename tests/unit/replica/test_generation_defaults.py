"""Over HTTP: which dialect leaves its sampling to the model, and which keeps the defaults of its protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.config import EngineConfig, ModelConfig
from tests.support.local_model import local_model
from tests.support.tiny_llama import make_tiny_llama

ADVICE = {"temperature": 0.9, "top_k": 3, "repetition_penalty": 4.0, "max_new_tokens": 9}
MESSAGES = [{"role": "user", "content": "Hello, world"}]
FIXED = {"seed": 7, "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_llama(tmp_path_factory.mktemp("advised"))
    (folder / "generation_config.json").write_text(json.dumps(ADVICE))
    return folder


def config(folder: Path, **changes: Any) -> ModelConfig:
    return ModelConfig(
        name="tiny",
        source=str(folder),
        dtype="float32",
        device="cpu",
        threads=1,
        engine=EngineConfig(max_model_len=128, num_blocks=64, block_size=16),
        **changes,
    )


@pytest.fixture(scope="module")
def advised(folder: Path) -> Iterator[str]:
    with local_model(config(folder)) as url:
        yield url


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[str]:
    with local_model(config(folder, generation_config="none")) as url:
        yield url


def ask(url: str, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, Any] = answer.json()
    return parsed


def chat(url: str, **fields: Any) -> tuple[str, int]:
    """The text and its number of tokens."""
    body = {"model": "tiny", "messages": MESSAGES, "ignore_eos": True, "seed": 7, **fields}
    answer = ask(url, "/v1/chat/completions", **body)
    return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]


def test_the_chat_of_openai_leaves_to_the_model_what_a_request_does_not_say(advised: str, plain: str) -> None:
    said = {name: value for name, value in ADVICE.items() if name != "max_new_tokens"}
    want = chat(plain, **said, max_tokens=9)
    assert chat(advised) == want
    assert want[1] == 9
    assert chat(plain, max_tokens=9) != want
    # A request's own values hold, each by itself.
    assert chat(advised, repetition_penalty=1.0) == chat(
        plain, **{**said, "repetition_penalty": 1.0}, max_tokens=9
    )
    assert chat(advised, temperature=0, max_tokens=20) == chat(
        plain, temperature=0, repetition_penalty=4.0, max_tokens=20
    )


def test_a_completion_keeps_its_sixteen_tokens(advised: str, plain: str) -> None:
    body = {"model": "tiny", "prompt": "Hello", "ignore_eos": True, "seed": 7}
    said = {name: value for name, value in ADVICE.items() if name != "max_new_tokens"}
    got, want = ask(advised, "/v1/completions", **body), ask(plain, "/v1/completions", **body, **said)
    assert got["choices"][0]["text"] == want["choices"][0]["text"]
    assert got["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/serving-endpoints/tiny/invocations", {"messages": MESSAGES, **FIXED}),
        ("/mindie/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, **FIXED}),
        ("/v3/chat/completions", {"model": "tiny", "messages": MESSAGES, "temperature": 1.0, **FIXED}),
    ],
)
def test_a_protocol_that_states_its_defaults_keeps_them(
    advised: str, plain: str, path: str, body: dict[str, Any]
) -> None:
    got, want = (ask(url, path, **body)["choices"][0]["message"]["content"] for url in (advised, plain))
    assert got == want


def test_what_fits_no_more_shortens_an_answer_whoever_asked_for_it(folder: Path) -> None:
    with local_model(config(folder, generation_config={"max_new_tokens": 2000})) as url:
        assert chat(url)[1] < 128
        asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2000}
        answer = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60)
        assert answer.status_code == 200
        assert answer.headers["x-clamped-fields"].startswith("max_tokens=")
        assert answer.json()["usage"]["completion_tokens"] < 128


def test_the_list_of_models_shows_what_holds(advised: str, plain: str) -> None:
    def shown(url: str, path: str) -> Any:
        page = httpx.get(f"{url}{path}", timeout=60).json()
        entry = page["data"][0] if "data" in page else page
        return entry["served_entities"][0]["generation_config"]

    for path in ("/v1/models", "/v1/models/tiny"):
        assert shown(advised, path) == ADVICE
        assert shown(plain, path) == {}
