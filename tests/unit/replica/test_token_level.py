"""What token-level clients bring and get: logits, drafts, tables, stop sequences, performance numbers."""

from __future__ import annotations

import numpy as np
import pytest

from serve_app.errors import InvalidField
from serve_app.replica.server import ModelServer
from serve_app.types import Beam, Draft, FinishReason, Prompt, PromptTable, SamplingParams, Tensor
from tests.support.sink import Sink
from tests.unit.replica.test_server import GREEDY, request, server, shared

__all__ = ["server", "shared"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCAB, WIDTH = 384, 64
PROMPT = Prompt(token_ids=tuple(range(10, 40)))


def rows(tensor: Tensor) -> np.ndarray:
    return np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)


async def ask(server: ModelServer, **changes: object) -> Sink:
    sink = Sink()
    await server.generate(request(**{"prompt": PROMPT, **changes}), sink)
    return sink


async def test_logits_come_with_their_tokens_or_all_at_the_end(server: ModelServer) -> None:
    wanted: dict[str, object] = {"context_logits": True, "generation_logits": True}
    streamed = await ask(server, **wanted)
    (whole,) = (await ask(server, stream=False, **wanted)).deltas
    assert whole.tensors["context_logits"].shape == (30, VOCAB)
    assert whole.tensors["generation_logits"].shape == (12, VOCAB)
    first, *rest = streamed.deltas
    assert first.tensors["context_logits"] == whole.tensors["context_logits"]
    assert not any("context_logits" in delta.tensors for delta in rest)
    assert all(d.tensors["generation_logits"].shape == (len(d.token_ids), VOCAB) for d in streamed.deltas)
    pieces = b"".join(delta.tensors["generation_logits"].data for delta in streamed.deltas)
    assert pieces == whole.tensors["generation_logits"].data
    logits = rows(whole.tensors["generation_logits"])
    assert list(logits.argmax(-1)) == list(whole.token_ids)  # greedy, and nothing edits it
    assert np.array_equal(rows(whole.tensors["context_logits"])[-1], logits[0])


async def test_hypotheses_have_logits_of_their_own(server: ModelServer) -> None:
    sink = await ask(server, generation_logits=True, beam=Beam(width=3), n=2)
    assert [delta.tensors["generation_logits"].shape for delta in sink.deltas] == [(12, VOCAB)] * 2


async def test_too_many_logits_are_a_clear_error(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.limits.MAX_LOGITS_BYTES", 4 * VOCAB * 20)
    with pytest.raises(InvalidField, match="hold 20 of this vocabulary of 384"):
        await ask(server, context_logits=True)


async def test_a_stop_string_cuts_the_logits_too(server: ModelServer) -> None:
    text = (await ask(server)).text()
    (cut,) = (await ask(server, stream=False, generation_logits=True, stop=(text[2:4],))).deltas
    assert cut.finish is FinishReason.STOP
    assert cut.tensors["generation_logits"].shape[0] == len(cut.token_ids) < 12


async def test_a_stop_sequence_stays_in_tokens_and_text(server: ModelServer) -> None:
    free = await ask(server)
    stop = tuple(free.ids()[3:5])
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop_sequences=(stop,))
    held = await ask(server, sampling=sampling)
    assert held.ids() == free.ids()[:5]
    assert held.deltas[-1].finish is FinishReason.STOP
    assert held.deltas[-1].stop is None
    shorter = await ask(server, sampling=SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
    assert held.text() == shorter.text()


async def test_a_draft_changes_nothing_but_the_number_of_steps(server: ModelServer) -> None:
    free = await ask(server)
    drafted = await ask(server, draft=Draft(token_ids=tuple(free.ids()[:8])))
    assert drafted.ids() == free.ids()
    assert len(drafted.deltas) == len(free.deltas) - 8
    perf = drafted.deltas[-1].perf
    assert perf is not None
    assert (perf.draft_tokens, perf.accepted_tokens) == (8, 8)
    assert perf.arrival_ns <= perf.first_scheduled_ns < perf.first_token_ns < perf.last_token_ns
    assert all(delta.perf is None for delta in drafted.deltas[:-1])


async def test_a_prompt_table_stands_for_virtual_tokens(server: ModelServer) -> None:
    values = np.random.default_rng(0).normal(0, 0.2, size=(2, 6, WIDTH)).astype("<f4")
    tables = [
        PromptTable(rows=Tensor(dtype="FP32", shape=(6, WIDTH), data=v.tobytes()), used=5) for v in values
    ]
    prompt = Prompt(token_ids=(*range(VOCAB, VOCAB + 5), *range(10, 40)))
    answers = [(await ask(server, prompt=prompt, prompt_table=table, echo=True)).ids() for table in tables]
    assert answers[0] != answers[1]
    assert (await ask(server, prompt=prompt, prompt_table=tables[0])).ids() == answers[0]
    for changes, message in (
        ({"prompt": Prompt(token_ids=(VOCAB + 5,))}, "outside the vocabulary of 389"),
        ({"prompt": prompt, "prompt_logprobs": 1}, "prompt_logprobs"),
    ):
        with pytest.raises(InvalidField, match=message):
            await ask(server, prompt_table=tables[0], **changes)


async def test_a_bias_is_added_to_every_row(server: ModelServer) -> None:
    bias = np.zeros(VOCAB, "<f4")
    bias[77] = 1e4
    tensor = Tensor(dtype="FP32", shape=(VOCAB,), data=bias.tobytes())
    assert (await ask(server, bias=tensor, sampling=GREEDY)).ids() == [77] * 12
