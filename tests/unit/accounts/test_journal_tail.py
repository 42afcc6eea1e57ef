"""The reader that ships: each end once, whatever is restarted, in whatever order gateways write and die."""

import os
import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_app.accounts.journal import Journal
from serve_app.accounts.journal_tail import CURSOR, JournalTail
from tests.unit.accounts.test_journal import CLOSED, OPEN


def some(id, like=OPEN, **fields):
    return replace(like, id=id, **fields)


@pytest.fixture
def tail(tmp_path):
    found = JournalTail(tmp_path)
    assert found.elect()
    yield found
    found.close()


def take(tail, **options):
    batch = tail.next(**options)
    tail.commit(batch)
    return batch


def test_an_end_comes_once_and_what_runs_does_not_come(tail, tmp_path):
    journal = Journal(tmp_path)
    journal.opened(some("a"))
    journal.opened(some("b"))
    journal.closed(some("a", CLOSED))
    assert [each.id for each in take(tail).ended] == ["a"]
    assert len(take(tail)) == 0
    journal.closed(some("b", CLOSED))
    assert [each.id for each in take(tail).ended] == ["b"]
    journal.close()
    assert len(take(tail)) == 0


def test_a_batch_of_lines_that_nothing_comes_of_says_that_there_may_be_more(tail, tmp_path):
    journal = Journal(tmp_path)
    for number in range(5):
        journal.opened(some(str(number)))
    journal.closed(some("0", CLOSED))
    first = take(tail, limit=5)
    assert (len(first), first.is_full) == (0, True)
    second = take(tail, limit=5)
    assert ([each.id for each in second.ended], second.is_full) == (["0"], False)
    journal.close()


def test_a_clock_that_is_set_back_hides_nothing_that_is_written_later(tail, tmp_path, monkeypatch):
    class Clock(datetime):
        back = timedelta()

        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - cls.back

    monkeypatch.setattr("serve_app.accounts.journal.datetime", Clock)
    journal = Journal(tmp_path, max_file_bytes=1)  # each line begins a file
    for number in range(3):
        journal.closed(some(str(number), CLOSED))
        assert [each.id for each in take(tail).ended] == [str(number)]
        Clock.back += timedelta(hours=1)
    journal.close()
    assert len(list(tmp_path.glob("*.jsonl"))) > 2


def test_what_a_gateway_left_open_is_lost_with_what_its_last_line_says(tail, tmp_path):
    journal = Journal(tmp_path)
    journal.opened(some("a"))
    journal.progressed(some("a", completion_tokens=3))
    journal.progressed(some("a", completion_tokens=9))
    journal.opened(some("b"))
    assert len(take(tail)) == 0
    journal.close()
    assert {each.id: each.completion_tokens for each in take(tail).lost} == {"a": 9, "b": 0}
    assert len(take(tail)) == 0


def test_what_replicas_settled_comes_with_its_part(tail, tmp_path):
    journal = Journal(tmp_path)
    journal.settled(some("a", completion_tokens=4), "a-0~1")
    assert take(tail).settled == [(some("a", completion_tokens=4), "a-0~1")]
    journal.close()


def test_a_restart_reads_again_from_the_oldest_request_that_runs(tail, tmp_path):
    journal = Journal(tmp_path)
    journal.opened(some("a"))
    journal.opened(some("b"))
    journal.closed(some("b", CLOSED))
    take(tail)
    tail.close()
    again = JournalTail(tmp_path)
    assert again.elect()
    assert [each.id for each in again.next().ended] == ["b"]  # once more: `a` runs since before its end
    journal.closed(some("a", CLOSED))
    assert [each.id for each in take(again).ended] == ["a"]
    again.close()
    third = JournalTail(tmp_path)
    assert third.elect()
    assert len(third.next()) == 0
    third.close()
    journal.close()


def test_a_batch_that_was_not_committed_comes_again_after_a_restart(tail, tmp_path):
    journal = Journal(tmp_path)
    journal.closed(some("a", CLOSED))
    tail.next()
    tail.close()
    again = JournalTail(tmp_path)
    assert again.elect()
    assert [each.id for each in again.next().ended] == ["a"]
    again.close()
    journal.close()


def test_one_reader_of_a_folder_at_a_time(tail, tmp_path):
    other = JournalTail(tmp_path)
    assert not other.elect()
    tail.close()
    assert other.elect()
    other.close()


def test_a_cursor_that_cannot_be_read_ships_all_again(tail, tmp_path):
    journal = Journal(tmp_path)
    journal.closed(some("a", CLOSED))
    take(tail)
    tail.close()
    (tmp_path / CURSOR).write_text("{")
    again = JournalTail(tmp_path)
    assert again.elect()
    assert [each.id for each in again.next().ended] == ["a"]
    again.close()
    journal.close()


def test_files_that_somebody_removed_or_cut_do_not_stop_it(tail, tmp_path):
    journal = Journal(tmp_path, max_file_bytes=1)  # a file a line
    for id in "abc":
        journal.closed(some(id, CLOSED))
    paths = sorted(tmp_path.glob("usage-*.jsonl"))
    take(tail)
    paths[0].unlink()
    paths[1].write_bytes(b"")
    journal.closed(some("d", CLOSED))
    assert [each.id for each in take(tail).ended] == ["d"]
    journal.close()


