"""What the benchmark beside other servers computes: orders, ratios, limits, and the page of a journal."""

from __future__ import annotations

import itertools
import math
import socket
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from benchmarks.peers import process as process_module
from benchmarks.peers.journal import BATCH, FAILURE, LIMITS, MACHINE, START, Journal
from benchmarks.peers.peer import BF16, Command, Peer, Place
from benchmarks.peers.process import StartError, marked, running
from benchmarks.peers.ratios import best, paired_ratio
from benchmarks.peers.registry import Server
from benchmarks.peers.schedule import Batch, Turn, rotated, turns
from benchmarks.peers.session import Plan, Session
from benchmarks.peers.table import Results, page
from benchmarks.peers.traffic import ALL, mix_of
from benchmarks.roofline import Machine, Shape
from benchmarks.stopwatch import Stopwatch

SERVERS = ["ours", "a", "b"]
SHAPE = Shape(layers=2, hidden=4, intermediate=8, heads=2, kv_heads=1, head_dim=2, vocabulary=10)


# -- order --------------------------------------------------------------------------------------------


def test_every_server_has_every_place_equally_often() -> None:
    orders = [rotated(SERVERS, turn) for turn in range(2 * len(SERVERS))]
    assert {(server, place): 2 for server in SERVERS for place in range(3)} == Counter(
        (server, place) for order in orders for place, server in enumerate(order)
    )
    neighbours = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert neighbours["ours", "a"] == neighbours["a", "ours"]


def test_a_run_that_was_cut_goes_on_with_what_is_left() -> None:
    done = {Batch(0, "m", "ours", "c1"), Batch(0, "m", "ours", "c4"), Batch(0, "m", "a", "c1")}
    left = list(turns(1, ["m"], ["ours", "a"], ["c1", "c4"], done))
    assert left == [(0, "m", "a", ("c4",))]


# -- ratios -------------------------------------------------------------------------------------------


def test_a_ratio_pairs_rounds_and_takes_the_geometric_mean() -> None:
    ratio = paired_ratio({0: 2.0, 1: 8.0, 5: 99.0}, {0: 1.0, 1: 1.0, 2: 7.0})
    assert ratio is not None
    assert ratio == pytest.approx((4.0, 2.0, 8.0, 2))  # from all resamples of one pair to all of the other


def test_a_constant_ratio_has_an_interval_of_one_point() -> None:
    ratio = paired_ratio({n: 3.0 * (n + 1) for n in range(7)}, {n: 2.0 * (n + 1) for n in range(7)})
    assert ratio == pytest.approx((1.5, 1.5, 1.5, 7))


def test_an_interval_is_the_same_each_time_and_as_wide_as_the_noise() -> None:
    ours = {n: 100.0 * math.exp(noise) for n, noise in enumerate((0.1, -0.1, 0.2, -0.2, 0.05, -0.05, 0.0))}
    theirs = dict.fromkeys(ours, 100.0)
    ratio = paired_ratio(ours, theirs)
    assert ratio == paired_ratio(ours, theirs)
    assert ratio is not None
    assert ratio.mean == pytest.approx(1.0)
    standard_error = math.sqrt(0.105 / 7 / 7)  # of the mean of the resampled logarithms
    assert math.log(ratio.high) == pytest.approx(1.96 * standard_error, rel=0.1)
    assert math.log(ratio.low) == pytest.approx(-1.96 * standard_error, rel=0.1)


def test_without_a_common_round_there_is_no_ratio() -> None:
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None


def test_the_best_peer_has_the_best_median() -> None:
    figures = {"a": [1.0, 9.0, 2.0], "b": [3.0, 3.0, 3.0], "none": []}
    assert best(figures, highest=True) == "b"
    assert best(figures, highest=False) == "a"
    assert best({"none": []}, highest=True) is None


# -- limits -------------------------------------------------------------------------------------------


def test_operations_of_attention_are_those_of_its_causal_half() -> None:
    # 3 queries after 5 cached tokens see 6, 7 and 8 keys; 2 heads of 2 values, twice, in 2 layers
    assert SHAPE.attention_flops(3, 5) == 4 * 2 * 2 * 2 * (6 + 7 + 8)
    whole = SHAPE.attention_flops(8)
    assert whole == SHAPE.attention_flops(5) + SHAPE.attention_flops(3, 5)


