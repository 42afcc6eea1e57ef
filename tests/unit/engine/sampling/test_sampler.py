"""The sampler as a whole: order, independence of rows, isolation of bad rows, what it keeps."""

import gc
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from serve_app.engine.sampling.noise import uniform
from serve_app.engine.sampling.sampled import Sampled
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.sequence import Sequence
from serve_app.types import SamplingParams

torch.set_num_threads(1)
V = 1500
EOS = frozenset({1, 2})
INF, NAN = float("inf"), float("nan")


def line(
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    seed: int = 0,
    index: int = 0,
    logprobs: int | None = None,
    **sampling: Any,
) -> Sequence:
    prompt = prompt or [3]
    tokens = prompt + (output or [])
    return Sequence("r", index, len(prompt), tokens, SamplingParams(**sampling), seed, num_logprobs=logprobs)


def normal(rows: int, width: int = V, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def tokens(results: list[Sampled]) -> list[int]:
    return [r.token_id for r in results]


def random_line(rng: random.Random) -> Sequence:
    """A sequence with any mix of every parameter."""

    def maybe(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.3 else otherwise

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(V) for _ in range(rng.randint(low, high)))

    output = list(some(0, 40))
    return line(
        list(some(1, 40)),
        output,
        seed=rng.randrange(2**64),
        index=rng.randrange(8),
        logprobs=maybe(rng.randint(0, 20), None),
        temperature=rng.choice([0.0, 0.3, 1.0, 1.0, 1.5]),
        top_k=maybe(rng.choice([1, 2, 50, 70, 1200, 5000]), 0),
        top_p=maybe(rng.choice([0.1, 0.9, 0.99999]), 1.0),
        min_p=maybe(rng.choice([0.01, 0.2]), 0.0),
        typical_p=maybe(rng.choice([0.2, 0.95]), 1.0),
        repetition_penalty=maybe(1.3, 1.0),
        presence_penalty=maybe(0.5, 0.0),
        frequency_penalty=maybe(-0.2, 0.0),
        penalize_prompt=maybe(True, False),
        logit_bias=maybe(tuple((i, rng.uniform(-5, 5)) for i in some(1, 9)), ()),
        bad_words=maybe(((5,), (*output[-1:], 7), some(1, 3)), ()),
        allowed_token_ids=maybe(some(1, 60), ()),
        min_tokens=maybe(20, 0),
        stop_token_ids=maybe(some(1, 3), ()),
        no_repeat_ngram=maybe(rng.choice([3, 4]), 0),
        watermark=maybe(True, False),
    )


def equal(a: Sampled, b: Sampled) -> bool:
    if a.token_id != b.token_id or a.error != b.error or (a.logprobs is None) != (b.logprobs is None):
        return False
    if a.logprobs is None or b.logprobs is None:
        return True
    one, other = (
        [(p.token_id, p.logprob), *((t.token_id, t.logprob) for t in p.top)] for p in (a.logprobs, b.logprobs)
    )
    return len(one) == len(other) and all(
        i == j and abs(x - y) <= 1e-6 for (i, x), (j, y) in zip(one, other, strict=True)
    )


def check_independence(count: int, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    lines = [random_line(rng) for _ in range(count)]
    logits = normal(count, seed=seed)
    # Half the rows rounded as bfloat16 would be: many ties.
    logits[::2] = logits[::2].bfloat16().float()
    alone = [Sampler(V, EOS).sample(logits[r : r + 1].clone(), [lines[r]])[0] for r in range(count)]
    assert all(result.error is None for result in alone)
    sampler = Sampler(V, EOS)
    for _ in range(rounds):
        rows = rng.sample(range(count), count)
        while rows:
            size = rng.randint(1, 40)
            batch, rows = rows[:size], rows[size:]
            results = sampler.sample(logits[batch], [lines[r] for r in batch])
            assert all(equal(result, alone[r]) for r, result in zip(batch, results, strict=True))


def test_a_row_of_any_parameters_gets_the_same_alone_and_in_any_batch() -> None:
    check_independence(200, 3, seed=5)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_a_row_of_any_parameters_gets_the_same_in_many_batches(seed: int) -> None:
    check_independence(200, 10, seed)


def test_beams_are_scored_alike_alone_and_in_any_batch() -> None:
    rng = random.Random(3)
    lines = [random_line(rng) for _ in range(60)]
    logits = normal(60)
    alone = [Sampler(V, EOS).score(logits[r : r + 1].clone(), [lines[r]])[0] for r in range(60)]
    sampler = Sampler(V, EOS)
    for _ in range(4):
        batch = rng.sample(range(60), 25)
        for r, scored in zip(batch, sampler.score(logits[batch], [lines[r] for r in batch]), strict=True):
            assert scored.error is None
            assert torch.equal(scored.log_probs, alone[r].log_probs)
            assert (scored.logprob_of(5) is None) == (lines[r].num_logprobs is None)
            assert scored.logprob_of(5) == alone[r].logprob_of(5)


def test_scores_are_normalised_and_then_edited() -> None:
    logits = normal(1)
    (scored,) = Sampler(V, EOS).score(
        logits.clone(), [line(logit_bias=((4, 2.0),), bad_words=((5,),), temperature=0.1, top_k=1)]
    )
    want = torch.log_softmax(logits[0], -1)
    want[4] += 2.0
    want[5] = -INF
    torch.testing.assert_close(scored.log_probs, want)


def test_a_fork_goes_on_with_what_was_known_of_its_parent() -> None:
    rng = random.Random(4)
    sampler = Sampler(V, EOS)
    for _ in range(60):
        parent = random_line(rng)
        sampler.score(normal(1), [parent])
        child = replace(parent, token_ids=list(parent.token_ids))
        sampler.fork(parent, child)
        for family_member in rng.sample([parent, child], 2):
            family_member.token_ids += [rng.randrange(V) for _ in range(2)]
        for each in (parent, child):
            fresh = replace(each)
            scored = sampler.score(normal(2, seed=1)[:1], [each])[0]
            want = Sampler(V, EOS).score(normal(2, seed=1)[:1], [fresh])[0]
            assert torch.equal(scored.log_probs, want.log_probs)


@pytest.mark.parametrize("poison", [NAN, INF])
def test_a_beam_row_that_is_not_finite_fails_alone(poison: float) -> None:
    logits = normal(3)
    logits[1, 7] = poison
    scored = Sampler(V, EOS).score(logits, [line() for _ in range(3)])
    assert [s.error is None for s in scored] == [True, False, True]


def test_threads_change_nothing() -> None:
    try:
        torch.set_num_threads(2)
        check_independence(40, 2, seed=9)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 0.0, "top_p": 0.5}])
