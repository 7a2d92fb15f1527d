"""Runs a transcript: commands to the core, and what it answered, in a form that a person can review.

A transcript opens with its claim in prose, then the set-up, then commands (`> time verb …`), each followed by the
expected answer, indented. Set ORCH_REWRITE=1 to write the answers anew, and read the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from orchestrator.core import decide
from orchestrator.core import events as ev
from orchestrator.core.causes import Cause
from orchestrator.core.conflicts import DRIVEN
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.ends import Exit
from orchestrator.core.errors import AllocationGone
from orchestrator.core.faults import fault
from orchestrator.core.hosts.compatibility import HELD_BY_OTHERS, OF_THE_HOST, SHARE_MISSING
from orchestrator.core.in_words import in_words
from orchestrator.core.measured import HostMeasures
from orchestrator.core.plan import (
    CheckpointPlan,
    HostPlan,
    Plan,
    QueuePlan,
    RestartPolicy,
    TaskId,
    TaskPlan,
    Timing,
)
from orchestrator.core.saving import Holds, Loaded, Rescued, Restored
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts, Leaving, Unkillable
from orchestrator.core.state.instants import rebased
from orchestrator.core.state.phase_states import Swept
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.core.state.task import Progress

_REFUSALS = {
    "driven": (DRIVEN, 6),
    "taken-back": (AllocationGone.code, 1),
    **{code: (code, 6) for code in (*HELD_BY_OTHERS, *OF_THE_HOST, SHARE_MISSING)},
}

_CAUSES = {
    "signal": Cause.SIGNAL,
    "script": Cause.SCRIPT,
    "ordered": Cause.ORDERED,
    "oom": Cause.OOM,
    "shim": Cause.SHIM,
    "rebooted": Cause.REBOOTED,
}


def make_plan(hosts: list[str], *, checkpoint: bool, failures: int = 5, start_after_s: float = 300.0) -> Plan:
    """One worker per host."""
    return Plan(
        name="t",
        strategy="multi_worker_mirrored",
        hosts=tuple(HostPlan(name=h, address=h, data_address=f"10.0.0.{i + 1}") for i, h in enumerate(hosts)),
        tasks=tuple(TaskPlan(TaskId("worker", i), h) for i, h in enumerate(hosts)),
        script="train.py",
        checkpoint=CheckpointPlan("/shared/t") if checkpoint else None,
        restart=RestartPolicy(without_progress_max=failures),
        timing=replace(Timing(), start_after_s=start_after_s),
    )


UNREAD = "unread-"
"""Before the step of a checkpoint whose format is not known."""


class Transcript:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: Run | None = None
        self.reports: dict[str, dict[str, ev.TaskReport]] = {}
        self.available_bytes: int | None = 64 << 30
        self.size: int | None = None
        self.unkillable: dict[str, tuple[Unkillable, ...]] = {}
        self.gpu_faults: dict[str, tuple[tuple[int, int | None], ...]] = {}
        self.leaving: dict[str, Leaving | None] = {}

    def play(self) -> tuple[str, str]:
        """Return the text of the file, and the text with the core's answers."""
        expected = self.path.read_text(encoding="utf-8")
        answered: list[str] = []
        for line in expected.splitlines():
            if line.startswith("  "):
                continue
            answered.append(line)
            if line.startswith("hosts "):
                self._set_up(line.split())
            elif line.startswith("> "):
                answered.extend("  " + answer for answer in self._command(line[2:].split()))
        actual = "\n".join(answered) + "\n"
        if os.environ.get("ORCH_REWRITE"):
            self.path.write_text(actual, encoding="utf-8")
        return expected, actual

    def _set_up(self, words: list[str]) -> None:
        options = dict(w.split("=") for w in words if "=" in w)
        hosts = [w for w in words[1:] if "=" not in w]
        plan = make_plan(
            hosts,
            checkpoint=options.get("checkpoint") == "yes",
            failures=int(options.get("failures", "5")),
            start_after_s=float(options.get("start_after", "300")),
        )
        spares = tuple(
            HostPlan(name, address=name, data_address=f"10.0.1.{i + 1}", spare=True)
            for i, name in enumerate(options.get("spares", "").split(","))
            if name
        )
        fewest = {"worker": int(options["replicas_min"])} if "replicas_min" in options else {}
        plan = replace(plan, hosts=(*plan.hosts, *spares), replicas_min=fewest)
        if "on_stall" in options:
            plan = replace(plan, restart=replace(plan.restart, on_stall=options["on_stall"]))
        if "on_nonfinite" in options:
            plan = replace(plan, restart=replace(plan.restart, on_nonfinite=options["on_nonfinite"]))
        plan = replace(plan, restart=replace(plan.restart, standby=options.get("standby", "off")))
        if "rescue" in options:
            policy = replace(plan.restart, rescue_s=float(options["rescue"]))
            plan = replace(plan, restart=policy, options=replace(plan.options, transparent=True))
        plan = replace(plan, chaos=options.get("chaos") == "yes")
        if "queue" in options:  # queue=60: it gives up after so many seconds
            plan = replace(plan, queue=QueuePlan(max_wait_s=float(options["queue"])))
        if "time_limit" in options:
            plan = replace(plan, time_limit_s=float(options["time_limit"]))
        if "tasks" in options:  # tasks=chief:0,ps:0,worker:0: one per host, in that order
            ids = [TaskId.parse(name) for name in options["tasks"].split(",")]
            placed = tuple(TaskPlan(task, host) for task, host in zip(ids, hosts, strict=True))
            plan = replace(plan, strategy=options.get("strategy", plan.strategy), tasks=placed)
        if "gpus" in options:  # of each host and its task
            gpus = tuple(range(int(options["gpus"])))
            plan = replace(
                plan,
                hosts=tuple(replace(host, gpus=gpus) for host in plan.hosts),
                tasks=tuple(replace(task, gpus=gpus) for task in plan.tasks),
            )
        from_scratch = options.get("from_scratch") == "yes"
        self.run = new_run("t-20260101-1", plan, epoch=1, at=0.0, from_scratch=from_scratch)
        self.reports = {host.name: {} for host in plan.hosts}

    def _command(self, words: list[str]) -> list[str]:
        assert self.run is not None
        at, verb, rest = float(words[0]), words[1], words[2:]
        if verb == "until":  # let every deadline up to `at` come
            return self._let_time_pass(float(rest[0]))
        if verb == "restart-coordinator":
            self.run = rebased(self.run, float(rest[0]))
            return self._step(ev.EpochBegan(at=at, epoch=self.run.epoch + 1))
        answered = self._step(self._event(at, verb, rest))
        due = next_deadline(self.run) if self.run is not None else None
        # As the loop does after each event: a report that only moves numbers decides nothing of what has come due.
        return answered + (self._step(ev.Ticked(at)) if due is not None and due <= at else [])

    def _let_time_pass(self, until: float) -> list[str]:
        answered = []
        assert self.run is not None
        while (due := next_deadline(self.run)) is not None and due <= until:
            before = self.run
            answered += [f"at {due:.1f}", *self._step(ev.Ticked(at=due))]
            assert self.run != before, "a tick at its own deadline must change something"
        return answered

    def _step(self, event: ev.Event) -> list[str]:
        assert self.run is not None
        before = self.run
        self.run, actions, _ = decide.step(before, event)
        phase = (
            [f"{before.phase.value} -> {self.run.phase.value}"] if self.run.phase is not before.phase else []
        )
        return [in_words(action).replace("\n", "\n    ") for action in actions] + phase

    def _event(self, at: float, verb: str, rest: list[str]) -> ev.Event:
        assert self.run is not None
        match verb, rest:
            case "submit", []:
                return ev.Submitted(at)
            case "up", [host, *boot]:
                return ev.HostUp(at, host, boot[0] if boot else "boot-1")
            case "down", [host, *why]:
                return ev.HostDown(at, host, " ".join(why))
            case "refuse", [host, what, *why] if what in _REFUSALS:
                code, exit_code = _REFUSALS[what]
                return ev.HostRefused(
                    at, host, Problem(code, f"{host}: {' '.join(why)}", exit_code=exit_code)
                )
            case "refuse", [host, *why]:
                return ev.HostRefused(at, host, Problem("host-unfit", f"{host}: {' '.join(why)}"))
            case "prepared", [host, *options]:
                return self._prepared(at, host, options)
            case "seeded", [step, *rejected]:
                seed = self._seed(step, tuple((path, "torn") for path in rejected))
                return ev.CheckpointSeeded(at, seed)
            case "verified", ["nothing"]:
                return ev.CheckpointVerified(at, self.run.generation, None, "", took_s=0.1)
            case "verified", [what, *more]:
                return self._verified(at, what, more)
            case "free-memory" | "bytes", [number]:
                return self._sizes(at, verb, number)
            case "swept", [host, *more]:  # gen=1: up to which generation was looked
                upto = next((int(word[4:]) for word in more if word.startswith("gen=")), None)
                remains = tuple(word for word in more if not word.startswith("gen="))
                return ev.HostSwept(at, host, Swept(left=remains, by="cgroup"), upto)
            case "stacks", words:  # worker:0=train.py:12:load
                return ev.StacksCollected(at, self.run.generation, tuple(_stack(word) for word in words))
            case "unkillable", [host, *pids]:  # what no kill ends there, from now on
                self.unkillable[host] = tuple(_unkillable(int(pid)) for pid in pids)
                return self._report(at, host, [])
            case "directory", [host, *changes]:  # silent=40 free=1000
                return self._directory(at, host, dict(change.split("=") for change in changes))
            case "leaving", [host, in_s, *why]:  # it will be taken away, as it says from now on; - for never
                self.leaving[host] = Leaving(" ".join(why), float(in_s)) if in_s != "-" else None
                return self._report(at, host, [])
            case "failed", [host, order, task, *why]:
                return self._failed(at, host, order, task, why)
            case "report", [host, *changes]:
                return self._report(at, host, changes)
        return self._wish(at, verb, rest)

    def _prepared(self, at: float, host: str, options: list[str]) -> ev.HostPrepared:
        """Return that a host is prepared: `tf=2.20.0 keras=3.9 highest=4 share=token`."""
        found = dict(option.split("=") for option in options)
        versions = {"tensorflow": found.get("tf", "2.21.0"), "keras": found.get("keras", "3.15.1")}
        highest = int(found.get("highest", "0"))
        share, left = found.get("share", ""), self.unkillable.get(host, ())
        facts = Facts("3.11.2", versions, "c0de", highest, checkpoint_share=share, unkillable=left)
        return ev.HostPrepared(at, host, facts)

    def _verified(self, at: float, what: str, more: list[str]) -> ev.CheckpointVerified:
        """Return the verified checkpoint of a step: 120, or unread-120 if its format is unknown.

        The other words are `took=30`, in seconds, and the checkpoints that were passed over since they are torn.
        """
        assert self.run is not None
        took_s = float(next((word[5:] for word in more if word.startswith("took=")), 0.1))
        passed = tuple((path, "torn") for path in more if not path.startswith("took="))
        step, generation = what.removeprefix(UNREAD), self.run.generation
        size, self.size = self.size, None
        return ev.CheckpointVerified(
            at, generation, int(step), f"ckpt-{step}", None, passed, took_s, size, verified=what == step
        )

    def _sizes(self, at: float, verb: str, number: str) -> ev.Event:
        """Set what is free on every host from now on (- is not told), or the size of the next verified checkpoint."""
        if verb == "bytes":
            self.size = int(number)
        else:
            self.available_bytes = None if number == "-" else int(number) << 20
        return ev.Ticked(at)

    def _failed(self, at: float, host: str, order: str, name: str, why: list[str]) -> ev.Event:
        """Return the failure of an order; `worker:0+` is the task of the standby, `-` none."""
        assert self.run is not None
        problem = Problem(why[0], " ".join(why[1:]) or why[0])
        task = None if name == "-" else TaskId.parse(name.rstrip("+"))
        generation = self.run.task(task).generation if task else self.run.generation
        generation = self.run.standby.generation if name.endswith("+") else generation
        return ev.OrderFailed(at, host, order, generation, problem, task)

    def _wish(self, at: float, verb: str, rest: list[str]) -> ev.Event:
        """Parse a person's request; or that nothing happens."""
        match verb, rest:
            case "tick", []:
                return ev.Ticked(at)
            case "admitted", []:
                return ev.Admitted(at)
            case "preemption-requested", [by]:
                return ev.PreemptionRequested(at, by)
            case "kill", ["at-checkpoint"]:
                return ev.KillRequested(at, at_checkpoint=True)
            case "kill", force:
                return ev.KillRequested(at, force=bool(force))
            case "drain", [host, "gone"]:
                return ev.DrainRequested(at, host, gone="09:30")
            case "drain", [host, *now]:
                return ev.DrainRequested(at, host, now=bool(now))
            case "undrain", [host]:
                return ev.UndrainRequested(at, host)
            case "chaos", [kind, task]:
                assert self.run is not None
                return ev.FaultInjected(at, fault(self.run, kind, task, 10.0))
            case "rolled-back", [step, of, *aside]:
                newer = tuple(int(number) for number in aside)
                return ev.RolledBack(at, int(of), int(step), f"ckpt-{step}", newer)
            case "went-back", [step, of, *why]:
                return ev.RolledBack(at, int(of), int(step), f"ckpt-{step}", why=" ".join(why))
            case "not-gone-back", problem:
                assert self.run is not None
                return ev.NotGoneBack(at, self.run.generation, " ".join(problem))
        raise ValueError(f"{self.path.name}: what is {verb} {rest}?")

    def _seed(self, step: str, rejected: tuple[tuple[str, str], ...]) -> Seed:
        assert self.run is not None
        generation = self.run.generation
        if step == "nothing":
            return Seed(generation, path=f"/shared/t/gen-{generation:06d}", rejected=rejected)
        path, number = f"/shared/t/gen-{generation:06d}", step.removeprefix(UNREAD)
        if number.startswith("older-"):  # one that is not the only one
            number = number.removeprefix("older-")
            file = Restored(f"ckpt-{number}", 5.0, 10, int(number))
            return Seed(generation, int(number), f"ckpt-{number}", path, rejected, replaceable=file)
        if number.startswith("backup-"):  # of ours, in its place
            number = number.removeprefix("backup-")
            source = f"/shared/t/gen-{generation - 1:06d}/orch/fit-000/latest.weights.h5"
            return Seed(generation, int(number), source, path, rejected)
        return Seed(generation, int(number), f"ckpt-{number}", path, rejected, verified=number == step)

    def _report(self, at: float, host: str, changes: list[str]) -> ev.HostReported:
        """`worker:0=running,step=5` changes what the host says of a task from now on; `-worker:0` forgets it.

        `worker:0+` is the one of its standby. `memory=96` and `cpu=95` are told once.
        """
        assert self.run is not None
        known = self.reports[host]
        measured: HostMeasures = {}
        if self.available_bytes is not None:
            measured["memory_available_bytes"] = self.available_bytes
        for change in changes:
            name, _, told = change.partition("=")
            if change.startswith("-"):
                known.pop(change[1:], None)
            elif name == "memory":
                measured["memory_percent"] = float(told)
            elif name == "cpu":
                measured["cpu_percent"] = float(told)
            elif name.startswith("gpu"):  # gpu1=79, an Xid; gpu1=gone: what has gone wrong there, from now on
                fault = int(name[3:]), None if told == "gone" else int(told)
                self.gpu_faults[host] = (*self.gpu_faults.get(host, ()), fault)
            else:
                report = self._task_report(at, name, told.split(","))
                if f"{name}+" in known and known[f"{name}+"].generation == report.generation:
                    del known[f"{name}+"]  # it has become the task itself
                known[name] = report
        return ev.HostReported(
            at,
            host,
            tuple(known.values()),
            measured=measured,
            unkillable=self.unkillable.get(host, ()),
            gpu_faults=self.gpu_faults.get(host, ()),
            leaving=self.leaving.get(host),
        )

    def _directory(self, at: float, host: str, told: dict[str, str]) -> ev.HostReported:
        """Return the host's last report, with what it says about the checkpoint directory."""
        return replace(
            self._report(at, host, []),
            dir_silent_s=float(told.get("silent", "0")),
            dir_free_bytes=int(told["free"]) if "free" in told else None,
            dir_missing=told["missing"] == "yes" if "missing" in told else None,
        )

    def _task_report(self, at: float, name: str, told: list[str]) -> ev.TaskReport:
        assert self.run is not None
        options = dict(word.split("=", 1) for word in told[1:])
        own = self.run.standby.generation if name.endswith("+") else self.run.generation
        task, generation = TaskId.parse(name.rstrip("+")), int(options.get("gen", own))
        ended = None
        if told[0] == "exited":
            line = options.get("says", "").replace("_", " ")
            ended = Exit(
                cause=_CAUSES[options.get("cause", "script")],
                code=int(options["code"]) if "code" in options else None,
                signal=int(options["signal"]) if "signal" in options else None,
                ordered=options.get("ordered") == "yes",
                at=float(options.get("ended", at)),
                last_lines=(line,) if line else (),
            )
        step = int(options["step"]) if "step" in options else None
        silent_s = float(options["silent"]) if "silent" in options else None
        step_age_s = float(options.get("stepped", 0.0))
        return ev.TaskReport(
            task=task,
            generation=generation,
            phase=told[0],
            pid=100 + 10 * generation + task.index,
            port=int(options["port"]) if "port" in options else 20000 + 100 * generation + task.index,
            progress=Progress(
                nonfinite={"loss": (int(options["nan"]), "nan")} if "nan" in options else {},
                global_step=step,
                step_age_s=step_age_s,
                runtime_age_s=silent_s,
                began_step=int(options["began"]) if "began" in options else None,
                began_stride=int(options.get("stride", 0)),
                stage=options.get("stage"),
                stage_age_s=float(options.get("staged", 0.0)),
                passing=_passing(options["passing"]) if "passing" in options else None,
                unreached=_unreached(options.get("unreached", "")),
                rescued=_handed_over(options["rescued"]) if "rescued" in options else None,
                restored=_restored(options["restored"]) if "restored" in options else None,
                loaded=_loaded(options["loaded"]) if "loaded" in options else None,
                rescues=options.get("rescues") == "yes",
                measured={"rescue": options.get("rescue", "1.0 MB in 0.1 s")},
                holds=Holds(*map(int, options["holds"].split("/"))) if "holds" in options else None,
            ),
            said=(("no-rescue", options["no_rescue"].replace("_", " ")),) if "no_rescue" in options else (),
            exit=ended,
        )