def test_operations_and_bytes_of_a_decoder() -> None:
    layer = 4 * (2 + 2) * 2 + 4 * 4 + 3 * 4 * 8  # q, k and v; output; gate, up and down
    assert SHAPE.layer_weights == layer
    assert SHAPE.prefill_flops(3) == 2 * 2 * layer * 3 + SHAPE.attention_flops(3) + 2 * 4 * 10
    cache = 2 * 2 * 1 * 2 * 2  # layers, keys and values, heads, values, bytes
    assert SHAPE.decode_bytes(3, 7) == (2 * layer + 40) * 2 + 3 * 7 * cache
    assert SHAPE.decode_bytes(3, 7, 1.0) == (2 * layer + 40) + 3 * 7 * cache


def test_the_least_time_is_that_of_the_narrower_limit() -> None:
    reads_slowly, computes_slowly = Machine(1e12, 1e3), Machine(1e3, 1e12)
    assert reads_slowly.decode_s(SHAPE, 2, 4) == SHAPE.decode_bytes(2, 4) / 1e3
    assert computes_slowly.decode_s(SHAPE, 2, 4) == SHAPE.decode_flops(2, 4) / 1e3
    # two requests of 10 tokens that share 8, answered with 1 token each, which comes out of the prompt
    load = computes_slowly.load_s(SHAPE, 2, 2, input_len=10, output_len=1, prefix_len=8)
    assert load == pytest.approx((SHAPE.prefill_flops(8) + 2 * SHAPE.prefill_flops(2, 8)) / 1e3)


def test_the_shape_comes_from_the_config_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 2, "hidden_size": 4, "intermediate_size": 8, "num_attention_heads": 2, '
        '"num_key_value_heads": 1, "vocab_size": 10}'
    )
    assert Shape.of(tmp_path) == SHAPE


# -- the journal and its page -------------------------------------------------------------------------


def batch(server: str, number: int, rate: float, mix: str = "c1", **fields: Any) -> dict[str, Any]:
    return {
        "round": number,
        "model": "tiny",
        "server": server,
        "precision": "bf16",
        "mix": mix,
        "input_len": 10,
        "output_len": 5,
        "prefix_len": 0,
        "concurrency": 1,
        "requests": 2,
        "errors": 0,
        "first_error": None,
        "wall_s": 10 / rate,
        "output_tok_s": rate,
        "ttft_ms_p50": 100 / rate,
        "itl_ms_p50": 1000 / rate,
        "itl_ms_p99": 2000 / rate,
        **fields,
    }


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "run.jsonl")
    journal.append(
        MACHINE,
        at="2026-01-02T03:04:05+00:00",
        processor="a processor",
        cores=2,
        memory_gib=24,
        threads=2,
        load=0.5,
    )
    journal.append("shape", model="tiny", **vars(SHAPE))
    for number in range(3):
        journal.append(LIMITS, round=number, flops=1e5, bandwidth=1e5)
        journal.append(BATCH, **batch("ours bf16", number, 30.0 + number))
        journal.append(BATCH, **batch("a bf16", number, 20.0 + number * 2 / 3))
        journal.append(BATCH, **batch("b bf16", number, 10.0))
        journal.append(START, round=number, model="tiny", server="a bf16", ready_s=3.0, memory_mib=123)
    journal.append(FAILURE, server="c bf16", reason="not installed")
    return journal


def test_a_page_has_ratios_to_the_best_peer_shares_and_what_was_left_out(journal: Journal) -> None:
    text = page(journal.records, {"a": "as it is"}, {"c1": mix_of("c1", None)}, "a command")
    assert "| ours bf16 | 31 (30 to 32) |" in text
    assert "| ours / best peer | **1.50** (1.50 to 1.50, 3) a bf16 |" in text  # of tokens a second
    assert "| ours / best peer | **0.67** (0.67 to 0.67, 3) a bf16 |" in text  # of times
    assert "| a bf16 | tiny | 3 | 123 |" in text
    assert "* c bf16: not installed" in text
    assert "* **a**: as it is" in text


def test_each_setting_of_ours_has_its_ratio_and_is_no_peer(journal: Journal) -> None:
    for number in range(3):
        journal.append(BATCH, **batch("ours-int8-cache bf16", number, 40.0 + number * 4 / 3))
    text = page(journal.records, {}, {"c1": mix_of("c1", None)}, "a command")
    assert "| ours / best peer | **1.50** (1.50 to 1.50, 3) a bf16 |" in text
    assert "| ours-int8-cache / best peer | **2.00** (2.00 to 2.00, 3) a bf16 |" in text