def test_greedy_takes_the_lowest_id_of_the_largest_logits(params: dict[str, Any]) -> None:
    x = torch.zeros(2, V)
    x[0, [700, 30]] = 5.0
    assert tokens(Sampler(V, EOS).sample(x, [line(**params), line(**params)])) == [30, 0]


def test_a_plain_draw_inverts_the_distribution_at_the_noise() -> None:
    x = normal(50)
    lines = [line(seed=s, index=s % 3, output=[4] * (s % 5), temperature=0.7) for s in range(50)]
    cumulative = torch.softmax(x.double() / 0.7, -1).cumsum(-1)
    expected = [
        int((row <= uniform(s.seed, s.index, s.num_output)).sum())
        for row, s in zip(cumulative, lines, strict=True)
    ]
    assert tokens(Sampler(V, EOS).sample(x, lines)) == expected


def test_siblings_seeds_and_positions_draw_differently() -> None:
    flat = torch.zeros(4, V)
    lines = [line(), line(index=1), line(seed=1), line(output=[4])]
    assert len(set(tokens(Sampler(V, EOS).sample(flat, lines)))) == 4


def test_penalties_and_masks_act_before_the_filters() -> None:
    x = torch.zeros(1, V)
    x[0, :3] = torch.tensor([4.0, 3.0, 2.9])
    # The likeliest is banned and the next is penalised below the third, so a top-k of 1 leaves the third.
    s = line([1], temperature=1.0, top_k=1, bad_words=((0,),), repetition_penalty=1.2)
    assert tokens(Sampler(V, EOS).sample(x, [s])) == [2]


