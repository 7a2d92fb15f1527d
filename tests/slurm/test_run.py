"""Runs on a real Slurm, from `orch up --on slurm` to the end of the job."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import Login

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def test_a_run_from_submission_to_success(login: Login) -> None:
    file = login.spec("--steps", "60", "--pace", "0.05")
    login.orch("up", file, "--on", "slurm", "--wait", timeout_s=120)
    assert "is submitted" in login.stderr
    assert login.status()["phase"] == "SUCCEEDED"
    assert login.orch("logs", "t")
