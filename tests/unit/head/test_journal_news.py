"""When the journal is read for news: after a change twice, and else not at all."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.head.journal.news import Changes


def test_a_change_is_read_twice_and_then_no_more(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    changes = Changes(str(journal))
    journal.write_bytes(b"1")
    assert [changes.may_be_new() for _ in range(4)] == [True, True, False, False]
    (tmp_path / "journal.db-wal").write_bytes(b"2")
    assert [changes.may_be_new() for _ in range(3)] == [True, True, False]


def test_a_write_within_the_tick_of_the_look_is_found_by_the_second_read(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    journal.write_bytes(b"1")
    changes = Changes(str(journal))
    assert changes.may_be_new()
    before = journal.stat()
    journal.write_bytes(b"2")
    os.utime(journal, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changes.may_be_new()