def test_logprobs_are_of_the_raw_distribution_whatever_was_edited() -> None:
    x = normal(2)
    raw = torch.log_softmax(x.double(), -1)
    best = int(x[0].argmax())
    lines = [
        line(logprobs=3, temperature=0.0, bad_words=((best,),), logit_bias=((7, 100.0),)),
        line(logprobs=0, temperature=0.5, top_k=5),
    ]
    first, second = Sampler(V, EOS).sample(x, lines)
    assert first.token_id == 7
    assert first.logprobs is not None
    assert second.logprobs is not None
    assert first.logprobs.logprob == pytest.approx(float(raw[0, 7]))
    assert first.logprobs.top[0].token_id == best
    assert len(first.logprobs.top) == 3
    assert second.logprobs.top == ()
    assert second.logprobs.logprob == pytest.approx(float(raw[1, second.token_id]))


@pytest.mark.parametrize(
    ("poison", "where"), [(NAN, slice(1234, 1235)), (INF, slice(0, 1)), (-INF, slice(None))]
)
@pytest.mark.parametrize("everyone_greedy", [True, False])
def test_a_row_that_is_not_finite_fails_alone(poison: float, where: slice, everyone_greedy: bool) -> None:
    rng = random.Random(1)
    lines = [line(temperature=0.0) if everyone_greedy else random_line(rng) for _ in range(30)]
    x = normal(30)
    clean = Sampler(V, EOS).sample(x.clone(), lines)
    bad = [0, 7, 8, 29]
    for r in bad:
        x[r, where] = poison
    for r, result in enumerate(Sampler(V, EOS).sample(x, lines)):
        if r in bad:
            assert result.token_id == -1
            assert result.logprobs is None
            assert result.error is not None
            assert result.error.kind == "NumericalError"
        else:
            assert equal(result, clean[r])


def test_some_impossible_raw_logits_are_no_error() -> None:
    x = normal(4)
    x[:, 10:] = -INF
    lines = [line(temperature=0.0), line(logprobs=20), line(top_p=0.9), line(typical_p=0.5)]
    results = Sampler(V, EOS).sample(x, lines)
    assert all(r.error is None and r.token_id < 10 for r in results)


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_row_whose_tokens_are_all_excluded_fails_alone(logprobs: int | None) -> None:
    lines = [
        line(allowed_token_ids=(5,), bad_words=((5,),), logprobs=logprobs),
        line(allowed_token_ids=(V + 1,), temperature=0.0),
        line(temperature=0.0, logprobs=logprobs),
    ]
    x = normal(3)
    best = int(x[2].argmax())
    results = Sampler(V, EOS).sample(x, lines)
    assert [r.error.kind if r.error else None for r in results] == ["InvalidField"] * 2 + [None]
    assert results[0].error is not None
    assert results[0].error.param == "allowed_token_ids"
    assert "bad_words" in results[0].error.reason
    assert tokens(results) == [-1, -1, best]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_k": 9}, {"logprobs": 2}])
def test_padded_ids_are_never_chosen_but_must_be_sound(params: dict[str, Any]) -> None:
    x = normal(3, V + 36)
    x[:, V:] = 50.0
    x[1, V + 3] = NAN
    results = Sampler(V, EOS).sample(x, [line(**params) for _ in range(3)])
    assert [r.error is None for r in results] == [True, False, True]
    assert 0 <= results[0].token_id < V


def test_logits_narrower_than_the_vocabulary_are_sampled_within_their_width() -> None:
    lines = [
        line(logit_bias=((V - 1, 100.0),)),
        line(min_tokens=3, stop_token_ids=(V - 1,)),
        line(top_k=V - 1),
    ]
    assert all(0 <= t < 40 for t in tokens(Sampler(V, EOS).sample(normal(3, 40), lines)))


