"""Runs inside of `pod_lab.sh`: plays one pod after the other, as /lab/plan.json asks, and writes /lab/seen.json.

Each entry of the plan: the file of the Pod, and after which line of its log it gets SIGTERM, if at all.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

PODMAN = [
    "podman",
    "--log-level=error",
    "--runtime",
    "runc",
    "--cgroup-manager=cgroupfs",
    "--storage-driver=vfs",
    "--events-backend=file",
]


def podman(*words: str) -> str:
    """Run podman, and return all that it printed."""
    done = subprocess.run([*PODMAN, *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def main() -> None:
    """Play them all."""
    seen = []
    with open("/lab/plan.json") as file:
        plan: list[dict[str, Any]] = json.load(file)
    for step in plan:
        seen.append(_play(step))
        with open("/lab/seen.json", "w") as file:
            json.dump(seen, file)


def _play(step: dict[str, Any]) -> dict[str, Any]:
    said = podman("kube", "play", step["file"])
    name = f"{step['pod']}-task"
    until_at, asked_at, log, code = time.monotonic() + 90, None, "", None
    while time.monotonic() < until_at:
        log = podman("logs", name)
        state, _, number = podman(
            "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name
        ).partition(" ")
        if state == "exited":
            code = int(number)
        if state not in ("running", "stopping"):
            break
        if asked_at is None and step.get("term_after") and step["term_after"] in log:
            asked_at = time.monotonic()
            subprocess.Popen([*PODMAN, "pod", "stop", "-t", str(step["grace_s"]), step["pod"]])
        time.sleep(0.3)
    took_s = None if asked_at is None else time.monotonic() - asked_at
    podman("pod", "rm", "-f", step["pod"])  # the claim stays, which `kube down` may remove
    return {"said": said, "log": log, "code": code, "took_s": took_s}


if __name__ == "__main__":
    main()