def test_the_share_of_the_limit_is_the_least_time_over_the_wall_time(journal: Journal) -> None:
    results = Results(journal.records)
    [cell] = results.cells()
    least = Machine(1e5, 1e5).load_s(SHAPE, 2, 1, input_len=10, output_len=5)
    assert results.share(cell, "b bf16", "c1") == pytest.approx(least / 1.0)
    step = Machine(1e5, 1e5).decode_s(SHAPE, 1, 12)
    assert results.decode_share(cell, "b bf16") == pytest.approx(step / 0.1)


def test_a_batch_with_errors_counts_nowhere_and_is_run_again(journal: Journal) -> None:
    journal.append(BATCH, **batch("b bf16", 3, 999.0, errors=1, first_error="HTTP 500: a | b"))
    assert Batch(3, "tiny", "b bf16", "c1") not in journal.done()
    text = page(journal.records, {}, {}, "a command")
    assert "999" not in text
    assert "* b bf16, tiny, c1, round 3: 1 errors, the first: HTTP 500: a \\| b" in text


def test_a_journal_that_was_cut_inside_a_line_goes_on(journal: Journal, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(path.read_text() + '{"kind": "bat')
    again = Journal(path)
    assert again.records == journal.records
    again.append(FAILURE, server="d", reason="x")
    assert Journal(path).records == [*journal.records, {"kind": FAILURE, "server": "d", "reason": "x"}]


def test_mixes_are_whole_waves() -> None:
    assert [mix_of(name, None).requests % mix_of(name, None).concurrency for name in ALL] == [0] * len(ALL)
    assert mix_of("c16", 1).requests == 16


# -- processes ----------------------------------------------------------------------------------------

SERVER = """
import subprocess, sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
subprocess.Popen(["sleep", "600"], start_new_session=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of these tests leaves a process that never ends by itself."""
    monkeypatch.setattr(process_module, "STOP_S", 1.5)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.usefixtures("impatient")
def test_no_process_of_a_server_is_left_not_even_one_that_left_its_group(tmp_path: Path) -> None:
    port = free_port()
    command = Command([sys.executable, "-c", SERVER, str(port)])
    with running(command, f"http://127.0.0.1:{port}/", 60.0, tmp_path / "log") as process:
        assert len(marked(process.mark)) == 2
        assert process.memory_mib() > 1
    assert marked(process.mark) == []


class FileServer(Peer):
    name = "files"
    formats: ClassVar[Mapping[str, str]] = {BF16: "bf16"}
    ready_path = "/"
    notes = ""

    def command(self, served: Path, precision: str, place: Place) -> Command:
        return Command([sys.executable, "-c", SERVER, str(place.port)])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kept", [True, False])
def test_a_kept_server_stands_still_between_its_turns(tmp_path: Path, kept: bool) -> None:
    server = Server(FileServer(tmp_path), BF16)
    plan = Plan(
        {}, [server], [], 2, None, 1.0, 1, free_port(), tmp_path, frozenset({"files"} if kept else ())
    )
    session = Session(plan, Journal(tmp_path / "run.jsonl"))
    marks = []
    with session:
        for number in range(2):
            turn = Turn(number, "tiny", server.label, ())
            with session.running(turn, tmp_path) as (started, url):
                urllib.request.urlopen(url, timeout=30).close()
                marks.append(started.mark)
            wanted = {psutil.STATUS_STOPPED} if kept else set()
            deadline = time.monotonic() + 30
            while (states := {process.status() for process in marked(started.mark)}) != wanted:
                assert time.monotonic() < deadline, states
                time.sleep(0.01)
    assert len(set(marks)) == (1 if kept else 2)
    assert marked(marks[0]) == []


def test_a_server_that_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    command = Command([sys.executable, "-c", "raise SystemExit('no such model')"])
    with (
        pytest.raises(StartError, match=r"it ended with 1: .*no such model"),
        running(command, "http://127.0.0.1:9/", 60.0, tmp_path / "log"),
    ):
        pytest.fail("it never answered")


# -- where time goes ----------------------------------------------------------------------------------


class Work:
    """Calls that take seconds of a clock that only they move."""

    def __init__(self) -> None:
        self.now = 0.0

    def inner(self) -> str:
        self.now += 3.0
        return "done"

    def outer(self) -> str:
        self.now += 1.0
        return self.inner()


def test_a_part_gets_its_own_time_without_that_of_the_parts_inside_it() -> None:
    work = Work()
    watch = Stopwatch(lambda: work.now)
    with watch.wrapped((Work, "outer", "out"), (Work, "inner", "in")), watch.part("rest"):
        assert work.outer() == "done"
        work.inner()
        work.now += 0.5
    assert watch.seconds == {"in": 6.0, "out": 1.0, "rest": 0.5}
    watch.reset()
    work.outer()  # as it was
    assert watch.seconds == {}