def test_a_file_that_cannot_be_read_holds_up_no_other(tail, tmp_path, caplog):
    blocked = tmp_path / "usage-20260101T000000.000000Z-0123456789abcdef.jsonl"
    blocked.mkdir()  # root may read whatever its permissions are
    journal = Journal(tmp_path)
    for id in "ab":
        journal.opened(some(id))
        journal.closed(some(id, CLOSED))
        assert [each.id for each in take(tail).ended] == [id]
    journal.close()
    assert sum(str(blocked) in record.getMessage() for record in caplog.records) == 1
    blocked.rmdir()
    (journal_file,) = tmp_path.glob("usage-*.jsonl")
    blocked.write_bytes(journal_file.read_bytes())
    assert [each.id for each in take(tail).ended] == ["a", "b"]


def test_old_files_go_once_all_that_is_in_them_has_arrived(tail, tmp_path):
    def files():
        return sorted(path.name for path in tmp_path.glob("usage-*.jsonl"))

    def remove():
        for path in tmp_path.glob("usage-*.jsonl"):
            os.utime(path, (1_000.0, 1_000.0))
        assert tail.remove_arrived(999.0) == 0  # too young
        return tail.remove_arrived(1_001.0)

    journal = Journal(tmp_path, max_file_bytes=4_000)
    journal.opened(some("a"))
    while len(files()) < 2:
        journal.closed(some("b", CLOSED))
    _, newest = files()
    assert remove() == 0  # nothing was shipped
    batch = tail.next()
    assert remove() == 0  # shipped, and nobody knows yet whether it arrived
    tail.commit(batch)
    assert remove() == 0  # `a` still runs, and all that is known of it is in there
    journal.closed(some("a", CLOSED))
    take(tail)
    assert remove() == 1
    assert files() == [newest]  # the process lives: its next line goes there
    journal.closed(some("c", CLOSED))
    assert [each.id for each in take(tail).ended] == ["c"]
    journal.opened(some("d"))
    journal.close()
    assert remove() == 0
    assert [each.id for each in take(tail).lost] == ["d"]
    assert remove() >= 1
    assert files() == []
    assert len(take(tail)) == 0
    tail.close()
    again = JournalTail(tmp_path)
    assert again.remove_arrived(time.time()) == 0  # it is not elected
    assert again.elect()
    assert len(again.next()) == 0
    again.close()


def test_lines_that_are_not_understood_are_passed_over(tail, tmp_path):
    journal = Journal(tmp_path)
    journal.close()
    path = next(tmp_path.glob("usage-*.jsonl"))
    path.write_bytes(b'{"event":"other"}\n\xff\n{"event":"close"}\n{"event":"close","id":"torn')
    assert len(take(tail)) == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 2)),
        st.tuples(st.just("progress"), st.integers(0, 30)),
        st.tuples(st.just("close"), st.integers(0, 30)),
        st.tuples(st.just("die"), st.integers(0, 2)),
        st.tuples(st.just("next"), st.integers(1, 6)),
        st.tuples(st.just("uncommitted"), st.integers(1, 6)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_every_request_ends_once_as_it_was_however_gateways_die_and_the_reader_restarts(
    tmp_path_factory, steps
):
    folder = tmp_path_factory.mktemp("usage")
    journals = [Journal(folder, max_file_bytes=1500) for _ in range(3)]
    tail = JournalTail(folder)
    assert tail.elect()
    running: dict[str, tuple[int, int]] = {}  # id -> (gateway, tokens)
    expected: dict[str, tuple[str, int]] = {}
    ended: dict[str, int] = {}
    lost: dict[str, int] = {}
    committed_ended: list[str] = []
    restarted = False

    def arrive(batch):
        for each in batch.ended:
            ended[each.id] = each.completion_tokens
            committed_ended.append(each.id)
        for each in batch.lost:
            lost[each.id] = each.completion_tokens

    def die(gateway):
        journals[gateway].close()
        for id in [id for id, (owner, _) in running.items() if owner == gateway]:
            expected[id] = ("lost", running.pop(id)[1])
        journals[gateway] = Journal(folder, max_file_bytes=1500)

    for count, (step, number) in enumerate(steps):
        if step == "open":
            running[f"r{count}"] = number, 0
            journals[number].opened(some(f"r{count}"))
        elif step in ("progress", "close") and running:
            id = sorted(running)[number % len(running)]
            owner, tokens = running[id]
            running[id] = owner, tokens + 1
            if step == "progress":
                journals[owner].progressed(some(id, completion_tokens=tokens + 1))
            else:
                del running[id]
                expected[id] = "ended", tokens + 1
                journals[owner].closed(some(id, CLOSED, completion_tokens=tokens + 1))
        elif step == "die":
            die(number)
        elif step == "next":
            batch = tail.next(number)
            arrive(batch)
            tail.commit(batch)
        elif step in ("uncommitted", "restart"):
            if step == "uncommitted":  # it arrived or not, and nobody wrote that down
                arrive(tail.next(number))
            tail.close()
            tail = JournalTail(folder)
            assert tail.elect()
            restarted = True
    for gateway in range(3):
        die(gateway)
    while len(batch := take(tail)):
        arrive(batch)
    for journal in journals:
        journal.close()
    tail.close()
    # `ended` replaces `lost`, as in the ledger.
    found = {id: ("lost", tokens) for id, tokens in lost.items()}
    found |= {id: ("ended", tokens) for id, tokens in ended.items()}
    assert found == expected
    assert restarted or len(committed_ended) == len(set(committed_ended))
