"""Format the coordinator's documents as text for people. Pure functions."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.adapters.host.repetition import excerpt
from orchestrator.cli.left_files import left_lines
from orchestrator.cli.session import Paint
from orchestrator.cli.tables import fitting
from orchestrator.cli.terminal import cut, fold, printable
from orchestrator.cli.times import of_event, shown
from orchestrator.client.choice import is_active as is_active
from orchestrator.client.killing import left_text
from orchestrator.core.words import counted, duration, pace, proof_by, size

_PHASE_STYLE = {
    "RUNNING": ("green",),
    "SUCCEEDED": ("green", "bold"),
    "FAILED": ("red", "bold"),
    "KILLED": ("red",),
    "LOST": ("red",),
    "READY": ("cyan",),
    "EXITED": ("dim",),
}

_HOST_STYLE = {
    "lost": "red",
    "quarantined": "red",
    "stuck": "red",
    "drained": "yellow",
    "leaving": "yellow",
    "spare": "dim",
}
"""The states of hosts that are always shown."""

ENDED_MAX = 5
"""How many ended runs have a line in the status of all."""

Document = Mapping[str, Any]


def status(document: Document, paint: Paint, *, width: int | None = None) -> str:
    """Format a status document: the active runs (or the last ended one) in full, the others on a line each."""
    runs = list(document.get("runs") or [])
    if not runs:
        return "No runs yet; `orch up FILE` starts one"
    full = [found for found in runs if is_active(found)] or [runs[-1]]
    ended = [found for found in reversed(runs) if not is_active(found) and found not in full]
    blocks = [run(found, paint, width=width) for found in full]
    if ended:
        lines = [paint("Ended runs:", "dim")]
        for found in ended[:ENDED_MAX]:
            lines += indent(fold(headline(found, paint), width and width - 2, indent="  "))
        if len(ended) > ENDED_MAX:
            lines.append(f"  and {len(ended) - ENDED_MAX} more; `orch status NAME` shows one")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def run(run: Document, paint: Paint, *, width: int | None = None) -> str:
    """Format one run: phase, first cause, reason, checkpoint, tasks, and problems.

    `width`: the terminal's columns; None leaves sentences on one line.
    """
    lines = [*fold(headline(run, paint), width, indent="  "), *indent(sentences(run, paint, width))]
    facts = (
        times_line(run),
        bottleneck_line(run),
        checkpoint_line(run.get("checkpoint")),
        saving_line(run),
        standby_line(run.get("standby")),
    )
    for line in filter(None, facts):
        lines += indent(fold(line, width and width - 2, indent="  "))
    if is_active(run):
        lines += ["", *indent(task_table(run, paint, width and width - 2))]
    else:
        lines += indent(ended_tasks(run.get("tasks") or []))
        lines += indent(left_lines(run, paint, width))
    said = {line.strip() for line in lines}
    troubles = [line for line in dict.fromkeys(trouble_lines(run, paint, width)) if line not in said]
    if troubles:
        lines += ["", *indent(troubles)]
    return "\n".join(lines)


def sentences(run: Document, paint: Paint, width: int | None = None) -> list[str]:
    """Return the first cause and the reason of the phase. What both contain is shown once."""
    rest, cause = rest_of_reason(run), run.get("first_cause")
    now = fold(rest, width and width - 2, indent="  ") if rest else []
    if not cause or run.get("phase") == "SUCCEEDED":
        return now
    sentence, done = str(cause.get("sentence")), str(cause.get("done") or "")
    style = "red" if run.get("reason_begins_with") == "first_cause" else "yellow"
    if is_active(run) and done and rest:
        sentence = f"{sentence}; {done}"
    return [*labelled("first cause:", sentence, paint, style, width), *now]


def rest_of_reason(run: Document) -> str:
    """Return the reason of the phase without what is shown beside it: the first cause, or the position."""
    return str(run.get("reason_rest", run.get("reason")) or "")


def labelled(label: str, text: object, paint: Paint, style: str, width: int | None = None) -> list[str]:
    """Return `label text`, the label in colour, folded to the terminal's width less two columns of indent."""
    first, *others = fold(f"{label} {text}", width and width - 2, indent="  ")
    return [paint(label, style) + first.removeprefix(label), *others]


