"""Format the coordinator's documents as text for people. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.cli.session import Paint
from orchestrator.cli.show.paragraphs import folded, indent, labelled
from orchestrator.cli.show.phase_colours import phase
from orchestrator.cli.show.task_table import ended_tasks, or_dash, task_table
from orchestrator.cli.show.terminal import fold, printable
from orchestrator.cli.show.times import event_time, shown
from orchestrator.cli.show.troubles import trouble_lines
from orchestrator.client.choice import is_active
from orchestrator.client.run_facts import metrics, position
from orchestrator.core.words import counted, duration, pace, size
from orchestrator.reporting.fault_costs import sentence as costs_in_words

ENDED_MAX = 5
"""How many ended runs have a line in the status of all."""

WAITING_MAX = 5
"""How many runs that wait the status of all shows."""

Document = Mapping[str, Any]


def status(document: Document, paint: Paint, *, width: int | None = None) -> str:
    """Format a status document: the active runs (or the last ended one) in full, the others on a line each."""
    runs = list(document.get("runs") or [])
    if not runs and document.get("troubles"):
        return "No run can be shown"
    if not runs:
        return "No runs yet; `orch up FILE` starts one"
    full = [each_run for each_run in runs if is_active(each_run)] or [runs[-1]]
    ended = [each_run for each_run in reversed(runs) if not is_active(each_run) and each_run is not full[0]]
    waiting = [each_run.get("run_id") for each_run in full if each_run.get("phase") == "QUEUED"][WAITING_MAX:]
    left_out = set(waiting)
    blocks = [
        run(each_run, paint, width=width) for each_run in full if each_run.get("run_id") not in left_out
    ]
    if waiting:
        blocks.append(f"Runs that wait besides: {len(waiting):,}; `orch queue` shows all in their order")
    if ended:
        lines = [paint("Ended runs:", "dim")]
        for each_run in ended[:ENDED_MAX]:
            lines += indent(fold(headline(each_run, paint), width and width - 2, indent="  "))
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
        costs_in_words(costs) if (costs := run.get("fault_costs")) and is_active(run) else "",
        standby_line(run.get("standby")),
    )
    for line in filter(None, facts):
        lines += indent(fold(line, width and width - 2, indent="  "))
    if is_active(run):
        lines += ["", *indent(task_table(run, paint, width and width - 2))]
    else:
        lines += indent(ended_tasks(run.get("tasks") or []))
        lines += indent(left_lines(run, paint, width))
    shown = {line.strip() for line in lines}
    hints = [
        line for hint in run.get("hints") or [] for line in labelled("hint:", hint, paint, "cyan", width)
    ]
    troubles = [line for line in dict.fromkeys(trouble_lines(run, paint, width) + hints) if line not in shown]
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
    """Return the phase's reason without the part that is shown beside it: the first cause, or the position."""
    return str(run.get("reason_rest", run.get("reason")) or "")


def headline(run: Document, paint: Paint) -> str:
    """Return the first line: `mnist-20261120-1  RUNNING  generation 2, 1 restart, step 120, 3.4 steps/s`."""
    facts = position(run) + metrics(run)
    return "  ".join(
        filter(None, [paint(title(run), "bold"), phase(run.get("phase"), paint), ", ".join(facts)])
    )


def bottleneck_line(run: Document) -> str:
    """Return what limits the run now, for how long, and what to do; empty if nothing is known."""
    limit = run.get("bottleneck")
    if not limit or not is_active(run):
        return ""
    since = f" (for {duration(limit['age_s'])})" if limit.get("age_s") is not None else ""
    return f"limited by {limit.get('sentence')}{since}: {limit.get('remedy')}"


def times_line(run: Document) -> str:
    """Return `started 2026-11-20 12:00:00 CET, 2 h 5 min; 41 min left; goodput 91%`, as far as known."""
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


