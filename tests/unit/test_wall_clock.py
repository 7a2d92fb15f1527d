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
    "checkpoints/records.py": SHOWN,
    "checkpoints/arrival.py": "the age of what nobody goes on with: a day, then it is sent again",
    "checkpoints/share.py": "the age of tokens that no run asks for any more: a day",
    "checkpoints/claims.py": "since when a run is somebody's, which is shown; and where a file system tells no time",
    "host/system/codestore.py": "the age of unused blobs: hours, and what is removed too early is pushed again",
    "head/api/client.py": "says when the journal of a coordinator that does not answer was last written",
    "head/reach/ssh/keys.py": "whether a host's certificate is valid now, as ssh judges it: there is no other clock",
    "head/journal/journal.py": "times of records and names of files; their order is that of their numbers",
    "head/coordinator/executor.py": "when a task ended by the head's clock, if its host's is wrong: shown only",
    "head/hosts/recovery.py": "the same, of tasks that were found",
    "head/coordinator/coordinator.py": "how long ago a run ended of which only records are kept: shown",
    "head/coordinator/status.py": "how old a checkpoint is: shown",
    "head/records/accounts.py": SHOWN,
    "head/effects/historian.py": SHOWN,
    "client/environment.py": SHOWN,
    "host/agent/leases.py": "since when a run has had its GPUs, shown to others",
    "host/agent/main.py": "when to report, so that all hosts do it together: half a heartbeat early or late at most",
    "host/agent/runs.py": "how long ago a run was watched and changed: shown, and what it allows a person confirms",
    "host/agent/sweep.py": "the age of bundles that nobody uses: a month, and one that is missing is pushed again",
    "host/agent/handlers.py": "the host's clock when a part of a log was read, to be compared with the head's",
    "host/agent/environments.py": "the age of environments that no run uses: a day, and then it is made again",
    "head/code/snapshots.py": "the age of snapshots that no run needs: what is removed too early is copied again",
    "host/agent/place_of_tasks.py": "the age of what a probe that was killed has left",
    "head/hosts/wheels.py": "the age of a collection that was interrupted: a day",
    "host/agent/health.py": "the host's clock, to be compared with the head's",
    "head/hosts/examination.py": "how far the clock of a host is from the head's: shown only",
    "host/pod/main.py": "when the task of a drained pod was stopped: it is ordered among the ends that shims tell",
    "host/agent/tasks.py": "how long a shim may be on its way: its lock is what keeps it from being called dead",
    "head/transfer/logcopy.py": SHOWN,
    "host/shim/loop.py": SHOWN,
    "host/shim/record.py": SHOWN,
    "page/source.py": SHOWN,
    "head/node/page_access.py": "until when a share lets somebody in, which outlives a boot: days",
    "task/": "of the user's process: what is written into its files",
    "host/system/hostlog.py": "the times of log lines",
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
