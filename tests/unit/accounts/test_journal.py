"""The usage journal on real files and real processes: one record a request, however it ended."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from serve_app.accounts import journal as module
from serve_app.accounts.journal import Journal
from serve_app.accounts.journal_reader import read
from serve_app.types import UsageRecord

OPEN = UsageRecord(
    id="r1",
    key_id="alice",
    endpoint="chat",
    entity="demo-chat",
    kind="pay_per_token",
    route="/v1/chat/completions",
    started=1_700_000_000.0,
    outcome="running",
)
CLOSED = replace(
    OPEN,
    outcome="finished",
    status=200,
    prompt_tokens=12,
    cached_tokens=4,
    completion_tokens=30,
    first_token_s=0.25,
    total_s=1.5,
    cost=0.002,
    currency="USD",
)

WAIT_S = 60.0

# A gateway in a process of its own: each line it reads is Python that may use `journal` and `record`.
CHILD = """
import resource, sys, time
from dataclasses import replace
from pathlib import Path
from serve_app.accounts.journal import Journal
from tests.unit.accounts.test_journal import OPEN, CLOSED
journal = Journal(Path(sys.argv[1]))
def record(id, like=OPEN): return replace(like, id=id)
for line in sys.stdin:
    exec(line)
    print("done", journal.dropped, flush=True)
"""


class Gateway:
    """A process that writes a journal as it is told."""

    def __init__(self, folder: Path) -> None:
        root = Path(__file__).parents[3]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )

    def do(self, line: str) -> int:
        """Run `line` there; how many lines of the journal were dropped so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        word, dropped = self.process.stdout.readline().split()
        assert word == "done"
        return int(dropped)

    def until(self, condition: str) -> None:
        """Wait until `condition` is true there."""
        self.do(f"end = time.monotonic() + {WAIT_S}")
        self.do(f"while not ({condition}) and time.monotonic() < end: time.sleep(0.01)")
        self.do(f"assert {condition}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "usage"


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Journal]]:
    journals: list[Journal] = []

    def make(**options: int) -> Journal:
        journals.append(Journal(folder, **options))
        return journals[-1]

    yield make
    for journal in journals:
        journal.close()


@pytest.fixture
def gateway(folder: Path) -> Iterator[Gateway]:
    gateway = Gateway(folder)
    yield gateway
    gateway.kill()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ids_of_lines(folder: Path) -> list[tuple[str, str]]:
    """Event and id of every line of every file; each must be whole."""
    lines = [json.loads(line) for path in files(folder) for line in path.read_text().splitlines()]
    return [(line["event"], line["id"]) for line in lines]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("usage-*.jsonl"))


def test_a_request_that_ended_is_read_as_it_ended(start: Callable[..., Journal], folder: Path) -> None:
    journal = start()
    journal.opened(OPEN)
    journal.closed(CLOSED)
    assert list(read(folder)) == [CLOSED]
    assert journal.dropped == 0


def test_lines_are_json_that_names_the_event(start: Callable[..., Journal], folder: Path) -> None:
    journal = start()
    journal.opened(OPEN)
    journal.closed(CLOSED)
    lines = [json.loads(line) for line in files(folder)[0].read_text("utf-8").splitlines()]
    opened, closed = ({**asdict(record), "groups": [], "failed_over": []} for record in (OPEN, CLOSED))
    assert lines == [{"event": "open", **opened}, {"event": "close", **closed}]


def test_nobody_else_may_read_it(start: Callable[..., Journal], folder: Path) -> None:
    before = os.umask(0)
    try:
        start()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


def test_a_request_that_runs_is_not_read(start: Callable[..., Journal], folder: Path) -> None:
    start().opened(OPEN)
    assert list(read(folder)) == []


def test_a_request_is_lost_when_its_journal_was_closed(start: Callable[..., Journal], folder: Path) -> None:
    journal = start()
    journal.opened(OPEN)
    journal.close()
    journal.close()  # twice is once
    assert list(read(folder)) == [replace(OPEN, outcome="lost")]
    journal.closed(CLOSED)  # too late
    assert journal.dropped == 1


