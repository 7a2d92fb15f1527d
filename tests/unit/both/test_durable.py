"""Files that are there whole or not at all; and nobody else who writes such files."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path

import pytest

from orchestrator.both import durable

ROOT = Path(__file__).parents[3] / "orchestrator"


def no_space(*_args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the disk, in its order."""
    seen: list[str] = []
    rename = os.rename

    def renamed(source: str, target: str) -> None:
        seen.append(f"rename to {os.path.basename(target)}")
        rename(source, target)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(
        os, "fsync", lambda fd: seen.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
    )
    return seen


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, steps: list[str]
) -> None:
    path = tmp_path / "a.json"
    durable.write_json(str(path), {"a": 1})
    temporary = f"a.json.{os.uname().nodename}.{os.getpid()}.tmp"
    assert steps == [f"sync {temporary}", "rename to a.json", f"sync {tmp_path.name}"]
    assert durable.read_object(str(path)) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_can_be_lost_without_harm_is_not_synced(tmp_path: Path, steps: list[str]) -> None:
    durable.write(str(tmp_path / "a"), b"1", durable=False)
    assert steps == ["rename to a"]


def test_a_mode_is_that_of_the_call(tmp_path: Path) -> None:
    durable.write(str(tmp_path / "a"), b"", mode=0o644)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    durable.write(str(path), b"old")
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        durable.write(str(path), b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["a"])


def test_a_file_system_that_cannot_sync_directories_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(_handle: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", cannot)
    durable.sync_directory(str(tmp_path))
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        durable.sync_directory(str(tmp_path))


def test_a_tree_is_synced_from_its_files_to_its_top(tmp_path: Path, steps: list[str]) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").touch()
    (tmp_path / "b.py").touch()
    (tmp_path / "gone").symlink_to("nowhere")
    durable.sync_tree(str(tmp_path))
    assert sorted(steps) == sorted(["sync b.py", f"sync {tmp_path.name}", "sync a.py", "sync lib"])


@pytest.mark.parametrize("content", [b"", b"\0" * 30, b"{", b"\xff\xfe", b"[1]"])
def test_what_is_no_object_reads_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    assert durable.read_object(str(tmp_path), "a") is None
    assert durable.read_object(str(tmp_path), "b") is None


def test_what_can_be_no_file_of_ours_is_not_waited_for_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("[" * 200_000)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 42)
    assert [durable.read_json(str(tmp_path), name) for name in ("deep", "pipe", "endless", "huge", ".")] == [
        None
    ] * 5


OTHERS = {
    "head/code/installer.py": "runs on a host before there is anything of ours to import",
    "task/transparent/backup.py": "runs in the user's process, which imports no adapter; h5py writes the file",
    "task/transparent/rescue.py": "the same: TensorFlow writes the files of a loop's checkpoint",
    "task/transparent/files.py": "copies what a script has saved: a power cut may take it, as it may the script's own",
    "both/hostdir.py": "the epoch is written in place: its file is the lock",
    "host/system/hostlog.py": "rotates segments of a log that is never synced",
    "host/system/codestore.py": "renames a directory away to remove it; syncs a blob before its rename",
    "head/records/checkpoint_store.py": "syncs a chunk that it has appended to",
    "head/records/plan_copies.py": "gives a copy another name, which a power cut may take back",
    "both/within.py": "renames by the descriptors of directories",
    "host/shim/record.py": "writes into room that was kept for a full disk",
    "host/agent/health.py": "measures how fast a disk is",
    "cli/orphans.py": "renames a directory away to remove it",
    "head/coordinator/coordinator.py": "the same",
}
"""Who renames or syncs files besides, and why."""


def _touches(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func) in ("os.rename", "os.replace", "os.fsync")
    )


def test_nobody_else_writes_durable_files() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if any(_touches(node) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert found == {*OTHERS, "both/durable.py"}
