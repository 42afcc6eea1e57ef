"""Tokens, texts and watermarks of a real model's tokenizer."""

from typing import Any

import pytest
import pytest_asyncio

from serve_app.channel.calls import decode_question, decode_reply, encode_question, encode_reply
from serve_app.errors import InvalidField, PromptTooLong, UnsupportedField
from serve_app.limits import MAX_PROMPT_CHARS, MAX_QUESTION_CHARS, MAX_QUESTION_TOKENS
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import (
    DetectRequest,
    DetokenizeRequest,
    EmbedRequest,
    GenerateRequest,
    Prompt,
    SamplingParams,
    Templating,
    TokenizeRequest,
)
from tests.support.replica import model_server
from tests.support.sink import Sink
from tests.support.tiny_llama import tiny_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = ({"role": "user", "content": "Hello 😀"},)
KEY = 77_777


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder):
    engine = {"max_model_len": 1024, "num_blocks": 80, "watermark_key": KEY}
    async with model_server(engine, name="tiny", source=str(folder), attention="reference") as made:
        yield made


async def ask(server, question):
    """As a gateway does: both ways as bytes."""
    reply = await server.ask(decode_question(encode_question(question)))
    return decode_reply(question, encode_reply(reply))


async def tokens_of(server, **fields):
    texts = fields.pop("texts", False)
    special = fields.pop("add_special_tokens", True)
    return await ask(
        server,
        TokenizeRequest(id="q", prompt=Prompt(**fields), texts=texts, add_special_tokens=special),
    )


@pytest.mark.parametrize("text", ["Hello, world", "", "<|im_end|> x", "日本語 😀"])
async def test_a_texts_tokens_are_transformers_own(server, text):
    assert list((await tokens_of(server, text=text)).token_ids) == tiny_tokenizer()(text)["input_ids"]


async def test_a_chats_tokens_are_those_of_its_prompt(server):
    expected = tiny_tokenizer().apply_chat_template(
        list(MESSAGES), add_generation_prompt=True, return_dict=False
    )
    assert list((await tokens_of(server, messages=MESSAGES)).token_ids) == expected
    closed = await tokens_of(server, messages=MESSAGES, templating=Templating(add_generation_prompt=False))
    assert list(closed.token_ids) == expected[: len(closed.token_ids)]
    assert len(closed.token_ids) < len(expected)


async def test_texts_of_tokens(server):
    plain, shown = await tokens_of(server, text="Hi 😀"), await tokens_of(server, text="Hi 😀", texts=True)
    assert plain.texts is None
    assert len(shown.texts) == len(shown.token_ids)
    assert shown.texts[0].startswith("H")
    assert "�" in "".join(shown.texts)  # the bytes of the emoji are tokens of their own


@pytest.mark.parametrize("text", ["Hello, world", "日本語 😀<|im_end|>", "x" * 5_000])
async def test_what_was_tokenized_comes_back(server, text):
    ids = (await tokens_of(server, text=text, add_special_tokens=False)).token_ids
    assert (await ask(server, DetokenizeRequest(id="q", token_ids=ids))).text == text


async def test_no_tokens_are_no_text(server):
    assert (await ask(server, DetokenizeRequest(id="q", token_ids=()))).text == ""


async def test_tokens_outside_the_vocabulary_are_refused(server):
    await ask(server, DetokenizeRequest(id="q", token_ids=(server.info.vocab_size - 1,)))
    with pytest.raises(InvalidField, match="tokens: must hold ids below 384") as caught:
        await ask(server, DetokenizeRequest(id="q", token_ids=(5, server.info.vocab_size)))
    assert caught.value.param == "tokens"


async def test_a_text_of_tokens_is_bounded(server):
    longest = max(range(6, 384), key=lambda i: len(tiny_tokenizer().decode([i])))
    chars = len(tiny_tokenizer().decode([longest]))
    with pytest.raises(InvalidField, match="tokens: their text"):
        await ask(server, DetokenizeRequest(id="q", token_ids=(longest,) * (MAX_PROMPT_CHARS // chars + 2)))


async def test_prompts_are_bounded(server):
    with pytest.raises(PromptTooLong):
        await tokens_of(server, text="x" * (MAX_PROMPT_CHARS + 1))


async def test_an_answer_holds_so_many_tokens(server):
    with pytest.raises(PromptTooLong, match=f"prompt: has {MAX_QUESTION_TOKENS + 1} tokens; an answer holds"):
        await tokens_of(server, text="\n" * (MAX_QUESTION_TOKENS + 1), add_special_tokens=False)
    at_most = await tokens_of(server, text="\n" * MAX_QUESTION_TOKENS, add_special_tokens=False)
    assert len(at_most.token_ids) == MAX_QUESTION_TOKENS
    many = {"role": "user", "content": "x" * (MAX_QUESTION_CHARS + 1)}
    with pytest.raises(PromptTooLong, match=f"messages: at most {MAX_QUESTION_CHARS} characters"):
        await tokens_of(server, messages=(many,))


@pytest.mark.parametrize("space", [" ", "\n", "x"])
@pytest.mark.parametrize("kind", ["text", "chat"])
async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(server, monkeypatch, space, kind):
    text = space * (MAX_PROMPT_CHARS - 1_000)
    prompt = Prompt(text=text) if kind == "text" else Prompt(messages=({"role": "user", "content": text},))
    seen: list[Any] = []
    whole = Tokenizer._encode_batch

    def encode(self, texts, **options):
        seen.extend(map(len, texts))
        return whole(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "_encode_batch", encode)
    with pytest.raises(PromptTooLong, match=r"maximum context length is 1024 tokens. .* at least \d+ tokens"):
        await server.generate(GenerateRequest(id=f"{kind}{ord(space)}", model="tiny", prompt=prompt), Sink())
    assert not any(size > 10_000 for size in seen)


async def test_a_generator_does_not_embed(server):
    with pytest.raises(UnsupportedField):
        await server.ask(EmbedRequest(id="q", inputs=("x",)))


async def generated(server, *, watermark):
    sampling = SamplingParams(max_tokens=400, seed=5, ignore_eos=True, watermark=watermark)
    sink = Sink()
    await server.generate(
        GenerateRequest(id=f"w{watermark}", model="tiny", prompt=Prompt(text="Hello"), sampling=sampling),
        sink,
    )
    return sink.text()


async def test_the_operators_own_watermark_is_found_and_no_other(server):
    marked = await ask(server, DetectRequest(id="q", text=await generated(server, watermark=True)))
    assert marked.z_score > 4
    assert marked.green_fraction > 0.6
    assert marked.num_tokens > 100
    plain = await ask(server, DetectRequest(id="q", text=await generated(server, watermark=False)))
    assert abs(plain.z_score) < 4
    empty = await ask(server, DetectRequest(id="q", text="H"))
    assert (empty.z_score, empty.green_fraction, empty.num_tokens) == (0.0, 0.0, 0)
