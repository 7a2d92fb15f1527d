"""Environments on a host: what cannot make one, what is whole, and what may be removed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest

from orchestrator.both import durable
from orchestrator.both.hostdir import HostFault
from orchestrator.host.agent import environments
from tests import power

DAYS_S = 10 * 86400.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    os.makedirs(environments.root())
    return tmp_path


def made(key: str, *, ago_s: float, python: str = "3.11.2") -> Path:
    """Put an environment there that was asked for so long ago, with a directory that another setup has left."""
    place = Path(environments.root()) / f"{key}.0"
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    durable.write_json(str(place / environments.RECORD), {"python": python, "by": "uv"})
    os.utime(place / environments.RECORD, (time.time() - ago_s,) * 2)
    place.with_name(f"{key}.1").mkdir()
    place.with_name(key).symlink_to(place)
    return place


def a_wish(home: Path) -> dict[str, object]:
    wish = {"key": "a", "version": None, "offline": True}
    return {**wish, "host_dir": str(home), "wheels": [], "keep": []}


def installs(_wish: object, _by: str, place: str, _work: str, log: str) -> None:
    with open(f"{log.removesuffix('.log')}.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another setup of the same waits for this one
    (Path(place) / "bin").mkdir(parents=True)
    (Path(place) / "bin" / "python").symlink_to(sys.executable)


def started(host_dir: Path, run: str, key: str, *, released: bool) -> None:
    """Write what a host has of a run: a task that does not live any more, and whether its coordinator let go of it."""
    generation = host_dir / "runs" / run / "tasks" / "worker-0" / "gen-000001"
    generation.mkdir(parents=True)
    durable.write_json(
        str(generation / "start.json"), {"python": f"~/.local/share/orch/environments/{key}/bin/python"}
    )
    agent = {"boot_id": "another", "pid": 1, "start_time": 1}
    claim = {"agent": agent, "looked_at": 1.0, "released": released}
    durable.write_json(str(host_dir / "runs" / run / "owner.json"), claim)


def test_old_environments_are_removed_and_none_that_a_run_has_a_use_for(home: Path) -> None:
    for number, key in enumerate(("old", "ended", "waits", "queued", "third", "second", "first")):
        made(key, ago_s=DAYS_S - number)
    for key in ("today", "new"):
        made(key, ago_s=60.0)
    started(home / "host", "t-1", "ended", released=True)
    started(home / "host" / "hosts" / "another", "t-2", "waits", released=False)
    root = Path(environments.root())
    for key in ("waits", "queued", "first"):
        durable.write_json(str(root / f"{key}.1" / environments.RECORD), {"python": "3.11.9", "by": "uv"})
    (root / ".nfs0001").touch()
    wish = {"host_dir": str(home / "host"), "keep": ["queued"]}
    environments._remove_old("new", wish)
    left = {path.name for path in root.iterdir() if not path.name.endswith(".lock")}
    kept = {"waits", "queued", "first", "today", "new"}
    before = {"waits.1", "queued.1", ".nfs0001"}
    assert left == kept | {f"{key}.0" for key in kept} | before, (
        "not what interrupted setups have left either"
    )


def test_a_setup_that_has_just_begun_has_said_nothing() -> None:
    os.rmdir(environments.root())
    assert environments.last_line("abc") == ""
    os.makedirs(environments.root())
    assert environments.last_line("abc") == ""
    for name, words in (("abc-x86.log", "one\ntwo\n"), ("abcd-x86.log", "another's\n")):
        Path(environments.root(), name).write_text(words)
    assert environments.last_line("abc") == "two"


def test_an_environment_of_a_python_that_was_replaced_is_made_anew() -> None:
    wish = {"key": "a", "version": None, "offline": True}
    key = environments._wanted(wish)[1]
    place = made(key, ago_s=DAYS_S, python="3.9.1")
    assert environments._find(wish)["state"] == "absent"
    patched = "{}.{}.99".format(*sys.version_info)
    durable.write_json(str(place / environments.RECORD), {"python": patched, "by": "pip"})
    os.utime(place / environments.RECORD, (1.0, 1.0))
    found = environments._find(wish)
    assert (found["state"], found["by"]) == ("ready", "pip"), "another patch version, as on a shared home"
    assert (environments._asked_at(key) or 0.0) > 1.0, (
        "when it was last asked for decides how long it is kept"
    )
    (place / "bin" / "python").unlink()
    assert environments._find(wish)["state"] == "absent"
    (place / "bin" / "python").write_text("#!/bin/sh\nkill -9 $$\n")
    (place / "bin" / "python").chmod(stat.S_IRWXU)
    with pytest.raises(HostFault, match="did not answer"):
        environments._find(wish)


@pytest.mark.parametrize(
    "error",
    [
        subprocess.TimeoutExpired("python", 60),
        OSError(errno.EAGAIN, "again"),
        OSError(errno.ENOMEM, "no memory"),
    ],
)
def test_an_environment_whose_python_could_not_be_asked_is_not_called_absent(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise error

    wish = {"key": "a", "version": None, "offline": True}
    made(environments._wanted(wish)[1], ago_s=DAYS_S)
    monkeypatch.setattr(subprocess, "run", refuses)
    with pytest.raises((HostFault, OSError)):
        environments._find(wish)


def test_an_environment_that_was_made_is_ready_though_nothing_could_be_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_host_dir: str) -> set[str]:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(environments, "_install", installs)
    monkeypatch.setattr(environments, "_used", stale)
    made("old", ago_s=DAYS_S)
    assert environments._make(a_wish(home))["state"] == "ready"
    assert (Path(environments.root()) / "old").is_dir()


def test_a_setup_removes_an_old_environment_but_not_what_the_plan_uses(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_install", installs)
    for number, key in enumerate(("old", "planned", "third", "second", "first")):
        made(key, ago_s=DAYS_S - number)
    assert environments._make({**a_wish(home), "keep": ["planned"]})["state"] == "ready"
    left = {path.name for path in Path(environments.root()).iterdir() if path.is_symlink()}
    assert left - {environments._wanted(a_wish(home))[1]} == {"planned", "second", "first"}


def test_the_environments_of_a_user_are_closed_to_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_install", installs)
    os.rmdir(environments.root())
    before = os.umask(0)  # as open as a user may have it
    try:
        environments._make(a_wish(home))
    finally:
        os.umask(before)
    assert oct(os.stat(environments.root()).st_mode & 0o777) == oct(0o700)


@pytest.mark.parametrize("name", ["../a", "/a", ".a", "a\0b"])
def test_an_environment_or_a_wheel_has_the_name_of_a_file_and_leads_nowhere_else(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(environments, "_install", installs)
    with pytest.raises(HostFault, match="not the name of a file"):
        environments._path(name)
    (home / "blobs").mkdir()
    (home / "blobs" / "d1").touch()
    with pytest.raises(HostFault, match="not the name of a file"):
        environments._make({**a_wish(home), "wheels": [(name, "d1")]})
    assert not any(path.is_symlink() for path in home.rglob("*"))


def test_a_setup_that_fails_leaves_nothing_of_its_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_wish: object, _by: str, place: str, *_: str) -> None:
        os.makedirs(f"{place}/bin")
        raise HostFault("setup-failed", "pip: no such wheel")

    monkeypatch.setattr(environments, "_install", fails)
    with pytest.raises(HostFault):
        environments._make(a_wish(home))
    assert [name for name in os.listdir(environments.root()) if not name.endswith(".lock")] == []


def test_nothing_is_installed_while_wheels_are_missing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "_install", installs)
    wheels = [("one.whl", "d1"), ("two.whl", "d2")]
    wish = json.dumps({**a_wish(home), "begin": True, "wheels": wheels})
    blobs = home / "blobs"
    blobs.mkdir()
    (blobs / "d1").touch()

    def told() -> list[object]:
        monkeypatch.setattr(sys, "stdin", StringIO(wish))
        environments.main([])
        answer = json.loads(capsys.readouterr().out)
        return [answer.get("state"), answer.get("missing")]

    assert told() == ["absent", ["d2"]]
    (blobs / "d2").touch()
    assert told() == ["ready", []]
    assert os.listdir(blobs) == []


def test_hosts_of_two_kinds_that_share_a_home_have_an_environment_each(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An x86 and an ARM, or Python 3.11 and 3.12: each took the other's for broken, and made it anew for itself."""
    monkeypatch.setattr(environments, "_install", installs)
    wish = a_wish(home)
    door = Path(environments.root()) / "a"
    system = os.uname()
    hosts = [("x86", system.machine), ("arm", "aarch64"), ("x86-2", system.machine)]
    for number, (name, machine) in enumerate(hosts):
        other = os.uname_result((system.sysname, name, system.release, system.version, machine))
        monkeypatch.setattr(os, "uname", lambda other=other: other)
        assert environments._find(wish)["state"] == ("absent" if number < 2 else "ready")
        assert environments._make(wish)["state"] == "ready"
    links = {name: os.readlink(door / "hosts" / name) for name, _ in hosts}
    assert links["x86"] == links["x86-2"] != links["arm"]
    start = [str(door / "bin" / "python"), "-c", "print(6 * 7)"]
    unknown = subprocess.run(start, capture_output=True, text=True, check=False)
    assert (unknown.returncode, unknown.stdout) == (127, "orch-no-python\n"), "it was not made on this one"
    os.symlink(links["x86"], door / "hosts" / system.nodename)
    assert subprocess.run(start, capture_output=True, text=True, check=True).stdout == "42\n"
    environments._remove(links["x86"].rpartition("/")[2], whole=True, earlier=True)
    assert (door / "hosts").is_dir(), "the other kind has a use for it"
    environments._remove(links["arm"].rpartition("/")[2], whole=True, earlier=True)
    assert not door.exists()


