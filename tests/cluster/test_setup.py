"""`setup:` over real sshds: a small package from an index and as pushed wheels, killed in the middle, and repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.cluster.cluster import Cluster, lab_of, wait_until

pytestmark = pytest.mark.lab

SCRIPT = "import sys, orch_tiny, orch_tiny_base\nprint('prefix', sys.prefix, orch_tiny.NAME)\n"


def wheel(directory: Path, name: str, *needs: str) -> None:
    """Write a wheel as pip builds one, of a package with one constant."""
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    files = {
        f"{name}.py": f"NAME = {name!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


class Index:
    """A directory of wheels over HTTP. While it is shut, a wheel that is asked for does not come."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opened = threading.Event()
        self.asked: list[str] = []
        index = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(directory))

            def do_GET(self) -> None:
                index.asked.append(self.path)
                if self.path.endswith(".whl"):
                    index.opened.wait(60)
                super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def wheels(self) -> int:
        return sum(path.endswith(".whl") for path in self.asked)

    def close(self) -> None:
        self.opened.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    directory = tmp_path / "index"
    directory.mkdir()
    wheel(directory, "orch_tiny_base")
    wheel(directory, "orch_tiny", "orch_tiny_base")
    made = Index(directory)
    yield made
    made.close()


def spec(cluster: Cluster, requirements: str, run: Mapping[str, Any] | None = None, **setup: Any) -> str:
    """Write a spec with `setup:` for two hosts, and its requirements."""
    workdir = cluster.directory / "code"
    workdir.mkdir(exist_ok=True)
    (workdir / "train.py").write_text(SCRIPT)
    (workdir / "requirements.txt").write_text(requirements)
    path = Path(
        cluster.spec(
            script="train.py", workdir=str(workdir), python="python3", checkpoint=False, runtime=False
        )
    )
    document = yaml.safe_load(path.read_text())
    document["run"].update(run or {})
    document["setup"] = {"requirements": "code/requirements.txt", **setup}
    path.write_text(yaml.safe_dump(document))
    return str(path)


def whole(cluster: Cluster) -> list[Path]:
    """Return the environments of the first two hosts that are taken for whole."""
    places = [host.home / ".local/share/orch/environments" for host in lab_of(cluster).hosts[:2]]
    return [path for place in places if place.is_dir() for path in place.iterdir() if path.is_symlink()]


def makers(cluster: Cluster) -> list[psutil.Process]:
    """Return what makes environments on the hosts of the lab: our process on each, and its pip."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(lab_of(cluster).dir) in words and (" environment" in words or " pip " in words):
            found.append(process)
    return found


def begin(cluster: Cluster, file: str, index: Index) -> subprocess.Popen[str]:
    """Start a setup, and return once each host is in the middle of it."""
    before = index.wheels
    command = [sys.executable, "-m", "orchestrator.cli.main", "setup", file, "--json"]
    started = subprocess.Popen(
        command, env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: index.wheels >= before + 2, "both hosts wait for a wheel")
    return started


def test_an_environment_is_made_once_and_one_that_was_killed_in_the_middle_is_not_there(
    cluster: Cluster, index: Index
) -> None:
    address = lab_of(cluster).head_address
    url = f"http://{address}:{index.port}/"
    file = spec(
        cluster, f"--no-index\n--find-links {url}\n--trusted-host {address}\norch_tiny==1.0  # small\n"
    )

    begun = begin(cluster, file, index)
    first = next(process for process in makers(cluster) if " pip " in " ".join(process.cmdline()))
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE, "its pip is killed")
    os.kill(begun.pid, signal.SIGKILL)
    begun.communicate()
    wait_until(lambda: makers(cluster) == [], "the other host has ended what nobody waits for")
    assert whole(cluster) == []
    never_made = cluster.orch("doctor", file)
    assert "setup.not-made" in never_made.stdout
    assert f"`orch setup {file}`" in never_made.stdout

    index.opened.set()
    made = json.loads(cluster.ok("setup", file, "--json"))["hosts"]
    assert [(host["state"], host["problem"]) for host in made] == [("made", None)] * 2
    links = whole(cluster)
    left = [path for link in links for path in link.parent.iterdir() if path.is_dir() and path.suffix]
    assert sorted(left) == sorted(link.resolve() for link in links), (
        "nothing is left of those that were killed"
    )

    asked = len(index.asked)
    assert cluster.ok("up", file, "--wait").startswith("t-")
    assert len(index.asked) == asked, "the same content is not installed again"
    said = cluster.ok("logs", "t")
    doors = [link.with_name(link.name.partition("-")[0]) for link in links]
    assert all(f"prefix {door}/hosts/{os.uname().nodename} orch_tiny" in said for door in doors)


def test_hosts_without_an_index_get_the_wheels_from_the_head(cluster: Cluster, index: Index) -> None:
    there = f"--no-index\n--find-links {index.directory}\n"
    before = set(whole(cluster))
    file = spec(cluster, there + "orch_tiny\n", offline=True)
    assert "Python" in cluster.ok("setup", file)
    assert [host["state"] for host in json.loads(cluster.ok("setup", file, "--json"))["hosts"]] == [
        "there"
    ] * 2
    made = set(whole(cluster)) - before
    assert len(made) == 2
    for link in made:
        inside = [str(link / "bin" / "python"), "-c", SCRIPT]
        assert "orch_tiny" in subprocess.run(inside, capture_output=True, text=True, check=True).stdout
    assert index.asked == []
    absent = cluster.orch("setup", spec(cluster, there + "orch_missing\n", offline=True))
    assert absent.returncode == 1
    assert "pip: No matching distribution found for orch_missing" in absent.stderr
    assert set(whole(cluster)) == made | before


def test_what_activate_makes_is_what_the_environment_is_made_with_and_what_tasks_have(
    cluster: Cluster, index: Index
) -> None:
    """The Python stands nowhere but in its PATH, and where the packages lie is in a variable of it alone."""
    module = cluster.directory / "module"
    (module / "bin").mkdir(parents=True)
    (module / "bin" / "python-of-module").symlink_to(sys.executable)
    sets = f"PATH={module}/bin:$PATH LOADED=tf/2 PIP_NO_INDEX=1 PIP_FIND_LINKS={index.directory}"
    (module / "load").write_text(f"export {sets} UV_NO_INDEX=1 UV_FIND_LINKS={index.directory}\n")
    run = {"activate": f". {module}/load", "python": "python-of-module"}
    file = spec(cluster, "orch_tiny==1.0\n", run)
    (cluster.directory / "code/train.py").write_text(
        SCRIPT + "import os\nprint('loaded', os.environ['LOADED'])\n"
    )
    before = set(whole(cluster))
    made = json.loads(cluster.ok("setup", file, "--json"))["hosts"]
    assert [(host["state"], host["problem"]) for host in made] == [("made", None)] * 2
    assert len(set(whole(cluster)) - before) == 2
    assert cluster.ok("up", file, "--wait").startswith("t-")
    said = cluster.ok("logs", "t")
    assert said.count("loaded tf/2") == 2
    names = {Path(host["python"]).parts[-3] for host in made}
    assert [said.count(f"/environments/{name}/hosts/{os.uname().nodename} orch_tiny") for name in names] == [
        2
    ]
