"""What is measured runs as a user's Python does, whatever the shell of the one who measures has set."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.environment import as_users_have_it


def test_nothing_changes_how_python_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONDEVMODE", "PYTHONPATH", "OTHER"):
        monkeypatch.setenv(name, "1")
    as_users_have_it()
    left = {name for name in os.environ if name.startswith("PYTHON")} - {"PYTHONHOME"}
    assert left == {"PYTHONPATH"}
    assert os.environ["OTHER"] == "1"
    assert not sys.dont_write_bytecode