def test_a_debian_python_without_pip_and_ensurepip_and_a_missing_version_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *pip*) echo "No module named pip" >&2; exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(stat.S_IRWXU)
    with pytest.raises(HostFault, match="neither pip nor ensurepip") as refused:
        environments._has_pip(str(python))
    version = ".".join(map(str, sys.version_info[:2]))
    assert (refused.value.code, f"python{version}-venv" in str(refused.value.hint)) == ("no-ensurepip", True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostFault, match=r"there is no Python 3\.19: .* is 3\."):
        environments._interpreter("3.19", may_load=True)


@pytest.mark.parametrize(
    ("printed", "sentence", "way_out"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken\n"
            "ERROR: Could not find a version that satisfies the requirement six (from versions: none)\n"
            "ERROR: No matching distribution found for six\n\n",
            "No matching distribution found for six",
            "the host does not reach the package index",
        ),
        (
            "Using Python 3.11.7 environment at: /x\nerror: No solution found when resolving dependencies\n"
            "  cause: Because sixnone was not found in the package registry and you require sixnone,\n"
            "  we can conclude\n",
            "No solution found when resolving dependencies: Because sixnone was not found in the package registry and "
            "you require sixnone, we can conclude",
            "correct the requirements",
        ),
        (
            "  × No solution found:\n  ╰─▶ Because a needs b.\n",
            "No solution found: Because a needs b.",
            "correct the requirements",
        ),
        (
            "OSError: [Errno 28] No space left on device\n",
            "OSError: [Errno 28] No space left on device",
            "free some space",
        ),
    ],
)
def test_the_last_words_of_pip_and_uv_are_said(
    tmp_path: Path, printed: str, sentence: str, way_out: str
) -> None:
    log = tmp_path / "log"
    log.write_text(printed)
    lines = environments._lines(str(log))
    assert environments._sentence(lines) == sentence
    assert environments._way_out(lines, {"offline": False}).startswith(way_out)


