"""The commands of docs/course as they stand there; what `orch up` starts on its pages is run by test_examples.py."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]


def lines() -> list[str]:
    """Return every `orch …` line of the course's shell blocks once, in the order of the pages."""
    found = []
    for page in sorted((ROOT / "docs/course").rglob("*.md")):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            found += [line.strip() for line in block.splitlines() if line.startswith("orch ")]
    return list(dict.fromkeys(found))


LINES = lines()
SAVING = "orch up cluster_specs/save_and_load.yaml --wait"
SHORT = [line for line in LINES if line.split()[1] in ("plan", "import", "validate")]
AFTER_A_RUN = [line for line in LINES if line.split()[1] in ("status", "why", "fetch")]
MEASURING = [line for line in LINES if line.split()[1] in ("scale", "prove")]


@pytest.fixture
def reader(local_cluster: Cluster) -> Cluster:
    """Somebody who has nothing but the examples, in a directory of their own."""
    home = local_cluster.directory / "reader"
    for part in ("cluster_specs", "examples"):
        shutil.copytree(ROOT / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
    local_cluster.env |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    return local_cluster


def typed(reader: Cluster, line: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "orchestrator.cli.main", *shlex.split(line)[1:]]
    return subprocess.run(
        argv,
        env=reader.env,
        cwd=reader.env["HOME"],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_each_command_is_run_by_some_test() -> None:
    rest = [line for line in LINES if line not in (*SHORT, *AFTER_A_RUN, *MEASURING)]
    assert SAVING in rest
    assert [line for line in rest if not line.startswith("orch up cluster_specs/")] == []


@pytest.mark.parametrize("line", SHORT)
def test_what_starts_nothing(reader: Cluster, line: str) -> None:
    done = typed(reader, line)
    assert (done.returncode, bool(done.stdout or done.stderr)) == (0, True), done.stderr


def test_what_is_asked_and_fetched_after_a_run(reader: Cluster) -> None:
    done = typed(reader, SAVING, timeout=150)
    log = reader.ok("logs", "save-and-load")
    assert done.returncode == 0, log
    assert re.search(r"without a strategy: differs by [\d.]+e-0[6-9]|differs by 0", log), log
    assert "goes on under another strategy at step 116" in log
    assert re.search(r"as a SavedModel: differs by ([\d.]+e-0[6-9]|0)", log), log
    for line in AFTER_A_RUN:
        asked = typed(reader, line)
        assert (asked.returncode, bool(asked.stdout or asked.stderr)) == (0, True), (line, asked.stderr)
    models = Path(reader.env["HOME"]) / "models"
    assert [path.name for path in models.rglob("*.keras")] == ["model.keras"]


@pytest.mark.long
@pytest.mark.parametrize("line", MEASURING)
def test_what_measures(reader: Cluster, line: str) -> None:
    done = typed(reader, line, timeout=350)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"replica", done.stdout), done.stdout
