"""`orch trust` over real sshds, as a person calls it: what is taken, what is refused, and what is said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.conftest import MakeLab
from tests.cluster.lab import Lab, LabHost

pytestmark = pytest.mark.lab


@pytest.fixture
def one(tmp_path: Path, make_lab: MakeLab) -> Iterator[Cluster]:
    """A head node, and one host whose key the user's known_hosts has not."""
    made = Cluster(tmp_path, make_lab(1))
    lab_of(made).known_hosts.write_text("")
    yield made
    made.close()


def lab_of(cluster: Cluster) -> Lab:
    assert cluster.lab is not None
    return cluster.lab


def fingerprint(host: LabHost) -> str:
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(host.host_key.with_suffix(".pub"))],
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.split()[1]


@pytest.mark.fault(61)
def test_a_changed_key_stays_refused_until_a_person_replaces_it(one: Cluster) -> None:
    lab, spec = lab_of(one), one.spec(tasks=1, checkpoint=False)
    host = lab.hosts[0]
    unknown = one.orch("validate", "--hosts", spec)
    assert unknown.returncode == 5
    assert f"`orch trust {spec}`" in unknown.stderr, "the host's name stands in the spec only"
    one.ok("trust", "--yes", spec)
    old, ours = fingerprint(host), one.directory / "state/known_hosts"
    before = ours.read_text()
    host.new_host_key()
    new = fingerprint(host)

    refused = one.orch("trust", "--yes", spec)
    assert refused.returncode == 5
    assert f"{new}  changed (was {old}, {ours}:1)" in refused.stdout
    assert old in refused.stderr
    assert new in refused.stderr
    assert f"`orch trust --replace {spec}`" in refused.stderr
    assert ours.read_text() == before
    assert one.orch("validate", "--hosts", spec).returncode == 5

    assert one.orch("trust", "--replace", spec).returncode == 6, "nobody is there to ask"
    one.ok("trust", "--replace", "--yes", spec)
    assert old not in one.ok("trust", spec)
    assert ours.read_text() == host.known_hosts_line
    one.ok("validate", "--hosts", spec)


@pytest.fixture
def many(tmp_path: Path, make_lab: MakeLab) -> Iterator[Cluster]:
    """A head node, and more hosts than are asked at a time, whose keys nobody knows."""
    made = Cluster(tmp_path, make_lab(12))
    lab_of(made).known_hosts.write_text("")
    yield made
    made.close()


def test_many_hosts_are_asked_eight_at_a_time_and_shown_in_order(many: Cluster) -> None:
    lab, spec = lab_of(many), many.spec(tasks=12, checkpoint=False)
    shown = many.ok("trust", "--yes", spec).splitlines()
    assert [line.split()[0] for line in shown] == [host.name for host in lab.hosts]
    assert [line.split()[3] for line in shown] == [fingerprint(host) for host in lab.hosts]
    ours = (many.directory / "state/known_hosts").read_text()
    assert ours == "".join(host.known_hosts_line for host in lab.hosts)
    assert all(line.endswith("  known") for line in many.ok("trust", spec).splitlines())


@pytest.mark.fault(61)
def test_what_the_users_own_file_knows_is_never_overruled(one: Cluster) -> None:
    lab, spec = lab_of(one), one.spec(tasks=1, checkpoint=False)
    host = lab.hosts[0]
    lab.trust_all()
    users = lab.known_hosts.read_text()
    host.new_host_key()
    for options in (["--yes"], ["--yes", "--replace"]):
        refused = one.orch("trust", *options, spec)
        assert refused.returncode == 5
        assert f"{lab.known_hosts}:1" in refused.stderr
        assert "ssh-keygen -R" in refused.stderr
    assert not (one.directory / "state/known_hosts").exists()

    # However our own file came to know the new key: the user's has another one, and ssh would refuse it.
    (one.directory / "state/known_hosts").write_text(host.known_hosts_line)
    assert one.orch("validate", "--hosts", spec).returncode == 5
    assert lab.known_hosts.read_text() == users


@pytest.mark.fault(61)
def test_a_revoked_key_is_never_taken(one: Cluster) -> None:
    lab, spec = lab_of(one), one.spec(tasks=1, checkpoint=False)
    host = lab.hosts[0]
    lab.known_hosts.write_text("@revoked * " + host.known_hosts_line.split(maxsplit=1)[1])
    refused = one.orch("trust", "--yes", "--replace", "--json", spec)
    assert refused.returncode == 5
    assert "revoked" in refused.stderr
    key = json.loads(refused.stdout)["hosts"][0]["keys"][0]
    assert (key["state"], key["line"]) == ("revoked", f"{lab.known_hosts}:1")


@pytest.mark.fault(51)
def test_what_somebody_else_could_have_written_says_of_no_key_that_it_is_known(one: Cluster) -> None:
    spec = one.spec(tasks=1, checkpoint=False)
    one.ok("trust", "--yes", spec)
    one.ok("validate", "--hosts", spec)
    (one.directory / "state").chmod(0o777)
    for command in (["validate", "--hosts", spec], ["trust", spec], ["status"]):
        refused = one.orch(*command)
        assert refused.returncode == 1
        assert f"{one.directory}/state has mode 0777; others can enter it" in refused.stderr
        assert "chmod 700" in refused.stderr
    (one.directory / "state").chmod(0o700)