def test_min_tokens_ends_when_reached_within_one_sequence() -> None:
    sampler, s = Sampler(V, EOS), line(temperature=0.0, min_tokens=2)
    x = torch.zeros(1, V)
    x[0, 1], x[0, 9] = 5.0, 4.0
    drawn = []
    for _ in range(4):
        drawn += tokens(sampler.sample(x.clone(), [s]))
        s.token_ids.append(drawn[-1])
    assert drawn == [9, 9, 1, 1]


def test_frequency_penalty_grows_with_the_sequence_and_follows_a_truncation() -> None:
    sampler, s = Sampler(V, EOS), line(temperature=0.0, frequency_penalty=1.0)
    x = torch.full((1, V), -100.0)
    x[0, 8], x[0, 9] = 3.0, 1.5
    for _ in range(4):
        s.token_ids += tokens(sampler.sample(x.clone(), [s]))
    assert s.output_ids == [8, 8, 9, 8]
    del s.token_ids[2:]
    for _ in range(3):
        s.token_ids += tokens(sampler.sample(x.clone(), [s]))
    assert s.output_ids == [8, 8, 9, 8]


def test_nothing_is_kept_of_a_sequence_that_is_gone() -> None:
    sampler = Sampler(V, EOS)
    lines = [line(seed=i, repetition_penalty=1.2, logprobs=2) for i in range(5)]
    sampler.sample(normal(5), lines)
    assert len(sampler._plans) == 5
    del lines
    gc.collect()
    assert len(sampler._plans) == 0


def test_an_empty_batch_is_nothing() -> None:
    assert Sampler(V, EOS).sample(torch.empty(0, V), []) == []


WIDTH = 70
UNIT = st.floats(1e-6, 1.0)


@given(
    st.builds(
        dict,
        temperature=st.sampled_from([0.0, 1e-300, 1e-30, 0.5, 2.0]),
        top_k=st.integers(0, 100),
        top_p=UNIT,
        min_p=st.floats(0.0, 1.0),
        typical_p=UNIT,
        repetition_penalty=st.sampled_from([1e-30, 1.0, 100.0]),
        frequency_penalty=st.sampled_from([-1e30, 0.0, 2.0]),
    ),
    st.lists(st.sampled_from([0.0, -INF, INF, NAN, 3e38, -3e38, 1e-40, 7.5]), min_size=WIDTH, max_size=WIDTH),
    st.integers(0, 2**64 - 1),
)
def test_every_row_gives_a_possible_token_or_an_error(
    params: dict[str, Any], raw: list[float], seed: int
) -> None:
    x = torch.tensor([raw])
    sound = not any(v != v or v == INF for v in raw) and any(v > -INF for v in raw)
    (result,) = Sampler(WIDTH, EOS).sample(x, [line([3, 4], [5, 5], seed=seed, logprobs=4, **params)])
    assert (result.error is None) == sound
    assert raw[result.token_id] > -INF if sound else result.token_id == -1


def decayed(output: list[int], top_p: float, decay: float, least: float, reset: int) -> float:
    """The runtime's rule, token for token."""
    now = top_p
    for token in output:
        now = top_p if token == reset else max(now * decay, least)
    return now


@pytest.mark.parametrize("reset", [-1, 5])
@pytest.mark.parametrize(("top_p", "decay", "least"), [(0.9, 0.5, 0.2), (0.9, 1.0, 0.95), (1.0, 0.9, 0.0)])
def test_top_p_decays_and_is_reset(top_p: float, decay: float, least: float, reset: int) -> None:
    logits = normal(1, seed=3)
    seen = set()
    for output in ([], [7], [7, 5], [7, 5, 8, 9], [5, 6, 7, 8, 9, 10]):
        now = decayed(output, top_p, decay, least, reset)
        seen.add(now)
        if now == 1.0:
            continue  # drawn from the whole vocabulary, which has an order of its own
        for seed in range(10):
            moving = line(
                output=output,
                seed=seed,
                top_p=top_p,
                top_p_decay=decay,
                top_p_min=least,
                top_p_reset_id=reset,
            )
            fixed = line(output=output, seed=seed, top_p=now)
            sampler = Sampler(V, EOS)
            assert tokens(sampler.sample(logits.clone(), [moving])) == tokens(
                sampler.sample(logits.clone(), [fixed])
            )
    assert len(seen) > 1