def test_what_a_killed_gateway_had_open_is_lost_and_no_more(gateway: Gateway, folder: Path) -> None:
    gateway.do("journal.opened(record('ended')); journal.opened(record('open'))")
    gateway.do("journal.closed(record('ended', CLOSED))")
    assert [r.id for r in read(folder)] == ["ended"]  # it lives
    gateway.kill()
    assert list(read(folder)) == [replace(CLOSED, id="ended"), replace(OPEN, id="open", outcome="lost")]


def test_gateways_do_not_answer_for_each_other(
    gateway: Gateway, start: Callable[..., Journal], folder: Path
) -> None:
    start().opened(replace(OPEN, id="here"))
    gateway.do("journal.opened(record('there'))")
    gateway.kill()
    assert [(r.id, r.outcome) for r in read(folder)] == [("there", "lost")]


def test_a_reader_that_looks_at_the_lock_does_not_disturb_another(gateway: Gateway, folder: Path) -> None:
    gateway.do("journal.opened(record('open'))")
    gateway.kill()
    with files(folder)[0].open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # what `read` holds for a moment
        assert [r.id for r in read(folder)] == ["open"]


def test_rotation_keeps_the_open_requests_of_a_living_process(
    start: Callable[..., Journal], folder: Path
) -> None:
    journal = start(max_file_bytes=2_000)
    journal.opened(replace(OPEN, id="long"))
    for number in range(50):
        journal.opened(replace(OPEN, id=str(number)))
        journal.closed(replace(CLOSED, id=str(number)))
    assert len(files(folder)) > 10
    assert all(path.stat().st_size <= 2_000 for path in files(folder))
    assert [r.id for r in read(folder)] == [str(number) for number in range(50)]
    journal.closed(replace(CLOSED, id="long"))
    assert [r.id for r in read(folder)][-1] == "long"
    assert journal.dropped == 0


def test_rotated_files_are_closed_but_for_the_first(start: Callable[..., Journal], folder: Path) -> None:
    journal = start(max_file_bytes=500)
    for number in range(20):
        journal.closed(replace(CLOSED, id=str(number)))
    opened = set(files(folder))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        held = {Path(os.readlink(link)) for link in Path("/proc/self/fd").iterdir() if link.exists()}
        if opened & held == {files(folder)[0], files(folder)[-1]}:
            break
        time.sleep(0.05)
    assert opened & held == {files(folder)[0], files(folder)[-1]}


def test_a_killed_gateway_that_had_rotated_leaves_each_open_request_lost_once(
    gateway: Gateway, folder: Path
) -> None:
    gateway.do("journal._max_file_bytes = 1_000")
    gateway.do("[journal.opened(record(str(n))) for n in range(20)]")
    gateway.do("[journal.closed(record(str(n), CLOSED)) for n in range(10)]")
    assert len(files(folder)) > 5
    gateway.kill()
    outcomes = {r.id: r.outcome for r in read(folder)}
    assert outcomes == {str(n): "finished" if n < 10 else "lost" for n in range(20)}


def test_a_torn_last_line_is_ignored(gateway: Gateway, folder: Path) -> None:
    gateway.do("journal.opened(record('a')); journal.closed(record('a', CLOSED))")
    gateway.kill()
    path = files(folder)[0]
    whole = path.read_bytes()
    last = len(whole.splitlines()[-1])
    for cut in range(1, last + 2):  # from no newline to nothing of it
        path.write_bytes(whole[:-cut])
        assert [(r.id, r.outcome) for r in read(folder)] == [("a", "lost")]