def test_an_environment_is_whole_after_a_power_cut_or_not_there(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither uv nor pip syncs what it has installed."""

    def installs_a_package(wish: object, by: str, place: str, work: str, log: str) -> None:
        installs(wish, by, place, work, log)
        (Path(place) / "package.py").write_text("installed = True")

    monkeypatch.setattr(environments, "_install", installs_a_package)
    found = []
    for cut in power.cuts(home, lambda: environments._make(a_wish(home))):
        after = cut.plug_in(tmp_path_factory.mktemp("plugged") / "home")
        monkeypatch.setenv("HOME", str(after))
        # A link leads to where the environment was made: on the other disk it lies elsewhere.
        names = [path for path in Path(environments.root()).iterdir() if path.is_symlink()]
        for name in names:
            package = Path(environments.root()) / Path(os.readlink(name)).name / "package.py"
            assert package.exists(), f"cut before {cut.before}, with {cut.how}"
            assert package.read_text() == "installed = True", f"cut before {cut.before}, with {cut.how}"
            found.append(name)
    assert found, "on some of the disks it was made"


def test_what_a_program_prints_in_another_encoding_is_kept() -> None:
    """Of uv it is the path of a Python, which is then started."""
    path = environments._answer(["/bin/sh", "-c", r"printf '/home/gr\366\337e/bin/python'"])
    assert os.fsencode(path or "") == b"/home/gr\xf6\xdfe/bin/python"
