"""Whose a checkpoint directory is, as those tell who save into it."""

from __future__ import annotations

import grp
import json
import os
import time
from pathlib import Path

import pytest

from orchestrator.both.within import Tree
from orchestrator.checkpoints import claims, places
from orchestrator.checkpoints.places import SeedError
from orchestrator.checkpoints.seed import finish, seed
from orchestrator.protocol.orders.driving import Claim, Stamp
from orchestrator.task.transparent import backup

MINE: Claim = {
    "id": "1" * 32,
    "head": "head-1",
    "user": "ml",
    "run": "t-20260101-000000",
    "name": "t",
    "checkpoint_dir": "/shared/t",
}
THEIRS: Claim = {**MINE, "id": "2" * 32, "head": "head-2", "run": "t-20260101-000001"}


def stamped(root: str) -> Stamp | None:
    with Tree(root) as tree:
        return claims.stamped(tree)


def age(root: Path, seconds: float) -> None:
    """Make it look as if nobody had looked after the directory, or saved into it, for so long."""
    then = time.time() - seconds
    for path in [root / ".orch" / claims.FILE, *root.glob("gen-*"), *root.glob("gen-*/**/*")]:
        os.utime(path, (then, then))


@pytest.mark.fault(62)
def test_row_62_of_two_heads_that_begin_at_once_the_second_is_refused_at_the_directory(
    tmp_path: Path,
) -> None:
    seed(str(tmp_path), 1, claim=MINE, host_dir="/host-1")
    with pytest.raises(SeedError, match="t-20260101-000000 of ml@head-1 saves into") as caught:
        seed(str(tmp_path), 2, claim=THEIRS, host_dir="/host-2")
    assert caught.value.code == "driven"
    assert not (tmp_path / "gen-000002").exists()
    seed(str(tmp_path), 2, claim=MINE, host_dir="/host-2")
    seed(str(tmp_path), 3, claim={**MINE, "id": "3" * 32}, host_dir="/host-2")  # recovered, by its new owner
    seed(str(tmp_path), 4, claim={**MINE, "id": "3" * 32, "run": "t-20260101-000009"}, host_dir="/h")


def test_a_directory_that_nobody_has_looked_after_for_long_is_free(tmp_path: Path) -> None:
    seed(str(tmp_path), 1, claim=MINE, host_dir="/host-1")
    age(tmp_path, claims.DRIVEN_S + 5)
    found = stamped(str(tmp_path))
    assert found is not None
    assert (found["driven"], found["claim"]["head"]) == (False, "head-1")
    (tmp_path / "gen-000001" / "events.out").write_text("saved, while no coordinator is there")
    assert stamped(str(tmp_path))["driven"], "somebody saves"  # type: ignore[index]
    age(tmp_path, claims.DRIVEN_S + 5)
    with (tmp_path / "gen-000001" / "events.out").open("a") as file:
        file.write("; and goes on with the same file")
    assert stamped(str(tmp_path))["driven"], "the directory itself is as old as before"  # type: ignore[index]
    age(tmp_path, claims.DRIVEN_S + 5)
    seed(str(tmp_path), 2, claim=THEIRS, host_dir="/host-2")


@pytest.mark.parametrize("task", ["", "worker:1"])
def test_who_saves_a_backup_of_ours_or_hands_one_over_uses_the_directory(tmp_path: Path, task: str) -> None:
    pytest.importorskip("h5py")
    folder = backup.folder(seed(str(tmp_path), 1, claim=MINE, host_dir="/host-1")["path"], 0)
    folder = backup.rescued(folder, task) if task else folder
    for steps in (1, 2):
        age(tmp_path, claims.DRIVEN_S + 5)
        assert not stamped(str(tmp_path))["driven"]  # type: ignore[index]
        backup.write(folder, {backup.STEPS: steps}, backup.Position(0, steps, steps))
        assert stamped(str(tmp_path))["driven"], "the generation's directory is as old as before"  # type: ignore[index]


def test_only_the_host_that_has_stamped_a_directory_looks_after_it_and_gives_it_up(tmp_path: Path) -> None:
    root, run = str(tmp_path), MINE["run"]
    seed(root, 1, claim=MINE, host_dir="/host-1")
    age(tmp_path, 500)
    for other_run, host in ((run, "/host-2"), (THEIRS["run"], "/host-1")):
        claims.touch_stamp(root, other_run, host)
        claims.release_stamp(root, other_run, host)
    assert stamped(root)["ago_s"] >= 499  # type: ignore[index]
    claims.touch_stamp(root, run, "/host-1")
    assert stamped(root)["ago_s"] < 100  # type: ignore[index]
    claims.release_stamp(root, run, "/host-1")
    assert stamped(root) is None
    claims.release_stamp(root, run, "/host-1")


