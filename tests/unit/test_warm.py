"""Forks of a process that has imported: what the tests see of them is what they see of a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import ALONE, LEGACY, Parent, suits


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    made = Parent(sys.executable, "fractions", env={**os.environ})
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
