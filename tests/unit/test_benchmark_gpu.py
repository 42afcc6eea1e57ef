"""The benchmark of one device: what it asks for, what it computes from that, and a whole run on a CPU."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import limits, measure
from benchmarks.gpu.__main__ import one_process
from benchmarks.gpu.contender import Contender, Setup
from benchmarks.gpu.counted import Counted
from benchmarks.gpu.load import (
    DECODE,
    LONG,
    PLANS,
    PREFILL,
    Arrival,
    Prompt,
    Prompts,
    Seen,
    Traffic,
    steady,
    summary,
)
from benchmarks.gpu.measure import JOB, TRAFFIC, Bench
from benchmarks.gpu.ours import Ours
from benchmarks.gpu.page import page
from benchmarks.gpu.shapes import SHAPES, make_model, shape_of
from benchmarks.peers.journal import FAILURE, LIMITS, MACHINE, Journal, Record
from benchmarks.roofline import Machine, Shape
from benchmarks.sizing import counted
from serve_app.errors import GenerationFailed
from serve_app.types import EngineOutput, FinishReason

ROOT = Path(__file__).resolve().parents[2]
# What a machine with a GPU need not have. Importing one of them fails the run.
ABSENT = ("ray", "fastapi", "hypothesis", "tritonclient")
WITHOUT = "import runpy, sys; sys.modules.update(dict.fromkeys({!r})); sys.argv[0] = 'gpu'; " + (
    "runpy.run_module('benchmarks.gpu', run_name='__main__')"
)


def test_shapes_have_the_weights_that_their_names_say() -> None:
    found = {name: shape_of(name) for name in SHAPES if not name.startswith("tiny")}
    billions = {
        name: shape.dense + shape.head + shape.experts
        if isinstance(shape, Counted)
        else shape.layers * shape.layer_weights + shape.head_weights
        for name, shape in found.items()
    }
    assert {name: count / 1e9 for name, count in billions.items()} == pytest.approx(
        {
            "qwen3-0.6b": 0.596,
            "llama-3.1-8b": 7.505,
            "llama-3.3-70b": 69.50,
            "qwen3-32b": 31.99,
            "qwen3-30b-a3b": 30.22,
            "qwen3.5-9b": 7.94,
            "deepseek-v2-lite": 15.5,
            "gpt-oss-20b": 20.3,
            "gpt-oss-120b": 116.2,
        },
        rel=2e-3,
    )


def test_a_decode_of_a_mixture_reads_the_experts_that_are_chosen() -> None:
    shape = shape_of("qwen3-30b-a3b")
    assert isinstance(shape, Counted)
    assert shape.decode_bytes(1, 0) == pytest.approx(2 * (shape.dense + shape.head + shape.experts / 16))
    assert shape.decode_bytes(512, 0) == pytest.approx(
        2 * (shape.dense + shape.head + shape.experts), rel=1e-3
    )


def test_latents_and_states_count_as_they_are_kept() -> None:
    latents, hybrid = shape_of("deepseek-v2-lite"), shape_of("qwen3.5-9b")
    assert isinstance(latents, Counted)
    assert isinstance(hybrid, Counted)
    assert latents.cached == 27 * (512 + 64) * 2
    assert hybrid.cached == 8 * 2 * 4 * 256 * 2
    assert hybrid.state == 24 * 32 * 128 * 128 * 4


def test_a_model_has_the_weights_that_the_roofline_counts() -> None:
    model, shape = make_model("tiny", torch.float32, torch.device("cpu")), shape_of("tiny")
    assert isinstance(shape, Shape)
    norms = shape.hidden * (2 * shape.layers + 1)
    embedding = shape.head_weights
    counted = shape.layers * shape.layer_weights + shape.head_weights + embedding + norms
    assert sum(parameter.numel() for parameter in model.parameters()) == counted


def test_every_plan_fits_its_longest_sequence() -> None:
    for plan in PLANS.values():
        jobs = [job for part in (PREFILL, DECODE, LONG) for job in plan.jobs(part)]
        assert max(job.prompt_len + job.new_tokens for job in jobs) <= plan.longest
        assert len({job.name for job in jobs}) == len(jobs)


def test_a_step_is_timed_while_all_sequences_decode() -> None:
    early = Seen(0.0, [1.0, 2.0, 3.0, 4.0, 4.5, 5.0, 5.5, 6.0])  # alone until 4.0, then with the other
    late = Seen(0.0, [4.0, 4.5, 5.0, 5.5, 6.0, 9.0])  # alone after 6.0
    seconds, before = steady([early, late])
    assert seconds == pytest.approx(0.5)
    assert before == pytest.approx((4 + 2 + 1 + 2) / 2)
    with pytest.raises(ValueError, match="ended before others had begun"):
        steady([early, Seen(0.0, [6.0, 7.0, 8.0])])


def test_arrivals_are_the_same_for_everybody_and_never_twice_the_same() -> None:
    traffic = Traffic(400, 20.0, 50, 10)
    one, other = Prompts(1000, 3), Prompts(1000, 3)
    arrivals = one.arrivals(traffic)
    assert arrivals == other.arrivals(traffic)
    assert arrivals != one.arrivals(traffic)
    assert arrivals[-1].at == pytest.approx(20.0, rel=0.2)
    assert {len(arrival.prompt) for arrival in arrivals} == set(range(25, 76))


def test_traffic_of_another_rate_takes_as_long_unless_it_is_of_few_requests() -> None:
    usual = Traffic(512, 128.0, 512, 128)
    assert usual.at(64.0) == Traffic(256, 64.0, 512, 128, "mixed at 64 a second")
    assert usual.at(2.0) == Traffic(32, 2.0, 512, 128, "mixed at 2 a second")


def test_a_summary_counts_tokens_waits_and_gaps() -> None:
    arrivals = [Arrival(0.0, [1, 2], 2), Arrival(1.0, [3], 3)]
    found = summary(arrivals, [Seen(0.0, [0.5, 0.75]), Seen(1.0, [1.5, 3.0, 5.0])])
    assert found["output_tok_s"] == 1.0
    assert found["ttft_s"] == [0.5, 0.5]
    assert found["itl_s"] == [1.5, 2.0]
    with pytest.raises(ValueError, match="1 of 2 requests"):
        summary(arrivals, [Seen(0.0, [0.5]), Seen(1.0, [1.5, 3.0, 5.0])])


def record(kind: str, contender: str, name: str, **fields: object) -> Record:
    return {"kind": kind, "round": 0, "shape": "tiny", "contender": contender, "name": name, **fields}


def test_a_page_has_shares_ratios_and_what_was_left_out() -> None:
    text = page(
        [
            {
                "kind": MACHINE,
                "at": "2026-01-02T03:04:05",
                "device": "a GPU",
                "driver": "CUDA",
                "command": "it",
            },
            {"kind": LIMITS, "flops": 2e12, "bandwidth": 3e9},
            record(JOB, "ours", "decode, batch 1", seconds=0.002, tok_s=500.0, share=0.81),
            record(TRAFFIC, "ours", "mixed", **traffic_of(300.0)),
            record(TRAFFIC, "other", "mixed", **traffic_of(100.0)),
            record(FAILURE, "other", "decode, batch 1", reason="no memory"),
        ],
        {"ours": "as it is", "other": "as it comes"},
    )
    assert "| decode, batch 1 | 2 ms, 500 tok/s, 81% |  |" in text
    assert "| other | 100 | 1,000 | 2,000 | 10 | 20 | 3 |" in text
    assert "* other, decode, batch 1: no memory" in text


def traffic_of(rate: float) -> dict[str, object]:
    counts = {"requests": 4, "rate": 2.0, "prompt_len": 8, "new_tokens": 4}
    return counts | {"output_tok_s": rate, "ttft_s": [1.0, 2.0], "itl_s": [0.01, 0.02]}


@pytest.mark.full
def test_a_whole_run_on_a_cpu_needs_neither_ray_nor_http(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", WITHOUT.format(ABSENT), "one", "--device", "cpu", "--dtype", "float32"]
    command += ["--shape", "tiny", "--contender", "ours", "--repeats", "1", "--out", str(journal)]
    parts = ["--part", "prefill", "--part", "decode", "--part", "mixed", "--rate", "80"]
    done = subprocess.run(
        [*command, *parts], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = Journal(journal)
    names = [job["name"] for job in found.of(JOB)]
    assert names == ["prefill 16", "prefill 64", "decode, batch 1", "decode, batch 3"]
    assert all(job["tok_s"] != 0 for job in found.of(JOB))
    [traffic] = found.of(TRAFFIC)
    assert traffic["output_tokens"] > 0
    assert (traffic["name"], traffic["requests"]) == ("mixed at 80 a second", 32)
    assert not found.of(FAILURE)


WHERE = {"round": 0, "shape": "tiny", "contender": "fake"}


class Fake(Contender):
    """Fails with a library's own error where a batch is large."""

    notes = "none"
    streams = False

    def __init__(self, setup: Setup) -> None:
        self.asked: list[tuple[int, int]] = []

    def generate(self, prompts: list[Prompt], new_tokens: int) -> None:
        self.asked.append((len(prompts), new_tokens))
        if len(prompts) > 1:
            raise AttributeError("no such thing in this release")

    def serve(self, arrivals: list[Arrival]) -> list[Seen]:
        raise KeyError("serve")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, Journal]:
    monkeypatch.setattr(limits, "measure", lambda device: Machine(1e12, 1e12))
    journal = Journal(tmp_path / "run.jsonl")
    setup = Setup("tiny", PLANS["tiny"], torch.float32, torch.device("cpu"))
    return Bench(Fake, setup, journal, WHERE), journal


