"""Nothing is decided by the wall clock, which may jump on any machine: who reads it is listed here, with why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent

READERS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}

SHOWN = "for people to read, and compared with nothing"

ALLOWED = {
    "adapters/checkpoints/records.py": SHOWN,
    "adapters/checkpoints/arrival.py": "the age of what nobody goes on with: a day, then it is sent again",
    "adapters/checkpoints/share.py": "the age of tokens that no run asks for any more: a day",
    "adapters/host/claims.py": "since when a run is somebody's, which is shown; and where a file system tells no time",
    "adapters/host/codestore.py": "the age of unused blobs: hours, and what is removed too early is pushed again",
    "adapters/ssh/keys.py": "whether a host's certificate is valid now, as ssh judges it: there is no other clock",
    "adapters/head/journal.py": "times of records and names of files; their order is that of their numbers",
    "adapters/head/accounts.py": SHOWN,
    "daemon/coordinator/historian.py": SHOWN,
    "client/environment.py": SHOWN,
    "daemon/agent/main.py": "when to report, so that all hosts do it together: half a heartbeat early or late at most",
    "daemon/agent/runs.py": "how long ago a run was watched and changed: shown, and what it allows a person confirms",
    "daemon/agent/sweep.py": "the age of bundles that nobody uses: a month, and one that is missing is pushed again",
    "daemon/agent/tasks.py": "how long a shim may be on its way: its lock is what keeps it from being called dead",
    "daemon/transfer/logcopy.py": SHOWN,
    "daemon/shim/loop.py": SHOWN,
    "daemon/shim/record.py": SHOWN,
    "page/source.py": SHOWN,
    "runtime/": "of the user's process: what is written into its files",
    "adapters/host/hostlog.py": "the times of log lines",
}


def reads() -> Iterator[tuple[str, int, str]]:
    """(file, line, what) of every call that asks for the wall clock's time."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
                of = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                if f"{of}.{node.attr}" in READERS:
                    yield str(path.relative_to(PACKAGE)), node.lineno, f"{of}.{node.attr}"


@pytest.mark.fault(41)
def test_whoever_reads_the_wall_clock_is_known_and_decides_nothing_by_it() -> None:
    found = list(reads())
    assert len(found) > 5, "it finds those that are there"
    strangers = [
        f"{file}:{line}: {what}" for file, line, what in found if not file.startswith(tuple(ALLOWED))
    ]
    assert strangers == []


@pytest.mark.fault(41)
def test_what_decides_does_not_import_it() -> None:
    for path in sorted((PACKAGE / "core").rglob("*.py")):
        imported = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        modules = {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module
        }
        assert not {"time", "datetime"} & (imported | modules), path
