"""`make docker-demo`: trains across three containers that act as machines, and cuts the power of one on the way.

Builds and starts docker/compose.yaml, has the head run `orch up cluster_specs/docker.yaml --follow`, kills a host
once there is a checkpoint, starts it again when orch has given it up, and ends well only where the run SUCCEEDED,
resumed from that checkpoint. Standard library only; needs docker with compose, and the network for the first build.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

COMPOSE_FILE = Path(__file__).resolve().parent / "compose.yaml"
SPEC = "cluster_specs/docker.yaml"
RUN = "digits-docker"
HOSTS = ("host-a", "host-b", "host-c")

KILL_AT_STEP = 100
"""By then the script has saved several times: it does so every 20 steps."""
TRAIN_S = 600.0
"""To that step; importing TensorFlow three times on a busy machine takes a while."""
GIVEN_UP_S = 120.0
"""From the kill to orch waiting for the host: the spec's lost_after, and what the peers need to fail."""
FINISH_S = 900.0
"""From there to the end."""
LOOK_EVERY_S = 0.5


class DemoFailed(Exception):
    """One sentence, and the way out."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Docker:
    """The engine, through its command line."""

    def check(self) -> None:
        """DemoFailed unless there is an engine that answers, and compose."""
        if shutil.which("docker") is None:
            raise DemoFailed(
                "docker is not installed on this machine",
                "install it with its compose plugin (Debian, Ubuntu: apt install docker.io docker-compose-v2); "
                "`make demo` trains without it",
            )
        if not self._answer("docker", "compose", "version").ok:
            raise DemoFailed(
                "docker has no `compose` command here (version 2, a plugin)",
                "install the package docker-compose-v2 or docker-compose-plugin",
            )
        engine = self._answer("docker", "version", "--format", "{{.Server.Version}}")
        if not engine.ok:
            raise DemoFailed(
                f"no docker engine answers: {engine.why}",
                "start it (systemctl start docker), and see that you may use it (group docker, or DOCKER_HOST)",
            )

    def compose(self, *args: str) -> None:
        """Run to the end, its output shown. DemoFailed where it fails."""
        if subprocess.run(_command(args), stdin=subprocess.DEVNULL, check=False).returncode:
            shown = f"`docker compose {' '.join(args)}`"
            raise DemoFailed(f"{shown} failed; what it said is above", f"by hand: {' '.join(_command(args))}")

    def ask(self, *args: str) -> Answer:
        """Run to the end, its output taken."""
        return self._answer(*_command(args))

    def spawn(self, *args: str) -> subprocess.Popen[bytes]:
        """Start, its output shown."""
        return subprocess.Popen(_command(args), stdin=subprocess.DEVNULL)

    def _answer(self, *command: str) -> Answer:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return Answer(done.returncode, done.stdout, done.stderr)


class Answer:
    """What a command said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.ok = code == 0
        self.out = out
        lines = (err.strip() or out.strip()).splitlines()
        self.why = lines[-1] if lines else f"exit code {code}"


def _command(args: Sequence[str]) -> list[str]:
    return ["docker", "compose", "--file", str(COMPOSE_FILE), *args]


