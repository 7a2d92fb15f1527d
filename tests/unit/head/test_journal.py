"""The journal: what comes back is what was put in, and what cannot be trusted is refused with the way out."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator import __version__
from orchestrator.core import decide
from orchestrator.core.actions import Note
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.errors import JournalError
from orchestrator.core.events import HostUp, KillRequested, Submitted, Ticked
from orchestrator.core.in_words import InWords
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Facts
from orchestrator.core.state.phase_states import Phase, Swept
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress, TaskPhase
from orchestrator.head.journal import archive, happened
from orchestrator.head.journal.changes import changed, changes, state_after
from orchestrator.head.journal.entries import Outcome
from orchestrator.head.journal.format import VERSION
from orchestrator.head.journal.journal import Journal, put_aside
from orchestrator.head.journal.reading import archived, opened, read_entries, read_runs
from orchestrator.head.journal.states import COLUMNS, Contents, dump_run
from orchestrator.head.journal.values import checksum
from orchestrator.head.node.paths import Paths
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

W0 = TaskId("worker", 0)
RUN_ID = "t-20260101-000000"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.db")


@pytest.fixture
def journal(path: str) -> Iterator[Journal]:
    opened = Journal(path)
    yield opened
    opened.close()


def a_run(run_id: str = RUN_ID) -> Run:
    run = new_run(run_id, make_plan(["a", "b"], checkpoint=True), epoch=3, at=7.5)
    run = run.with_task(
        replace(
            run.tasks[0],
            phase=TaskPhase.EXITED,
            pid=7,
            exit=Exit(cause=Cause.OOM, at=8.5, last_lines=("é — 漢",), left=("pid 9: D state",)),
            progress=Progress(global_step=5, metrics={"loss": 0.25}),
            said=("hello",),
        )
    )
    run = run.with_host(replace(run.hosts[0], facts=Facts("3.11.2", {"keras": None, "tensorflow": "2.21"})))
    swept = {"a": Swept(("pid 9: D state",), (20000,), "cgroup")}
    return in_phase(run, Phase.STOPPING, proof=swept, deadline_at=9.25)


def test_what_comes_back_is_what_was_put_in(journal: Journal, path: str) -> None:
    run = a_run()
    journal.commit(
        run, Submitted(8.0), [Note(NoteKind.SUBMITTED, "here", W0, {"n": 1}), Note(NoteKind.PREPARED, "too")]
    )
    journal.close()
    again = Journal(path)
    (kept,) = again.runs()
    assert kept.run == run
    assert (kept.written_at, kept.ended) == (8.0, None)
    first, second = again.events()
    assert {k: first[k] for k in ("seq", "run", "kind", "task", "generation", "message", "data")} == {
        "seq": 1,
        "run": run.run_id,
        "kind": "submitted",
        "task": "worker:0",
        "generation": 0,
        "message": "here",
        "data": {"n": 1},
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert second["task"] is None
    (entry,) = again.entries(run.run_id)
    assert first["decision"] == second["decision"] == entry.seq, "where `orch replay` shows it"
    assert (entry.type, entry.event) == ("Submitted", Submitted(8.0))
    again.close()


def test_events_of_one_run_by_name_or_id_and_after_a_number(journal: Journal) -> None:
    one = a_run()
    other = replace(a_run("u-20260101-000000"), plan=replace(one.plan, name="u"))
    for run in (one, other, one):
        journal.commit(run, Ticked(9.0), [Note(NoteKind.WARNING, run.run_id)])
    assert [e["seq"] for e in journal.events()] == [1, 2, 3]
    assert [e["seq"] for e in journal.events(name="t")] == [1, 3]
    assert [e["seq"] for e in journal.events(name=other.run_id)] == [2]
    assert [e["seq"] for e in journal.events(after=1, limit=1)] == [2]
    assert journal.events(name="nobody") == []


def test_first_causes_outlive_the_state_in_the_events(journal: Journal) -> None:
    run = a_run()
    why = {"task": "worker:0", "sentence": "é", "last_lines": ["x"]}
    journal.commit(
        run,
        Submitted(8.0),
        [Note(NoteKind.SUBMITTED, "here"), Note(NoteKind.BACKOFF, "so", W0, {"first_cause": why})],
    )
    journal.commit(
        run, Submitted(9.0), [Note(NoteKind.FAILED, "so", W0, {"first_cause": {**why, "generation": 2}})]
    )
    one, two = journal.first_causes(run.run_id)
    times = [datetime.fromisoformat(event["time"]).timestamp() for event in journal.events()]
    assert one == {**why, "ended_time": times[1]}, "no host tells when, so it is when it was first said"
    assert two == {**why, "generation": 2, "ended_time": times[2]}
    journal.commit(
        run, Submitted(10.0), [Note(NoteKind.FAILED, "so", W0, {"first_cause": {**why, "done": "x"}})]
    )
    timed = {**why, "generation": 3, "ended_time": 7.0}
    journal.commit(run, Submitted(11.0), [Note(NoteKind.FAILED, "so", W0, {"first_cause": timed})])
    assert [cause["ended_time"] for cause in journal.first_causes(run.run_id)[2:]] == [times[1], 7.0]
    assert journal.first_causes("other") == []


def test_the_time_of_the_end_is_written_once(journal: Journal) -> None:
    ended = in_phase(a_run(), Phase.KILLED)
    journal.commit(ended, KillRequested(9.0), [])
    (first,) = journal.runs()
    journal.commit(replace(ended, epoch=9), Ticked(10.0), [])
    (second,) = journal.runs()
    assert second.run.epoch == 9
    assert first.ended is not None
    assert second.ended == first.ended
    assert second.created == first.created


def test_of_the_ended_runs_the_newest_are_given_and_all_that_go_on(journal: Journal) -> None:
    for number in range(6):
        phase = Phase.RUNNING if number == 0 else Phase.FAILED
        journal.commit(in_phase(a_run(f"t-20260101-00000{number}"), phase), Ticked(1.0), [])
    assert [kept.run.run_id[-1] for kept in journal.runs(ended_max=2)] == ["0", "4", "5"]


def rows_of(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    return db.execute(query, values).fetchall()


def beside(journal: Journal) -> Callable[[str], str]:
    """Return where runs that leave the journal go: a directory each, beside it."""
    return Paths(os.path.dirname(journal.path), "/nowhere").run_dir


def an_unproven(run: Run) -> Run:
    """Return the run after its end, without the proof from host `b`."""
    return in_phase(replace(run, generation=1, generation_last=1), Phase.KILLED, proof={"a": Swept()})


def test_a_run_whose_end_is_unproven_is_given_and_kept_however_old_until_it_is_proven(
    journal: Journal, path: str
) -> None:
    owing = an_unproven(a_run("t-20260101-000000"))
    journal.commit(owing, Ticked(1.0), [])
    for number in range(1, 4):
        journal.commit(in_phase(a_run(f"t-20260101-00000{number}"), Phase.FAILED), Ticked(1.0), [])
    journal.close()
    again = Journal(path)
    assert [kept.run.run_id[-1] for kept in again.runs(ended_max=1)] == ["0", "3"]
    assert [run_id[-1] for run_id in again.put_away(beside(again), ended_max=1)] == ["1", "2"]
    again.commit(in_phase(owing, Phase.KILLED, proof={"a": Swept(), "b": Swept()}), Ticked(2.0), [])
    assert [run_id[-1] for run_id in again.put_away(beside(again), ended_max=1)] == ["0"]
    again.close()


def test_epochs_go_up_by_one_over_all_openings(journal: Journal, path: str) -> None:
    assert [journal.take_epoch(), journal.take_epoch()] == [1, 2]
    journal.close()
    again = Journal(path)
    assert again.take_epoch() == 3
    again.close()


def test_an_epoch_is_raised_above_what_hosts_have_accepted_and_never_lowered(journal: Journal) -> None:
    """With a lower one, hosts would refuse each order, or obey a coordinator that was replaced."""
    journal.raise_epoch(7)
    journal.raise_epoch(3)
    assert journal.take_epoch() == 8


def test_run_ids_are_new_even_within_one_second(journal: Journal) -> None:
    ids = []
    for _ in range(5):
        ids.append(journal.next_run_id("t"))
        journal.commit(a_run(ids[-1]), Submitted(1.0), [])
    assert len(set(ids)) == 5
    assert all(re.fullmatch(r"t-\d{8}-\d{6}", run_id) for run_id in ids)


def test_a_note_that_cannot_be_kept_keeps_nothing_of_its_turn(journal: Journal) -> None:
    journal.commit(a_run(), Submitted(1.0), [])
    changed = replace(a_run(), epoch=99)
    circular: dict[str, object] = {}
    circular["self"] = circular
    with pytest.raises(ValueError, match=r"[Cc]ircular"):
        journal.commit(changed, Ticked(2.0), [Note(NoteKind.WARNING, "x", data=circular)])
    assert journal.runs()[0].run == a_run()
    assert len(journal.entries(a_run().run_id)) == 1
    journal.commit(changed, Ticked(2.0), [])
    assert journal.runs()[0].run == changed


def test_it_is_private_from_the_first_byte_on(journal: Journal, path: str) -> None:
    journal.commit(a_run(), Submitted(1.0), [])
    modes = {name: stat.S_IMODE(os.stat(path + name).st_mode) for name in ("", "-wal")}
    assert modes == {"": 0o600, "-wal": 0o600}
    assert not os.path.exists(path + ".new")


def test_a_creation_that_died_halfway_is_begun_anew(path: str) -> None:
    Path(path + ".new").write_bytes(b"SQLite format 3\0 torn")
    opened = Journal(path)
    assert opened.runs() == []
    opened.close()


def full(path: str) -> None:
    opened = Journal(path)
    for number in range(60):
        run = a_run(f"t-20260101-{number:06d}")
        opened.commit(run, Submitted(1.0), [Note(NoteKind.WARNING, "x" * 500)])
    opened.close()


def _cut(path: str) -> None:
    os.truncate(path, os.stat(path).st_size // 2)


def _empty(path: str) -> None:
    os.truncate(path, 0)


def _garbage(path: str) -> None:
    Path(path).write_bytes(os.urandom(8192))


def _holes(path: str) -> None:
    with open(path, "r+b") as file:
        for page in range(1, os.stat(path).st_size // 4096, 3):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)


def _text(path: str) -> None:
    Path(path).write_text("runs: none\n")


def _foreign(path: str) -> None:
    os.unlink(path)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE poems (line TEXT)")


def _no_meta(path: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM meta WHERE key = 'version'")


def _gone(path: str) -> None:
    os.unlink(path)
    Path(path + "-wal").write_bytes(b"x" * 100)


DAMAGES = [_cut, _empty, _garbage, _holes, _text, _foreign, _no_meta, _gone]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.fault(38)
def test_a_damaged_journal_is_refused_with_its_name_and_the_way_out(path: str, damage: object) -> None:
    full(path)
    damage(path)  # type: ignore[operator]
    with pytest.raises(JournalError) as caught:
        Journal(path)
    assert caught.value.message.startswith(f"the journal {path} is damaged: ")
    assert caught.value.hint is not None
    assert "`orch recover --hosts cluster.yaml` puts it aside" in caught.value.hint


@pytest.mark.fault(59)
def test_row_59_a_state_that_cannot_be_read_is_set_aside_and_the_others_are_given(path: str) -> None:
    full(path)
    with sqlite3.connect(path) as db:
        row = list(db.execute(f"SELECT {COLUMNS} FROM runs WHERE run_id = 't-20260101-000007'").fetchone())
        row[5] = '{"run_id": 1}'
        row[-1] = checksum(row[:-1])
        db.execute("UPDATE runs SET state = ?, sum = ? WHERE run_id = ?", (row[5], row[-1], row[0]))
    opened = Journal(path)
    assert len(opened.runs()) == 59
    (aside,) = opened.contents().unreadable
    assert (aside.run_id, aside.name, aside.ended) == ("t-20260101-000007", "t", None)
    assert (
        "its state in the journal cannot be read (run_id: Input should be a valid string)" in aside.sentence
    )
    assert opened.contents().set_aside == read_runs(path).set_aside == (aside,)
    opened.note_set_aside(aside)
    event = opened.events(after=60)[-1]
    assert (event["kind"], event["run"], event["message"]) == ("run-set-aside", aside.run_id, aside.sentence)
    assert opened.put_away(beside(opened), ended_max=0) == []
    opened.write_off(aside.run_id)
    assert opened.contents().set_aside == ()
    (written_off,) = opened.contents().unreadable
    assert written_off.why == aside.why, "its row has the checksum of what is in it now"
    assert opened.put_away(beside(opened), ended_max=0) == [], "whether its hosts owe a proof is not known"
    opened.commit(a_run(aside.run_id), Submitted(1.0), [])
    assert opened.contents().unreadable == (), "rebuilt, it can be read again"
    opened.close()


def _of_version(path: str, version: int) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(version),))


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1])
@pytest.mark.fault(39)
def test_a_journal_of_a_version_that_is_not_read_is_refused_with_both_and_its_writer(
    path: str, version: int
) -> None:
    Journal(path).close()
    _of_version(path, version)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '9.1.0' WHERE key = 'program'")
    before = Path(path).read_bytes()
    with pytest.raises(JournalError) as caught:
        Journal(path)
    assert caught.value.message == (
        f"the journal {path} is of version {version}, written by orch 9.1.0; "
        f"this is orch {__version__}, which reads version {VERSION}"
    )
    assert "use orch 9.1.0; or `orch recover --hosts cluster.yaml`" in str(caught.value.hint)
    with pytest.raises(JournalError, match=f"is of version {version}, written by orch 9.1.0"):
        read_runs(path)
    assert Path(path).read_bytes() == before


def test_the_oldest_ended_runs_leave_the_journal_whole_and_no_other(journal: Journal) -> None:
    paths = Paths(os.path.dirname(journal.path), "/nowhere")
    for number in range(6):
        phase = Phase.RUNNING if number == 0 else Phase.FAILED
        run = in_phase(a_run(f"t-20260101-00000{number}"), phase)
        run = an_unproven(run) if number == 2 else run
        journal.commit(run, Ticked(1.0), [Note(NoteKind.WARNING, f"m{number}")])
    before = {kept.run.run_id: kept for kept in journal.contents().kept}
    told = journal.events()
    old = ["t-20260101-000001", "t-20260101-000003"]
    entries = [journal.entries(run_id) for run_id in old]
    assert sorted(journal.put_away(paths.run_dir, ended_max=2)) == old
    left = ["t-20260101-000000", "t-20260101-000002", "t-20260101-000004", "t-20260101-000005"]
    assert [kept.run.run_id for kept in journal.runs()] == left
    assert [event["run"] for event in journal.events()] == left
    assert journal.entries("t-20260101-000001") == []
    journal.commit(replace(a_run("t-20260101-000009")), Ticked(1.0), [Note(NoteKind.WARNING, "m")])
    assert journal.events()[-1]["seq"] == told[-1]["seq"] + 1, "a number is never given again"
    assert archive.run_ids(paths) == old
    assert [read_entries(paths, run_id)[1] for run_id in old] == entries
    for run_id in old:
        assert archived(paths, run_id) == before[run_id]
        with opened(archive.place_of(paths, run_id)) as db:
            kept = happened.events(partial(rows_of, db))
        assert kept == [event for event in told if event["run"] == run_id]
    assert archived(paths, "t") == before[old[-1]], "a name means the newest"
    assert archived(paths, "t-20260101") is None
    assert stat.S_IMODE(os.stat(archive.place_of(paths, old[0])).st_mode) == 0o600


def test_a_run_that_cannot_leave_the_journal_stays_in_it(
    journal: Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        journal.commit(in_phase(a_run(f"t-20260101-00000{number}"), Phase.FAILED), Ticked(1.0), [])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "t-20260101-000001").write_text("a file in the way")
    assert journal.put_away(beside(journal), ended_max=0) == ["t-20260101-000000"]
    assert "t-20260101-000001 stays in the journal for now" in caplog.text
    assert [kept.run.run_id[-1] for kept in journal.runs()] == ["1", "2"]


def test_a_cut_while_a_run_leaves_loses_nothing(journal: Journal, path: str) -> None:
    """The file is whole before the journal lets go of the run, and a half of an earlier attempt is in nobody's way."""
    journal.commit(in_phase(a_run(), Phase.FAILED), Ticked(1.0), [Note(NoteKind.WARNING, "m")])
    directory = beside(journal)(RUN_ID)
    archive.write(journal._db, RUN_ID, directory)  # the power is cut here
    Path(directory, f"{archive.FILE}.new").write_bytes(b"half of a file")
    journal.close()
    again = Journal(path)
    assert [kept.run.run_id for kept in again.runs()] == [RUN_ID]
    assert again.put_away(beside(again), ended_max=0) == [RUN_ID]
    assert os.listdir(directory) == [archive.FILE]
    assert len(read_runs(os.path.join(directory, archive.FILE)).kept) == 1
    again.close()