def headline(run: Document, paint: Paint) -> str:
    """Return the first line: `mnist-20261120-1  RUNNING  generation 2, 1 restart, step 120, 3.4 steps/s`."""
    facts = []
    if run.get("generation"):
        facts.append(f"generation {run['generation']}")
    if run.get("restarts"):
        facts.append(counted(run["restarts"], "restart"))
    if run.get("global_step") is not None:
        total = f" of {run['steps_total']}" if run.get("steps_total") else ""
        facts.append(f"step {run['global_step']}{total}")
    if is_active(run) and run.get("steps_per_s") is not None:
        facts.append(f"{pace(run['steps_per_s'])} steps/s")
    facts += metrics(run)
    return "  ".join(
        filter(None, [paint(title(run), "bold"), phase(run.get("phase"), paint), ", ".join(facts)])
    )


def bottleneck_line(run: Document) -> str:
    """Return what limits the run now, for how long, and what to do; empty where nothing is known."""
    told = run.get("bottleneck")
    if not told or not is_active(run):
        return ""
    since = f" (for {duration(told['age_s'])})" if told.get("age_s") is not None else ""
    return f"limited by {told.get('sentence')}{since}: {told.get('remedy')}"


def times_line(run: Document) -> str:
    """Return `started 2026-11-20 12:00:00 CET, 2 h 5 min; 41 min left; goodput 91%`, as far as that is known."""
    started, elapsed = run.get("started_at"), run.get("elapsed_s")
    parts = []
    if isinstance(started, (int, float)):
        since = f"started {shown(started)}"
        parts.append(since if elapsed is None else f"{since}, {duration(elapsed)}")
    elif elapsed is not None:
        parts.append(f"elapsed {duration(elapsed)}")
    if is_active(run) and run.get("eta_s") is not None:
        parts.append(f"{duration(run['eta_s'])} left")
    share = goodput(run)
    if share is not None:
        parts.append(f"goodput {share:.0%}{gpu_hours(run.get('time_use'))}")
    return "; ".join(parts)


def gpu_hours(told: Document | None) -> str:
    """Return what was trained again, in hours of a GPU; nothing where that is none, or not known.

    >>> gpu_hours({"lost_gpu_hours": 1.42}), gpu_hours({"lost_gpu_hours": 0.0})
    (', 1.4 GPU-hours lost', '')
    """
    lost = (told or {}).get("lost_gpu_hours")
    return f", {lost:.2g} GPU-hours lost" if isinstance(lost, (int, float)) and lost >= 0.01 else ""


def goodput(run: Document) -> float | None:
    """Return which share of its time the run has kept; None where that is not known."""
    value = run.get("goodput")
    return value if isinstance(value, (int, float)) else None


def title(run: Document) -> str:
    """Return the run's id; it starts with the name."""
    return str(run.get("run_id") or run.get("name") or "?")


def phase(name: object, paint: Paint) -> str:
    """Return the phase in its colour; yellow for phases that pass."""
    text = str(name or "?")
    return paint(text, *_PHASE_STYLE.get(text, ("yellow",)))


def standby_line(standby: Document | None) -> str:
    """Return `standby: generation 3 is ready, 2 tasks, 1.3 GiB`, or nothing where there is none."""
    if not standby or standby.get("generation") is None:
        return ""
    facts = [f"generation {standby['generation']} is {standby['state']}"]
    tasks = standby.get("tasks") or []
    each = len({task.get("task") for task in tasks})
    facts.append(
        counted(each, "task") + (f", and {len(tasks) - each} on spares" if len(tasks) > each else "")
    )
    if standby.get("memory_bytes"):
        facts.append(size(standby["memory_bytes"]))
    return "standby: " + ", ".join(facts)


def saving_line(run: Document) -> str:
    """Return `saves: every 240 steps (about 55 s): …` of a run that goes on, or nothing."""
    saving = run.get("saving")
    return f"saves: {saving['sentence']}" if saving and is_active(run) else ""