@pytest.mark.parametrize("content", ["", "\0" * 200, "{}", json.dumps({**MINE, "since": "x"})])
def test_a_stamp_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / ".orch").mkdir()
    (tmp_path / ".orch" / claims.FILE).write_text(content)
    assert stamped(str(tmp_path)) is None
    seed(str(tmp_path), 1, claim=MINE, host_dir="/host-1")
    assert stamped(str(tmp_path)) is not None


@pytest.mark.fault(100)
@pytest.mark.parametrize("is_link", [True, False])
def test_row_100_a_generation_that_is_another_one_than_was_built_is_refused(
    tmp_path: Path, is_link: bool
) -> None:
    home, root = tmp_path / "home", tmp_path / "saves"
    home.mkdir()
    (root / "gen-000001.tmp").mkdir(parents=True)
    with Tree(str(root)) as tree, tree.below("gen-000001.tmp") as building:
        (root / "gen-000001.tmp").rename(root / "away")
        if is_link:
            (root / "gen-000001.tmp").symlink_to(home)
        else:
            (root / "gen-000001.tmp").mkdir()
        with pytest.raises(SeedError, match="was replaced by something else while it was written"):
            finish(tree, building, "gen-000001", {})
    assert sorted(path.name for path in root.iterdir()) == ["away"]
    assert list(home.iterdir()) == []


def test_a_stamp_without_its_host_names_none_and_looking_at_it_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / ".orch").mkdir()
    (tmp_path / ".orch" / claims.FILE).write_text(json.dumps({**MINE, "since": 1.0}))
    probe = tmp_path / ".orch" / f"{claims.FILE}.{os.uname().nodename}.{os.getpid()}.now"
    probe.write_text("of a process that was killed")
    found = stamped(str(tmp_path))
    assert found is not None
    assert (found["host"], found["driven"], found["claim"]["run"]) == ("", True, MINE["run"])
    assert os.listdir(tmp_path / ".orch") == [claims.FILE]


@pytest.mark.parametrize(("mode", "lock"), [(0o770, 0o660), (0o700, 0o600), (0o755, 0o600)])
def test_the_lock_is_the_groups_where_the_directory_is(tmp_path: Path, mode: int, lock: int) -> None:
    before = os.umask(0)
    try:
        tmp_path.chmod(mode)
        with places.locked(str(tmp_path)):
            assert (tmp_path / ".orch" / "lock").stat().st_mode & 0o777 == lock
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("group", "mask", "then"), [(None, 0o000, 0o022), (None, 0o077, 0o077), ("group", 0o077, 0o007)]
)
def test_what_is_made_in_a_directory_is_for_its_group_or_for_nobody_else(
    tmp_path: Path, group: str | None, mask: int, then: int
) -> None:
    group = grp.getgrgid(os.getgid()).gr_name if group else None
    before = os.umask(mask)
    try:
        places.admit(str(tmp_path / "saves"), group)
        assert os.umask(0) == then
    finally:
        os.umask(before)


def test_a_folder_is_a_generation_by_its_whole_name_alone(tmp_path: Path) -> None:
    for name in ("gen-000002", "12", "gen-", "gen-3x", "gen-000010"):
        (tmp_path / name).mkdir()
    (tmp_path / "gen-000011").write_text("a file")
    assert places.highest(str(tmp_path)) == 10
    with Tree(str(tmp_path)) as tree:
        assert places.generations(tree) == [10, 2]


def test_a_claim_is_read_with_the_directory_that_it_names_and_is_never_of_the_future(tmp_path: Path) -> None:
    assert claims.claimed_of({**MINE, "since": 5}) == {**MINE, "since": 5}
    assert claims.claimed_of({**MINE, "since": 5, "checkpoint_dir": 7}) == {
        **MINE,
        "since": 5,
        "checkpoint_dir": None,
    }
    assert claims.claimed_of({**MINE, "since": True}) is None
    seed(str(tmp_path), 1, claim=MINE, host_dir="/host-1")
    age(tmp_path, -3600.0)
    found = stamped(str(tmp_path))
    assert found is not None
    assert (found["ago_s"], found["driven"]) == (0.0, True), "the clock of its file system was set back"


def test_an_agent_that_still_watches_a_run_says_so_and_none_says_it_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the mark, the run of a head that is cut off for a moment would be another's to take."""
    monkeypatch.setattr(claims, "_up_s", lambda: 1000.0)
    claims.write(str(tmp_path), MINE)
    monkeypatch.setattr(claims, "_up_s", lambda: 5000.0)
    claims.renew(str(tmp_path))
    path = tmp_path / claims.FILE
    content = json.loads(path.read_text())
    assert content["looked_at"] == 5000.0
    assert claims.claimed_of(content) == {**MINE, "since": content["since"]}
    theirs = {**content, "agent": {**content["agent"], "pid": content["agent"]["pid"] + 1}}
    path.write_text(json.dumps(theirs))
    monkeypatch.setattr(claims, "_up_s", lambda: 9000.0)
    claims.renew(str(tmp_path))
    assert json.loads(path.read_text()) == theirs, "another agent has taken it over"
