"""The lab and the coordinator of the cluster tests for benchmarks, in a temporary directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figure import NotMeasured
from tests.cluster.cluster import Cluster
from tests.cluster.lab import Lab, missing

DEFAULT_TIMING = {"heartbeat": "2s", "unreachable_after": "10s", "lost_after": "60s", "kill_grace": "10s"}
"""The defaults that users have. The tests use shorter times."""


@contextmanager
def lab_of(n_hosts: int) -> Iterator[Lab]:
    """Yield hosts with a real sshd each. Raises NotMeasured where there can be none."""
    if missing():
        raise NotMeasured(f"{', '.join(missing())} not found")
    with Lab(n_hosts) as lab:
        yield lab


@contextmanager
def cluster_of(lab: Lab | None) -> Iterator[Cluster]:
    """Yield a coordinator over the lab's hosts, or without a lab over this machine."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        cluster = Cluster(Path(directory), lab)
        try:
            yield cluster
        finally:
            cluster.close()