def checkpoint_line(checkpoint: Document | None) -> str:
    """Return `checkpoint: step 100, verified, 12 s old, /shared/mnist/gen-000002/ckpt-100`, or nothing."""
    if not checkpoint:
        return ""
    step = checkpoint.get("global_step")
    facts = ["step unknown" if step is None else f"step {step}"]
    if checkpoint.get("removed"):
        facts.append("verified, then removed by the script at its end")
    else:
        facts.append("verified" if checkpoint.get("verified") else "complete, format unknown: not verified")
    if checkpoint.get("age_s") is not None:
        facts.append(f"{duration(checkpoint['age_s'])} old")
    if checkpoint.get("path"):
        facts.append(str(checkpoint["path"]))
    return "checkpoint: " + ", ".join(facts)


_COLUMNS = ("TASK", "HOST", "PHASE", "PID", "STEP", "STEPS/S", "CPU", "MEM", "GPU", "HEARTBEAT")
_RIGHT = frozenset({"PID", "STEP", "STEPS/S", "CPU", "MEM", "GPU", "HEARTBEAT"})
_ALWAYS = frozenset({"TASK", "HOST", "PHASE", "PID", "STEP"})
_DROP = ("PID", "MEM", "CPU", "HEARTBEAT", "STEPS/S", "GPU", "HOST", "STEP")
"""What a narrow terminal does without: the first one first."""


def task_table(run: Document, paint: Paint, width: int | None = None) -> list[str]:
    """Return the table of tasks, one line each, none wider than `width`. Empty columns are left out."""
    hosts = {host.get("host"): host for host in run.get("hosts") or []}
    tasks = run.get("tasks") or []
    rows = [task_row(task, hosts.get(task.get("host")) or {}) for task in tasks]
    styles = {(n, "PHASE"): _PHASE_STYLE.get(row["PHASE"], ("yellow",)) for n, row in enumerate(rows)}
    return fitting(
        _COLUMNS, rows, paint, width=width, right=_RIGHT, always=_ALWAYS, drop=_DROP, styles=styles
    )


def task_row(task: Document, host: Document) -> dict[str, str]:
    """Return the cells of a task by column; `-` for what is not known."""
    heard = task.get("heartbeat_age_s")
    return {
        "TASK": str(task.get("task")),
        "HOST": str(task.get("host")),
        "PHASE": str(task.get("phase")),
        "PID": _or_dash(task.get("pid")),
        "STEP": _or_dash(task.get("global_step")),
        "STEPS/S": "-" if task.get("steps_per_s") is None else pace(task["steps_per_s"]),
        "CPU": "-" if task.get("cpu_percent") is None else f"{task['cpu_percent']:.0f}%",
        "MEM": "-" if task.get("rss_bytes") is None else size(task["rss_bytes"]),
        "GPU": gpu_text(gpus_of(task, host)),
        "HEARTBEAT": "-" if heard is None else f"{duration(heard)} ago",
    }


def gpus_of(task: Document, host: Document) -> list[Document]:
    """Return those GPUs of the host that the task has."""
    return [gpu for gpu in host.get("gpus") or [] if gpu.get("index") in (task.get("gpus") or [])]


def gpu_text(gpus: Sequence[Document]) -> str:
    """Return the use of some GPUs: the mean of their utilization, and their memory together.

    >>> gpu_text([{"utilization_percent": 96, "memory_used_bytes": 8 << 30}, {"utilization_percent": 98}])
    '97% 8.0 GiB'
    """
    used = [gpu["utilization_percent"] for gpu in gpus if gpu.get("utilization_percent") is not None]
    memory = [gpu["memory_used_bytes"] for gpu in gpus if gpu.get("memory_used_bytes") is not None]
    parts = [f"{sum(used) / len(used):.0f}%"] if used else []
    return " ".join([*parts, *([size(sum(memory))] if memory else [])]) or "-"


def ended_tasks(tasks: Iterable[Document]) -> list[str]:
    """Return the tasks of an ended run, one line each: `worker:0 on gpu-a: exit code 0`."""
    return [f"{t.get('task')} on {t.get('host')}: {exit_text(t)}" for t in tasks]


_NO_EXIT = {"WAITING": "not started", "LOST": "lost"}
"""How a task without an exit record ended, by its phase."""


