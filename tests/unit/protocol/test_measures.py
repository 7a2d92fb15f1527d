"""A fact that hosts measure is one row and the line that measures it: it is then shown wherever such facts are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator.core.state.task import Progress
from orchestrator.protocol import measures

PACKAGE = Path(orchestrator.__file__).parent

ROW = """
    threads: Annotated[
        Count | None, Measure("threads", "count", "orch_task_threads", "Its threads.", wakes=True)
    ]
    program: Annotated[Name | None, Measure("program", "text")]
    is_traced: Annotated[bool | None, Measure("traced", "flag", "orch_task_traced", "1 while it is traced.")]
"""
HOST_ROW = """    users: Annotated[Count | None, Measure("users", "count", wakes=True)]

"""
LINE = """self.measured = {"threads": len(os.listdir(f"/proc/{self.pid}/task")),
            "program": open(f"/proc/{self.pid}/comm").read().strip(), "is_traced": False, """

SEEN = """
import json, os, sys, types
from dataclasses import replace
from orchestrator.cli.show.task_table import task_table
from orchestrator.cli.session import Paint
from orchestrator.client import exposition, recorded
from orchestrator.cli.top import view
from orchestrator.core import decide, report_fields
from orchestrator.core.events import HostReported
from orchestrator.core.plan import TaskId
from orchestrator.head.coordinator import status
from orchestrator.head.effects import historian
from orchestrator.head.links import wire
from orchestrator.host.shim.report import blank_task
from orchestrator.host.shim.task import TaskProcess
from orchestrator.page import feed, server
from orchestrator.protocol import measures
from orchestrator.protocol.check import check_of
from orchestrator.protocol.reports import HostSample, Task
from tests.protocol_values import valid
from tests.unit.head.test_status import NOW, a_run

process = TaskProcess({"run": "r", "task": "worker:0", "generation": 2, "host_dir": "/"})
process._spawned = types.SimpleNamespace(pid=os.getpid())
process.sample(1.0)
frame = {**blank_task({"task": "worker:0", "generation": 2}), **process.measured}
report = wire.task_report(check_of(Task)(json.loads(json.dumps(frame))), at=NOW, unix_time=1.7e9)
run = a_run()
run = run.with_task(replace(run.tasks[0], progress=report.progress))
document = status.document([run], now=NOW)
shown = document["runs"][0]
families = {family.name: family.samples for family in exposition.families(document)}
def heard(host, **facts):
    sample = {**valid(HostSample), "users": 1, **facts}
    sent = {"host": check_of(HostSample)(sample), "runs": {"t": [{**frame, **facts}]}}
    return wire.host_reported("a", "t", sent, at=NOW + 1, unix_time=1.7e9, known={report.task})

def after(begun, event):
    return decide.step(begun, event).run

def decided(**facts):
    "Say whether a change of these facts is told at once and decided upon, and what the core sees of it."
    begun = after(run, heard("a"))
    event = heard("a", **facts)
    ended = after(begun, event)
    seen = [ended.host("a").measured.get(name, ended.task(report.task).progress.measured.get(name)) for name in facts]
    return [
        seen,
        report_fields.news(event) != report_fields.news(heard("a")),
        report_fields.waking(begun, "a") != report_fields.waking(ended, "a"),
    ]

print(json.dumps({
    "decided": [decided(threads=99), decided(users=7), decided(cpu_percent=3.0)],
    "words": {name: shown["tasks"][0][name] for name in ("program", "is_traced")},
    "traced": families["orch_task_traced"][0].value,
    "kept": sorted(historian._kept(measures.TASK, report.progress.measured)),
    "status": shown["tasks"][0]["threads"],
    "table": task_table(shown, Paint(on=False)),
    "top": view.task_rows(shown, 200)[0],
    "metric": families["orch_task_threads"][0].value,
    "history": historian._kept(measures.TASK, report.progress.measured)["threads"],
    "page": server.read("measures.js"),
    "stream": "threads" in feed._NUMBERS,
    "recorded": "threads" in recorded._NOT_KNOWN,
}))
"""


def test_a_new_number_text_or_flag_of_a_task_is_one_row_and_the_line_that_measures_it(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "orchestrator", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        PACKAGE.parent / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__")
    )
    table = tmp_path / "orchestrator/protocol/measures.py"
    before = (
        '    """What was not written to its log, since the disk was full or the task wrote too fast."""\n'
    )
    assert before in table.read_text()
    added = table.read_text().replace(before, before + ROW).replace("import Count, ", "import Count, Name, ")
    added = added.replace("\nclass GpuMeasures", HOST_ROW + "\nclass GpuMeasures")
    table.write_text(added)
    shim = tmp_path / "orchestrator/host/shim/task.py"
    assert shim.read_text().count("self.measured = {") == 1
    shim.write_text(shim.read_text().replace("self.measured = {", LINE))
    told = subprocess.run(
        [sys.executable, "-c", SEEN], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    seen = json.loads(told.stdout)
    assert seen["status"] == seen["metric"] == seen["history"] >= 1
    assert "THREADS" in seen["table"][0]
    assert str(seen["status"]) in seen["table"][1].split()
    assert "THREADS" in seen["top"]
    assert '"label": "threads"' in seen["page"]
    assert seen["stream"]
    assert seen["recorded"]
    assert seen["words"] == {"program": Path("/proc/self/comm").read_text().strip(), "is_traced": False}
    assert seen["traced"] == 0
    assert not {"program", "is_traced"} & {*seen["kept"]}, "a history has numbers only"
    assert {"PROGRAM", "TRACED"} <= {*seen["table"][0].split()}
    assert {seen["words"]["program"], "no"} <= {*seen["table"][1].split()}
    assert '"unit": "flag"' in seen["page"]
    assert seen["decided"] == [
        [[99], True, True],
        [[7], True, True],
        [[3.0], False, False],
    ], "the core is woken by those that say so"


def test_mypy_knows_the_names_by_which_the_core_decides() -> None:
    measured = Progress(measured={"rss_bytes": 7}).measured
    assert (measured["rss_bytes"] or 0) > 6
    with pytest.raises(KeyError):
        measured["rss_byte"]  # type: ignore[typeddict-item]


def test_every_number_says_how_it_is_seen() -> None:
    for rows in (measures.TASK, measures.HOST, measures.GPU):
        assert rows
        for name, row in rows.items():
            assert bool(row.metric) == bool(row.about), name
            assert row.unit in (
                "percent",
                "bytes",
                "bytes_per_s",
                "per_s",
                "count",
                "celsius",
                "watts",
                "text",
                "flag",
                "",
            ), name
            assert row.unit or not row.label, f"{name} has a column, and no unit to write it in"
