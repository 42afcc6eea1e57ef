"""Beam search against transformers' own `generate`, ties included, and against its definition."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from serve_app.config import EngineConfig
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.batch import Batch
from serve_app.engine.engine import Engine
from serve_app.engine.model.runner import ModelRunner
from serve_app.errors import InvalidField, PromptTooLong
from serve_app.types import Beam, EarlyStopping, EngineOutput, EngineRequest, FinishReason, SamplingParams
from tests.support.fakes import VOCAB_SIZE, EvilRunner, Faults, HashRunner, UniformRunner, hash_logits
from tests.support.tiny_models import make_model, tiny_config

pytestmark = pytest.mark.usefixtures("one_thread")

STOPPING: dict[EarlyStopping, Any] = {
    EarlyStopping.YES: True,
    EarlyStopping.NO: False,
    EarlyStopping.NEVER: "never",
}


def new_engine(runner: Any, eos: set[int], window: int = 64, **settings: Any) -> Engine:
    config = EngineConfig.model_validate({"max_sequences": 16, "max_step_tokens": 64, **settings})
    return Engine(runner, config, eos_token_ids=frozenset(eos), max_model_len=window)


def run(engine: Engine, *requests: EngineRequest) -> dict[str, list[EngineOutput]]:
    """All requests in one batch; the outputs of each, in the order they came."""
    told: dict[str, list[EngineOutput]] = {request.id: [] for request in requests}
    for request in requests:
        engine.add(request)
    for _ in range(5_000):
        if not engine.has_work():
            break
        for output in engine.step():
            told[output.request_id].append(output)
        engine.check_integrity()
    assert engine.stats().blocks_used == engine.stats().running == 0
    return told


def beam_request(name: str, prompt: list[int], beam: Beam, n: int = 1, **sampling: Any) -> EngineRequest:
    return EngineRequest(
        id=name,
        token_ids=tuple(prompt),
        beam=beam,
        n=n,
        sampling=SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **sampling}),
    )


def expected(model: Any, request: EngineRequest, eos: set[int], **options: Any) -> list[list[int]]:
    """What transformers answers, its padding cut off."""
    beam, prompt = request.beam, torch.tensor([request.token_ids])
    assert beam is not None
    config = GenerationConfig(
        num_beams=beam.width,
        num_return_sequences=request.n,
        length_penalty=beam.length_penalty,
        early_stopping=STOPPING[beam.early_stopping],
        max_new_tokens=request.sampling.max_tokens,
        do_sample=False,
        use_cache=False,
        pad_token_id=0,
        eos_token_id=sorted(eos) or None,
        **options,
    )
    with torch.inference_mode():
        told = model.generate(prompt, generation_config=config, attention_mask=torch.ones_like(prompt))
    answers = []
    for row in told[:, prompt.shape[1] :].tolist():
        ends = [i + 1 for i, token in enumerate(row) if token in eos]
        answers.append(row[: ends[0]] if ends else row)
    return answers


def tokens(outputs: list[EngineOutput]) -> list[list[int]]:
    assert [o.index for o in outputs] == list(range(len(outputs)))
    assert all(o.finish is not None and o.error is None for o in outputs), outputs
    return [list(o.token_ids) for o in outputs]


# --- a model that is a table: the same float32 numbers on both sides, and ties wherever wanted ---


class TableConfig(PreTrainedConfig):  # type: ignore[misc]
    model_type = "table"


class TableModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """Logits [V] that depend on the last token alone."""

    config_class = TableConfig

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(TableConfig(vocab_size=len(table)))
        self.table = torch.nn.Parameter(table)
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any
    ) -> CausalLMOutput:
        return CausalLMOutput(logits=self.table[input_ids])

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        return {"input_ids": input_ids}


class TableRunner(HashRunner):
    def __init__(self, table: torch.Tensor, num_blocks: int = 256) -> None:
        super().__init__(num_blocks)
        self.vocab_size = len(table)
        self.table = table

    def run(self, batch: Batch) -> torch.Tensor:
        super().run(batch)  # checks slots and positions
        return self.table[batch.input_ids[batch.logit_rows]]


@dataclass
class Case:
    table: torch.Tensor
    eos: set[int]
    request: EngineRequest
    options: dict[str, Any]  # of transformers


def random_case(seed: int) -> Case:
    """Small vocabularies and coarse logits: ties within a row, between beams, and with end tokens."""
    rng = random.Random(seed)
    size = rng.choice([7, 12, 40, 400])
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(size, size, generator=generator) * rng.choice([0.5, 2.0, 4.0])
    if rng.random() < 0.7:
        table = (table * rng.choice([0.0, 1.0, 2.0])).round() / 2
    eos = set(rng.sample(range(1, size), rng.choice([0, 1, 1, 2, 3])))
    for token in eos:
        table[:, token] += rng.choice([0.0, 1.0, 3.0])
    # A beam wider than the choice of tokens has hypotheses of padding there, and an error here.
    width = rng.choice([2, 2, 3, 4, 8] if size > 7 else [2, 3])
    beam = Beam(
        width=width,
        length_penalty=rng.choice([1.0, 0.0, -1.0, 0.5, 2.0]),
        early_stopping=rng.choice(list(EarlyStopping)),
    )
    prompt = [rng.randrange(size) for _ in range(rng.randint(1, 9))]
    options: dict[str, Any] = {}
    edits: dict[str, Any] = {}
    if rng.random() < 0.25:
        edits["repetition_penalty"] = options["repetition_penalty"] = rng.choice([0.5, 1.5])
    if rng.random() < 0.25:
        edits["no_repeat_ngram"] = options["no_repeat_ngram_size"] = rng.choice([2, 3])
    if rng.random() < 0.25:
        words = [[rng.randrange(size) for _ in range(rng.randint(1, 2))] for _ in range(3)]
        words = [word for word in words if word[-1] not in eos]
        if words:
            edits["bad_words"], options["bad_words_ids"] = tuple(map(tuple, words)), words
    count = {"n": rng.randint(1, width), "max_tokens": rng.randint(1, 14)}
    return Case(table, eos, beam_request("r", prompt, beam, **count, **edits), options)


def check_table(seed: int) -> set[FinishReason | None]:
    case = random_case(seed)
    told = run(new_engine(TableRunner(case.table), case.eos), case.request)["r"]
    assert tokens(told) == expected(TableModel(case.table), case.request, case.eos, **case.options), (
        seed,
        case,
    )
    return {output.finish for output in told}


def test_answers_equal_transformers_ties_included() -> None:
    ends = [check_table(seed) for seed in range(150)]
    assert sum(e == {FinishReason.EOS} for e in ends) > 20
    assert sum(e == {FinishReason.LENGTH} for e in ends) > 20
    assert sum(e == {FinishReason.EOS, FinishReason.LENGTH} for e in ends) > 5


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_many_answers_equal_transformers_ties_included(part: int) -> None:
    for seed in range(1_000 + 300 * part, 1_300 + 300 * part):
        check_table(seed)


# --- real modules, many requests in one batch ------------------------------------------


@pytest.mark.parametrize(
    "architecture",
    ["llama", *(pytest.param(name, marks=pytest.mark.full) for name in ("gpt2", "qwen3", "gemma2"))],
)
def test_real_models_equal_transformers_in_a_batch(architecture: str) -> None:
    model = make_model(tiny_config(architecture))
    model.generation_config.eos_token_id = None  # else it fills in where a test has none
    generator = torch.Generator().manual_seed(5)

    def prompt(length: int) -> list[int]:
        return torch.randint(3, 96, (length,), generator=generator).tolist()

    def engine(eos: set[int], **settings: Any) -> Engine:
        settings = {"block_size": 4, "num_blocks": 160, **settings}
        runner = ModelRunner(
            model,
            backend=ReferenceAttention(),
            dtype=torch.float32,
            device=torch.device("cpu"),
            config=EngineConfig(**settings),
        )
        return new_engine(runner, eos, **settings)

    requests = []
    for number, (width, rule, penalty) in enumerate(
        [
            (2, EarlyStopping.NO, 1.0),
            (4, EarlyStopping.YES, 2.0),
            (8, EarlyStopping.NO, 0.5),
            (8, EarlyStopping.NEVER, 1.5),
            (4, EarlyStopping.NEVER, -1.0),
        ]
    ):
        beam = Beam(width=width, early_stopping=rule, length_penalty=penalty)
        requests.append(
            beam_request(f"r{number}", prompt(3 + 4 * number), beam, n=width // 2 + 1, max_tokens=10)
        )
    endless = [answer for request in requests for answer in expected(model, request, set())]
    eos = {endless[0][3], endless[-1][1]}
    wanted = {request.id: expected(model, request, eos) for request in requests}
    assert any(len(answer) < 10 for answers in wanted.values() for answer in answers)
    plain = [
        EngineRequest(id=f"p{i}", token_ids=tuple(prompt(7)), sampling=SamplingParams(max_tokens=12, seed=i))
        for i in range(3)
    ]
    lone = [run(engine(eos), request)[request.id] for request in plain]
    for settings in ({"max_step_tokens": 16}, {"num_blocks": 80, "max_sequences": 10}):
        told = run(engine(eos, **settings), *requests, *plain)
        assert {r.id: tokens(told[r.id]) for r in requests} == wanted
        assert [[o.token_ids for o in told[r.id]] for r in plain] == [
            [o.token_ids for o in outputs] for outputs in lone
        ]


def test_edits_act_as_in_transformers() -> None:
    """Penalty, bias and masks on normalised log-probabilities."""
    table = torch.randn(30, 30, generator=torch.Generator().manual_seed(3)) * 3
    request = beam_request(
        "r",
        [4, 9, 4],
        Beam(width=4),
        n=3,
        max_tokens=9,
        repetition_penalty=1.4,
        bad_words=((7,), (3, 5), (11, 12)),
        min_tokens=3,
        logit_bias=((8, 1.5), (20, -4.0)),
    )
    told = tokens(run(new_engine(TableRunner(table), {2}), request)["r"])
    assert told == expected(
        TableModel(table),
        request,
        {2},
        repetition_penalty=1.4,
        bad_words_ids=[[7], [3, 5], [11, 12]],
        min_new_tokens=3,
        sequence_bias=[[[8], 1.5], [[20], -4.0]],
    )
    assert told != tokens(
        run(new_engine(TableRunner(table), {2}), beam_request("r", [4, 9, 4], Beam(width=4), n=3))["r"]
    )


def test_temperature_filters_and_seeds_have_no_effect() -> None:
    plain = beam_request("r", [1, 2, 3], Beam(width=3), n=3)
    odd = replace(plain, sampling=SamplingParams(max_tokens=8, temperature=1.7, top_k=1, top_p=0.1, seed=5))
    answers = [run(new_engine(HashRunner(), {5}), r)["r"] for r in (plain, odd)]
    assert tokens(answers[0]) == tokens(answers[1])


# --- groups -------------------------------------------------------------------------------


def log_probs_of(prefix: list[int]) -> list[float]:
    return torch.log_softmax(torch.from_numpy(hash_logits(prefix)), -1).tolist()


def diverse_answers(request: EngineRequest, eos: set[int]) -> list[list[int]]:
    """Diverse beam search from its definition, in plain Python: no ties, NEVER, no length penalty."""
    beam, prompt, limit = request.beam, list(request.token_ids), request.sampling.max_tokens
    assert beam is not None
    assert limit is not None
    width = beam.width // beam.groups
    live: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(beam.groups)]
    ended: list[list[tuple[float, list[int]]]] = [[] for _ in range(beam.groups)]
    for length in range(1, limit + 1):
        taken: list[set[int]] = []
        for group in range(beam.groups):
            ranked = sorted(
                (
                    (
                        total
                        + log_prob
                        - beam.diversity_penalty * sum(token in tokens_of for tokens_of in taken),
                        [*output, token],
                    )
                    for total, output in live[group]
                    for token, log_prob in enumerate(log_probs_of(prompt + output))
                ),
                reverse=True,
            )
            over = [c for c in ranked[:width] if c[1][-1] in eos or length == limit]
            ended[group] = sorted(ended[group] + over, reverse=True)[:width]
            live[group] = [c for c in ranked if c[1][-1] not in eos and length < limit][:width]
            if len(ended[group]) == width and live[group] and live[group][0][0] <= ended[group][-1][0]:
                live[group] = []
            taken.append({output[-1] for _, output in live[group]})
    return [output for _, output in sorted((c for found in ended for c in found), reverse=True)][: request.n]


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("penalty", [0.0, 0.7, 5.0])
def test_groups_equal_their_definition(groups: int, penalty: float) -> None:
    rng = random.Random(groups)
    for _ in range(6):
        eos = set(rng.sample(range(VOCAB_SIZE), 3))
        beam = Beam(
            width=6,
            groups=groups,
            diversity_penalty=penalty,
            length_penalty=0.0,
            early_stopping=EarlyStopping.NEVER,
        )
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 9))]
        request = beam_request("r", prompt, beam, n=6, max_tokens=rng.randint(1, 7))
        told = tokens(run(new_engine(HashRunner(), eos), request)["r"])
        assert told == diverse_answers(request, eos)


# --- a request's life -----------------------------------------------------------------------


def test_nothing_is_told_before_the_end_and_then_the_best_first() -> None:
    engine = new_engine(HashRunner(), {1})
    request = replace(
        beam_request("r", list(range(6)), Beam(width=4, length_penalty=0.0), n=3),
        logprobs=2,
        prompt_logprobs=1,
    )
    told = run(engine, request)["r"]
    assert [o.index for o in told] == [0, 1, 2]
    sums = []
    for output in told:
        assert len(output.prompt_logprobs or ()) == 5
        assert [p.token_id for p in output.logprobs] == list(output.token_ids)
        prefix = list(request.token_ids)
        for position in output.logprobs:
            want = log_probs_of(prefix)
            assert position.logprob == pytest.approx(want[position.token_id], abs=1e-5)
            best = sorted(range(VOCAB_SIZE), key=lambda i: -want[i])[:2]
            assert {top.token_id for top in position.top} == set(best)
            prefix.append(position.token_id)
        sums.append(math.fsum(p.logprob for p in output.logprobs))
        assert output.timing is not None
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preemption_changes_no_answer(prefix_cache: bool) -> None:
    requests = [
        beam_request(
            f"r{i}", [i, 2, 3, 4, 5], Beam(width=4, early_stopping=EarlyStopping.NEVER), n=4, max_tokens=14
        )
        for i in range(3)
    ]
    plain = [
        EngineRequest(id=f"p{i}", token_ids=(i, 7), n=2, sampling=SamplingParams(seed=i, max_tokens=20))
        for i in range(3)
    ]
    roomy, tight = (
        new_engine(HashRunner(num_blocks=blocks), {9}, prefix_cache=prefix_cache) for blocks in (256, 24)
    )
    lone = {r.id: run(roomy, r)[r.id] for r in (*requests, *plain)}
    told = run(tight, *plain[:1], *requests, *plain[1:])
    assert tight.stats().preemptions > 0
    assert {r.id: tokens(told[r.id]) for r in requests} == {r.id: tokens(lone[r.id]) for r in requests}


def test_small_steps_take_all_beams_or_none() -> None:
    engine = new_engine(HashRunner(), set(), max_step_tokens=16, max_sequences=16)
    wide = [beam_request(f"r{i}", list(range(20)), Beam(width=9), max_tokens=6) for i in range(2)]
    narrow = beam_request("p", [3], Beam(width=2), max_tokens=6)
    told = run(engine, *wide, narrow)
    roomy = new_engine(HashRunner(), set(), max_sequences=16)
    for request in (*wide, narrow):
        assert tokens(told[request.id]) == tokens(run(roomy, request)[request.id])


def test_the_context_ends_a_search_where_all_its_beams_fill_the_cache() -> None:
    engine = new_engine(HashRunner(num_blocks=10, block_size=4), set())
    (output,) = run(engine, beam_request("r", [1, 2, 3], Beam(width=4), max_tokens=None))["r"]
    assert output.finish is FinishReason.CONTEXT
    assert len(output.token_ids) == 10 // 4 * 4 - 3
    with pytest.raises(PromptTooLong, match="6 in the completion"):
        engine.add(beam_request("s", [1, 2, 3], Beam(width=4), max_tokens=6))
    with pytest.raises(PromptTooLong):
        engine.add(beam_request("t", [1] * 8, Beam(width=4), max_tokens=None))


def test_one_bad_row_ends_its_own_search_only() -> None:
    for faults in (Faults(nan_for={"bad"}), Faults(raise_for={"bad"})):
        engine = new_engine(EvilRunner(faults), set())
        bad, good = (beam_request(name, [4, 5], Beam(width=4), n=2) for name in ("bad", "good"))
        told = run(engine, bad, good)
        assert [o.index for o in told["bad"] if o.finish is FinishReason.ERROR] == [0, 1]
        assert tokens(told["good"]) == tokens(run(engine, good)["good"])


def test_a_fault_in_the_middle_of_a_search_ends_it_whole() -> None:
    faults = Faults()
    engine = new_engine(EvilRunner(faults), set())
    engine.add(beam_request("r", [4, 5], Beam(width=4), n=2))
    engine.add(EngineRequest(id="p", token_ids=(1,), sampling=SamplingParams(max_tokens=8)))
    for _ in range(3):
        engine.step()
    faults.nan_for.add("r")
    outputs = []
    while engine.has_work():
        outputs += engine.step()
        engine.check_integrity()
    ends = {(o.request_id, o.index): o.finish for o in outputs if o.finish}
    assert ends == {
        ("r", 0): FinishReason.ERROR,
        ("r", 1): FinishReason.ERROR,
        ("p", 0): FinishReason.LENGTH,
    }


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_abort_and_deadline_end_a_search_in_every_state(steps: int) -> None:
    now = 0.0
    config = EngineConfig(max_sequences=8, max_step_tokens=64)
    engine = Engine(
        HashRunner(num_blocks=24), config, eos_token_ids=frozenset(), max_model_len=64, clock=lambda: now
    )
    for name in ("a", "b", "c"):  # two fit the batch
        engine.add(replace(beam_request(name, [4, 5], Beam(width=4), n=3), timeout_s=5.0))
    for _ in range(steps):
        engine.step()
        engine.check_integrity()
    engine.abort("a")
    engine.check_integrity()
    now = 6.0
    outputs = engine.step()
    engine.check_integrity()
    assert len(outputs) == 9
    assert {(o.request_id, o.finish) for o in outputs} == {
        ("a", FinishReason.ABORT),
        ("b", FinishReason.ERROR),
        ("c", FinishReason.ERROR),
    }
    assert engine.stats().blocks_used == 0


def test_a_search_keeps_the_places_of_its_beams() -> None:
    engine = new_engine(HashRunner(), set(), max_sequences=5, max_step_tokens=16)
    engine.add(beam_request("r", list(range(30)), Beam(width=4)))
    for i in range(3):
        engine.add(EngineRequest(id=f"p{i}", token_ids=(1,), sampling=SamplingParams(max_tokens=3)))
    engine.step()
    engine.step()  # the rest of the prompt, and whom the kept places leave room for
    assert (engine.stats().running, engine.stats().waiting) == (4 + 1, 2)
    while engine.has_work():
        engine.step()
        engine.check_integrity()


def test_masks_that_leave_one_answer_give_it_and_those_that_leave_none_an_error() -> None:
    engine = new_engine(UniformRunner(), {0})
    one = beam_request("one", [1], Beam(width=2), n=1, allowed_token_ids=(7,), max_tokens=3)
    none = beam_request("none", [1], Beam(width=2), n=2, allowed_token_ids=(7,), bad_words=((7,),))
    told = run(engine, one, none)
    assert tokens(told["one"]) == [[7, 7, 7]]
    assert [o.error.kind for o in told["none"] if o.error] == ["InvalidField"] * 2


@pytest.mark.parametrize(
    ("beam", "fields", "message"),
    [
        (Beam(width=1), {}, "beam_width must be from 2 to 16"),
        (Beam(width=17), {}, "beam_width must be from 2 to 16"),
        (Beam(width=4, groups=3), {}, "beam_groups must divide"),
        (Beam(width=4, groups=0), {}, "beam_groups must be from 1 to 4"),
        (Beam(width=4), {"n": 5}, "n must be at most the beam width of 4"),
        (Beam(width=4, length_penalty=math.nan), {}, "length_penalty must be from -10 to 10"),
        (Beam(width=4, diversity_penalty=-1.0), {}, "diversity_penalty must be from 0 to 100"),
        (Beam(width=16), {"stop_token_ids": tuple(range(255))}, "stop_token_ids must hold at most 254"),
    ],
)
def test_bad_beams_are_refused_by_name(beam: Beam, fields: dict[str, Any], message: str) -> None:
    engine = new_engine(HashRunner(num_blocks=256), {1}, window=1_000)
    with pytest.raises(InvalidField, match=message):
        engine.add(beam_request("r", [1], beam, **fields))
