"""huggingface_hub's client of Text Generation Inference, unmodified, on the gateway over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from huggingface_hub import AsyncInferenceClient

from tests.clients.demo_server import demo_server

PROMPT = "The capital of Spain is"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with demo_server() as url:
        yield url


@pytest.mark.parametrize("path", ["", "/generate"])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_text_is_generated_with_its_details(url: str, path: str) -> None:
    client = AsyncInferenceClient(model=f"{url}{path}")
    assert await client.text_generation(PROMPT, max_new_tokens=8) == " Madrid."
    found = await client.text_generation(PROMPT, max_new_tokens=8, details=True, decoder_input_details=True)
    assert found.generated_text == " Madrid."
    assert found.details is not None
    assert found.details.finish_reason == "eos_token"
    assert "".join(token.text for token in found.details.prefill) == PROMPT
    assert found.details.generated_tokens == len(found.details.tokens)


@pytest.mark.parametrize("path", ["", "/generate_stream"])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_text_is_streamed(url: str, path: str) -> None:
    client = AsyncInferenceClient(model=f"{url}{path}")
    stream = await client.text_generation(PROMPT, max_new_tokens=8, stream=True)
    assert "".join([text async for text in stream]).startswith(" Madrid.")
    events = [
        event
        async for event in await client.text_generation(PROMPT, max_new_tokens=8, stream=True, details=True)
    ]
    assert events[-1].generated_text == " Madrid."
    assert events[-1].details is not None
    assert events[-1].details.input_length > 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_form_is_kept_and_a_wrong_field_is_named(url: str) -> None:
    client = AsyncInferenceClient(model=url)
    form = {"type": "json", "value": {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]}}
    assert "7" in await client.text_generation(PROMPT, max_new_tokens=20, grammar=form)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="top_p: must be a number"):
        await client.text_generation(PROMPT, max_new_tokens=8, top_p=2)
