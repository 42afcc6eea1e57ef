"""What an engine makes of grammars: rows that wait for masks, forced tokens, ends."""

import itertools
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer

from serve_app.engine.engine import Engine
from serve_app.engine.grammar import constraint as module
from serve_app.engine.grammar_queue import MASK_THREADS, GrammarQueue
from serve_app.errors import UnsupportedField
from serve_app.types import Beam, EngineOutput, EngineRequest, FinishReason, SamplingParams
from tests.invariance.test_batch_invariance import new_engine
from tests.support.grammars import EOS, VOCAB, fast, regex, tokens

__all__ = ["fast", "tokens"]


@pytest.fixture(params=[False, True], ids=["waiting", "overlapped"])
def engine(request: pytest.FixtureRequest, folder: Path, tokens: LLTokenizer) -> Iterator[Engine]:
    """An engine that reads each step before the next one, and one that reads it after."""
    made = new_engine(folder, "reference", grammars=GrammarQueue(tokens), overlap=request.param)
    yield made
    assert not made.has_work()
    made.check_integrity()
    assert made.stats().blocks_used == 0


_ids = itertools.count()


def request(pattern: str | None, **changes: Any) -> EngineRequest:
    sampling = {"temperature": 1.0, "seed": next(_ids), "max_tokens": 60} | changes.pop("sampling", {})
    return EngineRequest(
        id=f"r{next(_ids)}",
        token_ids=tuple(range(10, 40)),
        sampling=SamplingParams(**sampling),
        grammar=None if pattern is None else regex(pattern),
        **changes,
    )


def run(engine: Engine, *requests: EngineRequest) -> dict[tuple[str, int], list[EngineOutput]]:
    for one in requests:
        engine.add(one)
    outputs: dict[tuple[str, int], list[EngineOutput]] = {}
    while engine.has_work():
        for output in engine.step():
            outputs.setdefault((output.request_id, output.index), []).append(output)
        engine.check_integrity()
    return outputs


def text(fast, outputs: list[EngineOutput]) -> str:
    return fast.decode([i for o in outputs for i in o.token_ids], skip_special_tokens=True)


def test_constrained_and_free_sequences_share_a_batch(engine, fast):
    patterns = ["[0-9]{3,5}", "(yes|no|maybe)", "[A-Z][a-z]{2,6}!", None, "(the|a) (quick|lazy) (fox|dog)"]
    made = [request(p, n=2) for p in patterns * 3]
    outputs = run(engine, *made)
    for one, pattern in zip(made, patterns * 3, strict=True):
        for index in range(2):
            got = outputs[one.id, index]
            if pattern is not None:
                assert got[-1].finish is FinishReason.EOS
                assert re.fullmatch(pattern, text(fast, got))
            else:
                assert got[-1].finish in (FinishReason.EOS, FinishReason.LENGTH)


def test_length_may_cut_an_answer_short(engine, fast):
    one = request("[0-9]{30}[a-z]", sampling={"max_tokens": 4})
    got = run(engine, one)[one.id, 0]
    assert got[-1].finish is FinishReason.LENGTH
    assert re.fullmatch("[0-9]+", text(fast, got))


@pytest.mark.parametrize("sampling", [{"min_tokens": 50}, {"temperature": 0.0, "min_tokens": 50}])
def test_a_whole_answer_ends_before_min_tokens(engine, fast, sampling):
    one = request("(yes|no)", sampling=sampling)
    got = run(engine, one)[one.id, 0]
    assert got[-1].finish is FinishReason.EOS
    assert text(fast, got) in ("yes", "no")


def test_min_tokens_holds_where_the_grammar_can_go_on(engine, fast):
    one = request("[0-9]+", sampling={"min_tokens": 12, "logit_bias": ((EOS, 100.0),)})
    got = run(engine, one)[one.id, 0]
    assert sum(len(o.token_ids) for o in got) == 13
    assert got[-1].finish is FinishReason.EOS


