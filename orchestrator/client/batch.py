"""The batch step of a Slurm job: starts keepers on the nodes and the coordinator here, and follows the run to its end.

The script of `orch up --on slurm` starts it. If the coordinator dies, it starts another one; the tasks survive, since
they are children of the keepers. It tells the keepers what Slurm's signals mean, and the keepers tell the coordinator
that hosts leave. It tells the coordinator which hosts of an earlier start of the job are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from orchestrator.both import durable
from orchestrator.client.choice import hosts_of, is_active, runs_of
from orchestrator.client.environment import Environment
from orchestrator.client.killing import order
from orchestrator.client.starting import coordinator_command, spawn
from orchestrator.core.causes import Cause
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.plan import Gpu, HostPlan, Plan
from orchestrator.head.code import snapshots
from orchestrator.head.reach.slurm import commands
from orchestrator.head.reach.slurm.job import BEGUN, SUBMITTED, runtime_dir
from orchestrator.head.reach.slurm.transport import slurm_transport, step
from orchestrator.spec.sbatch import WARNING_S

READY_S = 60.0
"""How long a node may take to start its keeper. A slower node is used last."""

LINGER_S = 5.0
"""How long the coordinator still answers after the run's end, for commands that wait for it."""

KILL_WAIT_S = 30.0
"""The assumed time between Slurm's SIGTERM and its SIGKILL, if Slurm does not say."""

_POLL_S = 0.5
_AGAIN_S = 2.0


class Keepers:
    """The keeper steps, one per node. Each is restarted when it ends."""

    def __init__(
        self,
        hosts: list[HostPlan],
        bundle: str,
        say: queue.Queue[tuple[str, dict[str, Any]]],
        warnings: list[str],
    ) -> None:
        self._bundle = bundle
        self._warnings = warnings
        self._say = say
        self._ending = False
        for host in hosts:
            threading.Thread(target=self._keep, args=(host,), daemon=True).start()

    def _keep(self, host: HostPlan) -> None:
        words = step(host, "--unbuffered", "--input=none")
        command = [*words, "--", host.python, "-I", "-S", self._bundle, "keeper", host.allocation]
        command += self._warnings
        while not self._ending:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
                assert child.stdout is not None
                for line in child.stdout:
                    with contextlib.suppress(ValueError):
                        message = json.loads(line)
                        if isinstance(message, dict):
                            self._say.put((host.name, message))
            time.sleep(_AGAIN_S)

    def stop(self) -> None:
        """Do not start keepers again."""
        self._ending = True


