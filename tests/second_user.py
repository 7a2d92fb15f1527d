"""A second user of a checkpoint directory, who puts links and pipes in the way of what we do there.

He is a process of his own, with another uid. He is a member of the group to which the directory is open, so the kernel
lets him replace anything in it. Python tells of each open, rename, link and removal just before it is done, so he acts
exactly then: no luck of a race is needed. As root only.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.checkpoints import claims, copying, inventory, safe, seed, share, verify
from orchestrator.checkpoints.places import SeedError
from orchestrator.checkpoints.torn import Torn
from orchestrator.core.state.run import new_run
from orchestrator.head.links.conversation import OrderRefused
from orchestrator.head.transfer import outputs
from orchestrator.head.transfer.outputs import Output
from orchestrator.protocol.paths import RelativePath
from orchestrator.task.transparent import backup
from tests.unit.checkpoints import saved
from tests.unit.core.transcript import make_plan
from tests.unit.head.test_outputs import Host

UID, GID = 4711, 4712

SECRET = b"what only the owner may read"

STEPS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.symlink", "os.utime"}
STEPS |= {"os.scandir", "os.listdir", "os.chmod", "os.readlink"}
"""The events of Python's audit before which he acts."""

TARGETS = (
    *(".orch", ".orch/lock", ".orch/removed", ".orch/verified.json", ".orch/aside.json", ".orch/owner.json"),
    *(".orch/pinned", ".orch/safe", "gen-000001", "gen-000002", "gen-000003", "gen-000003.tmp"),
    *("gen-000002/best", "gen-000002/best/ckpt-100.npz", "gen-000002/ckpt-200.npz", "gen-000003.tmp/best"),
    *("gen-000003.tmp/ckpt-200.npz", "gen-000003.tmp/.orch-seed.json", ".orch/safe/gen-000002.tmp"),
    *("gen-000002/orch", "gen-000002/orch/fit-000/saving_temp"),
    "gen-000002/orch/fit-000/saving_temp/latest.weights.h5",
    *("gen-000002/inner", "gen-000002/inner/rescued-by-worker-1-150.about", "gen-000003.tmp/inner"),
    *(
        "gen-000002/new.csv",
        "gen-000002/best/new.csv",
        f"gen-000002/best/.orch-{sha256(b'new').hexdigest()}.part",
    ),
)
"""What he replaces, if it is there at that moment, and makes, if it is not."""

KINDS = ("link", "pipe", "directory")
"""By what: a link to the owner's home, or to what has that name there; a named pipe; a directory of his."""


def _seed(root: str) -> object:
    return seed.seed(root, 3, keep=1, group=str(GID), claim=CLAIM, host_dir="/host")


def _people(root: str) -> object:
    inventory.pin(root, "gen-2")
    inventory.rollback(root, "gen-1")
    inventory.unpin(root, "gen-2")
    return inventory.rm(root, "set-aside")


def _snapshot(root: str) -> object:
    told = safe.snapshot(root, f"{root}/gen-000002", None)
    coming = safe.arrival(root, told)
    return safe.receive(root, coming), safe.ChunkReader()


def _small(root: str) -> object:
    claims.touch_stamp(root, CLAIM["run"], "/host")
    claims.release_stamp(root, CLAIM["run"], "/host")
    return share.token(root, "t-1")


def _scratch(root: str) -> object:
    with tempfile.TemporaryDirectory(prefix="orch-scratch-") as scratch:
        copying.copy(f"{root}/gen-000002", scratch)
        found = b"".join(path.read_bytes() for path in Path(scratch).rglob("*") if path.is_file())
        assert SECRET not in found
        return not any(path.is_symlink() for path in Path(scratch).rglob("*"))


CLAIM: Any = {"id": "1" * 32, "head": "h", "user": "ml", "run": "t-1", "name": "t", "checkpoint_dir": "/c"}