def test_lines_nobody_understands_are_skipped_and_reported(
    gateway: Gateway, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.do("journal.closed(record('a', CLOSED)); journal.closed(record('b', CLOSED))")
    gateway.kill()
    first, second = files(folder)[0].read_bytes().splitlines(keepends=True)
    for junk in (b"{}\n", b"\xff\xfe\n", b'{"event":"open"}\n', b'{"event":"other","id":"c"}\n', b"[1]\n"):
        files(folder)[0].write_bytes(first + junk + b"\n" + second)
        caplog.clear()
        assert [r.id for r in read(folder)] == ["a", "b"]
        assert "1 lines" in caplog.text


def test_an_id_counts_once_whatever_is_written_twice(start: Callable[..., Journal], folder: Path) -> None:
    journal = start()
    for write in (journal.opened, journal.closed, journal.closed, journal.opened):
        write(CLOSED)
    journal.close()
    assert list(read(folder)) == [CLOSED]


@pytest.mark.parametrize(
    ("since", "until", "ids"),
    [
        (None, None, ["1", "2", "3"]),
        (2.0, None, ["2", "3"]),
        (None, 2.0, ["1"]),
        (2.0, 3.0, ["2"]),
        (4.0, None, []),
    ],
)
def test_a_span_of_time_is_read_by_when_requests_began(
    start: Callable[..., Journal], folder: Path, since: float | None, until: float | None, ids: list[str]
) -> None:
    journal = start()
    for second in (1, 2, 3):
        journal.opened(replace(OPEN, id=str(second), started=second))
    for second in (1, 2):
        journal.closed(replace(CLOSED, id=str(second), started=second))
    journal.close()
    assert [r.id for r in read(folder, since=since, until=until)] == ids


def test_files_last_written_long_before_are_not_opened(start: Callable[..., Journal], folder: Path) -> None:
    journal = start()
    journal.closed(CLOSED)
    journal.close()
    path = files(folder)[0]
    os.utime(path, (CLOSED.started, CLOSED.started))
    assert list(read(folder, since=CLOSED.started + 3_000)) == []
    assert list(read(folder, since=CLOSED.started)) == [CLOSED]
    path.write_bytes(b"{}\n")  # would be reported, were it read
    os.utime(path, (CLOSED.started, CLOSED.started))
    assert list(read(folder, since=CLOSED.started + 10_000)) == []


def test_reading_while_it_is_written_sees_whole_records_in_order(
    start: Callable[..., Journal], folder: Path
) -> None:
    journal = start(max_file_bytes=50_000)
    count = 3_000

    def write() -> None:
        for number in range(count):
            journal.opened(replace(OPEN, id=str(number)))
            journal.closed(replace(CLOSED, id=str(number)))

    writer = threading.Thread(target=write)
    writer.start()
    looks = 0
    while writer.is_alive():
        records = list(read(folder))
        assert records == [replace(CLOSED, id=str(number)) for number in range(len(records))]
        looks += 1
    writer.join()
    assert looks > 0
    assert len(list(read(folder))) == count


def test_several_threads_may_write(start: Callable[..., Journal], folder: Path) -> None:
    journal = start(max_file_bytes=20_000)

    def write(name: str) -> None:
        for number in range(300):
            journal.closed(replace(CLOSED, id=f"{name}{number}"))

    writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {r.id for r in read(folder)} == {f"{name}{number}" for name in "abcd" for number in range(300)}
    assert journal.dropped == 0


def test_lines_wait_while_a_file_may_not_grow_and_are_written_afterwards(
    gateway: Gateway, folder: Path
) -> None:
    """The kernel limits the file's size: writes come back short, then fail."""
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))"
    gateway.do("journal.opened(record('before'))")
    size = files(folder)[0].stat().st_size
    gateway.do(limit.format(size + 100))
    gateway.do("journal.opened(record('torn'))")
    gateway.do("journal.closed(record('waits', CLOSED))")
    assert files(folder)[0].stat().st_size == size + 100
    gateway.until("journal.problem")
    gateway.do(limit.format("resource.RLIM_INFINITY"))
    gateway.do("journal.closed(record('before', CLOSED))")
    gateway.until("not journal.waiting and not journal.problem")
    assert [r.id for r in read(folder)] == ["waits", "before"]
    assert gateway.do("") == 0
    gateway.kill()
    assert [(r.id, r.outcome) for r in read(folder)] == [
        ("waits", "finished"),
        ("before", "finished"),
        ("torn", "lost"),
    ]
    assert ids_of_lines(folder) == [
        ("open", "before"),
        ("open", "torn"),
        ("close", "waits"),
        ("close", "before"),
    ]


