"""What commands on the login node say of a job of Slurm: whose run it is, and how it stands where nobody answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.client import on_slurm
from orchestrator.client.waiting import Wait
from orchestrator.core.errors import CoordinatorUnreachable, WaitTimedOut
from orchestrator.head.reach.slurm import job
from orchestrator.head.records.runlogs import RunLogs
from tests.contract.fake_api import run_document
from tests.unit.cli.desk import SPEC, Desk
from tests.unit.head.recording import RUN, Head


class Cluster:
    """A `scontrol` that answers with the next of its lines each time, and with the last one for ever."""

    def __init__(self, root: Path) -> None:
        self.tools = root / "bin"
        self.tools.mkdir()
        self._lines = root / "scontrol.says"
        self.program(
            "scontrol",
            f'read line < "{self._lines}"; [ "$(wc -l < "{self._lines}")" = 1 ] || sed -i 1d "{self._lines}"\n'
            'case "$line" in JobState=*) echo "JobId=$4 Reason=None BatchHost=n1 $line";;\n'
            '*) echo "$line" >&2; exit 1;; esac',
        )

    def program(self, name: str, text: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.tools / name).chmod(0o755)

    def says(self, *lines: str) -> None:
        self._lines.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path)
    monkeypatch.setenv("PATH", str(made.tools), prepend=os.pathsep)
    monkeypatch.setattr("time.sleep", lambda _s: None)
    return made


@pytest.fixture
def desk(tmp_path: Path, cluster: Cluster) -> Desk:
    """Return a desk with job 7, whose coordinator has written a run that trains into its journal."""
    made = Desk(tmp_path)
    Path(made.paths.state_dir).mkdir(mode=0o700)
    paths = job.prepare(job.directory(made.paths.state_dir, "t"))
    Path(paths.job).write_text(json.dumps(job.Job("7", "t", "python3", 0.0).to_json()))
    head = Head(Path(paths.journal))
    head.begin()
    head.train(10)
    head.end()
    os.utime(paths.journal, (880.0, 880.0))
    return made


def last_answer(desk: Desk, phase: str) -> None:
    document = {"schema": 1, "runs": [run_document(name="t", run_id=RUN, phase=phase)]}
    Path(job.directory(desk.paths.state_dir, "t"), "status.json").write_text(json.dumps(document))


@pytest.mark.parametrize("state", ["CANCELLED", "NODE_FAIL", "PENDING Restarts=1"])
def test_a_job_that_ended_by_force_is_not_shown_as_running(desk: Desk, cluster: Cluster, state: str) -> None:
    cluster.says(f"JobState={state}")
    last_answer(desk, "RUNNING")
    assert desk("status", "t") == 3
    assert f"job 7 is {state.partition(' ')[0]}" in desk.said
    assert "this is the last recorded state, of 2 min ago" in desk.said
    assert desk.put_out.startswith(f"{RUN}  RUNNING")


@pytest.mark.parametrize(("state", "phase"), [("COMPLETED", "SUCCEEDED"), ("COMPLETING", "STOPPING")])
def test_the_last_answer_counts_where_it_has_the_end_or_the_job_is_about_to_write_it(
    desk: Desk, cluster: Cluster, state: str, phase: str
) -> None:
    cluster.says(f"JobState={state}")
    last_answer(desk, phase)
    assert desk("status", "t") == 0
    assert desk.put_out.startswith(f"{RUN}  {phase}")


def test_nothing_is_started_here_to_kill_the_run_of_a_job_that_has_ended(
    desk: Desk, cluster: Cluster
) -> None:
    cluster.says("JobState=CANCELLED")
    last_answer(desk, "RUNNING")
    assert desk("kill", "t") == 3
    assert "job 7 is CANCELLED: no coordinator is running" in desk.said
    assert "Starting the coordinator" not in desk.said


def test_a_controller_that_is_away_leaves_what_is_recorded(desk: Desk, cluster: Cluster) -> None:
    cluster.says("Unable to contact slurm controller")
    last_answer(desk, "RUNNING")
    assert desk("status", "t") == 3
    assert "Unable to contact slurm controller; this is the last recorded state" in desk.said


def test_it_waits_for_the_run_of_its_own_job_and_of_its_present_start(desk: Desk, cluster: Cluster) -> None:
    away = "Unable to contact slurm controller"
    cluster.says(
        "JobState=PENDING", away, away, "JobState=RUNNING Restarts=1", away, "JobState=RUNNING Restarts=1"
    )
    own = job.Job("7", "t", "python3", 0.0)
    starts = [("6.0", "t-of-the-job-before"), ("7.0", "t-before-it-was-queued-again"), ("7.1", "t-own")]
    on_slurm.run_environment(desk, "t")

    def begin() -> None:
        if starts:
            begun = dict(zip(("allocation", "run_id"), starts.pop(0), strict=True))
            Path(desk.paths.state_dir, job.BEGUN).write_text(json.dumps(begun))

    begin()
    desk.on_pause = begin
    assert on_slurm.wait_for_nodes(own, desk) == "t-own"
    assert desk.said.count(away) == 2, "once each time that it is away"
    for said, state in (("JobState=FAILED", "FAILED"), ("Invalid job id specified", "unknown to Slurm")):
        cluster.says(said)
        with pytest.raises(
            CoordinatorUnreachable, match=rf"job 8 has ended \({state}\) before the run began"
        ):
            on_slurm.wait_for_nodes(job.Job("8", "t", "python3", 0.0), desk)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "cluster.yaml"
    file.write_text(SPEC.replace("hosts:\n  - {name: here, transport: local, slots: 2}", "slurm: {nodes: 2}"))
    return str(file)


def test_what_is_followed_is_the_run_of_the_job_and_not_another_one_of_that_name(
    tmp_path: Path, cluster: Cluster, spec: str
) -> None:
    desk = Desk(tmp_path)
    place = job.directory(desk.paths.state_dir, "mnist")
    runs = [run_document(run_id=run_id, phase="SUCCEEDED") for run_id in ("mnist-own", "mnist-other")]
    (tmp_path / "ended").write_text(json.dumps({"schema": 1, "runs": runs}))
    cluster.program(
        "sbatch",
        f'cp "{tmp_path}/ended" "{place}/status.json"\n'
        f'echo \'{{"allocation": "9.0", "run_id": "mnist-own"}}\' > "{place}/{job.BEGUN}"; echo 9',
    )
    cluster.says("JobState=COMPLETED Restarts=0")
    assert desk("up", spec, "--on", "slurm") == 0, "its job is over before anybody can ask for its events"
    assert desk.put_out == "mnist-own\n"


@pytest.mark.parametrize("option", ["--wait", "--follow"])
@pytest.mark.parametrize(
    ("phase", "code", "said"),
    [
        ("FAILED", 1, f"{RUN}  FAILED"),
        ("RUNNING", 3, "error: job 9 is NODE_FAIL: no coordinator is running\n"),
    ],
)
def test_a_wait_ends_with_the_job_and_with_the_outcome_where_the_job_has_written_it(
    tmp_path: Path, cluster: Cluster, spec: str, option: str, phase: str, code: int, said: str
) -> None:
    desk = Desk(tmp_path)
    place = job.directory(desk.paths.state_dir, "mnist")
    document = {"schema": 1, "runs": [run_document(run_id=RUN, phase=phase)]}
    (tmp_path / "written").write_text(json.dumps(document))
    cluster.program(
        "sbatch",
        f'cp "{tmp_path}/written" "{place}/status.json"\n'
        f'echo \'{{"allocation": "9.0", "run_id": "{RUN}"}}\' > "{place}/{job.BEGUN}"; echo 9',
    )
    cluster.says("JobState=NODE_FAIL Restarts=0")
    assert desk("up", spec, "--on", "slurm", option) == code
    assert said in desk.said
    assert "the run continues" not in desk.said
    assert desk.clock < 1.0


def test_a_wait_for_the_run_of_a_job_that_is_queued_again_says_that_it_goes_on_asking(
    desk: Desk, cluster: Cluster
) -> None:
    cluster.says("JobState=PENDING")
    last_answer(desk, "RUNNING")
    on_slurm.run_environment(desk, "t")
    told: list[str] = []
    run = {"name": "t", "run_id": RUN}
    with pytest.raises(WaitTimedOut):
        Wait(desk, desk.client(), run, until=lambda _: False, say=told.append, timeout_s=1.0).to_its_end()
    assert told == ["job 7 is PENDING (None): no coordinator is running; it is asked again"]


def test_logs_are_followed_until_the_job_ends(desk: Desk, cluster: Cluster) -> None:
    cluster.says("JobState=COMPLETING", "JobState=COMPLETING", "JobState=NODE_FAIL")
    last_answer(desk, "RUNNING")
    place = job.directory(desk.paths.state_dir, "t")
    Path(place, "runs").mkdir(mode=0o700)
    RunLogs(place).append(RUN, "worker:0", 1, 0, b"990.000000 o loading\n")

    def on_pause() -> None:
        assert desk.clock < 5.0, "it goes on for ever"

    desk.on_pause = on_pause
    assert desk("logs", "t", "--follow") == 0, desk.said
    assert desk.put_out == "worker:0 | loading\n"
    assert desk.said == "job 7 is NODE_FAIL: no coordinator is running\n"


def test_each_job_has_a_token_of_its_own_and_a_failed_submission_says_how_to_find_the_job(
    tmp_path: Path, cluster: Cluster, spec: str
) -> None:
    desk = Desk(tmp_path)
    place = Path(job.directory(desk.paths.state_dir, "mnist"))
    cluster.program(
        "sbatch", f'cp "{place}/{job.SUBMITTED}" "{tmp_path}/first"; echo "Socket timed out" >&2; exit 1'
    )
    assert desk("up", spec, "--on", "slurm", "--detach") == 1
    script = (place / "batch.sh").read_text()
    assert "#SBATCH --job-name=orch-mnist\n" in script
    assert "if `squeue --name orch-mnist` shows a job" in desk.said
    first = json.loads((tmp_path / "first").read_text())["token"]
    assert script.endswith(f" {first}\n")
    cluster.program("sbatch", "echo 9")
    assert desk("up", spec, "--on", "slurm", "--detach") == 0, desk.said
    second = json.loads((place / job.SUBMITTED).read_text())["token"]
    assert (place / "batch.sh").read_text().endswith(f" {second}\n")
    assert first != second
