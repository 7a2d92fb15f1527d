"""The Slurm lab, one for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Login
from tests.slurm.lab import SlurmLab, need_slurm


@pytest.fixture(scope="session")
def slurm_lab() -> Iterator[SlurmLab]:
    """Start a controller and three nodes, which takes about a second."""
    need_slurm()
    with SlurmLab(3) as lab:
        yield lab


@pytest.fixture
def login(slurm_lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Login]:
    """Give a login node with nothing on it; the jobs of the test are ended afterwards."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_lab.conf))
    slurm_lab.wait_idle()
    yield Login(tmp_path, slurm_lab)
    slurm_lab.cancel_all()
