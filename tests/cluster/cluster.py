"""A separate coordinator over the lab or this machine, which a test uses through the command line as a person does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from orchestrator.client import asking
from orchestrator.client.choice import is_active, to_read
from orchestrator.core.errors import OrchestratorError
from orchestrator.head.api.client import Client
from tests import warm
from tests.cluster.lab import Lab
from tests.cluster.processes import is_alive
from tests.lean import python_for
from tests.patience import comes, patient

WORKDIR = Path(__file__).parent / "workdir"


class Cluster:
    """`orch` with its own state, socket and host directory. `close` ends everything, and checks that it did."""

    def __init__(self, directory: Path, lab: Lab | None = None) -> None:
        self.directory = directory
        self.lab = lab
        self._short = tempfile.TemporaryDirectory(prefix="orch-t-")  # a socket's path must be short
        self.env = {
            **os.environ,
            "ORCH_STATE_DIR": str(directory / "state"),
            "ORCH_RUNTIME_DIR": self._short.name + "/run",
            "ORCH_HOST_DIR": str(directory / "host"),
            "NO_COLOR": "1",
        }
        self._client = Client(self._short.name + "/run/coordinator.sock", timeout_s=10.0)
        self.specs = 0
        self.checks = False
        """Whether `up` looks first whether the hosts reach each other: half a second, with tests of its own."""

    # -- what a person does --------------------------------------------------------------------------------

    def orch(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        more = ["--no-check"] if arguments[0] == "up" and not self.checks else []
        return warm.command(*arguments, *more, env=self.env, timeout=patient(timeout))

    def ok(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run a command that must succeed, and return its stdout."""
        if arguments[0] == "logs":
            comes(self._has_the_logs, 12)
        done = self.orch(*arguments, timeout=timeout)
        assert done.returncode == 0, (
            f"orch {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout

    def _has_the_logs(self) -> bool:
        """Return whether no host of an ended run is still asked for the rest of its logs."""
        try:
            active = any(map(is_active, self._client.get("/v1/status")["runs"]))
            return active or not any(self._client.get("/v1/coordinator")["hosts"].values())
        except OrchestratorError:
            return True

    def spec(
        self,
        *args: str,
        tasks: int = 2,
        checkpoint: bool | dict[str, Any] = True,
        name: str = "t",
        hosts: list[dict[str, Any]] | None = None,
        types: Mapping[str, int | dict[str, int]] | None = None,
        **run: Any,
    ) -> str:
        """Write a spec for the fake trainer (or `script=`, `module=`), with a task per lab host, or all here."""
        more = checkpoint if isinstance(checkpoint, dict) else {}
        document: dict[str, Any] = {"version": 1, "name": name, "hosts": hosts or self.hosts(tasks)}
        if self.lab is not None:
            document["ssh"] = {
                "user": "root",
                "identity_file": str(self.lab.identity_file),
                "known_hosts": str(self.lab.known_hosts),
            }
        document["run"] = {
            "strategy": "multi_worker_mirrored",
            **({} if "module" in run else {"script": "fake_trainer.py"}),
            "args": list(args),
            "workdir": str(WORKDIR),
            "python": python_for(Path(run.get("workdir", WORKDIR), run.get("script", "fake_trainer.py"))),
            "tasks": {
                type_: asked if isinstance(asked, dict) else {"replicas": asked}
                for type_, asked in (types or {"worker": tasks}).items()
            },
            "timing": {
                "heartbeat": "0.5s",
                "unreachable_after": "2s",
                "lost_after": "8s",
                "kill_grace": "5s",
            },
            **({"checkpoint": {"dir": str(self.directory / "ckpt"), **more}} if checkpoint else {}),
            **run,
            # Other tests than those of the standby count generations and processes.
            "restart": {"standby": "off", **run.get("restart", {})},
        }
        self.specs += 1
        path = self.directory / f"cluster{self.specs}.yaml"
        path.write_text(yaml.safe_dump(document))
        return str(path)

    def importing_quickly(self) -> dict[str, str]:
        """Return an `env` in which what `orch doctor` imports as TensorFlow is a file: the real one takes CPU."""
        (self.directory / "quick").mkdir()
        text = "class config:\n    list_physical_devices = staticmethod(lambda kind: [])\n"
        (self.directory / "quick" / "tensorflow.py").write_text(text)
        return {"PYTHONPATH": str(self.directory / "quick")}

    def hosts(self, tasks: int) -> list[dict[str, Any]]:
        if self.lab is None:
            return [{"name": "here", "transport": "local", "slots": tasks}]
        return [{"name": h.name, "address": h.address, "port": h.port} for h in self.lab.hosts[:tasks]]

    # -- what it says --------------------------------------------------------------------------------------

    def run(self, name: str = "t") -> dict[str, Any]:
        """Return the newest run of that name, as `orch status --json` shows it; by that command if need be."""
        return self.shown(name) or dict(json.loads(self.ok("status", name, "--json"))["runs"][-1])

    def shown(self, name: str = "t") -> dict[str, Any] | None:
        """Return the same without a command; None while no coordinator answers."""
        try:
            document = self._client.get("/v1/status", {"name": name})
        except OrchestratorError:
            return None
        return dict(document["runs"][-1]) if document["runs"] else None

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Ask the coordinator's API."""
        return self._client.get(path, dict(query))

    def events(self, name: str = "t", kind: str | None = None) -> list[dict[str, Any]]:
        """Return what `orch events --json` prints; by that command only while no coordinator answers."""
        try:
            run = to_read(self._client, name)
            by_id = name == run["run_id"]
            found = list(asking.events(self._client, run, after=0, follow=False, by_id=by_id))
        except OrchestratorError:
            found = [json.loads(line) for line in self.ok("events", name, "--json").splitlines()]
        return [event for event in found if kind in (None, event["kind"])]

    def wait(self, condition: Callable[[dict[str, Any]], bool], *, timeout: float = 40.0) -> dict[str, Any]:
        """Wait for a condition. It asks the coordinator directly: a command would take too much CPU."""

        def found() -> dict[str, Any] | None:
            run = self.shown()
            return run if run is not None and condition(run) else None

        run = comes(found, timeout)
        assert run, f"not in {timeout} s: {json.dumps(self.run(), indent=1)}\n{self.ok('events', 't')}"
        return run

    def wait_phase(self, *phases: str, timeout: float = 40.0) -> dict[str, Any]:
        return self.wait(lambda run: run["phase"] in phases, timeout=timeout)

    def wait_step(self, step: int, *, timeout: float = 40.0) -> dict[str, Any]:
        return self.wait(lambda run: (run["global_step"] or 0) >= step, timeout=timeout)

    def task(self, name: str) -> dict[str, Any]:
        return next(dict(task) for task in self.run()["tasks"] if task["task"] == name)

    @property
    def coordinator_pid(self) -> int:
        return self.coordinator() or int(json.loads(self.ok("coordinator", "status", "--json"))["pid"])

    def coordinator(self) -> int | None:
        """Return the coordinator's pid without a command; None while no coordinator answers."""
        try:
            return int(self._client.get("/v1/coordinator")["pid"])
        except OrchestratorError:
            return None

    def kill_coordinator(self) -> None:
        """Kill the coordinator with SIGKILL, and wait for its end."""
        pid = self.coordinator_pid
        os.kill(pid, signal.SIGKILL)
        comes(lambda: not is_alive(pid), 5)

    def try_kill(self, name: str = "t") -> bool:
        """Ask the coordinator for the end of a run, without a command; whether that was acknowledged."""
        try:
            self._client.post(f"/v1/runs/{name}/kill", {"force": True})
        except OrchestratorError:
            return False
        return True

    def marked(self) -> list[int]:
        """Return every process of every run of this cluster, without asking orch."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes() if entry.isdecimal() else b""
            except OSError:
                continue
            hosts = [str(self.directory / "host")] + (
                [h.host_dir for h in self.lab.hosts] if self.lab else []
            )
            if b"ORCH_RUN=" in environ and any(f"ORCH_HOST_DIR={h}\0".encode() in environ for h in hosts):
                found.append(int(entry))
        return found

    def _end(self) -> bool:
        """Kill all runs and stop the coordinator, without two more starts of Python; whether it came to that."""
        try:
            pid = int(self._client.get("/v1/coordinator")["pid"])
            for run in filter(is_active, self._client.get("/v1/status")["runs"]):
                self._client.post(f"/v1/runs/{run['run_id']}/kill", {"force": True})
            comes(lambda: not any(map(is_active, self._client.get("/v1/status")["runs"])), 60)
            self._client.post("/v1/stop")
        except OrchestratorError:
            return False
        return comes(lambda: not is_alive(pid), 20)

    def close(self) -> None:
        if not self._end():
            self.orch("kill", "--all", "--force")
            self.orch("coordinator", "stop")
        left = {pid: psutil.Process(pid).as_dict(["cmdline", "status", "ppid"]) for pid in self.marked()}
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for host in self.lab.hosts if self.lab else []:
            shutil.rmtree(host.host_dir / "runs", ignore_errors=True)  # the next test is another head
        self._short.cleanup()
        assert not left, f"left behind: {left}"


def lab_of(cluster: Cluster) -> Lab:
    """Return the hosts of a cluster that is reached over SSH."""
    assert cluster.lab is not None
    return cluster.lab


def steps_logged(cluster: Cluster, task: str) -> list[int]:
    """Return the steps that a fake trainer with `--talk` has named, as `orch logs` shows them."""
    return [
        int(step)
        for step in re.findall(rf"{task} at step (\d+)$", cluster.ok("logs", "t", task), re.MULTILINE)
    ]


def digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a directory, by its path."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def wait_until(condition: Callable[[], bool], what: str, *, timeout: float = 60.0) -> None:
    """Wait for a condition that no coordinator can report."""
    assert comes(condition, timeout, 0.05), f"not in {timeout:g} s: {what}"
