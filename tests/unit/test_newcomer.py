"""A newcomer adds one of each by what CONTRIBUTING's table says, and nothing else: all of them arrive.

In a copy of the sources: a strategy, a cause with its signature, a kind of event, a concern, a finding, a spec field
and a command. What hosts measure and orders have tests of their own: `protocol/test_measures.py`,
`contract/test_new_order.py`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_contributing import ROWS
from tests.unit.test_imports import PACKAGE

ADDED: dict[str, list[tuple[str, str, str]]] = {
    "a strategy": [
        (
            "core/strategy.py",
            ")\n\n_BY_NAME",
            """    Strategy(
        name="ring_of_jax",
        task_types=("worker",),
        required_types=(("worker",),),
        wiring=wiring.ranks,
        frameworks=("jax",),
        packages=("jax", "jaxlib"),
    ),
""",
        )
    ],
    "a cause": [
        (
            "core/causes.py",
            "    _value_: str\n    row: Row\n",
            '    FULL_MOON = Row("full moon", repeats=True, how="saw the full moon")\n',
        ),
        (
            "core/diagnosis/signatures.py",
            '    Signature(\n        Cause.PORT,\n        ("Could not start',
            '    Signature(Cause.FULL_MOON, ("MoonError: (?P<name>.*)",), "the moon is {name}", "wait a day"),\n',
        ),
    ],
    "a kind of event": [
        (
            "core/notes.py",
            "    _value_: str\n",
            '    APPLAUDED = Row("applauded", "The run has trained for a while.")\n',
        )
    ],
    "a spec field": [
        (
            "spec/models.py",
            "    kill_grace: Annotated[float, duration(0, 3600)] = 10.0\n",
            "    applause: Annotated[float, duration(1)] = 60.0\n",
        ),
        ("core/plan.py", "    kill_grace_s: float = 10.0\n", "    applause_s: float = 60.0\n"),
    ],
    "a concern": [
        ("core/concerns.py", "    borrowed,\n", "    applause,\n"),
        ("core/concerns.py", "    checkpoints.CONCERN,\n", "    applause.CONCERN,\n"),
        ("core/state/phase_states.py", "    nonfinite_said: bool", "    applauded: bool = False\n"),
    ],
    "a finding": [
        (
            "reporting/findings.py",
            '""")\n)\n\nBY_ID',
            """
host.moon error moon
  the host stands under a full moon
  its task would see it
  draw the curtain
""",
        )
    ],
    "a command": [
        ("cli/main.py", '        "queue": "Show which', '        "moon": "Show the moon.",\n'),
    ],
}
"""By row of the table: in which file, before which text, what is added."""

MODULES = {
    "a concern": (
        "core/phases/applause.py",
        '''"""Applause for a run that has trained for a while."""

from collections.abc import Iterable

from orchestrator.core.notes import NoteKind
from orchestrator.core.state.instants import Deadline
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn


def _due(run: Run) -> Iterable[Deadline | None]:
    running = run.phase_state
    if isinstance(running, Running) and not running.applauded:
        yield run.since_at + run.plan.timing.applause_s


def _advance(turn: Turn) -> None:
    if any(due is not None and due <= turn.at for due in _due(turn.run)):
        turn.set_phase(applauded=True)
        turn.note(NoteKind.APPLAUDED, "well done so far")


CONCERN = Concern(
    "applause",
    advance={Phase.RUNNING: _advance},
    due=_due,
    says=lambda run, at: "; applauded" if run.within(Running).applauded else "",
    shows=lambda run, at: {"applause_s": run.plan.timing.applause_s},
)
''',
    ),
    "a command": (
        "cli/commands/moon.py",
        '''"""`orch moon`: show the moon."""

import click

from orchestrator.cli.help import Command
from orchestrator.cli.session import Session


@click.command(cls=Command, examples=[("orch moon", "Show it"), ("orch moon --help", "Say what it shows")])
@click.pass_obj
def command(session: Session) -> int:
    """Show the moon."""
    session.put("it is full")
    return 0
''',
    ),
}

