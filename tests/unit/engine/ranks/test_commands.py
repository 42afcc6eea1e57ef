"""A step arrives at another rank as the batch that rank 0 runs, as far as a runner looks at it."""

from __future__ import annotations

import msgspec
import pytest
import torch

from serve_app.engine.batch import Batch, build_batch
from serve_app.engine.model.lora import LowRank
from serve_app.engine.model.prompt_tuning import EmbeddingRows
from serve_app.engine.ranks.commands import Command, Matrix, Step, Update
from serve_app.engine.request.prompt_rows import PromptRows
from serve_app.engine.sequence import Chunk
from serve_app.engine.state import StateSpec
from serve_app.engine.state.pools import StatePools
from tests.support.tiny_models import make_sequence, tiny_model

CPU = torch.device("cpu")


def sent(batch: Batch, *, has_states: bool = False) -> Batch:
    """The batch after its way through a connection."""
    data = msgspec.msgpack.encode(Step.of(batch, has_states))
    step = msgspec.msgpack.decode(data, type=Command)  # type: ignore[arg-type]
    assert isinstance(step, Step)
    return step.batch(CPU)


def chunks() -> list[Chunk]:
    """A piece of a prompt without logits, a decode, a draft and a prompt with all of its logits."""
    long, short = make_sequence("a", list(range(40)), [3, 1, 2]), make_sequence("b", [7, 8, 9], [5])
    drafted, scored = make_sequence("c", [4, 5], [6]), make_sequence("d", [1, 2, 3], [0])
    return [
        Chunk(long, 16, 16, 32),
        Chunk(short, 2, 1, 2),
        Chunk(drafted, 1, 4, 1, draft=(11, 12, 13)),
        Chunk(scored, 0, 3, 0),
    ]


def test_a_batch_is_the_same_in_every_rank() -> None:
    batch = build_batch(chunks(), 16, CPU)
    there = sent(batch)
    for name in ("input_ids", "positions", "logit_rows"):
        assert torch.equal(getattr(there, name), getattr(batch, name)), name
    for name in ("query_start", "context_lens", "block_tables", "slots", "wanted_start"):
        assert torch.equal(getattr(there.context, name), getattr(batch.context, name)), name
    for name in ("query_lens", "lens", "block_size", "wanted_lens"):
        assert getattr(there.context, name) == getattr(batch.context, name), name
    assert there.chunks == ()  # nothing that a runner would look for


def test_a_step_without_logits_arrives_too() -> None:
    batch = build_batch(chunks()[:1], 16, CPU)
    assert not len(batch.logit_rows)
    assert sent(batch).context.wanted_lens == batch.context.wanted_lens == (0,)


def test_adapters_and_states_are_found_by_what_arrives() -> None:
    made = chunks()
    made[1].sequence.adapter = "x"
    for number, chunk in enumerate(made):
        chunk.source, chunk.stops = number or None, ((chunk.end, 10 + number),)
    there = sent(build_batch(made, 16, CPU), has_states=True)
    assert [each.sequence.adapter for each in there.chunks] == [None, "x", None, None]
    pools = StatePools([StateSpec((2,), torch.float32)], 20, CPU)
    here, remote = (pools.of_step(each) for each in (made, there.chunks))
    assert [wave.spans for wave in remote.waves] == [wave.spans for wave in here.waves]


def test_virtual_tokens_are_written_in_every_rank() -> None:
    model = tiny_model("llama")
    rows = EmbeddingRows(model, 96)
    table = torch.randn(3, rows.width)
    sequence = make_sequence("a", [5, 96, 98, 97, 6, 7], [0])
    sequence.prompt_rows = PromptRows(table, "digest")
    made = [Chunk(make_sequence("b", [1, 2], [1]), 0, 2, 1), Chunk(sequence, 1, 3, 4)]
    there = sent(build_batch(made, 16, CPU))
    here, remote = (rows.of_step(each, CPU) for each in (made, there.chunks))
    assert here is not None
    assert remote is not None
    assert here.places.tolist() == remote.places.tolist() == [2, 3, 4]
    assert torch.equal(here.values, remote.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_adapter_arrives_as_it_is(dtype: torch.dtype) -> None:
    update = LowRank(3, "q_proj", torch.randn(2, 8).to(dtype), torch.randn(8, 2).to(dtype).T.contiguous().T)
    data = msgspec.msgpack.encode(Update.of(update))
    there = msgspec.msgpack.decode(data, type=Update).low_rank()
    assert (there.layer, there.module) == (3, "q_proj")
    assert torch.equal(there.a, update.a)
    assert torch.equal(there.b, update.b)
    assert Matrix.of(torch.empty(0, 4)).tensor().shape == (0, 4)
