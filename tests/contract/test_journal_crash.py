"""The journal under what kills coordinators: SIGKILL at any moment, a torn write-ahead log, a full disk."""

from __future__ import annotations

import os
import random
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.actions import Note
from orchestrator.core.errors import JournalError
from orchestrator.core.events import Ticked
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.journal.journal import Journal
from tests.contract.small_disk import SmallDisk, mounted
from tests.patience import patient
from tests.unit.core.transcript import make_plan

ROUNDS = 40


def a_run() -> Run:
    return new_run("t-20260101-000000", make_plan(["a", "b"], checkpoint=False), epoch=1, at=0.0)


def commit(journal: Journal, number: int) -> None:
    """Event, state and note all carry the number: a mix would show."""
    run = replace(a_run(), best_step=number, reason="x" * (number * 37 % 3000))
    journal.commit(run, Ticked(float(number)), [Note(NoteKind.WARNING, str(number))])


def kept(journal: Journal) -> int:
    """Check that all three tables agree on one number, and return it; 0 where there is none yet."""
    runs = journal.runs()
    entries = journal.entries(a_run().run_id)
    notes = [event["message"] for event in journal.events(limit=1_000_000)]
    number = runs[0].run.best_step if runs else 0
    assert number is not None
    assert [entry.event.at for entry in entries if entry.event is not None] == [
        float(n) for n in range(1, number + 1)
    ]
    assert notes == [str(n) for n in range(1, number + 1)]
    if runs:
        assert runs[0].run.reason == "x" * (number * 37 % 3000)
        assert runs[0].written_at == float(number)
    return number


def in_child(work: Callable[[int], None], after_s: float, *, of_first_word: bool = False) -> bytes:
    """Run `work` in a process of its own, which gets SIGKILL after that time, or so long after its first word.

    Return what it wrote until then.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(writer)
        finally:
            os._exit(0)
    os.close(writer)
    if of_first_word:
        select.select([reader], [], [], patient(10.0))
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(reader, "rb") as said:
        return said.read()


@pytest.mark.fault(37)
def test_row_37_killed_at_any_moment_it_is_old_or_new_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "journal.db")
    chance = random.Random(37)
    acknowledged, epochs = 0, 0
    warm = Journal(str(tmp_path / "warm.db"))  # what pydantic makes once a process the children then have
    commit(warm, 1)
    kept(warm)
    warm.close()
    for nth in range(ROUNDS):

        def work(writer: int) -> None:
            journal = Journal(path)
            os.write(writer, f"epoch {journal.take_epoch()}\n".encode())
            number = kept(journal)
            while True:
                number += 1
                commit(journal, number)
                os.write(writer, f"{number}\n".encode())

        # On a busy machine it has said nothing in that time: each other one is killed that long after its first word.
        said = in_child(work, chance.uniform(0.0, 0.06), of_first_word=nth % 2 == 1).decode().split("\n")[:-1]
        told_epochs = [int(line.split()[1]) for line in said if line.startswith("epoch")]
        numbers = [int(line) for line in said if line.isdecimal()]
        acknowledged = max([acknowledged, *numbers])
        if os.path.exists(path):
            journal = Journal(path)
            found = kept(journal)
            assert acknowledged <= found <= acknowledged + 1, "lost, or more than what was under way"
            acknowledged = found
            epoch = journal.take_epoch()
            assert epoch > max([epochs, *told_epochs]), "no two coordinators share an epoch"
            epochs = epoch
            journal.close()
    assert acknowledged >= ROUNDS // 4, "it was killed too early each time to mean anything"


@pytest.mark.fault(37)
def test_a_torn_write_ahead_log_gives_the_state_after_some_whole_turn(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(str(path))
    for number in range(1, 30):
        commit(journal, number)
    wal = Path(f"{path}-wal").read_bytes()
    main = path.read_bytes()
    journal.close()
    chance = random.Random(5)
    found = set()
    for cut in [0, 1, 31, len(wal), *(chance.randrange(len(wal)) for _ in range(40))]:
        copy = tmp_path / f"cut-{cut}"
        copy.mkdir()
        (copy / "journal.db").write_bytes(main)
        (copy / "journal.db-wal").write_bytes(wal[:cut])
        again = Journal(str(copy / "journal.db"))
        found.add(kept(again))
        again.close()
        shutil.rmtree(copy)
    assert max(found) == 29
    assert len(found) > 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "small") as disk:
        yield disk


@pytest.mark.fault(34)
def test_row_34_a_full_disk_is_called_that_and_leaves_the_journal_intact(small_disk: SmallDisk) -> None:
    journal = Journal(str(small_disk.path / "journal.db"))
    commit(journal, 1)
    small_disk.fill()
    number, caught = _until_refused(journal, 2)
    assert caught.message == f"state disk full: {small_disk.path}/journal.db cannot be written"
    assert "free some space" in str(caught.hint)
    assert kept(journal) == number - 1, "reads work, and show the last that was acknowledged"
    with pytest.raises(JournalError, match="state disk full"):
        journal.take_epoch()
    small_disk.empty()
    commit(journal, number)
    assert kept(journal) == number
    journal.close()
    again = Journal(str(small_disk.path / "journal.db"))
    assert kept(again) == number
    again.close()


def test_a_journal_cannot_begin_on_a_full_disk(small_disk: SmallDisk) -> None:
    small_disk.fill()
    with pytest.raises(JournalError, match="state disk full"):
        Journal(str(small_disk.path / "journal.db"))
    small_disk.empty()
    Journal(str(small_disk.path / "journal.db")).close()


def _until_refused(journal: Journal, number: int) -> tuple[int, JournalError]:
    """Commit from that number on; the first that was refused, and the refusal."""
    while True:
        try:
            commit(journal, number)
        except JournalError as e:
            return number, e
        number += 1


def test_a_write_that_the_kernel_refuses_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.db")

    def work(writer: int) -> None:
        journal = Journal(path)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        number = 0
        try:
            while True:
                number += 1
                commit(journal, number)
        except JournalError as e:
            os.write(writer, f"{number - 1} {kept(journal)} {e.message}".encode())

    acknowledged, read, message = in_child(work, 2.0).decode().split(" ", 2)
    assert acknowledged == read
    assert message.startswith(f"the journal {path} cannot be written: ")
    journal = Journal(path)
    assert kept(journal) == int(acknowledged)
    journal.close()
