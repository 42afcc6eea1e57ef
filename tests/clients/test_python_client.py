"""Generation over Serve handles from Python, without HTTP. Real Ray, fake engine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ray import serve

from serve_app.config import ModelConfig
from serve_app.deployments.client import AsyncClient
from serve_app.deployments.model.deployment import model_deployment
from serve_app.endpoints.rules import app_name
from serve_app.errors import InvalidField, ModelNotFound
from serve_app.types import EmbedRequest, FinishReason
from tests.support.fake_server import FakeServer
from tests.support.ray_cluster import Cluster

# One event loop for all: a Serve handle belongs to the loop that first used it.
pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

PLAIN_SCRIPT = """
import sys
import ray
from serve_app import Client, EmbedRequest

ray.init(address=sys.argv[1], log_to_driver=False)
client = Client("spoken-to")
print("".join(delta.text for delta in client.stream(text="tokens=4")))
print(client.generate(messages=[{"role": "user", "content": "tokens=2"}]).text)
print(client.info().name)
print(client.ask(EmbedRequest(id="", inputs=("x",))).prompt_tokens)
"""


@pytest.fixture(scope="module")
def model(ray_cluster: Cluster) -> Iterator[None]:
    config = ModelConfig(name="spoken-to")
    app = model_deployment(config).bind(config, FakeServer.start)
    serve.run(app, name=app_name(config.name), route_prefix=None)
    yield
    serve.delete(app_name(config.name))


async def test_a_handle_streams_tokens_as_they_are_made(model: None) -> None:
    arrived = [delta.text async for delta in AsyncClient("spoken-to").stream(text="tokens=5")]
    assert arrived == ["0 ", "1 ", "2 ", "3 ", "4 "]


async def test_choices_are_whole_and_separate(model: None) -> None:
    answers = await AsyncClient("spoken-to").choices(text="tokens=3", n=2)
    assert [answer.text for answer in answers] == ["0 1 2 ", "0 1 2 "]
    assert answers[0].finish is FinishReason.LENGTH
    assert answers[0].usage.completion_tokens == 6


async def test_a_refusal_is_the_error_of_the_replica(model: None) -> None:
    with pytest.raises(InvalidField):
        await AsyncClient("spoken-to").generate(text="refuse=InvalidField")


async def test_a_question_is_answered_or_refused(model: None) -> None:
    client = AsyncClient("spoken-to")
    found = await client.ask(EmbedRequest(id="", inputs=("one", "two")))
    assert found.vectors.shape == (2, 1)
    with pytest.raises(InvalidField):
        await client.ask(EmbedRequest(id="", inputs=("refuse=InvalidField",)))


async def test_one_of_several_versions_is_spoken_to(model: None) -> None:
    config = ModelConfig(name="spoken-to", version="2")
    name = app_name(config.name, config.version)
    serve.run(model_deployment(config).bind(config, FakeServer.start), name=name, route_prefix=None)
    try:
        answer = await AsyncClient("spoken-to", "2").generate(text="tokens=2")
        assert answer.text == "0 1 "
    finally:
        serve.delete(name)
    with pytest.raises(ModelNotFound, match="version '3' of 'spoken-to'"):
        AsyncClient("spoken-to", "3")


async def test_an_unknown_model_is_not_found(model: None) -> None:
    with pytest.raises(ModelNotFound):
        AsyncClient("never-heard-of")


async def test_a_plain_script_streams_without_an_event_loop(model: None, ray_cluster: Cluster) -> None:
    script = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PLAIN_SCRIPT, ray_cluster.gcs_address],
        env={**os.environ, "RAY_SERVE_THROUGHPUT_OPTIMIZED": "0"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert script.stdout.splitlines() == ["0 1 2 3 ", "0 1 ", "spoken-to", "3"], script.stderr[-2000:]
