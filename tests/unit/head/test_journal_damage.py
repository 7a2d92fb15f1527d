"""Whatever byte of a journal's files is changed, cut off or zeroed: it is noticed, or the reading is the same."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.actions import Note
from orchestrator.core.errors import JournalError
from orchestrator.core.events import Submitted, Ticked
from orchestrator.core.in_words import InWords
from orchestrator.core.notes import NoteKind
from orchestrator.head.journal import witness
from orchestrator.head.journal.entries import Outcome
from orchestrator.head.journal.format import error_of
from orchestrator.head.journal.journal import Journal
from orchestrator.head.journal.reading import read_runs
from tests.unit.head.test_journal import a_run

FILES = ("", "-wal", "-shm")

WRITER = """
import sys, time
from tests.unit.head.test_journal_damage import write
journal = write(sys.argv[1])
print("written", flush=True)
time.sleep(60)
"""


def write(path: str) -> Journal:
    """Write three runs with entries and events, as a coordinator does; the last entries lie in the log alone."""
    journal = Journal(path)
    journal.take_epoch()
    journal.owner_id()
    for number in range(3):
        run = a_run(f"t-20260101-00000{number}")
        journal.commit(run, Submitted(1.0), [Note(NoteKind.WARNING, "w" * 300)])
        for step in range(8):
            after = replace(run, reason=f"step {step}", best_step=step)
            journal.commit(
                after,
                Ticked(2.0),
                [Note(NoteKind.WARNING, "x")],
                before=run,
                outcome=Outcome(InWords("RUNNING")),
            )
            run = after
        if number == 1:
            with contextlib.closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return journal


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a coordinator leaves which was killed with SIGKILL."""
    directory = tmp_path_factory.mktemp("killed")
    path = str(directory / "journal.db")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert all(os.path.getsize(path + suffix) > 1000 for suffix in FILES)
    return directory


def copied(killed: Path, tmp_path: Path, number: int) -> str:
    directory = tmp_path / str(number)
    shutil.copytree(killed, directory)
    return str(directory / "journal.db")


def all_of_it(path: str) -> Any:
    """Return all that is read from a journal; JournalError where it is refused."""
    opened = Journal(path)
    try:
        contents = opened.contents()
        entries = {one.run.run_id: opened.entries(one.run.run_id) for one in contents.kept}
        return contents, opened.events(), entries, opened.take_epoch(), opened.owner_id()
    finally:
        opened.close()


def is_noticed(found: Any, undamaged: Any) -> bool:
    """Return whether a reading that was not refused says what was damaged: a run set aside, an event, an entry."""
    contents, events, entries, epoch, owner = found
    lost = [one for of_run in entries.values() for one in of_run if "its checksum is wrong" in one.type]
    was, events_before, _, epoch_before, owner_before = undamaged
    aside = {one.run_id for one in contents.unreadable}
    said = {event["seq"] for event in events if "its checksum is wrong" in event["message"]}
    return (
        (epoch, owner) == (epoch_before, owner_before)
        and [one for one in was.kept if one.run.run_id not in aside] == list(contents.kept)
        and len(contents.unreadable) + len(contents.kept) == len(was.kept)
        and [e for e in events_before if e["seq"] not in said] == [e for e in events if e["seq"] not in said]
        and bool(aside or said or lost)
    )


def flip(data: bytearray, at: int, chance: random.Random) -> None:
    data[at] ^= 1 << chance.randrange(8)


def zero(data: bytearray, at: int, chance: random.Random) -> None:
    length = chance.choice((16, 512, 4096))
    data[at : at + length] = bytes(len(data[at : at + length]))


def cut(data: bytearray, at: int, _: random.Random) -> None:
    del data[at:]


@pytest.mark.fault(81)
@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("damage", [flip, zero, cut])
def test_no_damage_of_the_files_of_a_killed_coordinator_goes_unseen(
    killed: Path, tmp_path: Path, suffix: str, damage: object
) -> None:
    undamaged = all_of_it(copied(killed, tmp_path, 0))
    chance = random.Random(f"{suffix} {damage.__name__}")  # type: ignore[attr-defined]
    unseen: list[int] = []
    refused, unhelpful = 0, list[str]()
    for number in range(1, 101):
        path = copied(killed, tmp_path, number)
        data = bytearray(Path(path + suffix).read_bytes())
        at = chance.randrange(len(data))
        damage(data, at, chance)  # type: ignore[operator]
        Path(path + suffix).write_bytes(data)
        try:
            found = all_of_it(path)
        except JournalError as e:
            refused += 1
            unhelpful += [e.message] if not e.hint else []
            continue
        finally:
            shutil.rmtree(os.path.dirname(path))
        if found != undamaged and not is_noticed(found, undamaged):
            unseen.append(at)
    assert (unseen, unhelpful) == ([], [])
    assert refused > 0 or suffix == "-shm"


