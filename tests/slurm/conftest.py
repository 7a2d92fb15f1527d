"""The Slurm lab, one for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.lab import SlurmLab, need_slurm


@pytest.fixture(scope="session")
def slurm_lab() -> Iterator[SlurmLab]:
    """Start a controller and three nodes, which takes about a second."""
    need_slurm()
    with SlurmLab(3) as lab:
        yield lab
