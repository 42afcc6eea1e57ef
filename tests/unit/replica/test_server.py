"""One model in one process: prompts in, text deltas out."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from serve_app.config import EngineConfig, ModelConfig
from serve_app.errors import InvalidField, PromptTooLong, Unavailable, UnsupportedField
from serve_app.models.errors import ModelLoadError
from serve_app.replica.prompt import PromptEncoder
from serve_app.replica.server import ModelServer
from serve_app.types import EngineRequest, FinishReason, GenerateRequest, Prompt, SamplingParams
from tests.support.sink import Sink
from tests.support.tiny_llama import make_tiny_llama, tiny_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 256
_ids = itertools.count()
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def request(**changes: object) -> GenerateRequest:
    base = GenerateRequest(
        id=f"r{next(_ids)}", model="tiny", prompt=Prompt(text="Hello, world"), sampling=GREEDY
    )
    return replace(base, **changes)


def config(folder: Path, **changes: object) -> ModelConfig:
    return ModelConfig(
        name="tiny",
        source=str(folder),
        dtype="float32",
        attention="reference",
        threads=1,
        engine=EngineConfig(max_model_len=WINDOW, num_blocks=64, block_size=16),
        **changes,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(folder: Path) -> AsyncIterator[ModelServer]:
    server = await ModelServer.start(config(folder), lambda _: None)
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared: ModelServer) -> AsyncIterator[ModelServer]:
    """The shared server; every test leaves it without sequences and blocks."""
    yield shared
    await wait_until(lambda: shared.stats().running == shared.stats().waiting == 0)
    await wait_until(lambda: shared.stats().blocks_used == 0)


async def wait_until(condition: object, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def run(server: ModelServer, wanted: GenerateRequest) -> Sink:
    sink = Sink()
    await server.generate(wanted, sink)
    return sink


async def test_a_stream_gives_the_tokens_that_transformers_gives(server: ModelServer, folder: Path) -> None:
    sink = await run(server, request())
    tokenizer = tiny_tokenizer()
    prompt = tokenizer("Hello, world")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    want = prompt.copy()
    for _ in range(12):
        want.append(int(model(torch.tensor([want])).logits[0, -1].argmax()))
    assert sink.ids() == want[len(prompt) :]
    assert sink.text() == tokenizer.decode(want[len(prompt) :], skip_special_tokens=True)
    last = sink.deltas[-1]
    assert last.finish is FinishReason.LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(prompt), 12)
    assert sink.deltas[0].timing is not None
    assert all(d.timing is None for d in sink.deltas[1:])


async def test_one_piece_and_stream_say_the_same(server: ModelServer) -> None:
    wanted = request(n=2, sampling=replace(GREEDY, temperature=1.0, seed=5), logprobs=2)
    streamed = await run(server, wanted)
    whole = await run(server, replace(wanted, id="whole", stream=False))
    assert len(whole.deltas) == 2
    for delta in whole.deltas:
        assert delta.text == streamed.text(delta.index)
        assert list(delta.token_ids) == streamed.ids(delta.index)
        assert delta.logprobs is not None
        assert len(delta.logprobs) == 12
        assert all(len(position.top) == 2 for position in delta.logprobs)
    assert streamed.ids(0) != streamed.ids(1)


async def test_a_stop_string_cuts_text_usage_and_engine(server: ModelServer) -> None:
    free = await run(server, request(sampling=replace(GREEDY, max_tokens=40)))
    text = free.text()
    stop = text[7:10]
    assert stop
    cut = await run(server, request(sampling=replace(GREEDY, max_tokens=200), stop=(stop,)))
    assert cut.text() == text[: text.index(stop)]
    last = cut.deltas[-1]
    assert (last.finish, last.stop) == (FinishReason.STOP, stop)
    assert last.usage.completion_tokens == len(cut.ids()) < 40
    kept = await run(
        server, request(sampling=replace(GREEDY, max_tokens=200), stop=(stop,), include_stop=True)
    )
    assert kept.text() == text[: text.index(stop) + len(stop)]


async def test_a_stop_token_ends_and_is_not_shown(server: ModelServer) -> None:
    free = await run(server, request())
    token = free.ids()[4]
    cut = await run(server, request(sampling=replace(GREEDY, stop_token_ids=(token,))))
    end = free.ids().index(token)
    assert cut.ids() == free.ids()[: end + 1]
    assert (cut.deltas[-1].finish, cut.deltas[-1].stop) == (FinishReason.STOP, token)
    assert free.text().startswith(cut.text())


async def test_best_of_returns_the_likeliest(server: ModelServer) -> None:
    sampling = replace(GREEDY, temperature=1.0, seed=11)
    candidates = await run(server, request(n=4, sampling=sampling, logprobs=0))
    scores = [
        sum(p.logprob or 0.0 for d in candidates.deltas if d.index == i for p in d.logprobs or ())
        for i in range(4)
    ]
    best = sorted(range(4), key=lambda i: -scores[i])[:2]
    ranked = await run(server, request(n=2, best_of=4, sampling=sampling, stream=False))
    assert [list(d.token_ids) for d in ranked.deltas] == [candidates.ids(i) for i in best]
    assert ranked.deltas[-1].usage.completion_tokens == 24
    assert ranked.deltas[0].logprobs is None


async def test_best_of_ranks_by_length_too_when_asked_to(server: ModelServer) -> None:
    sampling = replace(GREEDY, temperature=1.0, seed=11, stop_token_ids=tuple(range(0, 384, 9)))
    candidates = await run(server, request(n=6, sampling=sampling, logprobs=0))
    sums = [
        sum(p.logprob or 0.0 for d in candidates.deltas if d.index == i for p in d.logprobs or ())
        for i in range(6)
    ]
    lengths = [len(candidates.ids(i)) for i in range(6)]
    orders = []
    for penalty in (None, 0.0, 1.0, -1.0):
        scores = [total / length ** (penalty or 0.0) for total, length in zip(sums, lengths, strict=True)]
        best = sorted(range(6), key=lambda i: -scores[i])[:5]
        fields = {"n": 5, "best_of": 6, "sampling": sampling, "rank_length_penalty": penalty}
        ranked = await run(server, request(**fields, stream=False))
        assert [list(d.token_ids) for d in ranked.deltas] == [candidates.ids(i) for i in best]
        orders.append(best)
    assert orders[0] == orders[1] != orders[2]


async def test_echo_gives_the_prompt_and_its_log_probabilities(server: ModelServer) -> None:
    sink = await run(server, request(echo=True, prompt_logprobs=1, logprobs=1))
    first = sink.deltas[0]
    assert first.prompt_text == "Hello, world"
    assert first.prompt_token_ids is not None
    assert first.prompt_logprobs is not None
    assert [p.token_id for p in first.prompt_logprobs] == list(first.prompt_token_ids)
    assert first.prompt_logprobs[0].logprob is None
    assert all(p.logprob is not None and p.logprob < 0 for p in first.prompt_logprobs[1:])
    assert all(d.prompt_text is None for d in sink.deltas[1:])


async def test_echo_of_a_prompt_that_was_cut_is_what_is_left_of_it(server: ModelServer) -> None:
    whole = await run(server, request(echo=True))
    ids = whole.deltas[0].prompt_token_ids
    assert ids is not None
    cut = (await run(server, request(echo=True, truncate_prompt=2))).deltas[0]
    assert cut.prompt_token_ids == ids[-2:]
    assert cut.prompt_text == tiny_tokenizer().decode(ids[-2:])
    assert (await run(server, request(echo=True, truncate_prompt=100))).deltas[
        0
    ].prompt_text == "Hello, world"


async def test_what_passed_before_the_engine_has_the_request_counts_for_its_time(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float | None] = []
    add = server._driver.add

    def noted(asked: EngineRequest) -> None:
        given.append(asked.timeout_s)
        add(asked)

    encode = PromptEncoder.encode

    async def late(*args: Any) -> list[int]:
        await asyncio.sleep(0.2)
        return await encode(*args)

    monkeypatch.setattr(server._driver, "add", noted)
    monkeypatch.setattr(PromptEncoder, "encode", late)
    await run(server, request(timeout_s=60.0))
    assert given[0] is not None
    assert 0 < given[0] <= 59.8


async def test_echo_of_nothing_more_bills_no_output(server: ModelServer) -> None:
    sink = await run(server, request(echo=True, prompt_logprobs=0, sampling=replace(GREEDY, max_tokens=0)))
    [delta] = sink.deltas
    assert (delta.text, delta.token_ids, delta.finish) == ("", (), FinishReason.LENGTH)
    assert delta.prompt_text == "Hello, world"
    assert delta.usage.completion_tokens == 0


async def test_chat_tokens_and_fill_in_the_middle_prompts_work(server: ModelServer) -> None:
    chat = await run(server, request(prompt=Prompt(messages=({"role": "user", "content": "Hi"},))))
    assert chat.deltas[-1].usage.prompt_tokens == len(
        tiny_tokenizer()("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    )
    ids = await run(server, request(prompt=Prompt(token_ids=(20, 21, 22))))
    assert ids.deltas[-1].usage.prompt_tokens == 3
    gap = await run(server, request(prompt=Prompt(text="def f(", suffix=" return x")))
    assert len(gap.ids()) == 12


@pytest.mark.parametrize(
    ("changes", "kind", "param"),
    [
        ({"prompt": Prompt(text="")}, InvalidField, "prompt"),
        ({"prompt": Prompt(token_ids=(10**6,))}, InvalidField, "prompt"),
        ({"prompt": Prompt(token_ids=(5,) * WINDOW)}, PromptTooLong, "prompt"),
        ({"sampling": replace(GREEDY, max_tokens=WINDOW)}, PromptTooLong, "max_tokens"),
        ({"sampling": replace(GREEDY, logit_bias=((9999, 1.0),))}, InvalidField, "logit_bias"),
    ],
)
async def test_a_bad_request_is_refused_before_its_first_delta(
    server: ModelServer, changes: dict[str, object], kind: type[Exception], param: str
) -> None:
    sink = Sink()
    with pytest.raises(kind) as caught:
        await server.generate(request(**changes), sink)
    assert caught.value.param == param  # type: ignore[attr-defined]
    assert not sink.steps


async def test_cancelling_frees_the_sequence_and_leaves_neighbours_alone(server: ModelServer) -> None:
    alone = await run(server, request())
    long = replace(request(id="long"), sampling=replace(GREEDY, max_tokens=200))
    sink = Sink()
    call = asyncio.create_task(server.generate(long, sink))
    neighbour = asyncio.create_task(run(server, request(id="near")))
    await wait_until(lambda: sink.steps)
    call.cancel()
    assert (await neighbour).ids() == alone.ids()
    with pytest.raises(asyncio.CancelledError):
        await call
    await wait_until(lambda: server.stats().running == 0)


async def test_a_deadline_ends_a_request_with_an_error_delta(server: ModelServer) -> None:
    many = [replace(request(id=f"x{i}"), sampling=replace(GREEDY, max_tokens=200)) for i in range(3)]
    sinks = [Sink() for _ in many]
    calls = [
        asyncio.create_task(server.generate(replace(wanted, timeout_s=0.15), sink))
        for wanted, sink in zip(many, sinks, strict=True)
    ]
    done = await asyncio.gather(*calls, return_exceptions=True)
    for result, sink in zip(done, sinks, strict=True):
        assert result is None
        assert sink.deltas[-1].finish is FinishReason.ERROR
        assert sink.deltas[-1].error is not None
        assert sink.deltas[-1].error.kind == "DeadlineExceeded"


async def test_bad_words_never_appear(server: ModelServer) -> None:
    free = await run(server, request(sampling=replace(GREEDY, max_tokens=30)))
    tokenizer = tiny_tokenizer()
    word = next(text for i in free.ids() if (text := tokenizer.decode([i])).isascii() and text.isalpha())
    assert word in free.text()
    banned = await run(server, request(bad_words=(word,), sampling=replace(GREEDY, max_tokens=30)))
    assert not {tokenizer.encode(word)[0]} & set(banned.ids())


async def test_one_message_a_step_carries_all_requests_of_a_sink(server: ModelServer) -> None:
    sink = Sink()
    wanted = [replace(request(id=f"m{i}")) for i in range(4)]
    await asyncio.gather(*(server.generate(w, sink) for w in wanted))
    assert max(len(step) for step in sink.steps) > 1
    assert len(sink.steps) < len(sink.deltas)


async def test_a_stopped_server_refuses_and_open_requests_end(folder: Path) -> None:
    server = await ModelServer.start(config(folder), lambda _: None)
    sink = Sink()
    call = asyncio.create_task(server.generate(request(sampling=replace(GREEDY, max_tokens=200)), sink))
    await wait_until(lambda: sink.steps)
    await server.stop()
    await call
    assert sink.deltas[-1].finish in (FinishReason.ERROR, FinishReason.LENGTH)
    with pytest.raises(Unavailable):
        await server.generate(request(), Sink())
    with pytest.raises(Unavailable):
        server.check_health()


async def test_a_model_without_a_template_says_so(folder: Path, tmp_path: Path) -> None:
    bare = make_tiny_llama(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    lines: list[str] = []
    server = await ModelServer.start(config(bare), lines.append)
    assert any("no chat template" in line and "`chat_template`" in line for line in lines)
    assert not server.info.has_chat_template
    with pytest.raises(UnsupportedField) as caught:
        await server.generate(request(prompt=Prompt(messages=({"role": "user", "content": "x"},))), Sink())
    assert caught.value.param == "messages"
    await server.stop()


async def test_a_broken_template_is_refused_at_load_with_the_way_out(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "mine.jinja"
    broken.write_text("{% for m in messages %}{{ m['content'] }")
    with pytest.raises(ModelLoadError, match=r"mine\.jinja cannot be used: .*; mend it, or name a file"):
        await ModelServer.start(config(folder, chat_template=broken), lambda _: None)
