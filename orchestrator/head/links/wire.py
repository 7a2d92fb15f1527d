"""Makes the core's events and values from frames that `edge` has checked. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, get_type_hints

from orchestrator.core.causes import REPORTED, Cause
from orchestrator.core.ends import Exit
from orchestrator.core.events import CheckpointVerified, HostReported, TaskReport
from orchestrator.core.plan import TaskId
from orchestrator.core.saving import Holds, Loaded, Rescued, Restored, Saving
from orchestrator.core.state.checkpoint import Aside, Seed
from orchestrator.core.state.host import GpuLoad, Leaving, Unkillable
from orchestrator.core.state.phase_states import Swept
from orchestrator.core.state.run import Problem
from orchestrator.core.state.task import Progress
from orchestrator.core.words import duration
from orchestrator.protocol import measures, reports
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.limits import SAID_CHARS_MAX
from orchestrator.protocol.measures import measured
from orchestrator.protocol.orders import checkpoints, tasks
from orchestrator.protocol.replies import Error

_UNKILLABLE_MAX = 4
_WHY_CHARS_MAX = 200


def slowness(hello: Greeting) -> str | None:
    """Return a sentence that says what was slow while the head connected; None if nothing was."""
    slow = hello.get("slow", {})
    parts = []
    if "connect_s" in slow:
        parts.append(f"a connection took {duration(slow['connect_s'])}")
    if "shell_s" in slow:
        parts.append(f"the rc files of its login shell took {duration(slow['shell_s'])}")
    return "; ".join(parts) or None


NAMED_MAX = 32
"""How many processes that are left, or checkpoints that do not read whole, of one answer are named."""

WHY_CHARS_MAX = 500
"""How long the sentence about each of them may be: they are kept in the run's state, or noted."""

WHOLE_MAX = 3
"""For how many generations of a task the whole report is kept: the newest may be standbys of one that trains."""

ON_ITS_WAY_S = 60.0
"""How long a report may be under way. If a host's clock seems to differ by more, it was set meanwhile."""

OLDER_MAX = 8
"""How many further generations of one task in a report count."""


def host_reported(
    host: str,
    run_id: str,
    report: reports.Report,
    *,
    at: float,
    unix_time: float,
    ahead_s: float = 0.0,
    known: Collection[TaskId],
) -> HostReported:
    """Return the event of a heartbeat for one run. Tasks that the run does not have are left out.

    `at` and `unix_time` are the present time by both clocks of the head; `ahead_s`: how far the host's is ahead.
    """
    sample = report["host"]
    reports = [
        task_report(task, at=at, unix_time=unix_time, ahead_s=ahead_s)
        for task in report["runs"].get(run_id, ())
    ]
    directory = sample["checkpoint_dirs"].get(run_id)
    return HostReported(
        at=at,
        host=host,
        tasks=tuple(_bounded([item for item in reports if item.task in known])),
        measured=measured(measures.HOST, sample),
        gpu_loads=tuple(
            GpuLoad(load["index"], load["name"], measured(measures.GPU, load))
            for load in sample.get("gpus", ())
        ),
        gpu_faults=tuple((item["index"], item["xid"]) for item in sample.get("gpu_faults", ())),
        dir_silent_s=directory["silent_s"] if directory is not None else 0.0,
        dir_free_bytes=directory["free_bytes"] if directory is not None else None,
        dir_missing=directory.get("missing") if directory is not None else None,
        unkillable=unkillable(sample["unkillable"], ahead_s),
        leaving=_leaving(sample.get("leaving")),
    )


def _leaving(notice: reports.Leaving | None) -> Leaving | None:
    return Leaving(notice["why"][:_WHY_CHARS_MAX], notice["in_s"]) if notice is not None else None


def unkillable(processes: list[reports.Unkillable], ahead_s: float = 0.0) -> tuple[Unkillable, ...]:
    """Return the processes that a host cannot kill: the first few, since one is enough to stop using the host."""
    return tuple(
        Unkillable(item["pid"], item["run"], _unkillable(item, ahead_s))
        for item in processes[:_UNKILLABLE_MAX]
    )


