"""The scheduler alone on a simulated clock: the scenarios of `arrivals.py`, the same figures on any machine.

    python benchmarks/schedule.py [--cost 11.3,0.206,0.41,0.000122] [--fixed 2048] [--scenario c16]

A step costs milliseconds: FIXED, and ROW for each prompt token, DECODE for each decode, and PAST for each
prompt token and token before it. The defaults are fitted to the steps of `results/step_amx.md`. With
--fixed a step takes so many prompt tokens whatever its decodes take: the rule that `engine/pace.py` replaced.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from arrivals import FIGURES, SCENARIOS, Ask, asks_of, figures_of, line_of

from serve_app.engine.cache.block_tables import BlockTables
from serve_app.engine.cache.blocks import BlockPool
from serve_app.engine.pace import Pace
from serve_app.engine.scheduler import Plan, Scheduler
from serve_app.engine.sequence import Sequence
from serve_app.types import SamplingParams

VOCABULARY = 49_152
STEP_TOKENS = 2048


@dataclass(frozen=True)
class Cost:
    """What a step takes, in milliseconds."""

    fixed: float
    row: float
    decode: float
    past: float

    def seconds(self, plan: Plan) -> float:
        total = self.fixed
        for chunk in plan.chunks:
            if chunk.start >= chunk.sequence.prompt_len:
                total += self.decode
            else:
                total += chunk.length * (self.row + self.past * (chunk.start + chunk.length / 2))
        return total / 1e3


class Measured(Pace):
    """A pace as a warm-up leaves it, with a first decode that was slow."""

    def __init__(self, cost: Cost) -> None:
        super().__init__(Pace.on("cpu", STEP_TOKENS)._alone)
        self.observe(0, 32, (cost.fixed + 32 * cost.row) / 1e3)
        for slower in (2, 1):
            self.observe(1, 0, slower * (cost.fixed + cost.decode) / 1e3)


class Fixed(Pace):
    """The same number of prompt tokens whatever was measured."""

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        pass


class Simulation:
    """One scheduler and a clock that its steps move on."""

    def __init__(self, pace: Pace, cost: Cost) -> None:
        self.tables = BlockTables(BlockPool(4096, 32))
        self.scheduler = Scheduler(self.tables, pace, max_sequences=64, max_step_tokens=STEP_TOKENS)
        self.cost = cost
        self.now = 0.0
        self.open: dict[str, Ask] = {}
        self._sent = 0

    def send(self, ask: Ask, at: float) -> None:
        name, prompt = str(self._sent), list(ask.prompt)
        made = Sequence(name, 0, len(prompt), prompt, SamplingParams(), 0, order=(0, self._sent, 0))
        self._sent += 1
        ask.sent, self.open[name] = at, ask
        self.scheduler.add(made)

    def step(self) -> None:
        plan = self.scheduler.schedule()
        seconds = self.cost.seconds(plan)
        self.now += seconds
        self.scheduler.learn(plan, seconds)
        for chunk in plan.chunks:
            sequence, samples = chunk.sequence, chunk.samples
            sequence.num_computed = chunk.end
            self.tables.index(sequence, chunk.end)
            if samples:
                ask = self.open[sequence.request_id]
                ask.times.append(self.now)
                sequence.token_ids.append(1)
                if len(ask.times) == ask.output:
                    self.scheduler.remove(sequence)
                    del self.open[sequence.request_id]

    def run(self, asks: list[Ask], in_flight: int) -> None:
        closed = [ask for ask in asks if in_flight and ask.at == 0.0]
        timed = sorted((ask for ask in asks if not in_flight or ask.at > 0.0), key=lambda ask: ask.at)
        while closed or timed or self.open:
            if not self.open and not closed:
                self.now = max(self.now, timed[0].at)
            while timed and timed[0].at <= self.now:
                ask = timed.pop(0)
                self.send(ask, ask.at)
            while closed and sum(ask.counted for ask in self.open.values()) < in_flight:
                self.send(closed.pop(0), self.now)
            self.step()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cost", default="11.3,0.206,0.41,0.000122", metavar="FIXED,ROW,DECODE,PAST")
    parser.add_argument("--fixed", type=int, metavar="TOKENS", help="prompt tokens of a step")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    options = parser.parse_args()
    cost = Cost(*map(float, options.cost.split(",")))
    label = "measured" if options.fixed is None else f"fixed {options.fixed}"
    print("| scenario | pace | tok/s | TTFT p50 ms | p99 | ITL p50 ms | p99 | p99/p50 | others' TTFT ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for scenario in options.scenario or SCENARIOS:
        asks, in_flight = asks_of(scenario, 0, VOCABULARY)
        simulation = Simulation(Measured(cost) if options.fixed is None else Fixed(options.fixed), cost)
        simulation.run(asks, in_flight)
        figures = figures_of(asks)
        others = ", ".join(f"{1e3 * (ask.times[0] - ask.sent):.0f}" for ask in asks if not ask.counted)
        print(f"{line_of(f'{scenario} | {label}', {f: figures[f] for f in FIGURES}.__getitem__)} {others} |")


if __name__ == "__main__":
    main()