@pytest.mark.fault(41)
def test_order_is_by_sequence_whatever_the_wall_clock_does(path: str) -> None:
    hours = iter(["12", "09", "15", "03", "00", "23"])
    opened = Journal(path, clock=lambda: f"2026-01-01T{next(hours)}:00:00.000Z")
    for number in range(6):
        run = in_phase(a_run(f"t-20260101-00000{number}"), Phase.FAILED)
        opened.commit(run, Ticked(float(number)), [Note(NoteKind.WARNING, str(number))])
    assert [event["message"] for event in opened.events()] == ["0", "1", "2", "3", "4", "5"]
    assert [event["message"] for event in opened.events(after=3)] == ["3", "4", "5"]
    assert [kept.run.run_id[-1] for kept in opened.runs(ended_max=2)] == ["4", "5"]
    assert len(opened.put_away(beside(opened), ended_max=1)) == 5
    assert [kept.run.run_id[-1] for kept in opened.runs()] == ["5"]
    opened.close()


def test_a_look_sees_what_a_living_writer_has_written(journal: Journal, path: str) -> None:
    assert read_runs(path + ".none") == Contents()
    journal.commit(a_run(), Submitted(1.0), [])
    assert [kept.run for kept in read_runs(path).kept] == [a_run()]


def test_a_journal_that_is_put_aside_is_whole(journal: Journal, path: str) -> None:
    journal.commit(a_run(), Submitted(1.0), [])
    aside = put_aside(path)
    assert aside is not None
    assert aside.startswith(path + ".aside-")
    assert [kept.run for kept in read_runs(aside).kept] == [a_run()]
    assert put_aside(path) is None
    Journal(path).close()


