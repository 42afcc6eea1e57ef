"""A model on ranks in processes of their own answers as on one, and is lost as a whole.

How families are divided is shown in `tests/unit/models/split/`, without processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from serve_app.engine.engine import Engine
from serve_app.engine.finish import EngineDead
from serve_app.engine.loop import EngineLoop
from serve_app.engine.ranks.followers import Followers
from serve_app.models.errors import ModelLoadError
from serve_app.replica.build import load_engine, load_halves
from serve_app.replica.ranks import part
from serve_app.types import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    PromptTable,
    SamplingParams,
    Tensor,
)
from tests.support.engine_answers import GREEDY, Told, answers, prompt, request
from tests.support.grammars import regex
from tests.support.low_rank import random_updates
from tests.support.ranks import divided_config, rank_processes, save
from tests.support.tiny_llama import make_tiny_llama
from tests.support.tiny_models import tiny_model
from tests.support.tiny_states import KIN, KINDS, tiny_stateful

STATEFUL = (*KINDS, *KIN)
LOST_S = 10.0  # in which a replica must notice a rank that is lost
SMALL = {"max_model_len": 256, "num_blocks": 20, "max_sequences": 8, "max_step_tokens": 64}

Ranks = tuple[Engine, Followers]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("divided"))


@pytest.fixture(scope="module")
def two(tiny: Path) -> Iterator[Ranks]:
    with rank_processes(divided_config(tiny, 2, **SMALL)) as ranks:
        adapted(ranks[0])
        yield ranks


@pytest.fixture(scope="module")
def one(tiny: Path) -> Engine:
    return adapted(load_engine(divided_config(tiny, 1, **SMALL), lambda _: None)[0])


def adapted(engine: Engine) -> Engine:
    table = engine.adapters
    assert table is not None
    for seed in range(2):
        table.put(f"a{seed}", table.compile(random_updates(table.shapes, seed, rank=3)))
    return engine


def mixed() -> list[EngineRequest]:
    """Requests with everything that a rank has to know of, some of them several times over the cache."""
    long = prompt(120, 1)
    ends = replace(GREEDY, ignore_eos=False)
    longer = replace(GREEDY, max_tokens=60)
    sampled = SamplingParams(temperature=0.8, max_tokens=12, seed=5, ignore_eos=True)
    return [
        request("plain", prompt(9)),
        request("long", long),
        request("same start", long[:96] + prompt(9, 2)),
        request("several", prompt(20, 3), n=3, sampling=sampled),
        request("adapter", prompt(30, 4), adapter="a0"),
        request("other adapter", prompt(12, 5), adapter="a1"),
        request("grammar", prompt(8, 6), grammar=regex("(ab|cd)+[0-9]{3}"), sampling=ends),
        request("table", (385, 384, *prompt(9, 4)), prompt_table=table()),
        request("scored", prompt(33, 7), prompt_logprobs=1),
        *(request(f"more {i}", prompt(60 + i, 8 + i), sampling=longer) for i in range(6)),
    ]


def table() -> PromptTable:
    """Embeddings of two virtual tokens, as wide as the model."""
    data = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).numpy().tobytes()
    return PromptTable(rows=Tensor(dtype="FP32", shape=(2, 64), data=data), used=2)


def check_equal(got: dict[tuple[str, int], Told], wanted: dict[tuple[str, int], Told]) -> None:
    assert got.keys() == wanted.keys()
    for key, each in got.items():
        assert each.tokens == wanted[key].tokens, key
        assert each.logits == b"" if not wanted[key].logits else close(each.logits, wanted[key].logits), key
        assert each.prompt_logprobs == pytest.approx(wanted[key].prompt_logprobs, abs=1e-4)


def close(one: bytes, other: bytes) -> bool:
    a, b = (torch.frombuffer(bytearray(each), dtype=torch.float32) for each in (one, other))
    return bool(torch.allclose(a, b, rtol=0, atol=1e-4))


def test_two_ranks_answer_as_one(two: Ranks, one: Engine) -> None:
    engine, _ = two
    check_equal(answers(engine, mixed()), answers(one, mixed()))
    alone = {key: each for ask in mixed() for key, each in answers(engine, [ask]).items()}
    again = answers(engine, mixed())
    assert {key: (each.tokens, each.logits) for key, each in alone.items()} == {
        key: (each.tokens, each.logits) for key, each in again.items()
    }
    assert engine.stats().preemptions
    ask = request("again", prompt(80))
    assert [answers(engine, [ask])["again", 0].cached for _ in range(2)][1] > 48  # found in every rank


def test_an_aborted_request_leaves_the_others_alone(two: Ranks, one: Engine) -> None:
    engine, _ = two
    engine.add(request("left", prompt(30), sampling=replace(GREEDY, max_tokens=100)))
    for _ in range(5):
        engine.step()
    engine.abort("left")
    check_equal(
        {key: each for key, each in answers(engine, [request("x", prompt(17))]).items() if key[0] == "x"},
        answers(one, [request("x", prompt(17))]),
    )


def test_a_request_that_fails_in_every_rank_fails_alone(two: Ranks) -> None:
    fails_alone(two[0])


def fails_alone(engine: Engine) -> None:
    engine.add(request("bad", prompt(9), adapter="unknown"))
    engine.add(request("good", prompt(9)))
    ends: dict[str, EngineOutput] = {}
    while engine.has_work():
        ends |= {each.request_id: each for each in engine.step() if each.finish is not None}
    assert ends["bad"].error is not None
    assert ends["good"].finish is FinishReason.LENGTH


def test_a_rank_that_is_killed_ends_the_engine(two: Ranks) -> None:
    lost(*two, signal.SIGKILL)


@pytest.fixture(scope="module")
def staged(tiny: Path) -> Iterator[Ranks]:
    """Two stages of one rank each."""
    with rank_processes(divided_config(tiny, 1, stages=2, **SMALL)) as ranks:
        adapted(ranks[0])
        yield ranks


def test_two_stages_answer_as_one(staged: Ranks, one: Engine) -> None:
    engine, _ = staged
    assert engine.adapters is not None
    assert one.adapters is not None
    assert engine.adapters.shapes == one.adapters.shapes
    check_equal(answers(engine, mixed()), answers(one, mixed()))


def test_a_request_that_fails_in_every_stage_fails_alone(staged: Ranks) -> None:
    fails_alone(staged[0])


def test_a_stage_that_is_killed_ends_the_engine(staged: Ranks) -> None:
    lost(*staged, signal.SIGKILL)


@pytest.mark.full
def test_pending_tokens_are_known_to_every_rank(tiny: Path, one: Engine) -> None:
    """With overlap a step is launched before rank 0 has read the tokens of the one before it."""
    with rank_processes(divided_config(tiny, 2, overlap=True, **SMALL)) as (engine, _):
        check_equal(answers(adapted(engine), mixed()), answers(one, mixed()))


@pytest.mark.full
@pytest.mark.parametrize("busy", [True, False])
def test_a_rank_that_is_frozen_ends_the_engine(tiny: Path, busy: bool) -> None:
    with rank_processes(divided_config(tiny, 2, **SMALL)) as ranks:
        lost(*ranks, signal.SIGSTOP, busy=busy)


def lost(engine: Engine, followers: Followers, how: signal.Signals, *, busy: bool = True) -> None:
    """Every request ends as one that another replica may go on with, and no process remains."""
    outputs: list[EngineOutput] = []
    loop = EngineLoop(engine, outputs.extend)
    followers.when_lost(lambda reason: loop.call(partial(_die, reason)))
    loop.start()
    if busy:
        loop.add(request("under way", prompt(9), sampling=replace(GREEDY, max_tokens=200)))
        while len(outputs) < 3:
            time.sleep(0.01)
    child = psutil.Process(followers.pids[1])
    began = time.monotonic()
    child.send_signal(how)
    loop._thread.join(LOST_S)
    assert not loop._thread.is_alive()
    assert time.monotonic() - began < LOST_S
    assert not psutil.wait_procs([child], LOST_S)[1]  # its parent may not have reaped it yet
    if busy:
        assert outputs[-1].error is not None
        assert outputs[-1].error.kind == "Unavailable"


def _die(reason: str) -> None:
    raise EngineDead(reason, [])


@pytest.mark.full
def test_no_rank_outlives_its_replica(tiny: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.support.ranks import *\n"
        f"with rank_processes(divided_config(Path({str(tiny)!r}), 2)) as (engine, followers):\n"
        "    print(followers.pids[1], flush=True); time.sleep(600)"
    )
    replica = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert replica.stdout is not None
    child = psutil.Process(int(replica.stdout.readline()))
    replica.kill()
    replica.wait()
    child.wait(LOST_S)


@pytest.mark.full
def test_ranks_that_no_longer_do_the_same_end_the_engine(tiny: Path) -> None:
    with rank_processes(divided_config(tiny, 2, **SMALL)) as (engine, followers):
        engine.add(request("a", prompt(9)))
        engine.step()
        os.kill(followers.pids[1], signal.SIGSTOP)  # so that rank 0 fails alone
        own = engine._runner._runner._runner  # type: ignore[attr-defined]
        own.run = _fail
        with pytest.raises(EngineDead, match="in rank 0 alone"):
            engine.step()


def _fail(batch: object) -> torch.Tensor:
    raise RuntimeError("out of memory, say")


def test_a_rank_that_ends_while_it_loads_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(ModelLoadError, match=r"rank 1 \(process \d+\) ended with status 3"):
        load_halves(divided_config(tiny, 2), lambda _: None)


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (4, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize(
    ("family", "expert_parallel"),
    [
        ("llama", False),
        ("qwen3_moe", False),
        ("qwen3_moe", True),
        ("deepseek_v3", False),  # latents
        ("qwen3_5_moe_text", True),  # and the kinds of states
        ("qwen3_next", False),
        ("granitemoehybrid", False),
        ("jamba", False),
        ("kimi_linear", False),
        ("lfm2", False),
    ],
)
def test_many_prompts_have_the_same_tokens(
    family: str, ranks: int, stages: int, tmp_path: Path, *, expert_parallel: bool
) -> None:
    """With four ranks there are fewer key-value heads than ranks."""
    if expert_parallel and ranks == 1:
        pytest.skip("no ranks of a stage that could have experts of their own")
    folder = make_tiny_llama(tmp_path)  # for its tokenizer
    save((tiny_stateful if family in STATEFUL else tiny_model)(family), folder)
    asked = [request(str(i), prompt(3 + i % 40, i)) for i in range(200)]
    settings = {"max_waiting": 300, "num_blocks": 256}
    wanted = answers(load_engine(divided_config(folder, 1, **settings), lambda _: None)[0], asked)
    config = divided_config(folder, ranks, stages=stages, expert_parallel=expert_parallel, **settings)
    with rank_processes(config) as (engine, _):
        check_equal(answers(engine, asked), wanted)