def test_a_job_that_fails_costs_no_other_job(bench: tuple[Bench, Journal]) -> None:
    running, journal = bench
    running.run(("prefill", "decode", "mixed"), (), 1)
    assert [job["name"] for job in journal.of(JOB)] == ["prefill 16", "prefill 64", "decode, batch 1"]
    reasons = {failure["name"]: failure["reason"] for failure in journal.of(FAILURE)}
    assert reasons == {
        "decode, batch 3": "AttributeError: no such thing in this release",
        "mixed": "KeyError: 'serve'",
    }


def test_decodes_of_several_sequences_are_timed_by_when_their_tokens_come(
    bench: tuple[Bench, Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[Arrival]] = []

    def serve(arrivals: list[Arrival]) -> list[Seen]:
        asked.append(arrivals)
        return [Seen(0.0, [2.0 + 0.25 * step for step in range(each.new_tokens)]) for each in arrivals]

    running, journal = bench
    contender: Any = running._contender
    monkeypatch.setattr(Fake, "streams", True)
    monkeypatch.setattr(contender, "serve", serve)
    running.run(("decode",), ("decode, batch 1",), 2)
    (job,) = journal.of(JOB)
    assert job["name"] == "decode, batch 3"
    assert job["seconds"] == pytest.approx(0.25)
    assert job["tok_s"] == pytest.approx(3 / 0.25)
    assert [len(arrivals) for arrivals in asked] == [3, 3, 3]
    assert {arrival.at for arrivals in asked for arrival in arrivals} == {0.0}


def test_a_long_job_is_not_repeated(bench: tuple[Bench, Journal], monkeypatch: pytest.MonkeyPatch) -> None:
    running, _ = bench
    contender: Any = running._contender
    running.run(("prefill",), ("prefill 64",), 3)
    assert len(contender.asked) == 4  # one to warm up
    monkeypatch.setattr(measure, "LONG_S", 0.0)
    running.run(("prefill",), ("prefill 64",), 3)
    assert len(contender.asked) == 4 + 2


def test_a_request_that_fails_leaves_none_to_the_next_job() -> None:
    ended = []

    class Engine:
        def has_work(self) -> bool:
            return True

        def add(self, request: object) -> None:
            pass

        def step(self) -> list[EngineOutput]:
            error = GenerationFailed("no memory").info()
            return [EngineOutput(request_id="1", index=0, finish=FinishReason.ERROR, error=error)]

        def fail_all(self, error: object) -> None:
            ended.append(error)

    ours: Any = Ours.__new__(Ours)
    ours._engine, ours._count = Engine(), 0
    with pytest.raises(RuntimeError, match="request 1 failed"):
        ours.generate([[1, 2], [3]], 4)
    assert len(ended) == 1


def test_what_a_process_says_is_kept_beside_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(program := tmp_path / "python"))
    program.write_text("#!/bin/sh\necho first >&2\necho last >&2\nexit 3\n")
    program.chmod(0o755)
    args = argparse.Namespace(
        vllm_python=None,
        out=tmp_path / "run.jsonl",
        device="cpu",
        dtype="float32",
        repeats=1,
        part=None,
        rate=None,
        limit=60.0,
    )
    assert one_process(args, WHERE) == "ended with 3: last"
    assert (tmp_path / "run.tiny.fake.log").read_text() == "first\nlast\n"


def test_a_rank_of_two_computes_half_of_a_model() -> None:
    whole, sums = counted("llama-3.1-8b", 1)
    part, of_part = counted("llama-3.1-8b", 2)
    assert (2 * part.dense, 2 * part.head, 2 * part.cached) == (whole.dense, whole.head, whole.cached)
    assert of_part == sums