def test_a_folder_that_was_moved_away_is_made_anew(start: Callable[..., Journal], folder: Path) -> None:
    journal = start()
    journal.closed(replace(CLOSED, id="0"))
    away = folder.with_name("away")
    folder.rename(away)
    for number in range(1, 10):
        journal.closed(replace(CLOSED, id=str(number)))
    until(lambda: files(folder))
    for number in range(10, 20):
        journal.closed(replace(CLOSED, id=str(number)))
    journal.close()
    ids = [r.id for place in (away, folder) for r in read(place)]
    assert ids == [str(number) for number in range(20)]
    assert len(list(read(folder))) >= 10
    assert journal.dropped == 0


def test_what_was_written_into_a_deleted_file_is_written_again(
    start: Callable[..., Journal], folder: Path
) -> None:
    journal = start()
    journal.closed(replace(CLOSED, id="deleted by its owner"))
    until(lambda: not journal._unsure)  # on the disk
    shutil.rmtree(folder)
    journal.opened(replace(OPEN, id="a"))
    journal.closed(replace(CLOSED, id="a"))
    journal.closed(replace(CLOSED, id="b"))
    until(lambda: [r.id for r in read(folder)] == ["a", "b"])
    journal.closed(replace(CLOSED, id="c"))
    journal.close()
    assert [r.id for r in read(folder)] == ["a", "b", "c"]
    assert journal.dropped == 0


def test_a_file_that_was_cut_is_followed_by_a_new_one(start: Callable[..., Journal], folder: Path) -> None:
    journal = start()
    journal.closed(replace(CLOSED, id="a"))
    until(lambda: not journal._unsure)
    os.truncate(files(folder)[0], 0)  # as `copytruncate` of logrotate does
    journal.closed(replace(CLOSED, id="b"))
    journal.closed(replace(CLOSED, id="c"))
    journal.close()
    assert [r.id for r in read(folder)] == ["b", "c"]


def test_lines_that_fsync_did_not_bring_to_the_disk_are_written_to_their_place_again(
    gateway: Gateway, folder: Path
) -> None:
    gateway.do("journal.closed(record('a', CLOSED))")
    gateway.until("not journal._unsure")
    gateway.do("from tests.unit.accounts.failing_fsync import fail; fail(journal._file)")
    gateway.do("journal.closed(record('b', CLOSED)); journal.closed(record('c', CLOSED))")
    gateway.until("not journal._unsure")
    assert [r.id for r in read(folder)] == ["a", "b", "c"]
    assert ids_of_lines(folder) == [("close", "a"), ("close", "b"), ("close", "c")]
    assert gateway.do("assert journal.problem is None") == 0


def test_while_no_fsync_works_that_is_said_and_no_line_is_written_twice(
    gateway: Gateway, folder: Path
) -> None:
    gateway.do("from tests.unit.accounts.failing_fsync import fail; fail(None)")
    gateway.do("journal.closed(record('a', CLOSED))")
    gateway.until("'Input/output error' in str(journal.problem)")
    gateway.do("journal.closed(record('b', CLOSED))")
    gateway.do("time.sleep(2.5)")  # it tries again and again
    gateway.kill()
    assert [r.id for r in read(folder)] == ["a", "b"]
    assert ids_of_lines(folder) == [("close", "a"), ("close", "b")]


SETTLED = replace(
    OPEN, outcome="lost", status=200, prompt_tokens=12, completion_tokens=9, cost=0.5, total_s=2.0
)


