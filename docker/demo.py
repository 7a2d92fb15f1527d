"""`make docker-demo`: train across three containers, and kill one of them meanwhile.

It builds and starts docker/compose.yaml, runs `orch up cluster_specs/docker.yaml --follow` on the head node, kills a
host once there is a checkpoint, and starts it again when orch has given it up. It succeeds only if the run has
SUCCEEDED after resuming from that checkpoint. Standard library only; needs docker with compose, and the network for the
first build.
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
"""By then the script has saved several times, every 20 steps."""
TRAIN_S = 600.0
"""Until that step; three imports of TensorFlow take a while on a busy machine."""
GIVEN_UP_S = 120.0
"""From the kill until orch waits for the host: the spec's lost_after, and the time in which the peers fail."""
FINISH_S = 900.0
"""From there until the end."""
POLL_EVERY_S = 0.5


class DemoFailed(Exception):
    """One sentence, and a hint."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Docker:
    """Docker, through its command line."""

    def check(self) -> None:
        """Raise DemoFailed unless Docker and compose can be used."""
        if shutil.which("docker") is None:
            raise DemoFailed(
                "docker is not installed on this machine",
                "install it with its compose plugin (Debian, Ubuntu: apt install docker.io docker-compose-v2); "
                "`make demo` trains without it",
            )
        if not self._answer("docker", "compose", "version").ok:
            raise DemoFailed(
                "docker has no `compose` command (version 2, a plugin)",
                "install the package docker-compose-v2 or docker-compose-plugin",
            )
        engine = self._answer("docker", "version", "--format", "{{.Server.Version}}")
        if not engine.ok:
            raise DemoFailed(
                f"the docker engine does not answer: {engine.why}",
                "start it (systemctl start docker), and check your permission (group docker, or DOCKER_HOST)",
            )

    def compose(self, *args: str) -> None:
        """Run a compose command with its output shown. Raises DemoFailed."""
        if subprocess.run(_command(args), stdin=subprocess.DEVNULL, check=False).returncode:
            shown = f"`docker compose {' '.join(args)}`"
            raise DemoFailed(
                f"{shown} failed; see its output above", f"run it by hand: {' '.join(_command(args))}"
            )

    def ask(self, *args: str) -> Answer:
        """Run a compose command, and return its output."""
        return self._answer(*_command(args))

    def spawn(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a compose command with its output shown."""
        return subprocess.Popen(_command(args), stdin=subprocess.DEVNULL)

    def _answer(self, *command: str) -> Answer:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return Answer(done.returncode, done.stdout, done.stderr)


