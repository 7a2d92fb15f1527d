"""The real Horovod is asked for by name: `make test-horovod` builds it and says where it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("horovod") and "ORCH_HOROVOD_PYTHON" not in os.environ:
            item.add_marker(
                pytest.mark.skip(reason="HOROVOD IS NOT BUILT HERE: `make test-horovod` does both")
            )


@pytest.fixture
def local_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A coordinator with this machine as its only host."""
    made = Cluster(tmp_path)
    yield made
    made.close()
