"""A lab and a coordinator for benchmarks: what the cluster tests use, in a directory that goes away again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figure import NotMeasured
from tests.cluster.cluster import Cluster
from tests.cluster.lab import Lab, missing

DEFAULT_TIMING = {"heartbeat": "2s", "unreachable_after": "10s", "lost_after": "60s", "kill_grace": "10s"}
"""As users have it; the tests' own is shorter."""


@contextmanager
def lab_of(n_hosts: int) -> Iterator[Lab]:
    """Hosts with a real sshd each. NotMeasured where there can be none."""
    if missing():
        raise NotMeasured(f"{', '.join(missing())} not found")
    with Lab(n_hosts) as lab:
        yield lab


@contextmanager
def cluster_of(lab: Lab | None) -> Iterator[Cluster]:
    """A coordinator over the lab's hosts; without a lab, over this machine."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        cluster = Cluster(Path(directory), lab)
        try:
            yield cluster
        finally:
            cluster.close()