def _passing(told: str) -> tuple[int, int]:
    """`passing=4000/90000` batches."""
    done, _, total = told.partition("/")
    return int(done), int(total)


def _handed_over(told: str) -> Rescued:
    """`rescued=240` of a step, or `rescued=no_fit_is_going_on`."""
    return Rescued(int(told), 0.3) if told.isdecimal() else Rescued(why=told.replace("_", " "))


def _loaded(told: str) -> Loaded:
    """`loaded=2/ckpt_8/77`: the second load, the file, the checksum."""
    number, file, checksum = told.split("/")
    return Loaded(int(number), file, int(checksum))


def _restored(told: str) -> Restored:
    """`restored=600` a step, or `restored=KeyError` which says why it could not."""
    file = "orch/fit-000/latest.weights.h5"
    if told.isdecimal():
        return Restored(file, 100.0, 2000, int(told))
    return Restored(file, 750.0, 2000, None, told.replace("_", " "))


def _unkillable(pid: int) -> Unkillable:
    return Unkillable(pid, "old-1", f"pid {pid} of old-1 cannot be killed: it waits in the kernel (nfs_wait)")


def _stack(word: str) -> tuple[TaskId, str]:
    """`worker:0=train.py:12:load` as faulthandler would print it."""
    task, _, where = word.partition("=")
    file, line, function = where.split(":")
    text = f'Thread 0x1 (most recent call first):\n  File "/opt/{file}", line {line} in {function}'
    return TaskId.parse(task), text


def _unreached(told: str) -> tuple[tuple[TaskId, str], ...]:
    """Return `worker:0/silent` as the peer that a task does not reach, and what was found."""
    found = [one.split("/") for one in told.split("+") if one]
    return tuple((TaskId.parse(peer), finding) for peer, finding in found)
