"""Who may write into a checkpoint directory: only its user, or the members of the group that the spec names."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import inventory, seed
from orchestrator.checkpoints.places import SeedError
from tests.unit.checkpoints.saved import npz

GROUP = str(os.getgid())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_that_is_made_is_ours_alone(tmp_path: Path) -> None:
    seed.seed(str(tmp_path / "new" / "ckpt"), 1)
    assert mode(tmp_path / "new" / "ckpt") == 0o700


def test_what_is_made_in_it_is_not_open_to_others_whatever_the_umask(tmp_path: Path) -> None:
    told("seed", root=str(tmp_path), generation=1, umask=0o000)
    assert mode(tmp_path / "gen-000001") == 0o755


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o757])
def test_one_that_everybody_may_write_into_is_refused_and_left_alone(tmp_path: Path, bits: int) -> None:
    npz(tmp_path / "gen-000001" / "model-100.npz", 100)
    tmp_path.chmod(bits)
    with pytest.raises(SeedError, match=f"everybody may write into {tmp_path}") as raised:
        seed.seed(str(tmp_path), 2)
    assert raised.value.code == "checkpoint-shared"
    assert "chmod go-w" in str(raised.value.hint)
    assert not (tmp_path / "gen-000002").exists()


def test_one_that_others_may_rename_is_refused_unless_the_directory_above_has_the_sticky_bit(
    tmp_path: Path,
) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o777)
    root = tmp_path / "scratch" / "run"
    with pytest.raises(SeedError, match=f"by renaming what is in {tmp_path}/scratch") as raised:
        seed.seed(str(root), 1)
    assert raised.value.code == "checkpoint-shared"
    assert "chmod +t" in str(raised.value.hint)
    (tmp_path / "scratch").chmod(0o1777)
    seed.seed(str(root), 1)
    assert mode(root) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another group")
def test_a_group_may_where_the_spec_names_it_and_all_that_is_made_is_open_to_it(tmp_path: Path) -> None:
    npz(tmp_path / "gen-000001" / "model-100.npz", 100)
    os.chown(tmp_path, -1, 4711)
    tmp_path.chmod(0o2770)
    assert told("seed", root=str(tmp_path), generation=2)["error"]["code"] == "checkpoint-shared"
    assert told("pin", root=str(tmp_path), what="gen-1", group=None)["error"]["code"] == "checkpoint-shared"
    assert told("seed", root=str(tmp_path), generation=2, group="4711")["global_step"] == 100
    assert told("pin", root=str(tmp_path), what="gen-1", group="4711")["path"]
    for made in (tmp_path / ".orch", tmp_path / "gen-000002", tmp_path / ".orch" / "lock"):
        assert (mode(made) & 0o777, made.stat().st_gid) == (0o770 if made.is_dir() else 0o660, 4711)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another group")
def test_one_that_is_made_for_a_group_is_open_to_it_alone(tmp_path: Path) -> None:
    told("seed", root=str(tmp_path / "new"), generation=1, group="4711")
    assert (mode(tmp_path / "new"), (tmp_path / "new").stat().st_gid) == (0o2770, 4711)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_one_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4711)
    tmp_path.chmod(0o755)
    with pytest.raises(SeedError, match="its owner 4711 may write"):
        seed.seed(str(tmp_path), 1)


def test_one_whose_default_access_list_opens_what_is_made_there_is_refused_after_chmod_too(
    tmp_path: Path,
) -> None:
    entries = [(1, 7, -1), (4, 5, -1), (8, 7, 4712), (0x10, 7, -1), (0x20, 5, -1)]
    acl = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", b"\2\0\0\0" + acl)
    except OSError:
        pytest.skip("this file system has no access lists")
    tmp_path.chmod(0o755)
    with pytest.raises(SeedError, match=r"the group 4712 \(by the default access list\) may write") as raised:
        seed.seed(str(tmp_path), 1)
    assert "setfacl -k" in str(raised.value.hint)
    assert os.listdir(tmp_path) == []
    made = tmp_path / "made"
    seed.seed(str(made), 1)
    assert mode(made) == 0o700
    os.removexattr(tmp_path, "system.posix_acl_default")
    seed.seed(str(tmp_path), 1)
    assert mode(tmp_path / "gen-000001") & 0o022 == 0


def test_a_list_changes_nothing_and_is_given_whoever_may_write(tmp_path: Path) -> None:
    npz(tmp_path / "gen-000001" / "model-100.npz", 100)
    tmp_path.chmod(0o777)
    assert told("list", root=str(tmp_path))["checkpoints"][0]["global_step"] == 100
    assert inventory.listed(str(tmp_path / "none"))["checkpoints"] == []
    assert not (tmp_path / "none").exists()


def told(verb: str, *, umask: int = 0o022, **arguments: Any) -> dict[str, Any]:
    """Run a verb in a process of its own, whose umask is its own."""
    program = "import sys; from orchestrator.checkpoints import checkpoints_main as c; c(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, verb, json.dumps(arguments)],
        capture_output=True,
        check=False,
        umask=umask,
    )
    return dict(json.loads(done.stdout))
