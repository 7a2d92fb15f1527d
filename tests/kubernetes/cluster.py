"""A cluster for tests: a directory with objects, a controller in this process, and pods that are PID namespaces.

The controller does what those of Kubernetes do for a StatefulSet: it makes pods by their names, starts a container
again that has ended, ends pods whose set is deleted with SIGTERM and a grace, and makes a deleted pod anew under its
name. A container is the keeper as process 1 of a PID namespace, with a host name of its own; what would be mounted at
/orch is a directory, and words that begin with /orch/ mean that.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.processes import freeze
from tests.kubernetes.kubectl import inside, objects, path_of, put

_LOOK_S = 0.03
KUBECTL = Path(__file__).parent / "kubectl.py"


def need_namespaces() -> None:
    """Skip where a pod cannot be a PID namespace."""
    if os.geteuid() != 0:
        pytest.skip("PID namespaces need root")
    for program in ("unshare", "nsenter"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")


class Cluster:
    """A cluster with one namespace `lab`, and kubectl for it."""

    def __init__(self) -> None:
        # Sockets lie below it, whose paths must be short.
        directory = self.top = Path(tempfile.mkdtemp(prefix="k8s-", dir="/tmp"))
        for name in ("objects", "execs", "pods", "bin"):
            (directory / name).mkdir(parents=True)
        self._settings: dict[str, Any] = {"contexts": ["lab", "other"], "current": "lab", "namespace": "lab"}
        self.set()
        tool = directory / "bin" / "kubectl"
        tool.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {KUBECTL} {directory} "$@"\n')
        tool.chmod(0o755)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        """By the UID of a pod, its container."""
        self._kill_at: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._control, daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        """PATH with this cluster's kubectl before any other."""
        return f"{self.top / 'bin'}:{os.environ['PATH']}"

    def set(self, **settings: Any) -> None:
        """Change how the cluster is: `forbidden`, `down`, `unschedulable`, `image`, `quota`, `contexts`, `current`."""
        self._settings |= settings
        new = self.top / "settings.new"
        new.write_text(json.dumps(self._settings))
        new.rename(self.top / "settings.json")

    def calls(self) -> list[str]:
        """Return what kubectl was asked for, oldest first."""
        path = self.top / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """Return all objects of a kind."""
        return objects(self.top, kind)

    def names(self) -> list[str]:
        """Return what is in the cluster, events and pods apart."""
        kinds = ("ConfigMap", "PersistentVolumeClaim", "Service", "StatefulSet")
        return [f"{kind}/{one['metadata']['name']}" for kind in kinds for one in self.objects(kind)]

    def pod(self, name: str) -> dict[str, Any]:
        """Return a pod."""
        found: dict[str, Any] = json.loads(path_of(self.top, "Pod", name).read_text())
        return found

    def keeper(self, name: str) -> int:
        """Return the pid, outside, of the first process of a pod."""
        return int(self.pod(name)["enter"][2])

    def lives(self, name: str, pid: int) -> bool:
        """Return whether a process lives in a pod, by the pid that it knows itself by."""
        words = [*self.pod(name)["enter"], "test", "-e", f"/proc/{pid}"]
        return subprocess.run(words, check=False).returncode == 0

    def delete_pod(self, name: str, *, grace_s: float | None = None) -> None:
        """Delete a pod, as `kubectl delete pod` and a drained node do."""
        self._end(self.pod(name), grace_s)

    def kill_pod(self, name: str) -> None:
        """End a pod without a warning, and let another one be made: its node is gone, say."""
        self._end(self.pod(name), 0.0)

    def cut(self) -> None:
        """Let no byte pass on any channel, once this has returned."""
        for client in self._execs():
            with contextlib.suppress(ProcessLookupError):
                freeze(client.pid)

    def mend(self) -> None:
        """Let them pass again."""
        for client in self._execs():
            with contextlib.suppress(psutil.NoSuchProcess):
                client.resume()

    def _execs(self) -> Iterator[psutil.Process]:
        """Yield the kubectls of this cluster that run `exec`. A pid can be another's since one ended."""
        for path in (self.top / "execs").iterdir():
            with contextlib.suppress(psutil.NoSuchProcess):
                client = psutil.Process(int(path.name))
                if str(self.top) in client.cmdline():
                    yield client

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, as a person with kubectl would."""
        path_of(self.top, kind, name).unlink()

    def close(self) -> None:
        """End all pods."""
        self.mend()
        self._stop.set()
        self._thread.join()
        for child in self._running.values():
            _end_child(child)
        shutil.rmtree(self.top, ignore_errors=True)

    # -- the controller --------------------------------------------------------------------------------------

    def _control(self) -> None:
        while not self._stop.wait(_LOOK_S):
            sets = self.objects("StatefulSet")
            pods = {pod["metadata"]["name"]: pod for pod in self.objects("Pod")}
            for found in sets:
                self._make_pods(found, pods)
            owners = {found["metadata"]["uid"] for found in sets}
            for pod in pods.values():
                self._see_to(pod, owned=pod["owner"] in owners)

    def _make_pods(self, found: dict[str, Any], pods: dict[str, dict[str, Any]]) -> None:
        name = found["metadata"]["name"]
        start = found["spec"].get("ordinals", {}).get("start", 0)
        for index in range(start, start + found["spec"]["replicas"]):
            if f"{name}-{index}" in pods:
                if pods[f"{name}-{index}"]["owner"] != found["metadata"]["uid"]:
                    return  # "already exists": the real controller tries no other pod then, and says nothing
                continue
            quota = self._settings.get("quota")
            if quota:
                self._event(found, f"create Pod {name}-{index} in StatefulSet {name} failed error: {quota}")
                continue
            template = found["spec"]["template"]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{index}",
                    "uid": str(uuid.uuid4()),
                    "labels": template["metadata"]["labels"],
                },
                "spec": template["spec"],
                "owner": found["metadata"]["uid"],
                "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
            }
            put(self.top, pod)

    def _event(self, about: dict[str, Any], message: str) -> None:
        name = about["metadata"]["name"]
        event = {"kind": "Event", "type": "Warning", "reason": "FailedCreate", "message": message}
        put(self.top, {**event, "metadata": {"name": f"{name}.1"}, "lastTimestamp": "2026-01-01T00:00:00Z"})

    def _see_to(self, pod: dict[str, Any], *, owned: bool) -> None:
        uid = pod["metadata"]["uid"]
        child = self._running.get(uid)
        if pod["owner"] == "a node that is gone":
            return
        if not owned and "deletionTimestamp" not in pod["metadata"]:
            self._end(pod, None)
        elif "deletionTimestamp" in pod["metadata"]:
            if child is None or child.poll() is not None:
                path_of(self.top, "Pod", pod["metadata"]["name"]).unlink(missing_ok=True)
                self._running.pop(uid, None)
            elif time.monotonic() > self._kill_at.get(uid, 0.0):
                _end_child(child)
        elif child is None or child.poll() is not None:
            self._start(pod)

    def _end(self, pod: dict[str, Any], grace_s: float | None) -> None:
        uid = pod["metadata"]["uid"]
        grace = pod["spec"]["terminationGracePeriodSeconds"] if grace_s is None else grace_s
        self._kill_at[uid] = time.monotonic() + grace
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        put(self.top, pod)
        if uid in self._running and grace:
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(int(pod["enter"][2]), signal.SIGTERM)

    def _start(self, pod: dict[str, Any]) -> None:
        """Start the container, or say why it is not started."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        waits = self._settings.get("image")
        unschedulable = self._settings.get("unschedulable", {}).get(name)
        status: dict[str, Any] = {"phase": "Pending"}
        pod.pop("enter", None)
        if unschedulable:
            why = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": unschedulable,
            }
            status["conditions"] = [why]
        elif waits:
            image = pod["spec"]["containers"][0]["image"]
            status["containerStatuses"] = [{"name": "task", "image": image, "state": {"waiting": waits}}]
        else:
            started = self._start_container(pod, self.top / "pods" / uid)
            self._running[uid] = started
            status = {"phase": "Running"}
            status["containerStatuses"] = [{"name": "task", "state": {"running": {"startedAt": "now"}}}]
        if pod["status"] != status or "enter" in pod:
            put(self.top, {**pod, "status": status})

    def _start_container(self, pod: dict[str, Any], root: Path) -> subprocess.Popen[bytes]:
        container = pod["spec"]["containers"][0]
        bundle = root / "orch" / "bundle"
        if not bundle.exists():
            for directory in (bundle, root / "orch" / "host", root / "orch" / "tmp"):
                directory.mkdir(parents=True)
            [found] = self.objects("ConfigMap")
            (bundle / "orch.pyz").write_bytes(base64.b64decode(found["binaryData"]["orch.pyz"]))
        env = {"PATH": os.environ["PATH"], "HOME": str(root)}
        for entry in container["env"]:
            value = entry.get("value", pod["metadata"]["uid"])
            env[entry["name"]] = inside(str(root), value)
        name = pod["metadata"]["name"]
        hosts = root / "hosts"
        service = pod["spec"].get("subdomain") or name.rpartition("-")[0]
        hosts.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"127.0.1.{i + 1} {service}-{i}.{service} {service}-{i}\n" for i in range(20))
        )
        command = [inside(str(root), word) for word in container["command"]]
        script = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'
        unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child=KILL"]
        with (self.top / "pods" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*unshare, "sh", "-c", script, name, str(hosts), *command],
                env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        if first := _child_of(child):
            pod["enter"] = ["nsenter", "--target", first, "--pid", "--mount", "--uts", "--"]
        pod["root"], pod["env"] = str(root), env
        return child


def _child_of(process: subprocess.Popen[bytes]) -> str:
    """Wait for the first child of a process. Return its pid; empty where the process ends without one."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        if found := path.read_text().split():
            return found[0]
        time.sleep(0.005)
    return ""


def _end_child(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait(10)