def gpu_hours(account: Document | None) -> str:
    """Return how many GPU-hours were trained again; empty if that is none, or not known.

    >>> gpu_hours({"lost_gpu_hours": 1.42}), gpu_hours({"lost_gpu_hours": 0.0})
    (', 1.4 GPU-hours lost', '')
    """
    lost = (account or {}).get("lost_gpu_hours")
    return f", {lost:.2g} GPU-hours lost" if isinstance(lost, (int, float)) and lost >= 0.01 else ""


def goodput(run: Document) -> float | None:
    """Return the share of its time that the run has kept; None if unknown."""
    value = run.get("goodput")
    return value if isinstance(value, (int, float)) else None


def title(run: Document) -> str:
    """Return the run's id; it starts with the name."""
    return str(run.get("run_id") or run.get("name") or "?")


def standby_line(standby: Document | None) -> str:
    """Return `standby: generation 3 is ready, 2 tasks, 1.3 GiB`, or nothing if there is none."""
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
    if not saving or not is_active(run):
        return ""
    step, known = saving.get("saved_step"), (run.get("checkpoint") or {}).get("global_step")
    newer = "" if step is None or step <= (known or 0) else f"; step {step} is written, and not verified yet"
    return f"saves: {saving['sentence']}{newer}"


def checkpoint_line(checkpoint: Document | None) -> str:
    """Return `checkpoint: step 100, verified, 12 s old, /shared/mnist/gen-000002/ckpt-100`, or nothing."""
    if not checkpoint:
        return ""
    step = checkpoint.get("global_step")
    facts = ["step unknown" if step is None else f"step {step}"]
    if checkpoint.get("removed"):
        facts.append("verified, and not there any more at the end of the run")
    else:
        facts.append(
            "verified" if checkpoint.get("verified") else "complete, not verified: its format cannot be"
        )
    if checkpoint.get("age_s") is not None:
        facts.append(f"{duration(checkpoint['age_s'])} old")
    if checkpoint.get("path"):
        facts.append(str(checkpoint["path"]))
    return "checkpoint: " + ", ".join(facts)


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
    tasks = ", ".join(f"{t.get('task')} {or_dash(t.get('global_step'))}" for t in run.get("tasks") or [])
    return f"RUNNING: {', '.join(facts)} ({tasks})"


def event(event: Document, paint: Paint, *, utc: bool = False) -> str:
    """Return one event: `2026-11-20 13:00:03 CET  died  worker:1 on gpu-b …`. Times are local, or UTC."""
    time = event_time(event.get("time"), utc=utc)
    parts = [paint(time, "dim"), paint(str(event.get("kind")), "cyan"), str(event.get("message") or "")]
    return "  ".join(filter(None, parts))


TASKS_MAX = 8
"""How many tasks have a line."""


def left_lines(run: Mapping[str, Any], paint: Paint, width: int | None = None) -> list[str]:
    """Return which files the tasks have left, how to fetch them, and which could not be fetched."""
    outputs = run.get("outputs") or {}
    tasks, lines = outputs.get("tasks") or [], []
    for left in tasks[:TASKS_MAX]:
        there = f"{left['task']} left {counted(left['files'], 'file')}, {size(left['bytes'])}"
        here = f"; {left['fetched']} of them in {outputs['directory']}" if left["fetched"] else ""
        lines.append(f"{there}{here}")
    if len(tasks) > TASKS_MAX:
        lines.append(f"and {counted(len(tasks) - TASKS_MAX, 'task')} more left files")
    if any(left["fetched"] < left["files"] for left in tasks):
        lines[-1] += f": `orch fetch {run.get('name')}`"
    if outputs.get("pending"):
        lines.append(
            "what the tasks left is being fetched" if outputs["directory"] else "looking for what they left"
        )
    shown = folded(lines, width)
    for why in outputs.get("problems") or []:
        shown += labelled("not fetched:", printable(str(why)), paint, "yellow", width)
    return shown
