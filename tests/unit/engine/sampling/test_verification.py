"""Drafts: right, wrong, half right; by clients and by ourselves. They change when tokens come, not which."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from serve_app.engine.batch import Batch
from serve_app.errors import InvalidField
from serve_app.limits import MAX_DRAFT_TOKENS
from serve_app.types import Beam, Draft, FinishReason, Tensor
from tests.support.fakes import VOCAB_SIZE, EvilRunner, Faults, HashRunner, greedy_tokens
from tests.unit.engine.test_engine import Bench

PROMPT = (1, 2, 3, 4, 5, 6, 7)
COUNT = 12
EXPECTED = greedy_tokens(PROMPT, COUNT)

DRAFTS = {
    "right": EXPECTED[: COUNT - 1],
    "half right": [*EXPECTED[:5], (EXPECTED[5] + 1) % VOCAB_SIZE, *EXPECTED[6:10]],
    "wrong": [(token + 1) % VOCAB_SIZE for token in EXPECTED[:6]],
    "one": EXPECTED[:1],
    "random": random.Random(1).choices(range(VOCAB_SIZE), k=9),
}


def bench(**settings: object) -> Bench:
    return Bench(settings={"max_step_tokens": 64, **settings})


def fp32(rows: np.ndarray | torch.Tensor) -> Tensor:
    data = np.asarray(rows, "<f4")
    return Tensor(dtype="FP32", shape=data.shape, data=data.tobytes())


@pytest.mark.parametrize("name", DRAFTS)
def test_a_greedy_answer_is_the_same_with_a_draft(name: str) -> None:
    made = bench()
    made.add("a", PROMPT, max_tokens=COUNT, draft=Draft(token_ids=tuple(DRAFTS[name])))
    made.drain()
    assert made.tokens["a", 0] == EXPECTED
    assert made.ends["a", 0].finish is FinishReason.LENGTH
    assert made.engine.stats().blocks_used == 0


def test_a_right_draft_takes_one_step_and_is_counted() -> None:
    made = bench()
    made.add("a", PROMPT, max_tokens=COUNT, draft=Draft(token_ids=tuple(EXPECTED[:-1])))
    (output,) = made.step()
    assert list(output.token_ids) == EXPECTED
    stats, perf = made.engine.stats(), output.perf
    assert (stats.draft_tokens, stats.accepted_tokens) == (COUNT - 1, COUNT - 1)
    assert perf is not None
    assert (perf.draft_tokens, perf.accepted_tokens) == (COUNT - 1, COUNT - 1)


def test_a_wrong_draft_costs_no_step() -> None:
    made = bench()
    made.add("a", PROMPT, max_tokens=4, draft=Draft(token_ids=tuple(DRAFTS["wrong"][:3])))
    made.drain()
    assert made.engine.stats().steps == 4
    assert made.engine.stats().accepted_tokens == 0


@pytest.mark.parametrize("settings", [{"max_step_tokens": 16}, {"max_step_tokens": 20, "max_sequences": 2}])
@pytest.mark.parametrize("blocks", [5, 6, 9, 64])
@pytest.mark.parametrize("seed", range(5))
def test_drafts_in_small_steps_and_few_blocks(blocks: int, settings: dict[str, object], seed: int) -> None:
    """Tokens, books and the cache itself agree: the runner's logits read every token back from it."""
    rng = random.Random(seed)
    made = Bench(runner=HashRunner(num_blocks=blocks), window=20, settings=settings)
    wanted: dict[str, list[int]] = {}
    for number in range(8):
        prompt = rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 8))
        count = rng.randint(2, 12)
        expected = wanted[f"r{number}"] = greedy_tokens(prompt, count)
        draft = [t if rng.random() < 0.8 else rng.randrange(VOCAB_SIZE) for t in expected[:-1]]
        draft = draft[: rng.randint(1, len(draft))]
        made.add(
            f"r{number}", prompt, max_tokens=count, n=rng.choice([1, 2]), draft=Draft(token_ids=tuple(draft))
        )
        made.step()
    made.drain()
    for name, expected in wanted.items():
        for (request_id, _), tokens in made.tokens.items():
            assert request_id != name or tokens == expected
    assert made.engine.stats().blocks_used == 0


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"top_k": 6},
        {"top_p": 0.8, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
        {"bad_words": ((EXPECTED[2],),), "no_repeat_ngram": 2},
        {"min_tokens": 5, "stop_token_ids": (EXPECTED[1], EXPECTED[3]), "watermark": True},
        {"top_p": 0.9, "top_p_decay": 0.8, "logprobs": 3},
    ],
)
def test_a_seeded_answer_is_the_same_with_any_draft(sampling: dict[str, object]) -> None:
    for seed in range(12):
        alone, guessed = bench(), bench()
        options: dict[str, object] = {
            "temperature": 1.0,
            "seed": seed,
            "max_tokens": COUNT,
            "n": 2,
            **sampling,
        }
        alone.add("a", PROMPT, **options)
        alone.drain()
        answer = alone.tokens["a", 0]
        broken = [*answer[: seed % COUNT], *random.Random(seed).choices(range(VOCAB_SIZE), k=COUNT)][
            : COUNT - 1
        ]
        guessed.add("a", PROMPT, **options, draft=Draft(token_ids=tuple(broken)))
        guessed.drain()
        assert guessed.tokens == alone.tokens
        assert {k: v.finish for k, v in guessed.ends.items()} == {k: v.finish for k, v in alone.ends.items()}