class Answer:
    """The output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.ok = code == 0
        self.out = out
        lines = (err.strip() or out.strip()).splitlines()
        self.why = lines[-1] if lines else f"exit code {code}"


def _command(args: Sequence[str]) -> list[str]:
    return ["docker", "compose", "--file", str(COMPOSE_FILE), *args]


class Demo:
    """The steps of the demo, in their order."""

    def __init__(self, docker: Docker, victim: str) -> None:
        self._docker = docker
        self._victim = victim
        self._began = time.monotonic()
        self._following: subprocess.Popen[bytes] | None = None

    def tell(self, sentence: str) -> None:
        """Print one line of ours between those of docker and orch."""
        print(f"== {time.monotonic() - self._began:4.0f} s  {sentence}", flush=True)

    def build_and_start(self) -> None:
        """Build and start new containers, without checkpoints and keys of an earlier demo."""
        self.tell("building the images (the first time, TensorFlow is downloaded)")
        self._docker.compose("build")
        if self._docker.ask("ps", "--all", "--quiet").out.strip():
            self.tell("removing the containers and checkpoints of an earlier demo")
        self._docker.compose("down", "--volumes", "--remove-orphans")
        self.tell("starting a head node and three hosts; they generate their keys")
        self._docker.compose("up", "--detach", "--wait")

    def train(self) -> list[str]:
        """Run the training, and kill a host meanwhile. Return the summary."""
        self.tell(f"on the head node: orch up {SPEC} --follow")
        self._following = self._docker.spawn("exec", "-T", "head", "orch", "up", SPEC, "--follow")
        run = self._wait(f"step {KILL_AT_STEP}", TRAIN_S, lambda run: _step(run) >= KILL_AT_STEP)
        killed_at = _step(run)
        self.tell(f"step {killed_at}: killing {self._victim} (docker compose kill)")
        self._docker.compose("kill", self._victim)
        run = self._wait("orch to give up the host", GIVEN_UP_S, lambda run: run["phase"] == "BACKOFF")
        given_up = str(run["reason"])
        self.tell(f"orch says: {given_up}")
        self.tell(f"starting {self._victim} again")
        self._docker.compose("start", self._victim)
        self._wait_for_the_end(self._following)
        return [f"{self._victim} was killed at step {killed_at}", f"orch: {given_up}", *self._outcome()]

    def _wait(
        self, what: str, timeout_s: float, reached: Callable[[Mapping[str, Any]], bool]
    ) -> Mapping[str, Any]:
        """Poll the run until the condition holds. Raises DemoFailed where it ends first, or too late."""
        deadline = time.monotonic() + timeout_s
        run: Mapping[str, Any] | None = None
        while time.monotonic() < deadline:
            run = self._status() or run
            if run is not None and reached(run):
                return run
            if self._following is not None and self._following.poll() is not None:
                raise DemoFailed(f"the run ended while the demo waited for {what}: {_brief(run)}")
            time.sleep(POLL_EVERY_S)
        raise DemoFailed(f"waited {timeout_s:.0f} s for {what}: {_brief(run)}")

    def _status(self) -> Mapping[str, Any] | None:
        answer = self._docker.ask("exec", "-T", "head", "orch", "status", RUN, "--json")
        runs = json.loads(answer.out)["runs"] if answer.ok else []
        return runs[0] if runs else None

    def _wait_for_the_end(self, following: subprocess.Popen[bytes]) -> None:
        try:
            code = following.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed(
                f"the run has not ended after {FINISH_S:.0f} s: {_brief(self._status())}"
            ) from None
        if code:
            raise DemoFailed(f"orch up ended with exit code {code}: {_brief(self._status())}")

    def _outcome(self) -> list[str]:
        """Return the summary. Raises DemoFailed unless the run has SUCCEEDED and resumed from a checkpoint."""
        run = self._status()
        if run is None or run["phase"] != "SUCCEEDED":
            raise DemoFailed(f"the run did not succeed: {_brief(run)}")
        answer = self._docker.ask("exec", "-T", "head", "orch", "events", RUN, "--json")
        events = [json.loads(line) for line in answer.out.splitlines()]
        resumed = [str(event["message"]) for event in events if event["kind"] == "resumed"]
        if not run["restarts"] or not resumed:
            raise DemoFailed("the run succeeded without resuming from a checkpoint")
        return [*resumed, f"{run['phase']} in generation {run['generation']}: {run['reason']}"]

    def finish(self, *, keep: bool) -> None:
        """Remove everything but the images; with `keep`, nothing."""
        if self._following is not None and self._following.poll() is None:
            self._following.terminate()
            self._following.wait()
        if keep:
            self.tell("keeping the containers. To look around, and to remove them:")
            print(f"  {' '.join(_command(['exec', 'head', 'bash']))}")
            print(f"  {' '.join(_command(['down', '--volumes']))}", flush=True)
            return
        self.tell("removing the containers, the network and the volumes; the images stay")
        try:
            self._docker.compose("down", "--volumes", "--remove-orphans", "--timeout", "3")
        except DemoFailed as error:  # must not hide the result of the demo
            print(f"warning: {error}; {error.hint}", file=sys.stderr)


def _step(run: Mapping[str, Any]) -> int:
    return int(run["global_step"] or 0)


def _brief(run: Mapping[str, Any] | None) -> str:
    return f"{run['phase']}: {run['reason']}" if run else "the coordinator has no run"


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 if the run resumed and succeeded, 1 if not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        description="Train across three containers, and kill one of them meanwhile."
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