def test_a_directory_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened: No such file or directory"):
        Journal(str(tmp_path / "nowhere" / "journal.db"))


def test_an_entry_writes_what_changed_and_the_state_is_read_whole(path: str) -> None:
    sizes = []
    for n_hosts in (4, 64):
        run = new_run(
            f"t-{n_hosts}", make_plan([f"h{n}" for n in range(n_hosts)], checkpoint=False), epoch=1, at=0.0
        )
        journal = Journal(f"{path}-{n_hosts}")
        run, _, _ = decide.step(run, Submitted(0.0))
        journal.commit(run, Submitted(0.0), [], before=run, outcome=Outcome(InWords("PENDING")))
        for number, host in enumerate(run.hosts[:4]):
            before, event = run, HostUp(1.0 + number, host.name, "boot")
            run, _, _ = decide.step(run, event)
            journal.commit(run, event, [], before=before, outcome=Outcome(InWords("PENDING")))
        journal.close()
        (kept,) = Journal(f"{path}-{n_hosts}").runs()
        assert (kept.run, kept.written_at) == (run, 4.0)
        assert read_runs(f"{path}-{n_hosts}").kept == (kept,)
        with sqlite3.connect(f"{path}-{n_hosts}") as db:
            sizes += db.execute("SELECT sum(length(after)) FROM journal").fetchone()
    assert 0 < sizes[1] <= 1.2 * sizes[0], sizes


