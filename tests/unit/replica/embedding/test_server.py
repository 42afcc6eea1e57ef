"""A served embedder against transformers run directly: alone, in any batch, for every kind of model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from serve_app.config import EmbeddingConfig, EngineConfig, ModelConfig
from serve_app.engine.embedding.pooling import Vectors
from serve_app.errors import (
    DeadlineExceeded,
    InvalidField,
    PromptTooLong,
    ServeError,
    Unavailable,
    UnsupportedField,
)
from serve_app.models.catalogue import demo_folder
from serve_app.models.errors import ModelLoadError
from serve_app.replica import served_model
from serve_app.replica.embedding.server import EmbeddingServer
from serve_app.replica.server import ModelServer
from serve_app.types import (
    DetokenizeRequest,
    Embeddings,
    EmbedRequest,
    GenerateRequest,
    Prompt,
    Question,
    TokenizeRequest,
)
from tests.support.tiny_encoders import WINDOW, WORDS, save, tiny

CLS = {"pooling_mode_cls_token": True}
MEAN = {"pooling_mode_mean_tokens": True}
LAST = {"pooling_mode_lasttoken": True}
# How each is commonly laid out: BGE, sentence RoBERTas, MPNet, Qwen3-Embedding, and one without any files.
LAYOUTS: dict[str, tuple[dict[str, Any] | None, bool, str]] = {
    "bert": (CLS, True, "cls"),
    "xlm-roberta": (MEAN, True, "mean"),
    "mpnet": (MEAN, False, "mean"),
    "modernbert": (None, False, "mean"),
    "qwen3": (LAST, True, "last"),
    "mistral": (None, False, "last"),
}


@asynccontextmanager
async def serving(folder: Path, **fields: Any) -> AsyncIterator[EmbeddingServer]:
    settings = {"name": "tiny", "source": str(folder), "device": "cpu", "dtype": "float32", "threads": 1}
    server = await served_model.start(ModelConfig(**{**settings, **fields}), lambda _: None)
    assert isinstance(server, EmbeddingServer)
    try:
        yield server
    finally:
        await server.stop()


async def embed(server: EmbeddingServer, *inputs: Any, **fields: Any) -> Vectors:
    return vectors_of(await server.ask(EmbedRequest(id="e", inputs=inputs, **fields)))


def vectors_of(found: Embeddings) -> Vectors:
    assert found.vectors.dtype == "FP32"
    return np.frombuffer(found.vectors.data, "<f4").reshape(found.vectors.shape)


def cosine(a: Vectors, b: Vectors) -> float:
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def directly(folder: Path, texts: list[str], pooling: str) -> Vectors:
    """One text at a time, through transformers alone."""
    tokenizer, module = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    with torch.inference_mode():
        for text in texts:
            states = module(input_ids=tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state[0]
            pooled = {"cls": states[0], "mean": states.mean(0), "last": states[-1]}[pooling]
            rows.append(pooled.float().numpy())
    return np.stack(rows)


def some_texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.choice((1, 2, 5, 5, 30, WINDOW - 2)))) for _ in range(count)]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_an_input_has_transformers_vector_alone_and_in_any_batch(kind: str, tmp_path: Path) -> None:
    layout, normalize, pooling = LAYOUTS[kind]
    folder = save(tiny(kind), tmp_path, pooling=layout, normalize=normalize)
    texts = some_texts(12)
    expected = directly(folder, texts, pooling)
    async with serving(folder) as server:
        together = await embed(server, *texts)
        for text, whole, wanted in zip(texts, together, expected, strict=True):
            [lone] = await embed(server, text)
            assert cosine(lone, wanted) > 0.99999
            assert cosine(lone, whole) > 0.99999
        lengths = np.linalg.norm(together, axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == normalize
    if not normalize:
        np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-5)


async def test_demo_embed_is_what_transformers_makes_of_it() -> None:
    texts = ["What is the capital of France?", "hi", "7 + 5", "Tell me a story about a brave fox. " * 6]
    expected = directly(demo_folder("demo-embed"), texts, "mean")
    async with serving(demo_folder("demo-embed")) as server:
        assert server.info.dimensions == 128
        found = await embed(server, *texts)
        for text, row, wanted in zip(texts, found, expected, strict=True):
            [lone] = await embed(server, text)
            assert min(cosine(row, wanted), cosine(lone, wanted)) > 0.99999
            assert abs(np.linalg.norm(lone) - 1) < 1e-5


async def test_64_concurrent_mixed_requests_get_what_they_get_alone(tmp_path: Path) -> None:
    folder = save(tiny("bert"), tmp_path, pooling=MEAN, normalize=True)
    requests = [some_texts(1 + i % 5, seed=i) for i in range(64)]
    small = EngineConfig(max_step_tokens=100, max_sequences=8)
    async with serving(folder, engine=small) as server:
        lone = [await embed(server, *texts) for texts in requests]
        crowd = await asyncio.gather(*(embed(server, *texts) for texts in requests))
        server.check_health()
    for a, b in zip(lone, crowd, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


async def test_a_model_of_the_hub_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tiny("bert"), tmp_path, pooling=MEAN)
    fetched: list[tuple[str, str | None]] = []

    def fetch(repo: str, revision: str | None, progress: Any) -> tuple[Path, str]:
        fetched.append((repo, revision))
        return folder, "0" * 40

    monkeypatch.setattr("serve_app.models.hub.fetch", fetch)
    async with serving(folder, source="org/tiny", revision="main") as server:
        assert server.info.name == "tiny"
    assert fetched == [("org/tiny", "main")]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddingServer]:
    folder = save(tiny("bert"), tmp_path, pooling=MEAN, normalize=True)
    async with serving(folder) as running:
        yield running


async def test_info_says_that_it_embeds(server: EmbeddingServer) -> None:
    info = server.info
    assert (info.dimensions, info.context_window, info.has_chat_template) == (32, WINDOW, False)


async def test_prompt_tokens_are_all_that_the_model_sees(server: EmbeddingServer) -> None:
    found = await server.ask(EmbedRequest(id="e", inputs=("w1 w2", (5, 6, 7)), instruction="w9"))
    assert found.prompt_tokens == (1 + 1 + 2 + 1) + 3


async def test_token_ids_are_taken_as_they_are(server: EmbeddingServer) -> None:
    ids = (0, 3 + 4, 3 + 5, 2)  # `<s> w4 w5 </s>`
    by_ids, by_text = await embed(server, ids, "w4 w5")
    np.testing.assert_allclose(by_ids, by_text, atol=1e-6)


@pytest.mark.parametrize("dimensions", [1, 7, 32])
async def test_dimensions_shorten_and_normalise_anew(server: EmbeddingServer, dimensions: int) -> None:
    [whole] = await embed(server, "w1 w2 w3")
    [head] = await embed(server, "w1 w2 w3", dimensions=dimensions)
    wanted = whole[:dimensions] / np.linalg.norm(whole[:dimensions])
    np.testing.assert_allclose(head, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("instruction", "same_as"),
    [(None, "w1"), ("", "w1"), ("w7", "w7 w1"), ("w7 ", "w7 w1"), ("w7\n", "w7 w1")],
)
async def test_an_instruction_goes_before_every_text(
    server: EmbeddingServer, instruction: str | None, same_as: str
) -> None:
    found = await embed(server, "w1", "w2", instruction=instruction)
    [wanted] = await embed(server, same_as)
    np.testing.assert_allclose(found[0], wanted, atol=1e-6)


async def test_an_instruction_template_is_the_operators(tmp_path: Path) -> None:
    folder = save(tiny("bert"), tmp_path, pooling=MEAN)
    template = EmbeddingConfig(instruction_template="w20 {instruction} w21 {input} w22", normalize=True)
    async with serving(folder, embedding=template) as server:
        [found] = await embed(server, "w1", instruction="w2")
        [plain] = await embed(server, "w20 w2 w21 w1 w22")
        np.testing.assert_allclose(found, plain, atol=1e-6)
        # What a client writes is never a placeholder.
        [tricky] = await embed(server, "{instruction}", instruction="w2")
        [wanted] = await embed(server, "w20 w2 w21 w999 w22")
        np.testing.assert_allclose(tricky, wanted, atol=1e-6)


async def test_the_models_own_prompt_stands_where_no_instruction_does(tmp_path: Path) -> None:
    files = {"config_sentence_transformers.json": {"prompts": {"d": "w30 "}, "default_prompt_name": "d"}}
    folder = save(tiny("bert"), tmp_path, pooling=MEAN, files=files)
    async with serving(folder) as server:
        found = await server.ask(EmbedRequest(id="e", inputs=("w1",)))
        assert found.prompt_tokens == 4
        instructed = await server.ask(EmbedRequest(id="e", inputs=("w1",), instruction="w30"))
        np.testing.assert_allclose(vectors_of(found), vectors_of(instructed), atol=1e-6)


async def test_a_pooling_without_its_prompt_takes_no_instruction(tmp_path: Path) -> None:
    folder = save(tiny("bert"), tmp_path, pooling={**MEAN, "include_prompt": False})
    async with serving(folder) as server:
        with pytest.raises(UnsupportedField, match="instruction"):
            await embed(server, "w1", instruction="w2")


async def test_pooling_and_normalisation_can_be_set(tmp_path: Path) -> None:
    folder = save(tiny("bert"), tmp_path, pooling=MEAN, normalize=True)
    async with serving(folder, embedding=EmbeddingConfig(pooling="cls", normalize=False)) as server:
        np.testing.assert_allclose(
            await embed(server, "w1 w2"), directly(folder, ["w1 w2"], "cls"), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"inputs": ()}, InvalidField, "input: must hold at least one text"),
        ({"inputs": ((),)}, InvalidField, "at least one token"),
        ({"inputs": ((0, 64),)}, InvalidField, "token ids must be from 0 to 63"),
        ({"inputs": ((-1,),)}, InvalidField, "token ids must be from 0 to 63"),
        ({"inputs": ("w1 " * WINDOW,)}, PromptTooLong, f"is {WINDOW} tokens.* {WINDOW + 2} tokens"),
        ({"inputs": ((3,) * (WINDOW + 1),)}, PromptTooLong, f"is {WINDOW} tokens.* {WINDOW + 1} tokens"),
        ({"dimensions": 0}, InvalidField, "dimensions: must be from 1 to 32"),
        ({"dimensions": 33}, InvalidField, "dimensions: must be from 1 to 32"),
        ({"inputs": ("\ud800",)}, InvalidField, "input: must be valid Unicode"),
        ({"timeout_s": 0.0}, DeadlineExceeded, "timeout"),
    ],
    ids=str,
)
async def test_a_bad_request_is_told_its_field_and_range(
    server: EmbeddingServer, fields: dict[str, Any], error: type[ServeError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await server.ask(EmbedRequest(**{"id": "e", "inputs": ("w1",), **fields}))
    assert len(await embed(server, "w1")) == 1


async def test_truncation_keeps_the_closing_token(server: EmbeddingServer) -> None:
    found = await embed(server, "w1 " * 100, (3,) * 100, truncate=True)
    short = await embed(server, "w1 " * (WINDOW - 2), (3,) * WINDOW)
    np.testing.assert_allclose(found, short, atol=1e-6)


async def test_a_text_is_the_tokens_that_are_embedded(server: EmbeddingServer) -> None:
    """So many are charged, and its closing token stays where it is cut."""
    told = await server.ask(TokenizeRequest(id="t", prompt=Prompt(text="w1 w2 w3"), texts=True))
    charged = await server.ask(EmbedRequest(id="e", inputs=("w1 w2 w3",)))
    assert len(told.token_ids) == len(told.texts or ()) == charged.prompt_tokens == 5
    bare = await server.ask(TokenizeRequest(id="t", prompt=Prompt(text="w1 w2 w3"), add_special_tokens=False))
    assert told.token_ids[1:-1] == bare.token_ids
    for longest, left in ((4, (*told.token_ids[:3], told.token_ids[-1])), (1, told.token_ids[:1]), (9, None)):
        cut = await server.ask(TokenizeRequest(id="t", prompt=Prompt(text="w1 w2 w3"), longest=longest))
        assert cut.token_ids == (told.token_ids if left is None else left)
    text = await server.ask(DetokenizeRequest(id="d", token_ids=bare.token_ids))
    assert text.text == "w1 w2 w3"


@pytest.mark.parametrize(
    ("question", "error", "words"),
    [
        (TokenizeRequest(id="t", prompt=Prompt(messages=({"role": "user", "content": "x"},))),
         UnsupportedField, "messages: this model embeds texts"),
        (TokenizeRequest(id="t", prompt=Prompt(text="\ud800")), InvalidField, "valid Unicode"),
        (DetokenizeRequest(id="d", token_ids=(64,)), InvalidField, "tokens: must hold ids below 64"),
    ],
)  # fmt: skip
async def test_a_bad_question_about_tokens_is_told_its_field(
    server: EmbeddingServer, question: Question[Any], error: type[ServeError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await server.ask(question)


async def test_other_work_is_refused(server: EmbeddingServer) -> None:
    with pytest.raises(UnsupportedField, match="embeds"):
        await server.generate(GenerateRequest(id="g", model="tiny", prompt=Prompt(text="w1")), _Nobody())
    with pytest.raises(UnsupportedField, match="no answer"):
        await server.ask(Question(id="q"))


class _Nobody:
    def send(self, deltas: list[Any]) -> None:
        raise AssertionError("an embedder sent text")


async def test_an_embedder_is_not_divided() -> None:
    config = ModelConfig(name="demo-embed", tensor_parallel=2)
    with pytest.raises(ModelLoadError, match="tensor_parallel is for models that generate"):
        await served_model.start(config, lambda _: None)


async def test_a_generator_embeds_nothing() -> None:
    config = ModelConfig(name="demo-chat", threads=1, engine=EngineConfig(num_blocks=16, max_model_len=128))
    server = await served_model.start(config, lambda _: None)
    try:
        assert isinstance(server, ModelServer)
        assert server.info.dimensions is None
        with pytest.raises(UnsupportedField, match="embed"):
            await server.ask(EmbedRequest(id="e", inputs=("a",)))
    finally:
        await server.stop()


async def test_a_cancelled_request_leaves_the_others_alone(server: EmbeddingServer) -> None:
    tasks = [asyncio.ensure_future(embed(server, *some_texts(20, seed=i))) for i in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [len(each) for each in outcomes[1:] if not isinstance(each, BaseException)] == [20] * 3


async def test_after_its_end_it_is_unavailable(tmp_path: Path) -> None:
    folder = save(tiny("bert"), tmp_path)
    async with serving(folder) as server:
        await server.stop()
        with pytest.raises(Unavailable):
            await embed(server, "w1")