class Demo:
    """The story, in the order in which it is told."""

    def __init__(self, docker: Docker, victim: str) -> None:
        self._docker = docker
        self._victim = victim
        self._began = time.monotonic()
        self._following: subprocess.Popen[bytes] | None = None

    def tell(self, sentence: str) -> None:
        """One line of ours between those of docker and orch."""
        print(f"== {time.monotonic() - self._began:4.0f} s  {sentence}", flush=True)

    def build_and_start(self) -> None:
        """Fresh machines: no checkpoint and no key of an earlier time."""
        self.tell("building the images (the first time, TensorFlow is downloaded)")
        self._docker.compose("build")
        if self._docker.ask("ps", "--all", "--quiet").out.strip():
            self.tell("removing the containers and checkpoints of an earlier demo")
        self._docker.compose("down", "--volumes", "--remove-orphans")
        self.tell("starting a head and three hosts; they make their keys now")
        self._docker.compose("up", "--detach", "--wait")

    def train(self) -> list[str]:
        """Train, kill a host on the way, and return the sentences that sum it up."""
        self.tell(f"on the head: orch up {SPEC} --follow")
        self._following = self._docker.spawn("exec", "-T", "head", "orch", "up", SPEC, "--follow")
        run = self._wait(f"step {KILL_AT_STEP}", TRAIN_S, lambda run: _step(run) >= KILL_AT_STEP)
        killed_at = _step(run)
        self.tell(f"step {killed_at}: the power of {self._victim} is cut (docker compose kill)")
        self._docker.compose("kill", self._victim)
        run = self._wait("orch to give the host up", GIVEN_UP_S, lambda run: run["phase"] == "BACKOFF")
        given_up = str(run["reason"])
        self.tell(f"orch says: {given_up}")
        self.tell(f"{self._victim} is switched on again")
        self._docker.compose("start", self._victim)
        self._wait_for_the_end(self._following)
        return [f"{self._victim} was killed at step {killed_at}", f"orch: {given_up}", *self._outcome()]

    def _wait(
        self, what: str, timeout_s: float, reached: Callable[[Mapping[str, Any]], bool]
    ) -> Mapping[str, Any]:
        """Look at the run until it is there. DemoFailed where it ends first, or time runs out."""
        deadline = time.monotonic() + timeout_s
        run: Mapping[str, Any] | None = None
        while time.monotonic() < deadline:
            run = self._status() or run
            if run is not None and reached(run):
                return run
            if self._following is not None and self._following.poll() is not None:
                raise DemoFailed(f"the run ended while the demo waited for {what}: {_brief(run)}")
            time.sleep(LOOK_EVERY_S)
        raise DemoFailed(f"{timeout_s:.0f} s have passed without {what}: {_brief(run)}")

    def _status(self) -> Mapping[str, Any] | None:
        answer = self._docker.ask("exec", "-T", "head", "orch", "status", RUN, "--json")
        runs = json.loads(answer.out)["runs"] if answer.ok else []
        return runs[0] if runs else None

    def _wait_for_the_end(self, following: subprocess.Popen[bytes]) -> None:
        try:
            code = following.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"no end within {FINISH_S:.0f} s: {_brief(self._status())}") from None
        if code:
            raise DemoFailed(f"orch up ended with exit code {code}: {_brief(self._status())}")

    def _outcome(self) -> list[str]:
        """SUCCEEDED alone is not enough: it must have resumed, and not from the start."""
        run = self._status()
        if run is None or run["phase"] != "SUCCEEDED":
            raise DemoFailed(f"the run did not succeed: {_brief(run)}")
        answer = self._docker.ask("exec", "-T", "head", "orch", "events", RUN, "--json")
        events = [json.loads(line) for line in answer.out.splitlines()]
        resumed = [str(event["message"]) for event in events if event["kind"] == "resumed"]
        if not run["restarts"] or not resumed:
            raise DemoFailed("the run succeeded, and never resumed from a checkpoint")
        return [*resumed, f"{run['phase']} in generation {run['generation']}: {run['reason']}"]

    def finish(self, *, keep: bool) -> None:
        """Nothing of the demo is left behind but the images; with `keep`, everything is."""
        if self._following is not None and self._following.poll() is None:
            self._following.terminate()
            self._following.wait()
        if keep:
            self.tell("the containers are kept. To look around, and to remove them:")
            print(f"  {' '.join(_command(['exec', 'head', 'bash']))}")
            print(f"  {' '.join(_command(['down', '--volumes']))}", flush=True)
            return
        self.tell("removing the containers, the network and the volumes; the images stay")
        try:
            self._docker.compose("down", "--volumes", "--remove-orphans", "--timeout", "3")
        except DemoFailed as error:  # must not stand in front of how the demo went
            print(f"warning: {error}; {error.hint}", file=sys.stderr)


def _step(run: Mapping[str, Any]) -> int:
    return int(run["global_step"] or 0)


def _brief(run: Mapping[str, Any] | None) -> str:
    return f"{run['phase']}: {run['reason']}" if run else "the coordinator knows of no run"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0 if the run recovered and succeeded, 1 if not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        description="Trains across containers, one of which is killed on the way."
    )
    parser.add_argument("--keep", action="store_true", help="leave the containers running")
    parser.add_argument("--victim", choices=HOSTS, default="host-b", help="the host that is killed")
    options = parser.parse_args(argv)
    docker = Docker()
    demo = Demo(docker, options.victim)
    try:
        docker.check()
        try:
            demo.build_and_start()
            story = demo.train()
        finally:
            demo.finish(keep=options.keep)
    except DemoFailed as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"\nhint: {error.hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    demo.tell("what happened:")
    print("\n".join(f"  {line}" for line in story), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