def _unkillable(process: reports.Unkillable, ahead_s: float) -> str:
    since = datetime.fromtimestamp(process["since"] - ahead_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    name = f" ({process['command']})" if process["command"] else ""
    why = process["why"][:_WHY_CHARS_MAX]
    return f"pid {process['pid']}{name} of {process['run']} cannot be killed since {since}: {why}"


def _bounded(reports: list[TaskReport]) -> list[TaskReport]:
    """Return the newest reports of each task whole, and a few older generations without their details."""
    kept: list[TaskReport] = []
    counts: dict[TaskId, int] = {}
    once = {(report.task, report.generation): report for report in reports}
    for _, report in sorted(once.items(), reverse=True):
        count = counts[report.task] = counts.get(report.task, 0) + 1
        if count <= WHOLE_MAX:
            kept.append(report)
        elif count <= WHOLE_MAX + OLDER_MAX:
            kept.append(TaskReport(report.task, report.generation, report.phase))
    return kept[::-1]


def task_report(sent: reports.Task, *, at: float, unix_time: float, ahead_s: float = 0.0) -> TaskReport:
    """Return the report of a task. Fields that an older shim does not send get defaults."""
    ended = sent.get("exit")
    return TaskReport(
        **_told(_OF_TASK, sent),
        progress=_progress(sent),
        exit=_exit(sent, ended, at=at, unix_time=unix_time, ahead_s=ahead_s) if ended is not None else None,
    )


def _progress(sent: reports.Task) -> Progress:
    told = _told(_OF_PROGRESS, sent)
    if began := sent.get("began"):
        told |= {"began_step": began["step"], "began_stride": began["stride"]}
    if steps := told.get("metric_steps"):
        told["metric_steps"] = {name: step for name, step in steps.items() if name in sent.get("metrics", {})}
    unreached = tuple((TaskId.parse(peer["task"]), peer["finding"]) for peer in sent.get("peers", ()))
    return Progress(**told, unreached=unreached, measured=measured(measures.TASK, sent))


def _restored(sent: reports.Restored) -> Restored:
    return Restored(sent["file"], sent["saved_at"], sent["bytes"], sent["step"], sent["why"][:WHY_CHARS_MAX])


def _exit(
    sent: reports.Task, ended: reports.TaskExit, *, at: float, unix_time: float, ahead_s: float
) -> Exit:
    """Return how a task ended. If it was ordered to end, its exit code counts only if it is 0."""
    is_ours = ended.get("ordered", False) and ended.get("code") != 0
    error = sent.get("error")
    return Exit(
        **_told(_OF_EXIT, ended),
        cause=Cause.ORDERED if is_ours else REPORTED[ended["cause"]],
        at=at - (ended.get("ago_s") or 0.0),
        ended_time=_ended_time(ended, unix_time, ahead_s),
        error=error["message"] if error else None,
        error_kind=error["kind"] if error else None,
    )


def _ended_time(ended: reports.TaskExit, unix_time: float, ahead_s: float) -> float | None:
    """Return when it ended by the head's clock: the host's time, corrected, or by the age that the host reports."""
    ended_at, ago_s = ended.get("ended_at"), ended.get("ago_s")
    if ended_at is None:
        return None
    if ago_s is None or abs(unix_time - ago_s - (ended_at - ahead_s)) <= ON_ITS_WAY_S:
        return ended_at - ahead_s
    return unix_time - ago_s


def _left(left: list[reports.Left]) -> tuple[str, ...]:
    """Return a line for each process; for those beyond NAMED_MAX only how many they are."""
    more = (f"and {len(left) - NAMED_MAX} more",) if len(left) > NAMED_MAX else ()
    return (*(f"pid {item['pid']}: {item['why'][:WHY_CHARS_MAX]}" for item in left[:NAMED_MAX]), *more)


_Read = Callable[[Any], object]

_READ: Mapping[str, _Read] = {
    "task": TaskId.parse,
    "said": lambda sent: tuple((message["kind"], message["message"]) for message in sent),
    "metrics": lambda sent: {name: value for name, value in sent.items() if value is not None},
    "nonfinite": lambda sent: {name: (first["step"], first["value"]) for name, first in sent.items()},
    "saving": lambda sent: Saving(**sent),
    "passing": lambda sent: (sent["done"], sent["total"]),
    "holds": lambda sent: Holds(**sent),
    "loaded": lambda sent: Loaded(**sent),
    "rescued": lambda sent: Rescued(**sent),
    "restored": _restored,
    "last_lines": tuple,
    "left": _left,
}
"""How fields are read that have another form in the core. All others are taken as they are, by their name."""


def _shared(sent: Any, known: Any, *besides: str) -> list[tuple[str, _Read | None]]:
    """Return the fields that a type of the protocol and one of the core share by name, and how each is read."""
    names = get_type_hints(sent)
    return [(f.name, _READ.get(f.name)) for f in fields(known) if f.name in names and f.name not in besides]


_OF_TASK = _shared(reports.Task, TaskReport, "exit")
_OF_PROGRESS = _shared(reports.Task, Progress)
_OF_EXIT = _shared(reports.TaskExit, Exit, "cause")


def _told(names: list[tuple[str, _Read | None]], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a frame tells of these fields, by name. A field that is missing or null is left out."""
    return {
        name: value if read is None else read(value)
        for name, read in names
        if (value := sent.get(name)) is not None
    }


def problem(error: Error) -> Problem:
    """Return the error of a reply as a problem."""
    hint = error["hint"]
    return Problem(
        code=error["code"], message=error["message"][:SAID_CHARS_MAX], hint=hint and hint[:SAID_CHARS_MAX]
    )


def swept(ok: tasks.Swept) -> Swept:
    """Return the answer to `sweep`."""
    return Swept(left=_left(ok["left"]), ports_busy=tuple(ok["ports_busy"]), by=ok["by"])


def seeded(ok: checkpoints.Seeded, generation: int, *, copy: str = "") -> Seed:
    """Return the answer to `seed`."""
    return Seed(
        generation=generation,
        global_step=ok["global_step"],
        source=ok["source"],
        verified=ok.get("verified") is not False,
        path=ok["path"],
        rejected=_rejected(ok["rejected"]),
        copy=copy,
        aside=_aside(ok.get("aside")),
        removed=tuple(ok.get("removed") or ()),
        dropped=tuple((ok.get("dropped") or ())[:NAMED_MAX]),
        replaceable=_restored(told) if (told := ok.get("replaceable")) else None,
    )


def _aside(kept: checkpoints.KeptAside | None) -> Aside | None:
    if kept is None or not kept["generations"]:
        return None
    return Aside(tuple(kept["generations"]), kept["global_step"], kept["bytes"])


def verified(ok: checkpoints.Verified, generation: int, *, at: float, began_at: float) -> CheckpointVerified:
    """Return the answer to `verify`."""
    checkpoint = ok["checkpoint"]
    return CheckpointVerified(
        at=at,
        generation=generation,
        global_step=checkpoint["global_step"] if checkpoint is not None else None,
        path=checkpoint["path"] if checkpoint is not None else "",
        saved_time=checkpoint["saved_at"] if checkpoint is not None else None,
        bytes=checkpoint["bytes"] if checkpoint is not None else None,
        verified=checkpoint["verified"] if checkpoint is not None else True,
        rejected=_rejected(ok["rejected"]),
        took_s=max(0.0, at - began_at - ok.get("waited_s", 0.0)),
    )


def _rejected(rejected: list[checkpoints.Rejected]) -> tuple[tuple[str, str], ...]:
    return tuple((item["path"], item["why"][:WHY_CHARS_MAX]) for item in rejected[:NAMED_MAX])
