"""What jobs of Slurm leave of secrets: nothing that a later command does not find and remove."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.client import on_slurm
from orchestrator.core.errors import OrchestratorError
from orchestrator.head.reach.slurm import job
from tests.unit.cli.desk import SPEC, Desk

SCONTROL = """#!/bin/sh
echo "JobId=$4 JobState=$(cat "$0.state") Reason=Resources BatchHost=n1"
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    tools = tmp_path / "bin"
    tools.mkdir()
    program(tools / "scontrol", SCONTROL)
    program(tools / "scancel", "#!/bin/sh\nexit 0\n")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return Desk(tmp_path)


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def is_now(root: Path, state: str) -> None:
    (root / "bin" / "scontrol.state").write_text(state)


def submitted(desk: Desk, name: str = "t") -> Path:
    Path(desk.paths.state_dir).mkdir(mode=0o700, exist_ok=True)
    directory = Path(job.directory(desk.paths.state_dir, name))
    job.prepare(str(directory))
    known = job.Job("7", name, "python3", 0.0)
    (directory / "job.json").write_text(json.dumps(known.to_json()))
    (directory / "submitted.json").write_text('{"secrets": {"TOKEN": "hush"}}')
    for kept in ("secrets", "recipients"):
        (directory / kept).mkdir()
        (directory / kept / "t-1.json").write_text('{"TOKEN": "hush"}')
    return directory


def hushed(directory: Path) -> bool:
    return not any("hush" in path.read_text() for path in directory.rglob("*.json"))


def test_a_job_that_was_killed_leaves_them_until_gc(desk: Desk, tmp_path: Path) -> None:
    directory = submitted(desk)
    is_now(tmp_path, "CANCELLED")
    assert desk("gc", "--dry-run") == 0
    assert desk.put_out.count("secrets of a job that has ended") == 3
    assert not hushed(directory)
    assert desk("gc", "--yes") == 0
    assert hushed(directory)
    assert (directory / "job.json").exists(), "what the job was stays"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "REQUEUED", "COMPLETING"])
def test_what_a_job_may_need_stays(desk: Desk, tmp_path: Path, state: str) -> None:
    directory = submitted(desk)
    is_now(tmp_path, state)
    on_slurm.forget_secrets(desk)
    assert not hushed(directory)


def test_a_controller_that_does_not_answer_removes_nothing(desk: Desk, tmp_path: Path) -> None:
    directory = submitted(desk)
    program(tmp_path / "bin" / "scontrol", "#!/bin/sh\nexit 1\n")
    on_slurm.forget_secrets(desk)
    assert not hushed(directory)


def test_a_waiting_job_that_is_cancelled_leaves_none(desk: Desk, tmp_path: Path) -> None:
    directory = submitted(desk)
    is_now(tmp_path, "PENDING")
    assert desk("kill", "t") == 0
    assert hushed(directory)


def test_a_refused_job_leaves_none_and_the_next_one_clears_what_was_left(desk: Desk, tmp_path: Path) -> None:
    left = submitted(desk, "left")
    is_now(tmp_path, "TIMEOUT")
    program(tmp_path / "bin" / "sbatch", "#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    (tmp_path / "train.py").write_text("")
    spec = tmp_path / "cluster.yaml"
    text = SPEC.replace("hosts:\n  - {name: here, transport: local, slots: 2}", "slurm: {nodes: 2}")
    spec.write_text(text.replace("  script:", "  env: {API_TOKEN: hush}\n  script:"))
    with pytest.raises(OrchestratorError, match="no such partition"):
        on_slurm.submit(str(spec), desk, from_scratch=False)
    assert hushed(left)
    assert hushed(Path(job.directory(desk.paths.state_dir, "mnist")))


def test_what_a_job_is_given_and_that_it_is_submitted_once(desk: Desk, tmp_path: Path) -> None:
    program(
        tmp_path / "bin" / "sbatch",
        f"#!/bin/sh\ncat >/dev/null; echo \"$@\" >> {tmp_path}/asked; echo '9;c1'\n",
    )
    (tmp_path / "train.py").write_text("")
    (tmp_path / "channel").write_text("json://notify.example/x")
    (tmp_path / "channel").chmod(0o600)
    spec = tmp_path / "cluster.yaml"
    text = SPEC.replace(
        "hosts:\n  - {name: here, transport: local, slots: 2}", "slurm: {nodes: 2, requeue: true}"
    )
    more = "  env: {API_TOKEN: hush}\n  notify: {to: [{file: channel}]}\n  script:"
    spec.write_text(text.replace("  script:", more))
    made, is_new = on_slurm.submit(str(spec), desk, from_scratch=False)
    assert (made.id, made.name, is_new) == ("9", "mnist", True)
    directory = Path(job.directory(desk.paths.state_dir, "mnist"))
    what = json.loads((directory / job.SUBMITTED).read_text())
    assert what["secrets"] == {"API_TOKEN": "hush"}
    assert "notify.example" in json.dumps(what["recipients"])
    assert (what["from_scratch"], what["requeue"], what["plan"]["name"]) == (False, True, "mnist")
    assert (directory / "batch.sh").stat().st_mode & 0o777 == 0o700
    is_now(tmp_path, "PENDING")
    assert on_slurm.submit(str(spec), desk, from_scratch=False) == (made, False)
    with pytest.raises(OrchestratorError, match="job 9 has the run mnist"):
        on_slurm.submit(str(spec), desk, from_scratch=True)
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    is_now(tmp_path, "TIMEOUT")
    (directory / "status.json").write_text("of the job before")
    spec.write_text(text)
    _, is_new = on_slurm.submit(str(spec), desk, from_scratch=True)
    what = json.loads((directory / job.SUBMITTED).read_text())
    assert (is_new, what["from_scratch"], what["recipients"], what["secrets"]) == (True, True, [], {})
    assert not (directory / "status.json").exists()