SPEC = """version: 1
name: t
hosts: [{name: a, transport: local, slots: 2}]
run:
  strategy: ring_of_jax
  script: train.py
  tasks: {worker: {replicas: 2}}
  timing: {applause: 30s}
"""

SEEN = """
import json
from pathlib import Path
from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause, matching
from orchestrator.core.ends import Exit
from orchestrator.core.errors import SpecError
from orchestrator.core.launching import environment
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Problem
from orchestrator.head.coordinator import status
from orchestrator.reporting import findings
from orchestrator.spec.models import json_schema
from orchestrator.spec.plan import load_plan
from tests import events_page, findings_page
from tests.unit.core.world import World

spec = Path("cluster.yaml")
plan, _ = load_plan(spec)
world = World(plan, steps=4000)
world.begin()
world.crash_before = 9
world.go(120.0)
assert world.run.phase is Phase.RUNNING, world.run.phase
shown = status.document([world.run], now=world.now)["runs"][0]
spec.write_text(spec.read_text() + "  env: {RANK: mine}\\n")
try:
    load_plan(spec)
    refused = ""
except SpecError as e:
    refused = str(e)
ended = cause.classify(Exit(cause=Cause.SCRIPT, code=1, error="MoonError: full"))
of_start = findings.problem_finding(Problem("moon", "a stands under it"), "a")
print(json.dumps({
    "a strategy": [json.loads(environment.runtime_options(plan))["frameworks"], "RANK is set by orch" in refused],
    "a cause": [ended.cause.value, cause.how(ended), "full moon" in events_page.page()],
    "a kind of event": [
        [note.message for note in world.notes if note.kind.value == "applauded"], "`applauded`" in events_page.page()
    ],
    "a spec field": [plan.timing.applause_s, "applause" in json.dumps(json_schema())],
    "a concern": [shown["applause_s"], "; applauded" in shown["reason"]],
    "a finding": [of_start.id, of_start.row.way_out, "## host.moon" in findings_page.page()],
}))
"""


CALLED = "import sys; from orchestrator.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources in which one of each was added."""
    made = tmp_path_factory.mktemp("tree")
    for name in ("orchestrator", "tests"):
        shutil.copytree(PACKAGE.parent / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    for edits in ADDED.values():
        for name, before, text in edits:
            file = made / "orchestrator" / name
            assert before in file.read_text(), f"{name}: {before}"
            file.write_text(file.read_text().replace(before, text + before, 1))
    for name, text in MODULES.values():
        (made / "orchestrator" / name).write_text(text)
    (made / "cluster.yaml").write_text(SPEC)
    (made / "train.py").write_text("import jax\n")
    return made


def ran(tree: Path, *argv: str) -> str:
    told = subprocess.run([sys.executable, *argv], cwd=tree, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-3000:]
    return told.stdout


def test_what_is_added_by_the_table_arrives(tree: Path) -> None:
    assert ADDED.keys() <= {row.split(":")[0] for row in ROWS}
    seen: dict[str, Any] = json.loads(ran(tree, "-c", SEEN))
    assert seen == {
        "a strategy": [["jax"], True],
        "a cause": ["full moon", "saw the full moon", True],
        "a kind of event": [["well done so far"], True],
        "a spec field": [30.0, True],
        "a concern": [30.0, True],
        "a finding": ["host.moon", "draw the curtain", True],
    }
    assert ran(tree, "-c", CALLED, "moon") == "it is full\n"
    assert "Show the moon." in ran(tree, "-c", CALLED, "--help")


def test_the_files_that_are_edited_are_those_of_the_table() -> None:
    for kind, edits in ADDED.items():
        (row,) = [text for name, text in ROWS.items() if name.split(":")[0] == kind]
        assert [name for name, *_ in edits if name not in row] == [], kind
