"""Requests that schemathesis makes of /openapi.json, to a live server: no 500, and no undescribed answer.

Half of the bodies are schemathesis' own; the others are the document's examples with a few of its fields, so
that answers of every kind are seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import SchemathesisError
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serve_app.config import EngineConfig, ModelConfig
from tests.support.described import Document
from tests.support.fakes_backend import FakeBackend, embedder_info, model_info
from tests.support.gateway import directory_of, fake_app
from tests.support.local_model import local_model, running_app

CHAT, TEXT, VECTORS = "demo", "text", "embedder"
BACKEND: Final = FakeBackend(infos=[model_info(CHAT), embedder_info(VECTORS)])
ENDPOINTS: Final = [
    {"name": CHAT},
    {"name": TEXT, "task": "llm/v1/completions", "served_entities": [{"model": CHAT}]},
    {"name": VECTORS, "task": "llm/v1/embeddings"},
]
APP: Final = fake_app(BACKEND, directory=directory_of(BACKEND, ENDPOINTS))
DOCUMENT: Final = Document(APP.openapi())
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
OPERATIONS: Final = {
    (each := result.ok()).label: each
    for result in schemathesis.openapi.from_dict(DOCUMENT.document).get_all_operations()
}
# The same routes below other bases, and of a version, are asked by the full count alone.
TWICE: Final = (
    "/v3/v1",
    "/v3/chat",
    "/v3/completions",
    "/v3/embeddings",
    "/v3/models",
    "/versions/",
    "/v1/t",
    "/v1/d",
)
FEW: Final = [label for label in OPERATIONS if not any(same in label for same in TWICE)]


@pytest.fixture(scope="module")
def fake_url() -> Iterator[str]:
    with running_app(APP) as url:
        yield url


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    """The demo model, with room for little: requests that ask for much are refused."""
    engine = EngineConfig(max_sequences=8, max_waiting=64, block_size=16, num_blocks=64, max_model_len=256)
    with local_model(ModelConfig(name="demo-chat", dtype="float32", threads=1, engine=engine)) as url:
        yield url


@pytest.mark.parametrize("label", FEW)
def test_a_few_requests(label: str, fake_url: str) -> None:
    ask(label, fake_url, (CHAT, TEXT, VECTORS), examples=2)


@pytest.mark.full
@pytest.mark.parametrize("label", OPERATIONS)
def test_many_requests(label: str, fake_url: str) -> None:
    ask(label, fake_url, (CHAT, TEXT, VECTORS), examples=100)


@pytest.mark.full
@pytest.mark.parametrize("label", OPERATIONS)
def test_many_requests_to_the_demo_model(label: str, model_url: str) -> None:
    ask(label, model_url, ("demo-chat",), examples=40)


def ask(label: str, url: str, models: tuple[str, ...], examples: int) -> None:
    """`examples` requests of an operation, the same ones each time."""
    operation = OPERATIONS[label]
    path = label.partition(" ")[2]
    listed = example_bodies(label)

    @seed(0)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def one(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy())
        model = data.draw(st.sampled_from([*models, None]))
        if listed and data.draw(st.booleans()):
            given_ = case.body if isinstance(case.body, dict) else {}
            kept = data.draw(st.lists(st.sampled_from(sorted(given_)), max_size=2)) if given_ else []
            case.body = {**data.draw(st.sampled_from(listed)), **{name: given_[name] for name in kept}}
        if model is not None:
            name_model(case, model)
        give_time(case)
        answer = case.call(base_url=url, timeout=60)
        case.validate_response(answer, checks=CHECKS)
        told = answer.headers.get("content-type", [""])[0]
        method = label.partition(" ")[0]
        problems = list(DOCUMENT.problems(method, path, answer.status_code, told, answer.content))
        assert problems == [], f"{case.body!r:.1000}"

    try:
        one()
    except SchemathesisError as error:  # of the generator, not of an answer
        pytest.fail(str(error))


def give_time(case: Any) -> None:
    """A request that sets itself no time gets 504, as it should."""
    asked = case.body.get("timeout") if isinstance(case.body, dict) else None
    if isinstance(asked, float | int) and 0 < asked < 1:
        case.body["timeout"] = 1 + asked


def name_model(case: Any, model: str) -> None:
    """Ask a model that is there, wherever the request names one."""
    for name in ("model", "endpoint", "name"):
        if name in case.path_parameters:
            case.path_parameters[name] = model
    if "version" in case.path_parameters:
        case.path_parameters["version"] = "1"
    if isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = model
    if case.headers:
        case.headers.pop("X-Served-Entity", None)


def example_bodies(label: str) -> list[dict[str, Any]]:
    method, _, path = label.partition(" ")
    operation = DOCUMENT.document["paths"][path][method.lower()]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return [each["value"] for each in content.get("examples", {}).values()]