class Batch:
    """One start of the job. `token`: of what was submitted with it. Raises OrchestratorError if that is not there."""

    def __init__(self, state_dir: str, token: str | None = None) -> None:
        job_id = os.environ["SLURM_JOB_ID"]
        self.wish = submitted(state_dir, token, job_id)
        self.allocation = f"{job_id}.{os.environ.get('SLURM_RESTART_COUNT') or 0}"
        self.state_dir = state_dir
        os.environ["ORCH_STATE_DIR"] = state_dir
        os.environ["ORCH_RUNTIME_DIR"] = runtime_dir(self.allocation)
        os.environ["ORCH_ALLOCATION"] = self.allocation
        self.environment = Environment()
        self.environment.paths.ensure()
        self.client = self.environment.client()
        self.job_id = job_id
        self.says: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        if not self.wish.get("requeue"):  # it contains secrets, and is not needed again
            _unlink(os.path.join(state_dir, SUBMITTED))
        self._coordinator: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Follow the run to its end, and return the job's exit code."""
        from pydantic import TypeAdapter

        plan = TypeAdapter(Plan).validate_python(self.wish["plan"])
        python = next(host.python for host in plan.hosts)
        names = commands.hostnames(os.environ["SLURM_JOB_NODELIST"])
        nodes = [
            HostPlan(name, "slurm", name, name, python=python, allocation=self.allocation) for name in names
        ]
        keepers = Keepers(nodes, self.environment.paths.bundle, self.says, warnings(self.job_id))
        gpus = self._await_keepers(nodes)
        plan = placed(plan, [node for node in nodes if node.name in gpus] or nodes, nodes, gpus)
        self._ensure_coordinator()
        # End runs that an earlier start of the job left in the journal: the job no longer has their nodes
        for run in runs_of(self.client):
            if not is_active(run):
                continue
            say(f"{run['run_id']} belongs to an earlier allocation, which is gone")
            for name in hosts_of(run):
                with contextlib.suppress(OrchestratorError):
                    self.client.post(f"/v1/runs/{run['run_id']}/drain", {"host": name, "gone": True})
            order(self.client, run, force=True)
            self._await_end(str(run["run_id"]), 30.0)
        body = {
            "plan": TypeAdapter(Plan).dump_python(plan, mode="json"),
            "secrets": self.wish.get("secrets") or {},
            "code": self.wish.get("code") or "",
            "recipients": self.wish.get("recipients") or [],
            "from_scratch": bool(self.wish.get("from_scratch")) and self.allocation.endswith(".0"),
        }
        say(f"starting {plan.name} on {', '.join(names)}")
        run_id = str(self.client.post("/v1/runs", body)["run_id"])
        begun = {"allocation": self.allocation, "run_id": run_id}
        durable.write_json(os.path.join(self.state_dir, BEGUN), begun)
        ended = self._follow(run_id)
        say(f"{run_id}: {ended.get('phase')}: {ended.get('reason')}")
        time.sleep(0.0 if is_taken(ended) else LINGER_S)
        keepers.stop()
        # End coordinator and keepers: a keeper ignores Slurm's warning, and would hold the job for KillWait
        if self._coordinator is not None:
            self._coordinator.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._coordinator.wait(10.0)
        transport = slurm_transport(self.environment.paths.bundle)
        for node in nodes:
            with contextlib.suppress(OrchestratorError, OSError):
                transport.open(node, "kill -KILL $PPID").close()
        shutil.rmtree(self.environment.paths.runtime_dir, ignore_errors=True)
        if self.is_queued_again(ended):
            time.sleep(60.0)
        elif self.is_over():
            self.forget()
        return 0 if ended.get("phase") == "SUCCEEDED" else 1

    def is_queued_again(self, ended: dict[str, Any]) -> bool:
        """Queue the job again if its hosts were taken away and it wants that; return whether Slurm will end it."""
        if not (is_taken(ended) and self.wish.get("requeue")):
            return False
        # Of a job that was cancelled, or that Slurm itself queues again, the state is another
        if (commands.job(self.job_id) or {}).get("JobState") != "RUNNING":
            return False
        say("the job is queued again, and the run continues from its last checkpoint")
        commands.call("scontrol", "requeue", self.job_id)
        return True

    def is_over(self) -> bool:
        """Return whether the job cannot begin again. Slurm counts a restart when it queues it, before it ends it."""
        if not self.wish.get("requeue"):
            return True
        try:
            known = commands.job(self.job_id)
        except commands.SlurmFailed as e:
            say(f"{e.message}; what was submitted is kept, since the job may begin again")
            return False
        return known is None or (
            commands.allocation_name(known) == self.allocation
            and known.get("JobState") not in commands.QUEUED
        )

    def forget(self) -> None:
        """Keep what was submitted no more, unless another job has put its own in that place."""
        left = durable.read_object(self.state_dir, SUBMITTED)
        if left is None or left.get("token") == self.wish.get("token"):
            _unlink(os.path.join(self.state_dir, SUBMITTED))
            with contextlib.suppress(OSError):
                snapshots.Snapshots(self.state_dir).forget(snapshots.SUBMITTED)

    def _await_keepers(self, nodes: list[HostPlan]) -> dict[str, tuple[Gpu, ...] | None]:
        """Return the GPUs that each node's keeper sees, by node. Nodes without a keeper in time are left out."""
        gpus_by_node: dict[str, tuple[Gpu, ...] | None] = {}
        give_up_at = time.monotonic() + READY_S
        while len(gpus_by_node) < len(nodes) and (left_s := give_up_at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                name, message = self.says.get(timeout=left_s)
                if "ready" in message:
                    # The GPUs of CUDA_VISIBLE_DEVICES; None if it does not list numbers
                    value = message.get("gpus")
                    words = [word for word in str(value or "").split(",") if word]
                    gpus_by_node[name] = (
                        tuple(map(int, words)) if all(word.isdecimal() for word in words) else None
                    )
                elif "leaving" in message:
                    say(f"{name} leaves: it was sent {message['leaving']}")
        for node in nodes:
            if node.name not in gpus_by_node:
                say(f"{node.name} has no keeper after {READY_S:.0f} s: it is used last")
        return gpus_by_node

    def _ensure_coordinator(self) -> None:
        """Start a coordinator if the last one has ended, and wait until it answers."""
        if self._coordinator is not None and self._coordinator.poll() is None:
            return
        if self._coordinator is not None:
            say(f"the coordinator ended with {self._coordinator.returncode}; another one takes up the run")
        self._coordinator = spawn(coordinator_command(), self.environment)
        for _ in range(300):
            with contextlib.suppress(OrchestratorError):
                self.client.get("/v1/coordinator", timeout_s=5.0)
                return
            time.sleep(0.1)
        say("the coordinator does not answer")

    def _follow(self, run_id: str) -> dict[str, Any]:
        """Keep a coordinator running until the run has ended, and its `outputs` are fetched."""
        waits = False
        while True:
            self._ensure_coordinator()
            with contextlib.suppress(OrchestratorError):
                document = self.client.get("/v1/status")
                durable.write_json(os.path.join(self.state_dir, "status.json"), document, durable=False)
                ended = next(
                    (r for r in document["runs"] if r["run_id"] == run_id and not is_active(r)), None
                )
                if ended is not None and not is_being_fetched(ended):
                    return dict(ended)
                if ended is not None and not waits:
                    waits = True
                    say(f"{run_id} has ended, and the job stays until its `outputs` are fetched")
            with contextlib.suppress(queue.Empty):
                name, message = self.says.get(timeout=_POLL_S)
                if "leaving" in message:
                    say(f"{name} leaves: it was sent {message['leaving']}")
                elif "ready" in message:
                    say(f"{name} has a keeper again")

    def _await_end(self, run_id: str, seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        while time.monotonic() < give_up_at:
            if not any(is_active(run) for run in runs_of(self.client) if run["run_id"] == run_id):
                return
            time.sleep(_POLL_S)


def is_taken(ended: dict[str, Any]) -> bool:
    """Return whether a run ended because its hosts were taken away, and not because of its user."""
    return ended.get("phase") == "KILLED" and ended.get("planned_end") == Cause.HOST_LEAVES.value


def is_being_fetched(ended: dict[str, Any]) -> bool:
    """Return whether files of an ended run come from its nodes, which the end of the job would cut off."""
    outputs = ended.get("outputs") or {}
    return bool(outputs.get("pending")) and outputs.get("directory") is not None


def submitted(state_dir: str, token: str | None, job_id: str) -> dict[str, Any]:
    """Return what was submitted with this job. Raises OrchestratorError if it is not there, or is another job's."""
    wish = durable.read_object(state_dir, SUBMITTED)
    if wish is None or wish.get("token") != token:
        why = "is not there" if wish is None else "is of a job that was submitted later"
        raise OrchestratorError(
            f"job {job_id} has no run to begin: {state_dir}/{SUBMITTED} {why}",
            hint="`orch up --on slurm FILE` submits it again, unless another job has it",
        )
    return wish


def warnings(job_id: str) -> list[str]:
    """Return the keepers' options that explain Slurm's signals. If two announce an end, the earlier one counts."""
    try:
        patience_s = commands.kill_wait_s()
    except commands.SlurmFailed:
        patience_s = KILL_WAIT_S
    return [
        f"USR1:{WARNING_S}:the time limit of job {job_id} is near",
        f"TERM:{patience_s:g}:Slurm cancels or preempts job {job_id}",
    ]


def placed(
    plan: Plan, ready: list[HostPlan], nodes: list[HostPlan], gpus: dict[str, tuple[Gpu, ...] | None]
) -> Plan:
    """Return the plan with the nodes as its hosts. Ready nodes come first, since the last ones become spares."""
    order_of = [*ready, *(node for node in nodes if node not in ready)]
    wanted = sorted(plan.hosts, key=lambda host: host.spare)
    by_name: dict[str, HostPlan] = {}
    for host, node in zip(wanted, order_of, strict=False):
        seen = gpus.get(node.name)
        has = seen[: len(host.gpus)] if seen is not None and len(seen) >= len(host.gpus) else host.gpus
        by_name[host.name] = replace(
            node, python=host.python, gpus=has, slots=host.slots, spare=host.spare, spec=host.spec
        )

    def moved(task_gpus: tuple[Gpu, ...], host: str) -> tuple[Gpu, ...]:
        old = plan.host(host).gpus
        return tuple(by_name[host].gpus[old.index(gpu)] for gpu in task_gpus)

    tasks = tuple(
        replace(task, host=by_name[task.host].name, gpus=moved(task.gpus, task.host)) for task in plan.tasks
    )
    return replace(plan, hosts=tuple(by_name[host.name] for host in plan.hosts), tasks=tasks).fixed


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def say(text: str) -> None:
    """Write to the job's log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} orch: {text}", flush=True)


def main(argv: list[str]) -> int:
    """Run the batch step. `argv`: the run's directory, and the token of what was submitted."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # the keepers get and report them
    try:
        return Batch(*argv).run()
    except OrchestratorError as e:
        say(f"error: {e.message}" + (f"; {e.hint}" if e.hint else ""))
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