def test_an_end_inside_a_draft_ends_the_answer_there() -> None:
    for options, finish in (
        ({"stop_token_ids": (EXPECTED[3],)}, FinishReason.STOP),
        ({"stop_sequences": (tuple(EXPECTED[2:4]),)}, FinishReason.STOP),
    ):
        made = bench()
        made.add("a", PROMPT, max_tokens=COUNT, draft=Draft(token_ids=tuple(EXPECTED[:9])), **options)
        (output,) = made.step()
        assert list(output.token_ids) == EXPECTED[:4]
        assert output.finish is finish
        assert output.perf is not None
        assert output.perf.accepted_tokens == 4


def test_logprobs_and_logits_come_for_every_accepted_token() -> None:
    made = bench()
    made.add(
        "a",
        PROMPT,
        max_tokens=COUNT,
        logprobs=1,
        generation_logits=True,
        draft=Draft(token_ids=tuple(EXPECTED[:6])),
    )
    (output,) = made.step()
    assert [entry.token_id for entry in output.logprobs] == EXPECTED[:7]
    tensor = output.tensors["generation_logits"]
    assert tensor.shape == (7, VOCAB_SIZE)
    plain = bench()
    plain.add("a", PROMPT, max_tokens=COUNT, generation_logits=True)
    data = b"".join(plain.step()[0].tensors["generation_logits"].data for _ in range(7))
    assert data == tensor.data


def test_an_abort_and_a_cut_leave_no_blocks() -> None:
    made = bench()
    made.add("a", PROMPT, max_tokens=COUNT, draft=Draft(token_ids=tuple(EXPECTED[:3])))
    made.add("b", PROMPT, max_tokens=COUNT, draft=Draft(token_ids=tuple(DRAFTS["wrong"])))
    made.step()
    made.engine.abort("a")
    assert made.engine.finish("b", 0, 1)
    made.engine.check_integrity()
    assert made.engine.stats().blocks_used == 0


def test_a_failing_neighbour_changes_nothing() -> None:
    faults = Faults(raise_for={"evil"})
    made = Bench(runner=EvilRunner(faults), settings={"max_step_tokens": 64})
    made.add("good", PROMPT, max_tokens=COUNT, draft=Draft(token_ids=tuple(DRAFTS["half right"])))
    made.add("evil", PROMPT, max_tokens=COUNT, draft=Draft(token_ids=tuple(EXPECTED[:4])))
    made.drain()
    assert made.tokens["good", 0] == EXPECTED
    assert made.ends["evil", 0].finish is FinishReason.ERROR