def test_the_state_is_written_whole_again_once_the_changes_are_as_large(path: str) -> None:
    run = before = a_run()
    journal = Journal(path)
    seqs = set()
    for number in range(300):
        before, run = run, replace(run, reason=f"the reason of {number}")
        journal.commit(run, Ticked(float(number)), [], before=before, outcome=Outcome(InWords("RUNNING")))
        with sqlite3.connect(path) as db:
            seqs.add(db.execute("SELECT state_seq FROM runs").fetchone())
        assert journal.contents().kept[0].run == run
    assert 1 < len(seqs) < 60


def test_changes_that_do_not_fit_to_their_state_set_the_run_aside(path: str) -> None:
    run = a_run()
    journal = Journal(path)
    journal.commit(run, Ticked(1.0), [])
    journal.commit(replace(run, reason="r"), Ticked(2.0), [], before=run, outcome=Outcome(InWords("RUNNING")))
    with sqlite3.connect(path) as db:
        other = zlib.compress(json.dumps({"changed": {"tasks": {"99": {"pid": [1]}}}}).encode())
        row = list(
            db.execute("SELECT time, run_id, type, event, changes, outcome, after FROM journal").fetchall()[1]
        )
        row[-1] = other
        db.execute("UPDATE journal SET after = ?, sum = ? WHERE seq = 2", (other, checksum(row)))
    (aside,) = journal.contents().unreadable
    assert "do not fit" in aside.why