def exit_text(task: Document) -> str:
    """Return how a task of an ended run ended, as far as that is known."""
    cause = task.get("cause")
    if cause == "ordered":
        return "stopped by orch"
    why = f" ({cause})" if cause not in (None, "finished") else ""
    if task.get("exit_code") is not None:
        return f"exit code {task['exit_code']}{why}"
    if task.get("signal"):
        return f"killed by {_signal_name(task['signal'])}{why}"
    return _NO_EXIT.get(str(task.get("phase")), "not known to have ended") + why


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def trouble_lines(run: Document, paint: Paint, width: int | None = None) -> list[str]:
    """Return what is wrong: unreachable hosts, warnings, the problem, the hint, and of a failed run its first cause."""
    hosts = run.get("hosts") or [] if is_active(run) else []
    lines = _folded((line for host in hosts if (line := host_line(host, paint))), width)
    proof = run.get("proof") or {}
    if not is_active(run) and proof.get("unreachable"):
        lines.append(
            f"{', '.join(proof['unreachable'])} {paint('unreachable', 'yellow')}: processes may be left there"
        )
    for host, why in (proof.get("gone") or {}).items():
        lines.append(f"{host} {paint('not checked', 'yellow')}: {printable(str(why))}")
    warnings = [*(run.get("warnings") or []), *_dropped(run)]
    lines += _folded((f"{paint('warning:', 'yellow')} {warning}" for warning in warnings), width)
    problem = run.get("problem") or {}
    if problem.get("message") not in (None, run.get("reason")):
        lines += labelled("problem:", problem["message"], paint, "red", width)
    if problem.get("table"):
        lines += indent(cut(line, width and width - 4) for line in table(problem["table"], paint))
    cause = (run.get("first_cause") or {}) if run.get("phase") == "FAILED" else {}
    if problem.get("hint") not in (None, cause.get("advice")):
        lines += labelled("hint:", problem["hint"], paint, "cyan", width)
    return lines + (explanation(cause, paint, width) if cause else [])


def _folded(lines: Iterable[str], width: int | None) -> list[str]:
    return [part for line in lines for part in fold(line, width and width - 2, indent="  ")]


def _dropped(run: Document) -> list[str]:
    """Return a warning for each log of which a host's full disk lost a part."""
    return [
        f"{size(task['log_dropped_bytes'])} of the log of {task.get('task')} were lost: "
        f"the disk of {task.get('host')} could not take them"
        for task in run.get("tasks") or []
        if task.get("log_dropped_bytes")
    ]


def host_line(host: Document, paint: Paint) -> str:
    """Return the line of a host that is not simply connected and at work; nothing for one that is."""
    link, state = host.get("link"), str(host.get("state"))
    style = _HOST_STYLE.get(state)
    if style is None and link not in ("UNREACHABLE", "CONNECTING"):
        return ""
    silent_s = host.get("heard_age_s") if link != "CONNECTED" else None
    since = f", last heartbeat {duration(silent_s)} ago" if silent_s is not None else ""
    reason = host.get("reason") or host.get("problem")
    why = f": {printable(str(reason))}" if reason else ""
    why += f"; {host['hint']}" if host.get("hint") else ""
    if style is None and link == "UNREACHABLE":
        state, style = "unreachable", "yellow"
        since = f" for {duration(silent_s)}" if silent_s is not None else ""
    elif style is None:
        state, style = "connecting", ""
    return f"{host.get('host')} {paint(state, style) if style else state}{since}{why}"


_LINES_MAX = 8
"""How many last lines are shown where there is no traceback."""


def explanation(cause: Document, paint: Paint, width: int | None = None) -> list[str]:
    """Return what a first cause means, what to do about it, and the last lines of that task."""
    lines = []
    for label, key in (("means:", "means"), ("hint:", "advice")):
        if cause.get(key):
            lines += labelled(label, cause[key], paint, "cyan", width)
    who = f"{cause['task']} | " if cause.get("task") else ""
    texts = [printable(line) for line in telling(cause.get("last_lines") or [])]
    return lines + [f"  {who}{cut(text, width and width - len(who) - 4)}".rstrip() for text in texts]