def _fetch(root: str) -> object:
    """Fetch what a task left into a directory that is open to him, as that of a project may be."""
    host = Host({"new.csv": b"new", "ckpt-200.npz": b"other"})
    run = new_run("t-1", make_plan(["a", "b"], checkpoint=False), epoch=4, at=0.0)
    places = ("gen-000002/new.csv", "gen-000002/ckpt-200.npz", "gen-000002/best/new.csv")
    wanted = [Output("a", host.file(os.path.basename(place)), RelativePath(place)) for place in places]
    return [outputs.bring(host, run, output, root, replace=True) for output in wanted]


def _rescue(root: str) -> object:
    """Take up what a survivor has handed over, beside what it had only begun to write."""
    verify(f"{root}/gen-000002", lambda _: None)
    answer = seed.seed(root, 3, group=str(GID), claim=CLAIM, host_dir="/host")
    with tempfile.TemporaryDirectory(prefix="orch-scratch-") as scratch:
        return copying.copy(answer["path"], scratch)


def _backup(root: str) -> object:
    """Save as the runtime of a task does, beside what a survivor has handed over."""
    directory = backup.folder(f"{root}/gen-000002", 0)
    backup.write(backup.rescued(directory, "worker:1"), {backup.STEPS: 40}, backup.Position(1, 0, 40))
    backup.write(directory, {backup.STEPS: 50}, backup.Position(1, 0, 50))
    return backup.newest(directory)


DEEDS: dict[str, Callable[[str], object]] = {
    "seed": _seed,
    "people": _people,
    "verify": lambda root: verify(f"{root}/gen-000002", lambda _: None),
    "list": lambda root: inventory.listed(root, read=True),
    "snapshot": _snapshot,
    "small": _small,
    "scratch": _scratch,
    "fetch": _fetch,
    "rescue": _rescue,
    "backup": _backup,
}
"""What we do in the directory meanwhile."""


class SecondUser:
    """His process. Use it in a `with` statement."""

    def __init__(self) -> None:
        ours, his = os.pipe(), os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(ours[1])
            os.close(his[0])
            try:
                _live(ours[0], his[1])
            finally:
                os._exit(0)
        os.close(ours[0])
        os.close(his[1])
        self._orders, self._answers = ours[1], his[0]

    def __enter__(self) -> SecondUser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._orders)
        os.close(self._answers)
        os.waitpid(self._pid, 0)

    def replace(self, path: str, kind: str, home: str) -> bool:
        """Put something else in the place of what is there. Return whether the kernel let him."""
        os.write(self._orders, json.dumps([path, kind, home]).encode() + b"\n")
        return os.read(self._answers, 1) == b"y"


def _live(orders: int, answers: int) -> None:
    os.setgroups([])
    os.setgid(GID)
    os.setuid(UID)
    os.umask(0o002)
    with os.fdopen(orders, encoding="utf-8") as lines:
        for line in lines:
            path, kind, home = json.loads(line)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(path, f"{path}.away-{os.urandom(3).hex()}")
                if kind == "pipe":
                    os.mkfifo(path)
                elif kind == "directory":
                    os.makedirs(f"{path}/best")
                    Path(path, "his").write_text("his")
                else:
                    there = os.path.join(home, os.path.basename(path))
                    is_file = "." in os.path.basename(path)[1:] and not path.endswith(".tmp")
                    os.symlink(there if is_file or path.endswith("lock") else home, path)
                os.write(answers, b"y")
            except OSError:
                os.write(answers, b"n")


class _Barrier:
    """Calls `act` before the n-th step of what we do below a directory."""

    def __init__(self) -> None:
        self.act: Callable[[], object] | None = None
        self.left = 0
        sys.addaudithook(self._heard)

    def _heard(self, event: str, _: tuple[Any, ...]) -> None:
        if self.act is None or event not in STEPS:
            return
        if self.left == 0:
            act, self.act = self.act, None
            act()
        self.left -= 1


_BARRIER: list[_Barrier] = []
"""One for the process: a hook of the audit stays for ever."""