def test_what_replicas_settle_for_a_killed_gateway_is_its_row(
    gateway: Gateway, start: Callable[..., Journal], folder: Path
) -> None:
    for name in ("settled", "in two parts", "moved", "nothing delivered"):
        gateway.do(f"journal.opened(record({name!r}))")
    gateway.do("journal.opened(record('ended')); journal.closed(record('ended', CLOSED))")
    gateway.kill()
    other = start()
    for part in ("p1", "p1"):  # told twice, as the answer to the first was lost
        other.settled(replace(SETTLED, id="settled"), part)
    other.settled(replace(SETTLED, id="in two parts"), "p1")
    other.settled(replace(SETTLED, id="in two parts", completion_tokens=1, total_s=3.0), "p2")
    # Its first replica was lost, and then its gateway; the last replica told all tokens.
    for part, tokens in (("p1~2", 9), ("p1", 4), ("p1~10", 20), ("p2", 1)):
        other.settled(replace(SETTLED, id="moved", completion_tokens=tokens), part)
    other.settled(replace(SETTLED, id="ended"), "p1")  # its gateway died before it told the replica
    other.settled(replace(SETTLED, id="never written"), "p1")  # the dead gateway's disk was full
    other.opened(replace(OPEN, id="runs"))
    other.settled(replace(SETTLED, id="runs"), "p1")  # the connection broke, and the gateway lives
    assert {record.id: record for record in read(folder)} == {
        "ended": replace(CLOSED, id="ended"),
        "settled": replace(SETTLED, id="settled"),
        "in two parts": replace(
            SETTLED, id="in two parts", prompt_tokens=24, completion_tokens=10, cost=1.0, total_s=3.0
        ),
        "moved": replace(SETTLED, id="moved", prompt_tokens=24, completion_tokens=21, cost=1.0),
        "nothing delivered": replace(OPEN, id="nothing delivered", outcome="lost"),
        "never written": replace(SETTLED, id="never written"),
    }
    assert len(list(read(folder))) == 6
    assert len(list(read(folder, since=OPEN.started))) == 6
    assert list(read(folder, since=OPEN.started + 1)) == []


def test_a_settlement_waits_for_a_full_disk_beside_the_lines_of_its_request(
    gateway: Gateway, folder: Path
) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))"
    gateway.do(limit.format(1))
    gateway.do("journal.settled(record('a', CLOSED), 'p1'); journal.settled(record('a', CLOSED), 'p2')")
    gateway.do("journal.settled(record('a', CLOSED), 'p3')")
    gateway.do(limit.format("resource.RLIM_INFINITY"))
    gateway.until("not journal.waiting")
    gateway.kill()
    assert [(r.id, r.completion_tokens) for r in read(folder)] == [("a", 3 * CLOSED.completion_tokens)]


def test_complaints_come_at_most_once_a_minute(
    start: Callable[..., Journal], caplog: pytest.LogCaptureFixture
) -> None:
    journal = start()
    journal.close()
    for _ in range(100):
        journal.closed(CLOSED)
    assert journal.dropped == 100
    assert len([r for r in caplog.records if r.name == module.__name__]) == 1


def test_a_record_that_is_no_json_raises_nothing(start: Callable[..., Journal], folder: Path) -> None:
    journal = start()
    journal.opened(replace(OPEN, id="\ud800"))
    journal.closed(replace(CLOSED, id="\ud800"))
    journal.closed(CLOSED)
    assert journal.dropped == 1
    assert list(read(folder)) == [CLOSED]


def test_records_wait_for_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The problem names it, as long as it lasts, whether a record comes or not."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    journal = Journal(in_the_way / "usage")
    time.sleep(1.5 * module.SYNC_S)  # it has tried again, with nothing to write
    for record in (OPEN, CLOSED):
        assert journal.problem is not None
        assert str(in_the_way) in journal.problem
        (journal.opened if record is OPEN else journal.closed)(record)
    in_the_way.unlink()
    until(lambda: journal.problem is None)
    journal.close()
    assert list(read(in_the_way / "usage")) == [CLOSED]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert list(read(tmp_path / "none")) == []


def test_starting_and_closing_many_journals_leaves_no_thread_and_no_file_open(folder: Path) -> None:
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    for _ in range(50):
        Journal(folder).close()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
    assert list(read(folder)) == []
