"""The faults that an agent injects for `orch chaos`."""

from __future__ import annotations

import os
import runpy

import pytest

from orchestrator.host.agent import faults


def test_a_python_built_for_an_old_c_library_can_fill_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = os.O_TMPFILE
    monkeypatch.delattr(os, "O_TMPFILE")
    assert runpy.run_path(faults.__file__)["_TMPFILE"] == flag
