"""Fixtures of the lab."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.head.reach.ssh.transport import SshTransport
from tests.cluster import stand_in_python
from tests.cluster.cluster import Cluster, lab_of, wait_until
from tests.cluster.lab import Lab, LabHost

MakeLab = Callable[..., Lab]


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """Make labs, as in `make_lab(3, {0: {"MaxSessions": "1"}})`, and remove them afterwards."""
    made: list[Lab] = []

    def make(n_hosts: int, options: dict[int, dict[str, str]] | None = None) -> Lab:
        made.append(Lab(n_hosts, options))
        return made[-1]

    yield make
    for lab in made:
        lab.close()


@pytest.fixture
def ssh(tmp_path: Path) -> SshTransport:
    """A transport that reads no files of the user who runs the tests."""
    return SshTransport(
        tmp_path / "state/known_hosts", home=tmp_path, config_files=(tmp_path / ".ssh/config",)
    )


@pytest.fixture(scope="module")
def lab3() -> Iterator[Lab]:
    """Three hosts for all tests of a module."""
    with Lab(3) as lab:
        yield lab


@pytest.fixture
def cluster(tmp_path: Path, lab3: Lab) -> Iterator[Cluster]:
    """A coordinator over three SSH hosts."""
    made = Cluster(tmp_path, lab3)
    yield made
    made.close()


@pytest.fixture
def local_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A coordinator with this machine as its only host."""
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture
def second(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Another head node over the same hosts, which has its own state and knows nothing of the first."""
    made = Cluster(tmp_path / "second", lab_of(cluster))
    made.directory.mkdir()
    yield made
    made.orch("kill", "--all", "--force")
    made.orch("coordinator", "stop")
    made._short.cleanup()


def python_for_all(directory: Path) -> str:
    """Return a Python with the packages of the tests that every user of this machine can run."""

    def is_open(path: Path) -> bool:
        return path.exists() and all(parent.stat().st_mode & 1 for parent in path.parents)

    own = Path(sys.executable).resolve()
    base = next(filter(is_open, (own, Path(f"/usr/bin/python3.{sys.version_info[1]}"))), None)
    if base is None or not is_open(Path(sysconfig.get_path("purelib"))):
        pytest.skip("NO ACCESS: other users cannot reach this Python and its packages")
    found = directory / "bin" / "python3"  # what the agent is started with
    found.unlink()
    found.symlink_to(base)
    return str(stand_in_python.make(directory / "python", base=base))


@pytest.fixture
def two_users(make_lab: MakeLab, tmp_path: Path) -> Iterator[dict[str, Cluster]]:
    """Two users, each with a head node, on three hosts where both have accounts and the Python of `lab.dir/python`."""
    lab = make_lab(3)
    python_for_all(lab.dir)
    heads: dict[str, Cluster] = {}
    for user in ("ann", "bob"):
        heads[user] = Cluster(tmp_path / user, lab)
        heads[user].directory.mkdir()
    for host in lab.hosts:
        host.own_accounts(*heads)
    yield heads
    for head in heads.values():
        head.orch("kill", "--all", "--force")
        head.orch("coordinator", "stop")
        head._short.cleanup()


@pytest.fixture
def victim(cluster: Cluster) -> Iterator[Callable[[int], LabHost]]:
    """Hosts that the test may cut. They are always healed, for the tests that follow."""
    taken: list[LabHost] = []

    def take(index: int) -> LabHost:
        assert cluster.lab is not None
        taken.append(cluster.lab.hosts[index])
        return taken[-1]

    yield take
    for host in taken:
        host.heal()
    if taken:
        # A forced kill does not wait for a host that is not connected yet; its coordinator ends there what is left.
        cluster.orch("kill", "--all", "--force")
        wait_until(lambda: not cluster.marked(), "what is left on a host that answers again is ended")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium from Debian's packages."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield made
        made.close()
