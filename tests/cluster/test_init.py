"""`orch init` and the checkpoint directory: what it makes is its user's alone, and what others may swap is not made."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster


def begun(cluster: Cluster, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run `orch init` with a directory for checkpoints, and return what it has written."""
    here = cluster.directory / f"of-{place.name}"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "train.py").write_text("model.fit(x)\n")
    done = cluster.orch("init", "localhost", "--name", "first", "--dir", str(place))
    assert done.returncode == 0, done.stderr
    return (here / "cluster.yaml").read_text()


@pytest.mark.fault(100)
def test_what_init_makes_is_its_users_alone_and_what_others_may_write_into_it_leaves_as_it_was(
    local_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tmp_path / name for name in ("ours", "open", "sticky", "theirs")}
    for place in places.values():
        place.mkdir()
    places["open"].chmod(0o777)
    places["sticky"].chmod(0o1777)
    (places["theirs"] / "first").mkdir()
    (places["theirs"] / "first").chmod(0o777)
    before = os.umask(0o002)
    try:
        written = {name: begun(local_cluster, place, monkeypatch) for name, place in places.items()}
    finally:
        os.umask(before)
    for name in ("ours", "sticky"):
        assert f"dir: {places[name]}/first\n" in written[name]
        assert stat.S_IMODE((places[name] / "first").stat().st_mode) == 0o700
    for name in ("open", "theirs"):
        assert f"dir: {places[name]}/first\n" not in written[name]
        assert "belongs to others, or is open to them" in " ".join(written[name].replace("#", " ").split())
    assert list(places["open"].iterdir()) == [], "a directory that is refused is not left behind"
    assert list((places["theirs"] / "first").iterdir()) == []


@pytest.mark.fault(100)
def test_what_a_run_makes_for_a_group_is_open_to_it_alone(local_cluster: Cluster, tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "lab" / "t"), "group": str(os.getegid())}
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab").chmod(0o777)
    spec = local_cluster.spec("--steps", "3", "--save-every", "3", tasks=1, checkpoint=saves)
    refused = local_cluster.orch("up", spec, "--wait")
    assert refused.returncode != 0, refused.stderr
    assert f"everybody (by renaming what is in {tmp_path}/lab) may write into" in " ".join(
        refused.stderr.split()
    )
    assert list((tmp_path / "lab").iterdir()) == []
    (tmp_path / "lab").chmod(0o755)
    local_cluster.ok("up", spec, "--wait")
    assert stat.S_IMODE((tmp_path / "lab" / "t").stat().st_mode) == 0o2770


@pytest.mark.lab
@pytest.mark.fault(100)
def test_what_init_made_where_the_hosts_share_nothing_is_removed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.lab is not None
    place = tmp_path / "saves"
    own = [host.own_directory(place) for host in cluster.lab.hosts[:2]]
    (own[1] / "first").mkdir(mode=0o700)
    (tmp_path / "train.py").write_text("model.fit(x)\n")
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    blocks = [
        f"Host gpu-{at}\n  HostName {host.address}\n  Port {host.port}\n"
        for at, host in enumerate(cluster.lab.hosts[:2])
    ]
    ours = f"Host *\n  User root\n  IdentityFile {cluster.lab.identity_file}\n"
    known = f"  UserKnownHostsFile {cluster.lab.known_hosts}\n"
    (home / ".ssh" / "config").write_text("".join([*blocks, ours, known]))
    cluster.env |= {"HOME": str(home)}
    done = cluster.orch("init", "gpu-0", "gpu-1", "--name", "first", "--dir", str(place))
    assert done.returncode == 0, done.stderr
    assert "shared: false" in (tmp_path / "cluster.yaml").read_text()
    assert list(own[0].rglob("*")) == []
    assert list(own[1].rglob("*")) == [own[1] / "first"], "what was there before stays"
