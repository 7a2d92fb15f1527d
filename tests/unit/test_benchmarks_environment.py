"""What is measured runs as a user's Python does, whatever the shell of the one who measures has set."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.environment import as_users_have_it
from tests import warm
from tests.patience import patient


def test_nothing_changes_how_python_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv(warm.STARTS_ALONE, "")  # which is taken back at the end
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONDEVMODE", "PYTHONPATH", "OTHER"):
        monkeypatch.setenv(name, "1")
    as_users_have_it()
    left = {name for name in os.environ if name.startswith("PYTHON")} - {"PYTHONHOME"}
    assert left == {"PYTHONPATH"}
    assert os.environ["OTHER"] == "1"
    assert not sys.dont_write_bytecode


def test_no_command_that_is_measured_is_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(warm.STARTS_ALONE, "")
    as_users_have_it()
    monkeypatch.setattr(warm, "_commands", lambda: pytest.fail("a fork"))
    ended = warm.command("--version", env=dict(os.environ), timeout=patient(60.0))
    assert (ended.returncode, "orch" in ended.stdout) == (0, True)
