"""Secrets of runs on the head's disk: private, whole, and gone when they should be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orchestrator.head.node.secrets import Secrets


def test_what_is_saved_is_loaded_and_private(tmp_path: Path) -> None:
    secrets = Secrets(str(tmp_path))
    secrets.save("t-1", {"TOKEN": "hunter2", "KEY": 'a"b\nc'})
    assert secrets.load("t-1") == {"TOKEN": "hunter2", "KEY": 'a"b\nc'}
    assert stat.S_IMODE(os.stat(tmp_path / "secrets").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(tmp_path / "secrets" / "t-1.json").st_mode) == 0o600
    assert os.listdir(tmp_path / "secrets") == ["t-1.json"]


def test_a_run_without_any_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    secrets = Secrets(str(tmp_path))
    secrets.save("t-1", {})
    assert os.listdir(tmp_path) == []
    assert secrets.load("t-1") == {}
    secrets.remove("t-1")
    assert secrets.files_of_others([]) == []


def test_removed_is_removed_and_may_be_asked_twice(tmp_path: Path) -> None:
    secrets = Secrets(str(tmp_path))
    secrets.save("t-1", {"TOKEN": "hunter2"})
    secrets.remove("t-1")
    secrets.remove("t-1")
    assert secrets.load("t-1") == {}
    assert os.listdir(tmp_path / "secrets") == []


def test_only_those_of_the_named_runs_are_kept_and_no_half_written_ones(tmp_path: Path) -> None:
    secrets = Secrets(str(tmp_path))
    for run_id in ("t-1", "t-2"):
        secrets.save(run_id, {"TOKEN": "hunter2"})
    (tmp_path / "secrets" / "t-3.json.new").write_text('{"TOKEN": "hun')
    found = secrets.files_of_others(["t-2"])
    secrets.save("t-4", {"TOKEN": "hunter2"})  # begun since: it is not among what was found
    for file in found:
        secrets.remove_file(file)
    assert sorted(os.listdir(tmp_path / "secrets")) == ["t-2.json", "t-4.json"]


def test_where_the_disk_refuses_no_half_of_a_secret_stays(tmp_path: Path) -> None:
    secrets = Secrets(str(tmp_path))
    (tmp_path / "secrets" / "t-1.json").mkdir(parents=True)  # the rename into place will fail
    with pytest.raises(OSError):
        secrets.save("t-1", {"TOKEN": "hunter2"})
    assert os.listdir(tmp_path / "secrets") == ["t-1.json"]


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    secrets = Secrets(str(tmp_path))
    secrets.save("t-1", {"TOKEN": "hunter2"})
    (tmp_path / "secrets" / "t-1.json").write_text("torn")
    with pytest.raises(ValueError):
        secrets.load("t-1")
