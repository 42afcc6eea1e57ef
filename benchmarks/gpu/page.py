"""The journal of a run as a page of Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.gpu.load import MIXED
from benchmarks.gpu.measure import JOB, TRAFFIC
from benchmarks.peers.journal import FAILURE, LIMITS, MACHINE, Record

OURS: Final = "ours"

READING: Final = """\
Every contender has a process of its own, one after another, and makes the same model with random weights on
the device. Prompts are random tokens, the same for all; answers are greedy and do not stop at an end token.
The time of a decode of one sequence is that of all its tokens less that of the first one. That of several is
the time of the steps in which all of them decode, or the same difference where a contender does not tell when
tokens come. A figure is the median of its repeats, then of the rounds. The share is the least time that the
device needs over the time taken. That least time counts operations of products and of causal attention at the
measured rate of bf16 products, or bytes of weights and caches at the measured bandwidth."""


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *rows))


def unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


class Results:
    """The records of a journal by shape, contender and name."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    def of(self, *kinds: str, **wanted: Any) -> list[Record]:
        return [
            record
            for record in self.records
            if record["kind"] in kinds and all(record.get(key) == value for key, value in wanted.items())
        ]

    def middle(self, records: Sequence[Record], field: str, index: int | None = None) -> float | None:
        """The median over the rounds; None of none."""
        values = [record[field] if index is None else record[field][index] for record in records]
        return median(values) if values else None


def number(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return ""
    value *= scale
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def jobs_table(results: Results, shape: str, contenders: list[str]) -> str:
    names = unique(record["name"] for record in results.of(JOB, shape=shape))
    rows = []
    for name in names:
        cells = [name]
        for contender in contenders:
            found = results.of(JOB, shape=shape, contender=contender, name=name)
            share = results.middle(found, "share")
            ms, rate = results.middle(found, "seconds"), results.middle(found, "tok_s")
            cells.append(
                f"{number(ms, 1e3)} ms, {number(rate)} tok/s, {share:.0%}" if share is not None else ""
            )
        rows.append(cells)
    return markdown(["", *contenders], rows)


TRAFFIC_COLUMNS: Final = (
    ("output, tok/s", "output_tok_s", None, 1.0),
    ("first token, ms, median", "ttft_s", 0, 1e3),
    ("99 of 100", "ttft_s", 1, 1e3),
    ("between tokens, ms, median", "itl_s", 0, 1e3),
    ("99 of 100", "itl_s", 1, 1e3),
)


def traffic_table(results: Results, shape: str, name: str, contenders: list[str]) -> str:
    rows = []
    ours = results.middle(results.of(TRAFFIC, shape=shape, name=name, contender=OURS), "output_tok_s")
    for contender in contenders:
        found = results.of(TRAFFIC, shape=shape, name=name, contender=contender)
        if not found:
            continue
        rate = results.middle(found, "output_tok_s")
        cells = [
            number(results.middle(found, field, index), scale) for _, field, index, scale in TRAFFIC_COLUMNS
        ]
        rows.append([contender, *cells, number(ours / rate) if ours and rate else ""])
    return markdown(["", *(title for title, *_ in TRAFFIC_COLUMNS), "ours over it"], rows)


def section(results: Results, shape: str) -> str:
    contenders = unique(record["contender"] for record in results.of(JOB, TRAFFIC, shape=shape))
    parts = [f"## {shape}", jobs_table(results, shape, contenders)]
    for name in unique(record["name"] for record in results.of(TRAFFIC, shape=shape)):
        one = results.of(TRAFFIC, shape=shape, name=name)[0]
        sentence = (
            f"{one['requests']} requests arrive at {one['rate']:g} a second. On average they have "
            f"{one['prompt_len']} tokens and want {one['new_tokens']}; each length is uniform, from half "
            "of that to one and a half."
        )
        parts += [
            f"### Mixed traffic{name.removeprefix(MIXED)}",
            sentence,
            traffic_table(results, shape, name, contenders),
        ]
    left = {(r["contender"], r["name"]): r["reason"] for r in results.of(FAILURE, shape=shape)}
    for record in results.of(JOB, TRAFFIC, shape=shape):
        left.pop((record["contender"], record["name"]), None)
    if left:
        lines = [f"* {contender}, {name}: {reason}" for (contender, name), reason in left.items()]
        parts += ["### Left out", "\n".join(lines)]
    return "\n\n".join(parts)


def page(records: Sequence[Record], notes: Mapping[str, str]) -> str:
    """The whole page. `notes`: the settings of each contender."""
    results = Results(records)
    machines, limits = results.of(MACHINE), results.of(LIMITS)
    first, last = machines[0], machines[-1]
    versions = {
        library: version for record in results.of("start") for library, version in record["versions"].items()
    }
    rates = sorted(record["flops"] / 1e12 for record in limits)
    speeds = sorted(record["bandwidth"] / 1e9 for record in limits)
    measured = (
        f"bf16 products {number(rates[0])} to {number(rates[-1])} TFLOP/s, memory {number(speeds[0])} to "
        f"{number(speeds[-1])} GB/s"
        if rates
        else "not measured"
    )
    named = unique(record["contender"] for record in results.of(JOB, TRAFFIC))
    shapes = unique(record["shape"] for record in results.of(JOB, TRAFFIC, FAILURE) if "shape" in record)
    return (
        "\n\n".join(
            [
                f"# Engines on one device: {first['device']}",
                f"{first['at'][:10]} to {last['at'][:10]}; "
                + ", ".join(f"{library} {version}" for library, version in sorted(versions.items()))
                + f"; {first['driver']}. Limits, measured in each process: {measured}.",
                "\n".join(f"    {command}" for command in unique(each["command"] for each in machines)),
                READING,
                *(section(results, shape) for shape in shapes),
                "## Contenders\n\n" + "\n".join(f"* **{name}**: {notes[name]}" for name in named),
            ]
        )
        + "\n"
    )
