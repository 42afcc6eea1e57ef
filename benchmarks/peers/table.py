"""The journal of a run as a page of Markdown. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.load import Mix
from benchmarks.peers.journal import BATCH, FAILURE, LIMITS, MACHINE, START, Record
from benchmarks.peers.peer import WEIGHT_BYTES
from benchmarks.peers.ratios import best, paired_ratio
from benchmarks.peers.traffic import ALL, ARRIVALS
from benchmarks.roofline import Machine, Shape

OURS: Final = "ours"
Figures = Mapping[int, float]  # by round


class Measure(NamedTuple):
    """A field of a batch, and whether more of it is better."""

    field: str
    title: str
    highest: bool


MEASURES: Final = (
    Measure("output_tok_s", "Output, tok/s", True),
    Measure("ttft_ms_p50", "Time to the first token, ms, median", False),
    Measure("itl_ms_p50", "Time between tokens, ms, median", False),
    Measure("itl_ms_p99", "Time between tokens, ms, 99 of 100", False),
)


class Cell(NamedTuple):
    """One model at one precision."""

    model: str
    precision: str


class Results:
    """The batches of a journal without errors; the last one counts where a batch was run again."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self._rows: dict[tuple[str, str, str, int], Record] = {}
        for record in self.of(BATCH):
            key = (record["model"], record["server"], record["mix"], record["round"])
            if not record["errors"]:
                self._rows[key] = record

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    def cells(self) -> list[Cell]:
        return list(dict.fromkeys(Cell(row["model"], row["precision"]) for row in self._rows.values()))

    def servers(self, cell: Cell) -> list[str]:
        """Labels, ours first."""
        labels = {
            row["server"] for row in self._rows.values() if Cell(row["model"], row["precision"]) == cell
        }
        return sorted(labels, key=lambda label: (not is_ours(label), label))

    def mixes(self) -> list[str]:
        found = {mix for _, _, mix, _ in self._rows}
        return [mix for mix in ALL if mix in found]

    def rows(self, model: str, server: str, mix: str) -> dict[int, Record]:
        """By round."""
        return {key[3]: row for key, row in self._rows.items() if key[:3] == (model, server, mix)}

    def figures(self, model: str, server: str, mix: str, field: str) -> Figures:
        """By round; without those that are nothing, such as gaps of answers that came at once."""
        rows = self.rows(model, server, mix).items()
        return {number: row[field] for number, row in rows if row[field] and not math.isnan(row[field])}

    def limits(self) -> dict[int, Machine]:
        """By round."""
        return {record["round"]: Machine(record["flops"], record["bandwidth"]) for record in self.of(LIMITS)}

    def shape(self, model: str) -> Shape:
        [*_, record] = [record for record in self.of("shape") if record["model"] == model]
        return Shape(**{name: record[name] for name in Shape.__dataclass_fields__})

    def share(self, cell: Cell, server: str, mix: str) -> float | None:
        """Median over the rounds: the least time of a batch on this machine over its wall time."""
        limits, shape, shares = self.limits(), self.shape(cell.model), []
        for number, row in self.rows(cell.model, server, mix).items():
            if number in limits and mix != ARRIVALS:
                least = limits[number].load_s(
                    shape,
                    row["requests"],
                    row["concurrency"],
                    input_len=row["input_len"],
                    output_len=row["output_len"],
                    prefix_len=row["prefix_len"],
                    weight_bytes=WEIGHT_BYTES[cell.precision],
                )
                shares.append(least / row["wall_s"])
        return median(shares) if shares else None

    def decode_share(self, cell: Cell, server: str) -> float | None:
        """Median over the rounds: the least time of a step of one sequence over that between two tokens."""
        limits, shape, shares = self.limits(), self.shape(cell.model), []
        for number, row in self.rows(cell.model, server, "c1").items():
            if number in limits and row["itl_ms_p50"]:
                context = row["input_len"] + row["output_len"] // 2
                least = limits[number].decode_s(shape, 1, context, WEIGHT_BYTES[cell.precision])
                shares.append(least * 1e3 / row["itl_ms_p50"])
        return median(shares) if shares else None


def is_ours(label: str) -> bool:
    """Whether a label is of this server, in whichever setting."""
    return label.split(" ", 1)[0].split("-", 1)[0] == OURS


