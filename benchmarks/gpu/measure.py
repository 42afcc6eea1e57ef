"""All figures of one contender: jobs are timed again and again, traffic once."""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from benchmarks.gpu import limits
from benchmarks.gpu.contender import Contender, Setup
from benchmarks.gpu.load import MIXED, Arrival, Job, Prompts, fields, steady, summary
from benchmarks.gpu.shapes import shape_of
from benchmarks.peers.journal import FAILURE, LIMITS, Journal
from benchmarks.roofline import Machine

JOB: Final = "job"
TRAFFIC: Final = "traffic"
LONG_S: Final = 20.0  # of one job; then it is not repeated


class Bench:
    """One contender with one shape, in one round. `where` names it in each record."""

    def __init__(self, make: type[Contender], setup: Setup, journal: Journal, where: dict[str, Any]) -> None:
        self._setup, self._journal, self._where = setup, journal, where
        self._shape = shape_of(setup.shape)
        self._machine: Machine = limits.measure(setup.device)
        journal.append(LIMITS, **where, flops=self._machine.flops, bandwidth=self._machine.bandwidth)
        began = time.perf_counter()
        self._contender = make(setup)
        journal.append(
            "start", **where, ready_s=time.perf_counter() - began, versions=self._contender.versions
        )
        seed = zlib.crc32(f"{where['shape']} {where['round']}".encode())  # the same for all contenders
        self._prompts = Prompts(self._shape.vocabulary, seed)
        # Apart: however often jobs are repeated, the traffic is the same.
        self._arriving = Prompts(self._shape.vocabulary, seed + 1)

    def run(self, parts: Collection[str], done: Collection[str], repeats: int) -> None:
        """Every job of `parts` that is not `done`. What a contender cannot do is noted with the reason."""
        plan = self._setup.plan
        for job in (job for part in parts for job in plan.jobs(part)):
            if job.name not in done:
                self._try(job.name, partial(self._job, job, repeats))
        if MIXED in parts and plan.traffic.name not in done:
            self._try(plan.traffic.name, self._traffic)

    def close(self) -> None:
        self._contender.close()

    def _try(self, name: str, run: Callable[[], dict[str, Any]]) -> None:
        try:
            record = run()
        except Exception as error:  # of any library; other jobs may do
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            self._journal.append(FAILURE, **self._where, name=name, reason=reason)
            print(f"  {name}: {reason}", flush=True)
        else:
            self._journal.append(**record | self._where)

    def _job(self, job: Job, repeats: int) -> dict[str, Any]:
        times = list[tuple[float, float]]()  # seconds, and tokens before them
        began = time.perf_counter()
        for turn in range(repeats + 1):
            if times and time.perf_counter() - began > LONG_S:
                break
            measured = self._measured(job)
            if turn:  # the first one warms up
                times.append(measured)
        seconds, told = (statistics.median(column) for column in zip(*times, strict=True))
        if job.new_tokens > 1:
            weight_bytes = float(self._setup.dtype.itemsize)
            context = job.prompt_len + int(told)
            least = self._machine.decode_s(self._shape, job.batch, context, weight_bytes)
        else:
            least = self._machine.prefill_s(self._shape, job.prompt_len)
        rate = job.batch * (1 if job.new_tokens > 1 else job.prompt_len) / seconds
        print(f"  {job.name}: {seconds * 1e3:.2f} ms, {rate:.0f} tok/s, {least / seconds:.0%}", flush=True)
        return {"kind": JOB, **fields(job), "seconds": seconds, "tok_s": rate, "share": least / seconds}

    def _measured(self, job: Job) -> tuple[float, float]:
        """Seconds of a prefill, or of a step of a decode; and the tokens that a sequence had got by then."""
        if job.new_tokens == 1:
            return self._time(job, 1), 0.0
        if job.batch > 1 and self._contender.streams:
            prompts = (self._prompts.make(job.prompt_len) for _ in range(job.batch))
            return steady(self._contender.serve([Arrival(0.0, prompt, job.new_tokens) for prompt in prompts]))
        whole, first = self._time(job, job.new_tokens), self._time(job, 1)
        return (whole - first) / (job.new_tokens - 1), job.new_tokens / 2

    def _time(self, job: Job, new_tokens: int) -> float:
        prompts = [self._prompts.make(job.prompt_len) for _ in range(job.batch)]
        began = time.perf_counter()
        self._contender.generate(prompts, new_tokens)
        return time.perf_counter() - began

    def _traffic(self) -> dict[str, Any]:
        traffic = self._setup.plan.traffic
        arrivals = self._arriving.arrivals(traffic)
        self._contender.generate([self._prompts.make(traffic.prompt_len)], 2)  # warms up
        found = summary(arrivals, self._contender.serve(arrivals))
        print(f"  {traffic.name}: {found['output_tok_s']:.0f} tok/s", flush=True)
        return {"kind": TRAFFIC, **fields(traffic), **found}
