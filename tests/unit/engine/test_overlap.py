"""A step is prepared while the one before it runs, and every answer is the one of an engine that waits."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from itertools import product

import pytest
import torch
from llguidance import LLTokenizer

from serve_app.config import EngineConfig
from serve_app.engine.batch import Batch
from serve_app.engine.engine import Engine
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.engine.model.isolation import Runner
from serve_app.engine.sampling.choice import Choice
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.transfer import Receipt
from serve_app.types import Beam, EngineOutput, EngineRequest, FinishReason, SamplingParams
from tests.support.fakes import VOCAB_SIZE, EvilRunner, Faults, HashRunner, greedy_tokens
from tests.support.grammars import EOS, VOCAB, fast, regex, tokens
from tests.support.pretend_device import DEVICE, OnDevice, PretendDevice
from tests.support.ranks import leading

__all__ = ["fast", "tokens"]

SENTENCE = "The quick brown fox jumps"  # forced as a whole
PATTERNS = f"[0-9]{SENTENCE}[0-9]{{2}}{SENTENCE}", "(yes|no)", "[a-z]{3,9}"
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)

Answer = tuple[list[int], list[object], FinishReason | None, str | None]


def engine(
    overlap: bool,
    runner: Runner | None = None,
    grammars: LLTokenizer | None = None,
    **settings: object,
) -> Engine:
    config = EngineConfig.model_validate(
        {"max_sequences": 6, "max_step_tokens": 24, "overlap": overlap, **settings}
    )
    return Engine(
        runner or HashRunner(),
        config,
        eos_token_ids=frozenset({EOS}),
        max_model_len=100,
        grammars=None if grammars is None else GrammarQueue(grammars),
    )


class Answers:
    """What the outputs of an engine add up to, by request and choice."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, int], Answer] = {}

    def step(self, engine: Engine) -> list[EngineOutput]:
        outputs = engine.step()
        engine.check_integrity()
        for output in outputs:
            key = output.request_id, output.index
            tokens, logprobs, finish, _ = self.of.get(key, ([], [], None, None))
            assert finish is None, "nothing follows an end"
            error = None if output.error is None else output.error.kind
            told = [*logprobs, *output.logprobs, *(output.prompt_logprobs or ())]
            self.of[key] = [*tokens, *output.token_ids], told, output.finish, error
        return outputs

    def drain(self, engine: Engine) -> None:
        for _ in range(2_000):
            if not engine.has_work():
                break
            self.step(engine)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def answers(engine: Engine, *requests: EngineRequest) -> dict[tuple[str, int], Answer]:
    found = Answers()
    for request in requests:
        engine.add(request)
    found.drain(engine)
    return found.of


