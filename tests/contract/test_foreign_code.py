"""Code beside a person's working directory, which a task may have left and a person fetched, is never run by us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from orchestrator.both import process
from orchestrator.cli.commands import tensorboard
from orchestrator.client.starting import coordinator_command
from orchestrator.head.hosts.wheels import LIST, Wheels
from orchestrator.head.links.conversation import OrderRefused
from orchestrator.host.agent import probe
from orchestrator.protocol.orders.hosts import EnvironmentState
from orchestrator.spec.setup import Environment

MODULES = (
    "pip",
    "html",
    "numpy",
    "random",
    "json",
    "click",
    "tensorflow",
    "tensorboard",
    "sitecustomize",
    "absl",
)

HOST: EnvironmentState = {
    "state": "absent",
    "python": f"{sys.version_info[0]}.{sys.version_info[1]}.0",
    "by": "pip",
    "machine": "x86_64",
    "libc": "glibc-2.36",
    "line": "",
    "missing": [],
}


PATHS = ("", os.pathsep, ".", "HERE")
SLOW = pytest.mark.parametrize(
    "ran",
    [pytest.param(path, marks=[] if path == os.pathsep else pytest.mark.long) for path in PATHS],
    indirect=True,
)
"""What takes seconds runs with one of them: the tests of coordinator and probe have them all."""


@pytest.fixture(params=PATHS)
def ran(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a directory with code of others. Return the file that it writes when it is run.

    The parameter is the PYTHONPATH: an empty entry of it is the current directory too.
    """
    here, marker = tmp_path / "project", tmp_path / "ran"
    here.mkdir()
    for name in MODULES:
        (here / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r})\nraise SystemExit(0)\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(here) if request.param == "HERE" else request.param)
    return marker


@SLOW
@pytest.mark.fault(102)
def test_row_102_tensorboard_runs_nothing_of_the_current_directory(ran: Path) -> None:
    with tensorboard._serving([*tensorboard._tensorboard(), "--version_tb"]) as served:
        assert served.wait(120) == 0
    assert not ran.exists()
    # The directory is one from which code would run.
    subprocess.run([sys.executable, "-m", "tensorboard.main", "--version_tb"], check=False)
    assert ran.exists()


@SLOW
@pytest.mark.fault(102)
def test_row_102_neither_does_the_collection_of_wheels_and_what_is_not_whole_is_none(
    ran: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    with ZipFile(index / "six-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("six.py", "")
        wheel.writestr("six-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: six\nVersion: 1.0\n")
        wheel.writestr(
            "six-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("six-1.0.dist-info/RECORD", "")
    wanted = tmp_path / "requirements.txt"
    wanted.write_text(f"--no-index\n--find-links {index}\nsix\n")
    said: list[str] = []
    collected = Wheels(
        Environment(str(wanted), "six", "", None, offline=True), str(tmp_path / "wheels"), said.append
    )
    (place,) = {Path(path).parent for path, _ in collected.fitting(HOST).values()}
    assert not ran.exists()
    assert json.loads((place / LIST).read_text()).keys() == {"six-1.0-py3-none-any.whl"}
    assert [*collected.fitting(HOST)] == ["six-1.0-py3-none-any.whl"]
    assert len(said) == 2
    for spoil in (
        lambda: (place / "six-1.0-py3-none-any.whl").unlink(),
        lambda: (place / LIST).unlink(),
        lambda: (place / "six-1.0-py3-none-any.whl").write_bytes(b"cut off"),
    ):
        spoil()
        before = len(said)
        assert collected.fitting(HOST).keys() == {"six-1.0-py3-none-any.whl"}
        assert len(said) > before, "it was collected again"


@pytest.mark.fault(102)
def test_row_102_nor_the_coordinator_that_a_command_starts(ran: Path) -> None:
    environ = process.environ_without_here(os.environ)
    helped = subprocess.run(
        [*coordinator_command(), "--help"], env=environ, capture_output=True, text=True, check=False
    )
    assert (helped.returncode, "Usage" in helped.stdout) == (0, True)
    assert not ran.exists()


@pytest.mark.fault(102)
def test_row_102_nor_the_probe_that_imports_tensorflow(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probe,
        "_IMPORT",
        probe._IMPORT.replace("import tensorflow\n", "import html, random\n").split("print")[0],
    )
    of_login = os.environ["PYTHONPATH"] == os.getcwd()  # a login's own PYTHONPATH is the task's too
    assert (probe.imported({"env": {}, "within_s": 60.0})["why"] is None) is not of_login
    assert ran.exists() is of_login


def test_a_pip_that_brings_nothing_has_collected_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.head.hosts import wheels

    (tmp_path / "empty.py").write_text("")
    monkeypatch.setattr(wheels, "_pip", lambda: [sys.executable, "-I", str(tmp_path / "empty.py")])
    collected = Wheels(Environment("r.txt", "six", "", None, offline=True), str(tmp_path / "wheels"), print)
    for _ in range(2):
        with pytest.raises(OrderRefused, match="no wheels for x86_64"):
            collected.fitting(HOST)