@pytest.mark.fault(81)
def test_one_bit_of_the_log_is_not_no_runs(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path, 0)
    data = bytearray(Path(path + "-wal").read_bytes())
    data[40] ^= 1
    Path(path + "-wal").write_bytes(data)
    for read in (Journal, read_runs):
        with pytest.raises(
            JournalError, match=r"is damaged: the last \d+ entries and \d+ events that were written"
        ):
            read(path)


@pytest.mark.parametrize("gone", ["", "-wal"])
def test_a_file_that_is_gone_is_not_no_runs(killed: Path, tmp_path: Path, gone: str) -> None:
    path = copied(killed, tmp_path, 0)
    os.unlink(path + gone)
    with pytest.raises(JournalError, match="is damaged"):
        Journal(path)


def test_the_file_beside_it_is_older_after_a_power_cut_and_then_says_nothing(
    killed: Path, tmp_path: Path
) -> None:
    path = copied(killed, tmp_path, 0)
    seen = witness.read(path)
    assert seen is not None
    older = witness.Witness(path)
    older.write(seen._replace(entry=seen.entry - 5))
    older.close()
    Journal(path).close()
    assert witness.read(path) == seen
    for emptied in (b"", b"\0" * 128):
        Path(path + witness.SUFFIX).write_bytes(emptied)
        assert witness.read(path) is None
        Journal(path).close()
        assert witness.read(path) == seen


@pytest.mark.fault(81)
def test_damage_of_the_file_beside_it_hides_no_damage_of_the_journal(killed: Path, tmp_path: Path) -> None:
    """One flipped bit in the log, and one in what says how far the journal had come: then nothing was missed."""
    path = copied(killed, tmp_path, 0)
    beside, log = Path(path + witness.SUFFIX), Path(path + "-wal")
    whole, content = beside.read_bytes(), bytearray(log.read_bytes())
    content[200] ^= 1  # its first frame: after a checkpoint, the end of the file is of before
    for damaged in (b"9" + whole[1:], whole[:64] + b"9" + whole[65:]):
        beside.write_bytes(damaged)
        assert witness.read(path) is not None, "the other copy is whole"
    log.write_bytes(content)
    os.unlink(path + "-shm")  # as after a reboot: the log is read up to its first damaged frame
    for damaged in (b"9" + whole[1:], b"1 2", b"9 9 9 9", b"\xff" * 64):
        beside.write_bytes(damaged)
        with pytest.raises(JournalError):
            Journal(path)
        with pytest.raises(JournalError) as caught:
            read_runs(path)
        assert "orch recover" in str(caught.value.hint)


def test_each_transaction_is_on_the_disk_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL cannot show it: only a power cut would."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    journal = write(str(tmp_path / "journal.db"))
    assert str(tmp_path) in synced, "its name"
    ((full,),) = (journal._db.execute("PRAGMA synchronous").fetchall(),)
    ((mode,),) = (journal._db.execute("PRAGMA journal_mode").fetchall(),)
    journal.close()
    assert (full, mode) == ((2,), ("wal",))


@pytest.mark.parametrize("together", [True, False])
def test_what_a_failed_transaction_would_have_written_is_written_by_the_next(
    tmp_path: Path, together: bool
) -> None:
    journal = Journal(str(tmp_path / "journal.db"))
    run = a_run()
    journal.commit(run, Submitted(1.0), [])
    after = replace(run, reason="b")

    circular: dict[str, object] = {}
    circular["self"] = circular

    def fails() -> None:
        with journal.together() if together else contextlib.nullcontext():
            notes = [] if together else [Note(NoteKind.WARNING, "x", data=circular)]
            journal.commit(after, Ticked(2.0), notes, before=run, outcome=Outcome(InWords("RUNNING")))
            raise ValueError("Circular")

    with pytest.raises(ValueError, match=r"[Cc]ircular"):
        fails()
    last = replace(after, best_step=7)
    journal.commit(last, Ticked(3.0), [], before=after, outcome=Outcome(InWords("RUNNING")))
    (kept,) = journal.contents().kept
    journal.close()
    assert kept.run == last


@pytest.mark.parametrize(
    ("code", "is_limited", "said"),
    [
        (sqlite3.SQLITE_IOERR, True, "may write files of"),
        (sqlite3.SQLITE_IOERR, False, "disk I/O error"),
        (sqlite3.SQLITE_READONLY, True, "disk I/O error"),
        (sqlite3.SQLITE_CORRUPT, True, "is damaged"),
    ],
)
def test_a_limit_of_file_sizes_is_named_only_where_a_write_failed(
    tmp_path: Path, code: int, is_limited: bool, said: str
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        soft = 1 << 40 if is_limited else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))
        assert said in error_of(str(tmp_path / "journal.db"), error).message
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
