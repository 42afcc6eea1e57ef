"""The unmodified openai package embeds with demo-embed: over a socket, gateway and model in this process."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Iterator

import openai
import pytest

from serve_app.config import ModelConfig
from tests.support.local_model import local_model

MODEL = "demo-embed"
TEXTS = ["What is the capital of Norway?", "Tell me the capital city of Norway.", "Good morning!"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_model(ModelConfig(name=MODEL, dtype="float32", threads=1)) as found:
        yield f"{found}/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as connected:
        yield connected


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def test_embeddings_mean_something(client: openai.OpenAI) -> None:
    # The package asks for base64 by itself and gives floats.
    found = client.embeddings.create(model=MODEL, input=TEXTS)
    assert (found.object, found.model) == ("list", MODEL)
    assert [entry.index for entry in found.data] == [0, 1, 2]
    first, like, unlike = (entry.embedding for entry in found.data)
    assert len(first) == 128
    assert cosine(first, like) > 0.7 > 0.5 > cosine(first, unlike)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 10


def test_float_and_base64_are_the_same_numbers(client: openai.OpenAI) -> None:
    floats = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float")
    by_default = client.embeddings.create(model=MODEL, input=TEXTS[0])
    packed = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="base64")
    assert floats.data[0].embedding == pytest.approx(by_default.data[0].embedding, abs=1e-7)
    raw = packed.data[0].embedding
    assert isinstance(raw, str)
    assert len(base64.b64decode(raw)) == 4 * 128


def test_dimensions_are_the_length(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=32, user="ann")
    assert len(found.data[0].embedding) == 32
    assert math.hypot(*found.data[0].embedding) == pytest.approx(1, abs=1e-5)


def test_token_ids_are_inputs_too(client: openai.OpenAI) -> None:
    one = client.embeddings.create(model=MODEL, input=[5, 6, 7])
    two = client.embeddings.create(model=MODEL, input=[[5, 6, 7], [8]])
    assert (len(one.data), len(two.data)) == (1, 2)
    assert one.data[0].embedding == pytest.approx(two.data[0].embedding, abs=1e-6)


def test_errors_are_the_packages_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions: must be from 1 to 128"):
        client.embeddings.create(model=MODEL, input="a", dimensions=129)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens"):
        client.embeddings.create(model=MODEL, input="word " * 2000)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="a")
    with pytest.raises(openai.BadRequestError, match="task"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi!"}])


async def test_the_asynchronous_client_embeds_many_at_once(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        lone = [await client.embeddings.create(model=MODEL, input=text) for text in TEXTS]
        many = await asyncio.gather(
            *(client.embeddings.create(model=MODEL, input=TEXTS[i % 3]) for i in range(64))
        )
    for number, found in enumerate(many):
        expected = lone[number % 3].data[0].embedding
        assert found.data[0].embedding == pytest.approx(expected, abs=1e-5)