@cache
def _template() -> Path:
    """Make a checkpoint directory with two generations, open to his group, and the home that he may not enter."""
    top = Path(tempfile.mkdtemp(prefix="orch-second-user-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    home, root = top / "home", top / "root"
    (home / "best").mkdir(parents=True)
    home.chmod(0o700)
    for name in ("ckpt-200.npz", "best/ckpt-100.npz", "ckpt-900.npz"):
        np.savez(home / name, global_step=np.int64(900), w=np.frombuffer(SECRET, dtype=np.uint8))
    for name in (
        "lock",
        "verified.json",
        "aside.json",
        "owner.json",
        ".orch-seed.json",
        "authorized_keys",
        "new.csv",
    ):
        (home / name).write_bytes(b'{"secret": "%s"}' % SECRET)
    root.mkdir()
    os.chown(root, -1, GID)
    root.chmod(0o2770)
    seed.seed(str(root), 1, group=str(GID))
    _save(root / "gen-000001", 100)
    seed.seed(str(root), 2, group=str(GID), claim=CLAIM, host_dir="/host")
    _save(root / "gen-000002", 200)
    saved.handed_over(root / "gen-000002" / "inner", 150)
    (root / "gen-000002" / "inner" / "rescued-by-worker-1-160.tmp").mkdir()
    for path in [root / "gen-000002" / "inner", *(root / "gen-000002" / "inner").iterdir()]:
        path.chmod(0o770 if path.is_dir() else 0o660)
    return top


@contextlib.contextmanager
def directory() -> Iterator[tuple[Path, Path]]:
    """Yield a checkpoint directory and a home outside of it, of their own."""
    before = os.umask(0o007)
    top = tempfile.mkdtemp(prefix="orch-second-user-")
    try:
        os.chmod(top, 0o711)
        subprocess.run(["cp", "-a", _template() / "home", _template() / "root", top], check=True)
        yield Path(top, "root"), Path(top, "home")
    finally:
        os.umask(before)
        shutil.rmtree(top, ignore_errors=True)


def _save(generation: Path, step: int) -> None:
    (generation / "best").mkdir(exist_ok=True)
    np.savez(generation / f"ckpt-{step}.npz", global_step=np.int64(step), w=np.arange(9.0))
    np.savez(generation / "best" / "ckpt-100.npz", global_step=np.int64(100), w=np.arange(9.0))
    if not (generation / "latest.npz").is_symlink():
        (generation / "latest.npz").symlink_to(f"ckpt-{step}.npz")
    for path in generation.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o770 if path.is_dir() else 0o660)


def _state(directory: Path) -> dict[str, tuple[Any, ...]]:
    found = {}
    for path in [directory, *directory.rglob("*")]:
        about = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (
            about.st_mode,
            about.st_uid,
            about.st_gid,
            about.st_nlink,
            about.st_mtime_ns,
            content,
        )
    return found


def attack(user: SecondUser, deed: str, target: str, kind: str, at: int | None) -> bool:
    """Do something in a directory in which he replaces `target` just before our step `at`, or before we begin (None).

    Nothing outside may have changed, and nothing of there may have come in. Return whether he came to act: `at` may be
    after our last step, or the kernel may not have let him.
    """
    if not _BARRIER:
        _BARRIER.append(_Barrier())
    (barrier,) = _BARRIER
    with directory() as (root, home):
        before = _state(home)
        acted: list[bool] = []

        def act() -> None:
            acted.append(user.replace(str(root / target), kind, str(home)))

        if at is None:
            act()
        barrier.left, barrier.act = at or 0, None if at is None else act
        try:
            with contextlib.suppress(SeedError, Torn, OSError, OrderRefused):
                DEEDS[deed](str(root))
        finally:
            barrier.act = None
        assert _state(home) == before, f"{deed} changed the home by way of {target}"
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                assert SECRET not in content, f"{deed} copied the home into {path.relative_to(root)}"
                assert b'"global_step": 900' not in content, f"{deed} read the home by way of {target}"
        return any(acted)