LOGITS = fp32(np.zeros((3, VOCAB_SIZE)))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft(token_ids=()), "at least 1"),
        (Draft(token_ids=(1,) * 6), "fewer than max_tokens of 6"),
        (Draft(token_ids=(1,) * (MAX_DRAFT_TOKENS + 1)), str(MAX_DRAFT_TOKENS)),
        (Draft(token_ids=(VOCAB_SIZE,)), "outside the vocabulary"),
        (Draft(token_ids=(1, 2), logits=LOGITS), "draft_logits must have the shape"),
        (Draft(token_ids=(1, 2, 3), logits=fp32(np.full((3, VOCAB_SIZE), np.nan))), "draft_logits"),
        (Draft(token_ids=(1, 2, 3), logits=fp32(np.full((3, VOCAB_SIZE), -np.inf))), "draft_logits"),
        (Draft(token_ids=(1,), acceptance_threshold=1.5), "draft_acceptance_threshold"),
    ],
)
def test_bad_drafts_are_refused(draft: Draft, message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        bench().add("a", PROMPT, max_tokens=6, draft=draft)


def test_a_search_takes_no_draft() -> None:
    with pytest.raises(InvalidField, match="beam"):
        bench().add("a", PROMPT, max_tokens=6, beam=Beam(width=2), draft=Draft(token_ids=(1,)))


@pytest.mark.parametrize(
    "settings", [{}, {"max_step_tokens": 16}, {"max_step_tokens": 17, "max_sequences": 1}]
)
def test_how_many_tokens_a_step_verifies_decides_nothing(settings: dict[str, object]) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(8, VOCAB_SIZE))
    tokens = tuple(int(row.argmax()) for row in rows)
    answers = []
    for steps in ({"max_step_tokens": 256}, settings):
        made = Bench(settings=steps)
        for number in range(6):
            draft = Draft(token_ids=tokens, logits=fp32(rows))
            made.add(f"r{number}", PROMPT, temperature=1.0, seed=number, max_tokens=COUNT, draft=draft)
        made.drain()
        answers.append(made.tokens)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("temperature", [0.0, 0.2])
def test_our_own_drafts_change_no_answer(temperature: float) -> None:
    plain, quick = Bench(window=100), Bench(window=100, settings={"ngram_draft": 8})
    rng = random.Random(0)
    prompts = [rng.choices(range(4), k=10) for _ in range(6)]
    for made in (plain, quick):
        for number, prompt in enumerate(prompts):
            bias = ((0, 4.0), (1, 4.0))  # few tokens, many repetitions
            made.add(
                f"r{number}", prompt, temperature=temperature, seed=number, max_tokens=60, logit_bias=bias
            )
        made.drain()
    assert quick.tokens == plain.tokens
    assert quick.engine.stats().accepted_tokens > 0
    assert quick.engine.stats().steps < plain.engine.stats().steps


@pytest.mark.parametrize(("repeats", "row_s"), [(True, 0.01), (True, 5.0), (False, 0.01)])
def test_drafts_are_made_where_the_engine_measures_that_they_pay(repeats: bool, row_s: float) -> None:
    plain, quick = Bench(window=100), Bench(window=100, settings={"ngram_draft": "auto"})
    run = quick.runner.run

    def timed(batch: Batch) -> torch.Tensor:
        quick.now += 1.0 + row_s * (len(batch.input_ids) - 1)
        return run(batch)

    quick.runner.run = timed  # type: ignore[method-assign]
    bias = ((0, 6.0), (1, 6.0)) if repeats else ()
    for made in (plain, quick):
        for number in range(3):
            made.add(f"r{number}", PROMPT, temperature=0.2, seed=number, max_tokens=80, logit_bias=bias)
            made.drain()
    assert quick.tokens == plain.tokens
    stats, steps = quick.engine.stats(), plain.engine.stats().steps
    if repeats and row_s < 1.0:
        assert stats.accepted_tokens > 0
        assert stats.steps < 0.8 * steps
    else:
        assert stats.draft_tokens < 0.1 * stats.generated_tokens
