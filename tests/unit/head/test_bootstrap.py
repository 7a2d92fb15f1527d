"""Bringing an agent up through all kinds of shells and hosts, and saying why where it cannot be."""

from __future__ import annotations

import io
import marshal
import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

import pytest

from orchestrator.core.errors import ConnectFailed, HostError, HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.code import bundle, installer
from orchestrator.head.code.compiled import _code, compiled_for
from orchestrator.head.links import bootstrap
from orchestrator.head.reach.local import LocalChannel
from tests.pythons import python as python_of

Open = Callable[..., LocalChannel]

JUNK = "echo 'Welcome to gpu-a!'; printf 'no newline'; echo orch-shell? >&2; "


@pytest.fixture
def login() -> Iterator[Open]:
    """Opens a channel as sshd does: the login shell runs the command, after what its rc files do."""
    channels: list[LocalChannel] = []

    def open_(rc: str = "", shell: str = "/bin/sh", **env: str) -> LocalChannel:
        child = subprocess.Popen(
            [shell, "-c", rc + bootstrap.COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={"PATH": os.environ["PATH"], **env},
            start_new_session=True,
        )
        channels.append(LocalChannel(child))
        return channels[-1]

    yield open_
    for channel in channels:
        channel.close()
        channel._child.wait(20)


def start(
    channel: LocalChannel, python: str = sys.executable, activate: str | None = None, **options: object
) -> bootstrap.Started:
    host = HostPlan("gpu-a", python=python, activate=activate)
    return bootstrap.start_agent(channel, host, bundle.load(), **options)  # type: ignore[arg-type]


def refusal(
    channel: LocalChannel, python: str = sys.executable, activate: str | None = None, **options: object
) -> HostError:
    with pytest.raises(HostError) as caught:
        start(channel, python, activate, **options)
    assert str(caught.value).startswith("gpu-a: ")
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


# ---------------------------------------------------------------- what works


def test_the_bundle_is_pushed_once(login: Open, tmp_path: Path) -> None:
    first = start(login(HOME=str(tmp_path)))
    assert first.pushed_bytes > 0
    assert first.hello["host_dir"] == os.path.realpath(tmp_path / ".local/state/orch-host")
    assert first.hello["digest"] == bundle.load().code.digest
    assert start(login(HOME=str(tmp_path))).pushed_bytes == 0
    assert (tmp_path / ".local/state/orch-host").stat().st_mode & 0o777 == 0o700


def test_orch_host_dir_is_heard(login: Open, tmp_path: Path) -> None:
    started = start(login(HOME="/nowhere", ORCH_HOST_DIR=str(tmp_path / "o")))
    assert started.hello["host_dir"] == os.path.realpath(tmp_path / "o")


def test_hosts_that_share_a_home_do_not_share_the_directory(login: Open, tmp_path: Path) -> None:
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    for _ in range(2):
        assert start(login(ORCH_HOST_DIR=str(mine))).hello["host_dir"] == os.path.realpath(mine)
    shared.mkdir()
    (shared / "host").write_text("another-host 0123")
    for pushed in (True, False):
        started = start(login(ORCH_HOST_DIR=str(shared)))
        assert started.hello["host_dir"] == os.path.realpath(shared / "hosts" / os.uname().nodename)
        assert bool(started.pushed_bytes) is pushed
    assert (shared / "host").read_text() == "another-host 0123"


def test_what_rc_files_print_is_skipped(login: Open, tmp_path: Path) -> None:
    started = start(login(JUNK, HOME=str(tmp_path)))
    assert started.pushed_bytes > 0
    assert started.hello["printed"]
    assert "printed" not in start(login(HOME=str(tmp_path))).hello


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh", "csh", "ksh", "busybox"])
def test_login_shells(login: Open, tmp_path: Path, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} on this machine")
    if shell == "busybox":
        link = tmp_path / "sh"
        link.symlink_to(path)
        path = str(link)
    assert start(login(shell=path, HOME=str(tmp_path))).hello["python"]


def test_a_line_of_a_person_makes_the_environment_in_which_the_python_is_found(
    login: Open, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python-of-module").symlink_to(sys.executable)
    (tmp_path / ".profile").write_text("module() { PATH=$PATH:$HOME/bin; export LOADED=$1; }\nread eaten\n")
    home = {"HOME": str(tmp_path), "SHELL": "/bin/sh"}
    line = """module 'tf 2.21' && echo "it says $(cat)" """
    channel = login(JUNK, **home)
    assert start(channel, "python-of-module", line).hello["python"]
    environ = Path(f"/proc/{channel._child.pid}/environ").read_bytes().split(b"\0")
    assert b"LOADED=tf 2.21" in environ, "the agent has it, and so all that it starts"
    for shell in ("/usr/bin/fish", "", "/bin/bash"):
        line = "module x 2>/dev/null; . ~/.profile; module x"
        assert start(login(**{**home, "SHELL": shell}), "python-of-module", line).hello["python"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("echo loading; no-such-module load tf", "failed there with exit code 127: echo loading; no-such"),
        (
            "echo missing >&2; exit 3",
            "failed there with exit code 3: echo missing >&2; exit 3; it said: missing",
        ),
        ("false", "failed there with exit code 1: false"),
        ("if", "failed there with exit code 2: if"),
    ],
)
def test_a_line_that_fails_is_told_with_its_output(login: Open, tmp_path: Path, line: str, said: str) -> None:
    error = refusal(login(HOME=str(tmp_path), SHELL="/bin/sh"), activate=line)
    assert isinstance(error, HostUnfit)
    assert said in str(error)


def test_a_line_that_hangs_has_a_time_limit(login: Open, tmp_path: Path) -> None:
    error = refusal(login(HOME=str(tmp_path)), activate="sleep 4", timeout_s=1.0)
    assert isinstance(error, ConnectFailed)
    assert "`activate` did not end in time there: sleep 4" in str(error)


def test_a_shell_in_the_place_of_the_login_shell_runs_nothing_of_ours(login: Open, tmp_path: Path) -> None:
    (tmp_path / "zsh").symlink_to("/bin/sh")
    (tmp_path / "import").write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    (tmp_path / "import").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    error = refusal(login("exec zsh; ", HOME=str(tmp_path), PATH=path))
    assert "starts another shell in its place" in str(error)
    assert not (tmp_path / "was-run").exists()


def test_a_damaged_bundle_is_pushed_again(login: Open, tmp_path: Path) -> None:
    start(login(HOME=str(tmp_path)))
    (there,) = (tmp_path / ".local/state/orch-host/bundle").iterdir()
    there.write_bytes(there.read_bytes()[:5000])
    assert start(login(HOME=str(tmp_path))).pushed_bytes > 0
    assert start(login(HOME=str(tmp_path))).pushed_bytes == 0


def test_a_tilde_in_the_pythons_path_is_the_hosts_home(login: Open, tmp_path: Path) -> None:
    (tmp_path / "py thon").symlink_to(sys.executable)
    assert start(login(HOME=str(tmp_path)), "~/py thon").hello["python"]


def test_what_is_precompiled_is_what_runs(login: Open, tmp_path: Path) -> None:
    start(login(HOME=str(tmp_path)))
    (there,) = (tmp_path / ".local/state/orch-host/bundle").iterdir()
    assert sys.implementation.cache_tag in there.name
    program = "import sys; sys.path.insert(0, sys.argv[1]); import orchestrator.host.agent.main; "
    program += "print(orchestrator.host.agent.main.__file__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program, there], capture_output=True, check=True)
    assert done.stdout.strip().endswith(b"agent/main.pyc")


def test_a_slow_shell_is_noted(login: Open, tmp_path: Path) -> None:
    instants = iter([0.0] + [2.5] * 100)  # the first look, and every later one
    started = start(login(HOME=str(tmp_path)), clock=lambda: next(instants))
    assert started.hello["slow"] == {"shell_s": 2.5}
    assert "slow" not in start(login(HOME=str(tmp_path))).hello


# ---------------------------------------------------------------- what does not


@pytest.mark.parametrize(
    "python", ["python9", "/nowhere/bin/python3", "; touch x", "$(touch x)", "`touch x`"]
)
def test_no_such_python(login: Open, tmp_path: Path, python: str) -> None:
    error = refusal(login("cd; ", HOME=str(tmp_path)), python)
    assert (type(error), error.code) == (HostUnfit, "no-python")
    assert python in str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_python_whose_base_cannot_be_reached_is_there(login: Open, tmp_path: Path) -> None:
    venv = tmp_path / "venv-python"
    venv.symlink_to(tmp_path / "base/python3")
    error = refusal(login(HOME=str(tmp_path)), str(venv))
    assert (type(error), error.code) == (HostUnfit, "no-python")
    assert f"{venv} is there, and cannot be run" in str(error)
    assert "virtual environment" in str(error.hint)


@pytest.mark.parametrize("rc", ["read answer; ", "read -r a b c; "])
def test_a_login_file_that_reads_our_words_is_named(login: Open, tmp_path: Path, rc: str) -> None:
    error = refusal(login(rc, HOME=str(tmp_path)))
    assert type(error) is HostUnfit
    assert "reads from stdin" in str(error)
    assert error.code == "rc-files"
    assert ".bashrc" in str(error.hint)


@pytest.mark.parametrize("python", ["-c", "a\nb", "", "a\0b"])
def test_what_can_be_no_path_is_not_sent(login: Open, python: str) -> None:
    assert refusal(login(), python).code == "no-python"


@pytest.mark.parametrize("rc", ["kill -9 $$; ", "trap 'kill -9 $$' EXIT; exit; "])
def test_a_connection_that_breaks_is_no_fault_of_the_hosts_python(
    login: Open, tmp_path: Path, rc: str
) -> None:
    error = refusal(login(rc, HOME=str(tmp_path)))
    assert type(error) is ConnectFailed
    assert "the connection broke" in str(error)


@pytest.mark.parametrize("python", ["/bin/false", "/bin/cat", "/tmp"])
def test_a_program_that_is_no_python(login: Open, tmp_path: Path, python: str) -> None:
    error = refusal(login(HOME=str(tmp_path)), python)
    assert (error.code, python in str(error)) == ("no-python", True)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9"])
def test_a_python_that_is_too_old(login: Open, tmp_path: Path, version: str) -> None:
    found = python_of(version)
    if found is None:
        pytest.skip(f"no Python {version} on this machine")
    error = refusal(login(HOME=str(tmp_path)), found)
    assert error.code == "python-too-old"
    assert "at least 3.10" in str(error)
    assert f"is Python {version if version != '2.7' else 'of before 3.4'}" in str(error)


@pytest.mark.parametrize(
    ("rc", "said"),
    [
        ("echo 'This account is currently not available.'; exit 1; ", "currently not available"),
        ("echo 'only git here' >&2; exit 1; ", "only git here"),
        ("exit 0; ", "did not run our command"),
    ],
)
def test_an_account_without_a_shell(login: Open, rc: str, said: str) -> None:
    error = refusal(login(rc))
    assert type(error) is HostUnfit
    assert said in str(error)


def test_a_command_that_echoes_us_is_not_believed(login: Open) -> None:
    assert "did not get to our command in time" in str(refusal(login("exec cat; "), timeout_s=1.0))


def test_a_shell_that_prints_without_end(login: Open) -> None:
    assert "prints without end" in str(refusal(login("yes | head -c 100000000; ")))


def test_a_home_that_cannot_be_written(login: Open) -> None:
    error = refusal(login(HOME="/proc"))
    assert "/proc" in str(error)
    assert "ORCH_HOST_DIR" in (error.hint or "")


def test_a_directory_of_somebody_else_is_not_used(login: Open, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can make a directory of somebody else's")
    os.chown(tmp_path, 12345, 12345)
    assert "another user" in str(refusal(login(ORCH_HOST_DIR=str(tmp_path))))


def test_no_space_left(login: Open, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=False)
    if made.returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        error = refusal(login(ORCH_HOST_DIR=str(tmp_path)))
        left = [path.name for path in (tmp_path / "bundle").iterdir()]
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert (error.code, left) == ("no-space", [])


def test_a_limit_of_the_user_is_named(login: Open, tmp_path: Path) -> None:
    error = refusal(login("ulimit -f 8; ", ORCH_HOST_DIR=str(tmp_path)))
    assert error.code == "limit", error
    assert "ulimit -f" in (error.hint or "")


def test_nothing_is_executed_from_a_disk(login: Open, tmp_path: Path) -> None:
    """/tmp or HOME mounted noexec: only psutil's compiled module needs more, and it is not needed."""
    if os.geteuid():
        pytest.skip("only root can mount")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", tmp_path], check=False)
    if made.returncode:
        pytest.skip("this machine lets nobody mount")
    channel = login(ORCH_HOST_DIR=str(tmp_path), TMPDIR=str(tmp_path))
    try:
        started = start(channel)
        frames = list(started.frames)
        while len(frames) < 2:
            frames += started.decoder.feed(channel.read(65536))
        channel.close()
        channel._child.wait(20)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert frames[0][0]["report"]["host"]["memory_percent"] > 0


def test_silence_ends_in_time(login: Open) -> None:
    channel = login("exec sleep 60; ")
    child = channel._child
    error = refusal(channel, timeout_s=0.3)
    child.kill()
    assert (type(error), "rc files" in (error.hint or "")) == (ConnectFailed, True)


def test_the_head_compiles_the_bundle_as_a_host_would() -> None:
    loaded = bundle.load()
    # With other byte code a host gets the sources, and compiles them.
    assert compiled_for("00", loaded) is None
    ours = compiled_for(MAGIC_NUMBER.hex(), loaded)
    assert ours is not None
    assert ours is compiled_for(MAGIC_NUMBER.hex(), loaded)
    by_host, by_head = io.BytesIO(), io.BytesIO(zlib.decompress(ours.data))
    installer.precompile(loaded.code.data, by_host)
    with zipfile.ZipFile(by_host) as first, zipfile.ZipFile(by_head) as second:
        assert first.namelist() == second.namelist()
        for name in first.namelist():
            one, other = first.read(name), second.read(name)
            if name.endswith(".pyc"):  # equal code may be marshalled in two ways
                assert one[:16] == other[:16]
                assert parts(marshal.loads(one[16:])) == parts(marshal.loads(other[16:])), name
            else:
                assert one == other


@pytest.mark.parametrize("torn", [b"", b"\0" * 40], ids=["cut", "zeros"])
def test_byte_code_that_a_full_disk_has_torn_is_compiled_anew(tmp_path: Path, torn: bytes) -> None:
    file, source = tmp_path / "m.py", b"answer = 42\n"
    file.write_bytes(source)
    kept = Path(py_compile.compile(str(file)) or "")
    assert _code(file, "m.py", source).co_filename == "m.py"
    kept.write_bytes(kept.read_bytes()[:16] + torn)
    assert _code(file, "m.py", source) == installer.compiled("m.py", source)
    file.unlink()  # orch is just being installed anew
    assert _code(file, "m.py", source) == installer.compiled("m.py", source)


def parts(code: CodeType) -> list[tuple[CodeType, str]]:
    """Return a code object and all within it, each with its file, which their comparison leaves out."""
    inner = [part for each in code.co_consts if isinstance(each, CodeType) for part in parts(each)]
    return [(code, code.co_filename), *inner]
