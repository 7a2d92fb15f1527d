"""What a job of Slurm has when it begins, however long it has waited."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.client import on_slurm
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.reach.slurm import job
from tests.unit.cli.desk import SPEC, Desk


def test_the_code_of_a_job_stays_for_the_days_that_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run has it yet, and the coordinator that starts within the job removes what no run needs."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 9\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('trains')\n")
    (code / "vocabulary.bin").write_bytes(b"\0words")  # of an ended run only short texts are kept
    spec = code / "cluster.yaml"
    spec.write_text(SPEC.replace("hosts:\n  - {name: here, transport: local, slots: 2}", "slurm: {nodes: 2}"))
    desk = Desk(tmp_path)
    on_slurm.submit(str(spec), desk, from_scratch=False)
    directory = job.directory(desk.paths.state_dir, "mnist")
    digest = json.loads(Path(directory, job.SUBMITTED).read_text())["code"]
    snapshots = Snapshots(directory)
    for record in Path(snapshots.directory, "trees").glob("*.json"):
        os.utime(record, (1, 1))
    snapshots.tidy(set())
    kept = Path(snapshots.place_of(digest))
    assert kept.exists(), "the job would find that its code is gone"
    assert sorted(path.name for path in kept.iterdir()) == ["cluster.yaml", "train.py", "vocabulary.bin"]
    snapshots.keep("mnist-20261120-1", digest)
    # The run has ended by preemption, and Slurm queues its job again.
    snapshots.tidy(set())
    assert (kept / "vocabulary.bin").read_bytes() == b"\0words"