@pytest.mark.parametrize(
    "damage", ["UPDATE runs SET written_at = written_at + 1", "UPDATE journal SET time = 'T' WHERE seq = 2"]
)
def test_what_reads_well_and_is_not_what_was_written_sets_the_run_aside(path: str, damage: str) -> None:
    run = a_run()
    journal = Journal(path)
    journal.commit(run, Ticked(1.0), [])
    journal.commit(replace(run, reason="r"), Ticked(2.0), [], before=run, outcome=Outcome(InWords("RUNNING")))
    assert journal.contents().unreadable == ()
    with sqlite3.connect(path) as db:
        assert db.execute(damage).rowcount == 1
    (aside,) = journal.contents().unreadable
    assert aside.why.startswith("its checksum is wrong")


@pytest.mark.parametrize(
    "packed", [b"", b"no zlib", zlib.compress(b"[]"), zlib.compress(b'{"changed": {"phase": {"x": 1}}}')]
)
def test_an_entry_that_is_damaged_is_no_state(packed: bytes) -> None:
    """The next coordinator sets such a run aside; any other error would end it."""
    run = new_run("t-20260101-000000", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    with pytest.raises(ValueError, match=r"damaged|do not fit|valid"):
        state_after(dump_run(run), [(packed, None)])


def test_another_proof_writes_itself_and_not_those_of_all_hosts() -> None:
    run = a_run()
    proofs = {f"h{number}": Swept(("pid 9: D state",), (20000 + number,), "cgroup") for number in range(200)}
    many = in_phase(run, Phase.STOPPING, proof=proofs, deadline_at=9.25)
    more = in_phase(run, Phase.STOPPING, proof={**proofs, "b": Swept(by="cgroup")}, deadline_at=9.25)
    packed = changes(many, more)
    assert packed is not None
    assert len(packed) < 200
    assert changed(many, packed) == more
    fewer = in_phase(run, Phase.STOPPING, proof={"a": proofs["h1"]}, deadline_at=9.25)
    assert changed(more, changes(more, fewer)) == fewer, "what is gone from it is gone"


def test_runs_that_have_left_are_told_by_their_days_and_times_whatever_their_names(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path / "state"), str(tmp_path / "run"))
    ids = ["b-20260101-235959", "a-20260102-000000", "a-20260102-000001", "a-b-20260103-000000"]
    for run_id in (*ids, "a-20260104-000000"):
        os.makedirs(paths.run_dir(run_id))
    for run_id in ids:
        Path(paths.run_dir(run_id), archive.FILE).touch()
    assert archive.run_ids(paths) == ids
    assert archive.run_ids(paths, "a") == ids[1:3]
    assert archive.run_ids(paths, ids[0]) == ids[:1]
    assert (archive.find(paths, "a"), archive.find(paths, "a-20260104-000000")) == (ids[2], None)