def test_masks_that_leave_nothing_of_a_grammar_end_their_own_request(engine, fast):
    digits = [i for i in range(VOCAB) if fast.decode([i]).isdigit()]
    bad = request("[0-9]", sampling={"bad_words": tuple((i,) for i in digits)})
    good = request("[0-9]")
    outputs = run(engine, bad, good)
    error = outputs[bad.id, 0][-1].error
    assert error is not None
    assert error.param == "bad_words"
    assert "beside response_format" in error.reason
    assert outputs[good.id, 0][-1].finish is FinishReason.EOS


def test_a_grammar_that_cannot_be_compiled_ends_its_own_request(engine):
    bad, good = request(None, n=2), request(None)
    bad = replace(bad, grammar="nonsense")
    outputs = run(engine, bad, good)
    for index in range(2):
        last = outputs[bad.id, index][-1]
        assert last.finish is FinishReason.ERROR
        assert last.error is not None
        assert last.error.param == "response_format"
    assert outputs[good.id, 0][-1].error is None


def test_sequences_that_wait_for_their_masks_hold_up_no_other(engine, fast, monkeypatch):
    """With every mask thread busy the constrained rows are late; the free one runs to its end."""
    monkeypatch.setattr(module, "MASK_LIMIT_S", 60.0)  # however slow the machine
    free_threads = threading.Event()
    for _ in range(MASK_THREADS):
        engine._grammars._masks.submit(free_threads.wait, 60)
    slow, free = request("[0-9]{6}", n=2), request(None, sampling={"ignore_eos": True})
    engine.add(slow)
    engine.add(free)
    outputs: list[EngineOutput] = []
    while not any(o.request_id == free.id and o.finish for o in outputs):
        outputs += engine.step()
        engine.check_integrity()
    assert all(o.finish is None for o in outputs if o.request_id == slow.id)
    free_threads.set()
    while engine.has_work():
        outputs += engine.step()
    for index in range(2):
        got = [o for o in outputs if (o.request_id, o.index) == (slow.id, index)]
        assert re.fullmatch("[0-9]{6}", text(fast, got))


def test_a_request_can_end_while_its_grammar_is_compiled(engine):
    one = request("[0-9]{4}")
    engine.add(one)
    engine.abort(one.id)
    assert [o.finish for o in engine.step()] == [FinishReason.ABORT]
    late = request("[0-9]{4}", timeout_s=1e-9)
    engine.add(late)
    [output] = engine.step()
    assert output.error is not None
    assert output.error.kind == "DeadlineExceeded"
    assert not engine.step()


def test_a_preempted_sequence_goes_on_in_its_grammar(folder, tokens, fast):
    grammars = GrammarQueue(tokens)
    engine = new_engine(folder, "reference", grammars=grammars, num_blocks=13, block_size=4, max_model_len=52)
    made = [request("([a-z]{3} ){12}", sampling={"max_tokens": 48, "seed": i}) for i in range(4)]
    made = [replace(one, token_ids=one.token_ids[:4]) for one in made]
    outputs = run(engine, *made)
    assert engine.stats().preemptions > 0
    for one in made:
        got = outputs[one.id, 0]
        pattern = "([a-z]{3} ){12}" if got[-1].finish is FinishReason.EOS else "([a-z]{3} )*[a-z]{0,3}"
        assert re.fullmatch(pattern, text(fast, got))


SENTENCE = "The quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize("n", [1, 3])
def test_forced_tokens_come_in_one_step(engine, fast, n):
    one = request(f"[0-9]{SENTENCE}[0-9]", n=n)
    outputs = run(engine, one)
    for index in range(n):
        got = outputs[one.id, index]
        assert re.fullmatch(f"[0-9]{SENTENCE}[0-9]", text(fast, got))
        assert got[-1].finish is FinishReason.EOS
        ids = [i for o in got for i in o.token_ids]
        assert max(len(o.token_ids) for o in got) > 3
        assert len(got) < len(ids)
        assert ids[1:-2] == fast.encode(SENTENCE)