def short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def spread(figures: Figures) -> str:
    """Median (least to most)."""
    if not figures:
        return ""
    values = sorted(figures.values())
    if values[0] == values[-1]:
        return short(values[0])
    return f"{short(median(values))} ({short(values[0])} to {short(values[-1])})"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def markdown(titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = list(titles)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def ratios(results: Results, cell: Cell, mine: str, measure: Measure, mixes: Sequence[str]) -> list[str]:
    """One row: `mine` over the best peer in each mix, with its interval, its rounds and its name."""
    row = []
    labels = results.servers(cell)
    for mix in mixes:
        peers = {
            label: figures
            for label in labels
            if not is_ours(label) and (figures := results.figures(cell.model, label, mix, measure.field))
        }
        rival = best(
            {label: list(figures.values()) for label, figures in peers.items()}, highest=measure.highest
        )
        ratio = (
            paired_ratio(results.figures(cell.model, mine, mix, measure.field), peers[rival])
            if rival
            else None
        )
        row.append(
            f"**{ratio.mean:.2f}** ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.pairs}) {rival}"
            if ratio
            else ""
        )
    return row


def section(results: Results, cell: Cell) -> str:
    """All tables of one model at one precision."""
    mixes, labels = results.mixes(), results.servers(cell)
    parts = [f"## {cell.model}, {cell.precision}"]
    for measure in MEASURES:
        rows = [
            [label, *(spread(results.figures(cell.model, label, mix, measure.field)) for mix in mixes)]
            for label in labels
        ]
        for mine in filter(is_ours, labels):
            name = mine.split(" ", 1)[0]
            rows.append([f"{name} / best peer", *ratios(results, cell, mine, measure, mixes)])
        parts.append(f"### {measure.title}\n\n{markdown(['server', *mixes], rows)}")
    plain = [mix for mix in mixes if mix != ARRIVALS]
    rows = [
        [
            label,
            *(share(results.share(cell, label, mix)) for mix in plain),
            share(results.decode_share(cell, label)),
        ]
        for label in labels
    ]
    title = "### Share of the machine's limit"
    parts.append(f"{title}\n\n{markdown(['server', *plain, 'one step at c1'], rows)}")
    return "\n\n".join(parts)


def starts(results: Results) -> str:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in results.of(START):
        groups.setdefault((record["server"], record["model"]), []).append(record)
    rows = []
    for (server, model), records in sorted(groups.items()):
        ready = spread(dict(enumerate(record["ready_s"] for record in records)))
        memory = short(median(record["memory_mib"] for record in records))
        rows.append([server, model, ready, memory])
    return markdown(["server", "model", "ready after, s", "memory after the load, MiB"], rows)


def left_out(results: Results) -> str:
    """Servers that could not be run and batches with errors: the last word on each."""
    reasons: dict[str, str] = {}
    for record in results.records:
        if record["kind"] == FAILURE:
            reasons[record["server"]] = record["reason"]
        elif record["kind"] == START:
            reasons.pop(record["server"], None)
        elif record["kind"] == BATCH:
            key = f"{record['server']}, {record['model']}, {record['mix']}, round {record['round']}"
            reasons.pop(key, None)
            if record["errors"]:
                reasons[key] = f"{record['errors']} errors, the first: {record['first_error']}"
    return "\n".join(f"* {what}: {escaped(why)}" for what, why in reasons.items()) or "Nothing."


def escaped(text: Any) -> str:
    return str(text).replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")


def page(records: Sequence[Record], notes: Mapping[str, str], mixes: Mapping[str, Mix], command: str) -> str:
    """The whole page. `notes` are the settings of each peer, `mixes` what each mix sends."""
    results = Results(records)
    machines = results.of(MACHINE)
    first, last = machines[0], machines[-1]
    limits = results.limits().values()
    rates = sorted(limit.flops / 1e12 for limit in limits)
    bandwidths = sorted(limit.bandwidth / 1e9 for limit in limits)
    measured = (
        f"bf16 products {rates[0]:.2f} to {rates[-1]:.2f} TFLOP/s, reading {bandwidths[0]:.1f} to "
        f"{bandwidths[-1]:.1f} GB/s"
        if rates
        else "not measured"
    )
    sends = markdown(
        ["mix", *SENT.values()],
        [[name, *(str(getattr(mix, field)) for field in SENT)] for name, mix in mixes.items()],
    )
    kept = sorted({name for machine in machines for name in machine.get("kept", [])})
    return (
        "\n\n".join(
            [
                "# This server beside others on one machine",
                f"{first['at'][:10]} to {last['at'][:10]}: {first['processor']}, {first['cores']} cores, "
                f"{first['memory_gib']} GiB, {first['threads']} threads for every server.",
                f"The load generator runs on the same cores. Load average at the start: {first['load']}. "
                f"Limits, measured before each round: {measured}.",
                f"`{command}`",
                READING,
                *([KEPT.format(", ".join(kept))] if kept else []),
                *(section(results, cell) for cell in results.cells()),
                f"## Start and memory\n\n{starts(results)}",
                f"## Mixes\n\n{sends}\n\n{MIX_NOTES}",
                "## Settings\n\n" + "\n".join(f"* **{name}**: {note}" for name, note in notes.items()),
                f"## Left out\n\n{left_out(results)}",
            ]
        )
        + "\n"
    )


SENT: Final = {
    "input_len": "tokens in",
    "prefix_len": "shared",
    "output_len": "tokens out",
    "concurrency": "at a time",
    "requests": "requests at most",
}

READING: Final = """\
Greedy, `ignore_eos`, streamed. Tokens are counted from `usage`; an answer of another length is an error. In
each round every server is started anew, warmed up, loaded with all mixes and stopped. The order changes from
round to round, and all servers of a round get the same prompts. A cell is the median over the rounds (least
to most).

A ratio is the geometric mean of ours over the best peer, paired by round. The best peer is the one with the
best median in that cell. In brackets are the 95 % bootstrap interval and the number of pairs. For times, less
than 1 is better. Times between tokens are those between pieces of text: a server that sends several tokens at
once has short and long ones.

The share of the limit is the least time that the machine needs for a batch over the wall time. The least time
counts the operations of prompts, with the causal half of attention, at the machine's rate of bf16 products.
It counts the bytes that decoding reads, weights and caches, at the machine's bandwidth. A weight of
bf16 counts two bytes, though ours reads 1.5."""

KEPT: Final = """\
These were started once a model, and stood still (SIGSTOP) while others had their turn: {}. They keep their
memory meanwhile, and use no processor."""

MIX_NOTES: Final = """\
In `arrivals` the sixteen decode while prompts of 2,000 tokens arrive, each a second after the last one was
answered. The figures are those of the sixteen. A batch sends whole waves, and no further wave after a time
limit, so slow servers send fewer."""