def mixed(count: int, seed: int) -> list[EngineRequest]:
    """Requests of every kind: some run ahead, some never, some begin alike."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(20)]
    made = []
    for number in range(count):
        own = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 30))]
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.2]),
            max_tokens=rng.choice([1, 2, 5, 30]),
            ignore_eos=rng.random() < 0.5,
            seed=rng.getrandbits(60),
            top_k=rng.choice([0, 0, 8]),
            top_p=rng.choice([1.0, 1.0, 0.8]),
            stop_token_ids=tuple(rng.sample(range(VOCAB_SIZE), rng.choice([0, 2]))),
        )
        if rng.random() < 0.25:
            sampling = replace(
                sampling,
                **rng.choice(
                    [
                        {"repetition_penalty": 1.4},
                        {"min_tokens": 4},
                        {"no_repeat_ngram": 2},
                        {"top_p": 0.9, "top_p_decay": 0.8},
                        {"watermark": True},
                    ]
                ),
            )
        prompt = (*shared[: rng.randint(1, 20)], *own) if number % 2 else own
        made.append(
            EngineRequest(
                id=f"r{number}",
                token_ids=tuple(prompt[:20] if number % 7 == 0 else prompt),
                sampling=sampling,
                n=rng.choice([1, 1, 1, 3]) if number % 7 else 2,
                beam=None if number % 7 else Beam(width=2),
                logprobs=rng.choice([None, None, 2]),
                prompt_logprobs=rng.choice([None] * 6 + [1]),
                grammar=regex(rng.choice(PATTERNS)) if rng.random() < 0.25 else None,
            )
        )
    return made


Alone = Callable[[int], dict[tuple[str, int], Answer]]


@pytest.fixture(scope="module")
def alone(tokens: LLTokenizer) -> Alone:
    """The answers of 24 `mixed` requests of a seed, each of which has an engine for itself that waits."""
    known: dict[int, dict[tuple[str, int], Answer]] = {}

    def of(seed: int) -> dict[tuple[str, int], Answer]:
        if seed not in known:
            waiting = engine(False, wide(300), tokens)
            known[seed] = {}
            for request in mixed(24, seed):
                known[seed] |= answers(waiting, request)
        return known[seed]

    return of


def wide(num_blocks: int, num_slots: int = 0) -> HashRunner:
    """A runner with all tokens that grammars know, of a model with states if there are slots."""
    return HashRunner(num_blocks, vocab_size=VOCAB, num_slots=num_slots)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_sequences": 3},
        {"max_step_tokens": 16, "prefix_cache": False},
        {"ngram_draft": 3},
        {"ngram_draft": "auto"},
        {"slots": 12},
        {"slots": 40, "ngram_draft": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("blocks", [26, 40, 300])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 12))])
def test_answers_are_those_of_an_engine_that_waits(
    seed: int, blocks: int, settings: dict[str, object], alone: Alone, tokens: LLTokenizer
) -> None:
    """With requests that arrive, are cut and are aborted at any time, and with too few blocks for all."""
    slots = int(settings.get("slots", 0))  # type: ignore[call-overload]
    settings = {name: value for name, value in settings.items() if name != "slots"}
    check_history(engine(True, wide(blocks, slots), tokens, **settings), seed, alone)


@pytest.mark.parametrize(("blocks", "slots"), [(26, 0), (40, 24), (300, 60)])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 12))])
def test_answers_of_several_stages_are_those_of_one(
    seed: int, stages: int, blocks: int, slots: int, alone: Alone, tokens: LLTokenizer
) -> None:
    runner, _ = leading(wide(blocks, slots), stages)
    check_history(engine(False, runner, tokens, ngram_draft=3 if slots else 0), seed, alone)


def check_history(running: Engine, seed: int, alone: Alone) -> None:
    requests, wanted = mixed(24, seed), alone(seed)
    rng, found = random.Random(seed), Answers()
    stray = [replace(request, id=f"stray {request.id}") for request in requests[::3]]
    arriving, alive = rng.sample([*requests, *stray], len(requests) + len(stray)), []
    while arriving or running.has_work():
        for request in arriving[: rng.choice([0, 0, 1, 2])]:
            running.add(arriving.pop(0))
            alive += [request.id] if request in stray else []
        if alive and rng.random() < 0.3:
            request_id = alive.pop(rng.randrange(len(alive)))
            told = found.of.get((request_id, 0))  # a stop string is found in what was told
            if told is None or not told[0] or not running.finish(request_id, 0, 1):
                running.abort(request_id)
        found.step(running)
    found.drain(running)
    assert {key: answer for key, answer in found.of.items() if not key[0].startswith("stray")} == wanted


def test_no_sequence_is_preempted_inside_of_a_step_that_runs(tokens: LLTokenizer) -> None:
    """Runs of forced tokens need many blocks at once, while a step with their sequences still runs."""
    grammar = regex(f"[a-z]{SENTENCE}[a-z]{{2}}{SENTENCE}{SENTENCE}[0-9]{{6}}")
    requests = [
        EngineRequest(
            id=f"r{i}", token_ids=tuple(range(i, i + 5)), sampling=SamplingParams(seed=i), grammar=grammar
        )
        for i in range(5)
    ]
    wanted = answers(engine(False, wide(300), tokens), *requests)
    preemptions = 0
    for blocks, apart in product(range(12, 22), range(1, 5)):
        running, found = engine(True, wide(blocks), tokens), Answers()
        for request in requests:
            running.add(request)
            wait(running._grammars._held.values())  # type: ignore[union-attr]  # the same order on every machine
            for _ in range(apart):
                found.step(running)
        found.drain(running)
        assert found.of == wanted
        preemptions += running.stats().preemptions
    assert preemptions


class Noted:
    """The order in which steps are launched ("run") and read ("read")."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self._note(monkeypatch, HashRunner, "run")
        self._note(monkeypatch, Receipt, "wait")

    def _note(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        own: Callable[..., object] = getattr(owner, name)

        def noting(*args: object) -> object:
            self.events.append("read" if name == "wait" else "run")
            return own(*args)

        monkeypatch.setattr(owner, name, noting)


@pytest.mark.parametrize(
    "kind",
    ["greedy", "drawn", "biased", "masked", "penalised", "watermarked", "unrepeated", "decaying", "longer"],
)
def test_a_step_runs_before_the_tokens_of_the_one_before_it_are_read(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    drawn = replace(GREEDY, temperature=0.8, seed=4)
    sampling = {
        "greedy": GREEDY,
        "drawn": drawn,
        "biased": replace(drawn, logit_bias=((5, 4.0),)),
        "masked": replace(drawn, bad_words=((6,), (5, 4)), allowed_token_ids=tuple(range(20))),
        "penalised": replace(drawn, repetition_penalty=1.5, frequency_penalty=0.5),
        "watermarked": replace(drawn, watermark=True),
        "unrepeated": replace(drawn, no_repeat_ngram=1),
        "decaying": replace(drawn, top_p=0.9, top_p_decay=0.7),
        "longer": replace(drawn, min_tokens=4, stop_token_ids=(30,)),
    }[kind]
    request = EngineRequest(id="a", token_ids=(1, 2), sampling=sampling)
    wanted = answers(engine(False), request)
    noted = Noted(monkeypatch)
    runner = HashRunner()
    assert answers(engine(True, runner), request) == wanted
    assert noted.events == ["run", *["run", "read"] * 7, "read"]
    assert len(runner.batches) == 8  # the last token was known to be the last one: nothing was wasted


def test_a_cpu_reads_each_step_before_it_prepares_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch)
    made = Engine(HashRunner(), EngineConfig(), eos_token_ids=frozenset({EOS}), max_model_len=100)
    answers(made, EngineRequest(id="a", token_ids=(1, 2), sampling=GREEDY))
    assert noted.events == ["run", "read"] * 8


def test_a_step_in_a_grammar_runs_before_the_tokens_of_the_one_before_it_are_read(
    monkeypatch: pytest.MonkeyPatch, tokens: LLTokenizer
) -> None:
    sampling = replace(GREEDY, temperature=0.8, seed=4, ignore_eos=False)
    request = EngineRequest(id="a", token_ids=(1, 2), sampling=sampling, grammar=regex("[a-z]{20}"))
    wanted = answers(engine(False, wide(64), tokens), request)
    noted = Noted(monkeypatch)
    runner = wide(64)
    assert answers(engine(True, runner, tokens), request) == wanted
    count = len(runner.batches)
    assert noted.events == ["run", *["run", "read"] * (count - 1), "read"]


def test_tokens_that_a_grammar_forces_cost_one_row_that_nobody_reads(tokens: LLTokenizer) -> None:
    sampling = SamplingParams(temperature=0.8, seed=4)
    request = EngineRequest(
        id="a", token_ids=(1, 2), sampling=sampling, grammar=regex(f"[0-9]{SENTENCE}[0-9]")
    )
    waiting, overlapped = wide(64), wide(64)
    wanted = answers(engine(False, waiting, tokens), request)
    assert answers(engine(True, overlapped, tokens), request) == wanted
    sizes = [[length for _, _, length in step] for step in waiting.batches]
    assert max(sizes[1:]) > [4]
    # The row of the digit is computed before the sentence after it is known, and so is the row of the end.
    assert [[length for _, _, length in step] for step in overlapped.batches] == [
        *sizes[:1],
        [1],
        [sizes[1][0] - 1],
        *sizes[2:],
        *[[1]] * (len(overlapped.batches) - len(sizes) - 1),
    ]


def test_a_step_waits_where_the_host_needs_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(monkeypatch)
    request = EngineRequest(id="a", token_ids=(1, 2), sampling=GREEDY, generation_logits=True)
    answers(engine(True), request)
    assert noted.events == ["run", "read"] * 8


def test_an_end_that_the_token_decides_costs_one_row_that_nobody_reads() -> None:
    tokens = greedy_tokens([1, 2], 6)
    place = next(i for i in range(1, 6) if tokens[i] not in tokens[:i])
    runner = HashRunner()
    found = answers(
        engine(True, runner),
        EngineRequest(id="a", token_ids=(1, 2), sampling=replace(GREEDY, stop_token_ids=(tokens[place],))),
        EngineRequest(id="b", token_ids=(5, 6), sampling=replace(GREEDY, max_tokens=20)),
    )
    assert found["a", 0] == (tokens[: place + 1], [], FinishReason.STOP, None)
    assert found["b", 0][0] == greedy_tokens([5, 6], 20)
    rows = [step for step in runner.batches if any(chunk[0] == "a" for chunk in step)]
    assert len(rows) == place + 2


def test_a_prompt_that_is_being_computed_is_not_computed_for_another_request() -> None:
    prompt = tuple(i % VOCAB_SIZE for i in range(41))
    runner = HashRunner()
    running, found = engine(True, runner), Answers()
    running.add(EngineRequest(id="a", token_ids=prompt, sampling=GREEDY))
    found.step(running)
    running.add(EngineRequest(id="b", token_ids=prompt, sampling=GREEDY))
    found.drain(running)
    assert found.of["a", 0][0] == found.of["b", 0][0] == greedy_tokens(prompt, 8)
    assert sum(length for step in runner.batches for name, _, length in step if name == "b") < 1 + 4 + 8


def answers_beside_a_fault(break_request: Callable[[Faults, str], None]) -> Answers:
    """The answers to "good" and "bad", which run side by side; after four steps "bad" is broken."""
    faults = Faults()
    running, found = engine(True, EvilRunner(faults)), Answers()
    for name in ("good", "bad"):
        running.add(EngineRequest(id=name, token_ids=(4, 5), sampling=replace(GREEDY, max_tokens=12)))
    for _ in range(4):
        found.step(running)
    break_request(faults, "bad")
    found.drain(running)
    return found


def test_a_row_that_is_not_finite_ends_its_request_alone() -> None:
    found = answers_beside_a_fault(lambda faults, name: faults.nan_for.add(name))
    assert found.of["good", 0][0] == greedy_tokens([4, 5], 12)
    assert found.of["bad", 0][2:] == (FinishReason.ERROR, "NumericalError")
    assert found.of["bad", 0][0] == greedy_tokens([4, 5], 12)[: len(found.of["bad", 0][0])]


def test_a_request_that_raises_fails_alone_while_the_step_before_still_runs() -> None:
    found = answers_beside_a_fault(lambda faults, name: faults.raise_for.add(name))
    assert found.of["good", 0][0] == greedy_tokens([4, 5], 12)
    assert found.of["bad", 0][2] is FinishReason.ERROR


class WatchedRunner(HashRunner):
    """Knows whether somebody still has the logits of a step."""

    def run(self, batch: Batch) -> torch.Tensor:
        logits = super().run(batch)
        self.last = weakref.ref(logits)
        return logits


def test_logits_are_free_before_the_next_step_needs_memory() -> None:
    runner = WatchedRunner()
    made = engine(True, runner)
    made.add(EngineRequest(id="a", token_ids=(4, 5), sampling=replace(GREEDY, temperature=0.5), logprobs=2))
    for _ in range(3):
        made.step()
        assert runner.last() is None
    Answers().drain(made)


class RaisingSampler(Sampler):
    """Spoils the logits and raises, whenever it chooses for more than one row."""

    def choose(self, logits: torch.Tensor, sequences, ahead=None) -> Choice:  # type: ignore[no-untyped-def]
        if len(sequences) > 1:
            logits.fill_(torch.nan)
            raise RuntimeError("scripted fault in the sampler")
        return super().choose(logits, sequences, ahead)


def test_rows_are_chosen_one_by_one_after_a_sampler_failed() -> None:
    sampler = RaisingSampler(VOCAB_SIZE, frozenset({EOS}))
    made = Engine(
        HashRunner(),
        EngineConfig(overlap=True),
        eos_token_ids=frozenset({EOS}),
        max_model_len=100,
        sampler=sampler,
    )
    sampling = replace(GREEDY, temperature=0.8, seed=5)
    requests = [EngineRequest(id=name, token_ids=(4, 5), sampling=sampling) for name in "ab"]
    late = EngineRequest(id="late", token_ids=(7, 8, 9), sampling=sampling)
    found = Answers()
    made.add(requests[0])
    for _ in range(3):  # one row: it runs ahead
        found.step(made)
    made.add(requests[1])
    made.add(late)
    found.drain(made)
    for request in (*requests, late):
        assert {("x", 0): found.of[request.id, 0]} == answers(engine(False), replace(request, id="x"))


def test_tokens_that_cannot_be_read_fail_their_requests_and_not_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, found = engine(True), Answers()
    running.add(EngineRequest(id="a", token_ids=(4, 5), sampling=replace(GREEDY, max_tokens=20)))
    for _ in range(3):
        found.step(running)
    with monkeypatch.context() as broken:
        broken.setattr(Receipt, "wait", lambda _: (_ for _ in ()).throw(RuntimeError("scripted fault")))
        found.step(running)
    found.drain(running)
    assert found.of["a", 0][2] is FinishReason.ERROR
    after = EngineRequest(id="b", token_ids=(4, 5), sampling=GREEDY)
    assert answers(running, after)["b", 0][0] == greedy_tokens([4, 5], 8)


class DeviceRunner(HashRunner):
    """A HashRunner on a pretended device."""

    def __init__(self, device: PretendDevice) -> None:
        super().__init__()
        self.device, self._there = DEVICE, device
        self.waits: list[int] = []  # of the device when each step began

    @torch.inference_mode()
    def run(self, batch: Batch) -> torch.Tensor:
        self.waits.append(len(self._there.waits))
        there = batch.context
        context = ForwardContext(
            query_start=_read(there.query_start),
            context_lens=_read(there.context_lens),
            block_tables=_read(there.block_tables),
            slots=_read(there.slots),
            query_lens=there.query_lens,
            lens=there.lens,
            block_size=there.block_size,
        )
        ids, positions, rows = map(_read, (batch.input_ids, batch.positions, batch.logit_rows))
        return self._there.put(super().run(Batch(batch.chunks, ids, positions, rows, context, batch.arrays)))


def _read(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor on the pretended device; the device itself computes with them."""
    assert isinstance(tensor, OnDevice)
    return tensor.on_cpu


@pytest.mark.parametrize("overlap", [False, True])
def test_the_host_reads_a_device_once_a_step(overlap: bool) -> None:
    sampling = replace(GREEDY, temperature=0.7, seed=1)
    kinds = [
        GREEDY,
        sampling,
        replace(sampling, top_k=5),
        replace(sampling, top_p=0.7, min_p=0.01),
        replace(sampling, logit_bias=((1, 2.0),)),
        replace(sampling, repetition_penalty=1.3, bad_words=((4, 5),)),
    ]
    requests = [
        EngineRequest(id=f"r{i}", token_ids=(i, 2 * i), sampling=kind, logprobs=i % 3 or None)
        for i, kind in enumerate(kinds)
    ]
    wanted = answers(engine(False), *requests)
    with PretendDevice() as device:
        runner = DeviceRunner(device)
        found = answers(engine(overlap, runner), *requests)
    assert found == wanted
    assert len(runner.waits) == 8
    assert runner.waits == list(range(8))
    assert len(device.waits) == 8


@pytest.mark.parametrize("after", range(9))
def test_a_request_that_needs_its_tokens_may_arrive_when_another_one_ends(after: int) -> None:
    tokens = greedy_tokens([1, 2], 6)
    place = next(i for i in range(1, 6) if tokens[i] not in tokens[:i])
    ends = replace(GREEDY, stop_token_ids=(tokens[place],))
    waits = EngineRequest(id="b", token_ids=(5, 6), sampling=replace(GREEDY, repetition_penalty=1.3))
    running, found = engine(True), Answers()
    running.add(EngineRequest(id="a", token_ids=(1, 2), sampling=ends))
    for _ in range(after):
        found.step(running)
    running.add(waits)
    found.drain(running)
    assert found.of["a", 0] == (tokens[: place + 1], [], FinishReason.STOP, None)
    assert {("b", 0): found.of["b", 0]} == answers(engine(False), waits)


def test_a_block_is_offered_when_its_step_is_collected() -> None:
    made = engine(True)
    made.add(EngineRequest(id="a", token_ids=(1, 2, 3), sampling=replace(GREEDY, max_tokens=20)))
    for _ in range(15):
        made.step()
        (sequence,) = made._scheduler.running
        assert sequence.num_indexed * 4 < max(1, len(sequence.token_ids))


def test_pieces_of_a_prompt_follow_each_other_inside_of_a_block() -> None:
    runner = HashRunner(num_blocks=4, block_size=64)
    made, found, steps = engine(True, runner, max_step_tokens=16), Answers(), 0
    prompt = tuple(i % VOCAB_SIZE for i in range(70))
    made.add(EngineRequest(id="a", token_ids=prompt, sampling=replace(GREEDY, max_tokens=1)))
    while made.has_work():
        found.step(made)
        steps += 1
    assert found.of["a", 0][0] == greedy_tokens(prompt, 1)
    assert (len(runner.batches), steps) == (5, 6)