def test_without_log_probabilities_or_with_them_the_text_is_the_same(engine, fast):
    """Where each token is asked about, each is sampled."""
    plain, asked = request(SENTENCE), request(SENTENCE, logprobs=0)
    outputs = run(engine, plain, asked)
    assert text(fast, outputs[plain.id, 0]) == text(fast, outputs[asked.id, 0]) == SENTENCE
    assert all(len(o.token_ids) == len(o.logprobs) == 1 for o in outputs[asked.id, 0])
    assert len(outputs[plain.id, 0]) < len(outputs[asked.id, 0])


def test_tokens_are_forced_only_past_no_mask_of_the_clients(engine):
    for sampling in ({"bad_words": ((10, 11),)}, {"allowed_token_ids": tuple(range(VOCAB))}):
        one = request(SENTENCE, sampling=sampling)
        assert all(len(o.token_ids) == 1 for o in run(engine, one)[one.id, 0])


def test_an_end_among_forced_tokens_is_an_end(engine, fast):
    ids = fast.encode(SENTENCE)
    short = request(SENTENCE + "[0-9]", sampling={"max_tokens": 9})
    stopped = request("[0-9]" + SENTENCE, sampling={"stop_token_ids": (ids[5],)})
    full = replace(request("[0-9]" + SENTENCE), token_ids=(10,) * 252)
    full = replace(full, sampling=replace(full.sampling, max_tokens=None))
    outputs = run(engine, short, stopped, full)

    def tokens_of(one: EngineRequest) -> list[int]:
        return [i for o in outputs[one.id, 0] for i in o.token_ids]

    assert outputs[short.id, 0][-1].finish is FinishReason.LENGTH
    assert len(tokens_of(short)) == 9
    assert outputs[stopped.id, 0][-1].finish is FinishReason.STOP
    assert tokens_of(stopped)[-1] == ids[5]
    assert outputs[full.id, 0][-1].finish is FinishReason.CONTEXT
    assert len(tokens_of(full)) == 4


@pytest.mark.parametrize("max_step_tokens", [16, 21])
def test_forced_tokens_that_exceed_a_step_are_computed_in_several(folder, tokens, fast, max_step_tokens):
    grammars = GrammarQueue(tokens)
    engine = new_engine(folder, "reference", grammars=grammars, max_step_tokens=max_step_tokens, block_size=4)
    made = [request(f"[a-z]{{2}}{SENTENCE}[a-z]{SENTENCE}") for _ in range(3)]
    outputs = run(engine, *made)
    whole = new_engine(folder, "reference", grammars=GrammarQueue(tokens))
    again = run(whole, *made)
    for one in made:
        assert text(fast, outputs[one.id, 0]).count(SENTENCE) == 2
        assert text(fast, outputs[one.id, 0]) == text(fast, again[one.id, 0])


def test_each_forced_token_has_the_time_of_its_step(engine):
    one = request("[0-9]" + SENTENCE, timings=True)
    for output in run(engine, one)[one.id, 0]:
        assert len(output.steps) == len(output.token_ids)


def test_beams_stay_in_the_grammar(engine, fast):
    pattern = "(the|a) (quick|lazy) (brown )?(fox|dog)( jumps| sleeps)?"
    one = request(pattern, n=3, beam=Beam(width=4))
    found = list(run(engine, one).values())
    assert len({got[-1].token_ids for got in found}) == 3
    assert all(re.fullmatch(pattern, text(fast, got)) for got in found)


def test_an_engine_without_a_tokenizer_refuses_grammars(folder):
    with pytest.raises(UnsupportedField) as caught:
        new_engine(folder, "reference").add(request("[0-9]"))
    assert caught.value.param == "response_format"
