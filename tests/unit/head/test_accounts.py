"""What the runs have spent their time on, read from the journal as it grows."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.core.actions import Note
from orchestrator.core.events import Submitted, Ticked
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.run import new_run
from orchestrator.head.journal import archive
from orchestrator.head.journal.journal import Journal
from orchestrator.head.records.accounts import Accounts
from tests.unit.core.transcript import make_plan


def test_new_events_are_read_and_a_run_without_any_has_no_account(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.db")
    accounts = Accounts(path, lambda run_id: str(tmp_path / run_id), clock=lambda: 1_767_225_700.0)
    assert accounts.accounts_of(["t"]) == {}, "there is no journal yet"
    times = iter(["2026-01-01T00:00:00.000Z", "2026-01-01T00:00:10.000Z", "2026-01-01T00:00:30.000Z"])
    journal = Journal(path, clock=lambda: next(times))
    run = new_run("t", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    journal.commit(run, Submitted(at=0.0), [Note(NoteKind.SUBMITTED, "t")])
    found = accounts.account("t")
    assert found is not None
    assert (found.elapsed_s, found.value, found.is_final) == (100, None, False)
    journal.commit(run, Ticked(at=1.0), [Note(NoteKind.RUNNING, "joined")])
    journal.commit(run, Ticked(at=2.0), [Note(NoteKind.SUCCEEDED, "done")])
    found = accounts.account("t")
    assert found is not None
    assert found.is_final
    assert found.badput == {"connect": 10}
    assert found.value == 2 / 3
    assert accounts.account("another") is None
    journal.close()


def test_the_account_of_an_archived_run_is_read_anew_each_time(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.db")
    accounts = Accounts(path, lambda run_id: str(tmp_path / run_id), clock=lambda: 1_767_225_700.0)
    journal = Journal(path, clock=lambda: "2026-01-01T00:00:00.000Z")
    journal.commit(
        new_run("t", make_plan(["a"], checkpoint=False), epoch=1, at=0.0),
        Ticked(at=1.0),
        [Note(NoteKind.SUBMITTED, "t"), Note(NoteKind.SUCCEEDED, "done")],
    )
    found = accounts.account("t")
    assert found is not None
    assert list(accounts._final) == ["t"], "while the journal has it, it is not reckoned again"
    archive.write(journal._db, "t", str(tmp_path / "t"))
    journal.close()
    accounts.forget("t")
    assert accounts.account("t") == found
    assert accounts._final == {}, "nobody would say when to forget it"


def test_a_journal_that_cannot_be_read_gives_no_account(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(os.urandom(4096))
    assert Accounts(str(path), lambda _: str(tmp_path)).account("t") is None
