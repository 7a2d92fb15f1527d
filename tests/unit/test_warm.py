"""Forks of a process that has imported: what the tests see of them is what they see of a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import ALONE, LEGACY, Parent, SharedParent, command, suits


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    made = SharedParent(sys.executable, "fractions", env={**os.environ})
    yield made
    made.close()


def test_it_has_its_own_arguments_environment_directory_and_end(parent: Parent, tmp_path: Path) -> None:
    code = (
        "import json, os, sys; print(json.dumps([sys.argv, os.environ['MINE'], os.getcwd(), sys.path[:2],"
        "'fractions' in sys.modules])); print('told', file=sys.stderr); sys.exit(7)"
    )
    env = {**os.environ, "MINE": "1", "PYTHONPATH": "/of/its/own"}
    forks = [parent.fork(code, str(number), env=env, cwd=tmp_path) for number in range(3)]
    for number, fork in enumerate(forks):
        out, err = fork.communicate(timeout=60)
        assert json.loads(out) == [["-c", str(number)], "1", str(tmp_path), ["", "/of/its/own"], True]
        assert (err, fork.returncode, fork.poll()) == ("told\n", 7, 7)


def test_it_is_killed_and_waited_for(parent: Parent) -> None:
    fork = parent.fork("import signal; print('up', flush=True); signal.pause()", env={**os.environ})
    assert fork.stdout is not None
    assert fork.stdout.readline() == "up\n"
    assert fork.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.01)
    fork.kill()
    assert fork.wait(60) == -signal.SIGKILL
    fork.kill()  # nobody else has its pid meanwhile


def test_one_that_nobody_waits_for_ends_no_other(parent: Parent) -> None:
    forgotten = parent.fork("input()", env={**os.environ})
    forgotten._told.close()
    assert parent.fork("print(1)", env={**os.environ}).communicate(timeout=60)[0] == "1\n"
    assert parent.fork("print(2)", env={**os.environ}).communicate(timeout=60)[0] == "2\n"


def test_test_processes_share_it_until_the_last_has_ended() -> None:
    env = {**os.environ}
    first, second = (SharedParent(sys.executable, "fractions", "decimal", env=env) for _ in range(2))
    parents = [each.fork("import os; print(os.getppid())", env=env) for each in (first, second)]
    (one, _), (two, _) = [each.communicate(timeout=60) for each in parents]
    assert one == two
    first._control.close()
    assert second.fork("print(1)", env=env).communicate(timeout=60)[0] == "1\n"
    second.close()
    first.close()  # which has started it, and waits for its end
    assert not os.path.exists(f"/proc/{int(one)}")


@pytest.mark.skipif(os.geteuid() != 0, reason="NO ROOT: only root can become another user")
def test_no_other_user_is_given_a_fork(parent: Parent) -> None:
    code = (
        "import os, socket, sys; os.setuid(int(sys.argv[2])); s = socket.socket(1, 5); "
        "s.connect(chr(0) + sys.argv[1]); print(s.recv(100))"
    )
    for user, said in (("0", "b'ready'"), ("65534", "b''")):
        asked = [sys.executable, "-c", code, parent.name, user]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == said, done.stderr
    assert parent.fork("print(1)", env={**os.environ}).communicate(timeout=60)[0] == "1\n"


def test_it_has_the_other_end_of_a_socket(parent: Parent) -> None:
    ours, theirs = socket.socketpair()
    code = "import os, socket; socket.socket(fileno=int(os.environ['ORCH_FD'])).sendall(b'ready')"
    fork = parent.fork(code, env={**os.environ, "ORCH_FD": "-1"}, link=theirs)
    theirs.close()
    assert fork.wait(60) == 0
    assert (ours.recv(100), ours.recv(100)) == (b"ready", b""), "nobody else holds it open"
    ours.close()


def test_a_script_runs_alone_as_under_python(parent: Parent, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("name = 'beside'")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, beside\nif __name__ == '__main__':\n    print(beside.name, sys.argv[1:], __file__)"
    )
    out, _ = parent.fork(ALONE, str(script), "--epochs", env={**os.environ}).communicate(timeout=60)
    assert out == f"beside ['--epochs'] {script}\n"


def test_a_script_that_decides_what_is_imported_has_a_start_of_its_own(tmp_path: Path) -> None:
    usual = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    script = tmp_path / "train.py"
    for text, env, expected in (
        ("import tensorflow", usual, True),
        ("import tensorflow", {**usual, "ORCH_TASK": "worker:0", "TF_CONFIG": "{}"}, True),
        ("import tensorflow", {**usual, **LEGACY}, True),
        ("import tensorflow", {**usual, "ORCH_RUNTIME": '{"keras": 2}'}, True),
        ("import tensorflow", {**usual, "TF_NUM_INTEROP_THREADS": "1"}, False),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", usual, False),
        ("import os\nos.environ.setdefault('A', '1')\nimport tensorflow", usual, False),
        ("import tensorflow, pandas", usual, False),
        ("print(1)", usual, False),
    ):
        script.write_text(text)
        assert suits(script, env) is expected, text


def test_a_command_in_a_fork_says_and_ends_as_one_with_a_start_of_its_own(tmp_path: Path) -> None:
    env = {**os.environ, "ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": str(tmp_path / "run")}
    for arguments, code in ((("status",), 3), (("up", "nowhere.yaml"), 2), (("schema",), 0)):
        forked = command(*arguments, env=env, timeout=60)
        alone = command(*arguments, env={**env, "PYTHONHASHSEED": "1"}, timeout=60)
        assert vars(forked) == vars(alone)
        assert (forked.returncode, bool(forked.stdout), bool(forked.stderr)) == (code, not code, bool(code))


def test_a_coordinator_is_a_fork_too_and_outlives_the_command_that_has_started_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short:
        env = {**os.environ, "ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": short}
        started = command("coordinator", "start", "--json", env=env, timeout=60)
        try:
            pid = int(json.loads(started.stdout)["pid"])
            assert b"import contextlib" in Path(f"/proc/{pid}/cmdline").read_bytes(), (
                "it has not begun with Python"
            )
            assert (os.getsid(pid), os.readlink(f"/proc/{pid}/cwd")) == (pid, str(tmp_path / "state"))
            log = str(tmp_path / "state" / "coordinator.log")
            assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)] == ["/dev/null", log, log]
        finally:
            assert command("coordinator", "stop", env=env, timeout=60).returncode == 0


def test_a_command_for_which_python_is_told_otherwise_has_a_start_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('begins')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert command("--version", env=env, timeout=60).stdout.startswith("begins\norch")
    assert command("--version", env={**os.environ}, timeout=60).stdout.startswith("orch")


def test_a_command_that_takes_too_long_is_killed() -> None:
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"{short}/coordinator.sock")
        mute.listen()
        with pytest.raises(subprocess.TimeoutExpired):
            command("status", env={**os.environ, "ORCH_RUNTIME_DIR": short}, timeout=3)
        asking, _ = mute.accept()
        asking.settimeout(60)
        assert asking.recv(1 << 16), "it has asked"
        assert asking.recv(1 << 16) == b"", "and is gone"
        asking.close()