def telling(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of the last traceback, else the last few lines that are no banners and no repetition."""
    lines = excerpt(lines)
    begin = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return lines[begin[-1] :] if begin else lines[-_LINES_MAX:]


def first_cause(cause: Document, paint: Paint) -> str:
    """Return the one-line form of a first cause."""
    done = f"; {cause['done']}" if cause.get("done") else ""
    return f"{paint('first cause:', 'red')} {cause.get('sentence')}{done}"


def outcome(run: Document, paint: Paint, *, width: int | None = None) -> str:
    """Return how a run ended, for `orch up`."""
    lines = [*sentences(run, paint, width), *left_lines(run, paint, width), *trouble_lines(run, paint, width)]
    return "\n".join([*fold(headline(run, paint), width, indent="  "), *indent(lines)])


def progress(run: Document) -> str:
    """Return one line without colour: the phase, the reason or the progress, and the steps of all tasks."""
    parts = [str(run.get("phase"))]
    if run.get("phase") != "RUNNING" or run.get("global_step") is None:
        parts.append(str(run.get("reason") or ""))
        return ": ".join(filter(None, parts))
    facts = [f"step {run['global_step']}"]
    if run.get("steps_per_s") is not None:
        facts.append(f"{pace(run['steps_per_s'])} steps/s")
    facts += metrics(run)
    tasks = ", ".join(f"{t.get('task')} {_or_dash(t.get('global_step'))}" for t in run.get("tasks") or [])
    return f"RUNNING: {', '.join(facts)} ({tasks})"


_FOR_SCALE = "measured/"
"""What `orch scale` reads, in a table of its own."""


def metrics(run: Document) -> list[str]:
    """Return `epoch 2`, `loss 0.1234` and what else the chief reports. Epochs count from 1, as Keras prints them."""
    epoch = run.get("training_epoch")
    shown = [] if epoch is None else [f"epoch {epoch + 1}"]
    found = run.get("metrics") or {}
    return shown + [
        f"{name} {value:.4g}"
        for name, value in found.items()
        if isinstance(value, (int, float)) and not name.startswith(_FOR_SCALE)
    ]


def event(event: Document, paint: Paint, *, utc: bool = False) -> str:
    """Return one event: `2026-11-20 13:00:03 CET  died  worker:1 on gpu-b …`. Times are local, or UTC."""
    time = of_event(event.get("time"), utc=utc)
    parts = [paint(time, "dim"), paint(str(event.get("kind")), "cyan"), str(event.get("message") or "")]
    return "  ".join(filter(None, parts))


def proof(run: Document, paint: Paint) -> str:
    """Return what a kill found on each host, and what is left."""
    document = run.get("proof") or {}
    lines = [f"{title(run)}: {phase(run.get('phase'), paint)}"]
    for host, found in (document.get("hosts") or {}).items():
        left, ports = found.get("left") or [], found.get("ports_busy") or []
        by = f" (checked by {found['by']})" if found.get("by") else ""
        if not left and not ports:
            lines.append(f"  {host}: no leftover processes, ports free{by}")
        lines += [f"  {host}: {paint('cannot be killed:', 'red')} {left_text(item)}" for item in left]
        if ports:
            lines.append(f"  {host}: {paint('ports busy:', 'red')} {', '.join(map(str, ports))}")
    for host, why in (document.get("gone") or {}).items():
        lines.append(f"  {host}: {paint('not checked', 'yellow')}, {why}")
    for host in document.get("unreachable") or []:
        lines.append(
            f"  {host}: {paint('unreachable', 'yellow')}, not checked; its tasks are killed once it answers"
        )
    hosts = (document.get("hosts") or {}).values()
    lines += [
        f"  {by}: {proof_by(by)}" for by in sorted({str(found["by"]) for found in hosts if found.get("by")})
    ]
    return "\n".join(lines)


def table(
    rows: Sequence[Sequence[str]],
    paint: Paint,
    *,
    right: frozenset[str] = frozenset(),
    styles: Mapping[tuple[int, int], tuple[str, ...]] | None = None,
) -> list[str]:
    """Align rows in columns, two blanks apart. The first row names the columns. Colours take no width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for y, row in enumerate(rows):
        cells = []
        for x, text in enumerate(row):
            pad = " " * (widths[x] - len(text))
            painted = paint(text, *(styles or {}).get((y, x), ()))
            cells.append(pad + painted if rows[0][x] in right else painted + pad)
        lines.append("  ".join(cells).rstrip())
    return lines


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def indent(lines: Iterable[str]) -> list[str]:
    """Indent lines by two columns."""
    return [f"  {line}" if line else "" for line in lines]
