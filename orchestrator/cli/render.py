"""Documents to text. Pure functions: what the coordinator said in, lines for people out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.cli.quantities import clock_time, duration, pace, plural, size
from orchestrator.cli.session import Paint
from orchestrator.cli.terminal import cut, fold, printable

TERMINAL_PHASES = ("SUCCEEDED", "FAILED", "KILLED")

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
    "spare": "dim",
}
"""States of hosts that are said even where all is well."""

ENDED_MAX = 5
"""How many ended runs have a line in the status of all."""

Document = Mapping[str, Any]


def is_active(run: Document) -> bool:
    """Whether it can still change."""
    return run.get("phase") not in TERMINAL_PHASES


def status(document: Document, paint: Paint, *, width: int | None = None) -> str:
    """All runs of a status document: first what is active, or ended last, in full; of the others a line each."""
    runs = list(document.get("runs") or [])
    if not runs:
        return "no runs; `orch up FILE` starts one"
    full = [found for found in runs if is_active(found)] or [runs[-1]]
    ended = [found for found in reversed(runs) if not is_active(found) and found not in full]
    blocks = [run(found, paint, width=width) for found in full]
    if ended:
        lines = [
            paint("ended before:", "dim"),
            *(f"  {headline(found, paint)}" for found in ended[:ENDED_MAX]),
        ]
        if len(ended) > ENDED_MAX:
            lines.append(f"  and {len(ended) - ENDED_MAX} more; `orch status NAME` shows one")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def run(run: Document, paint: Paint, *, width: int | None = None) -> str:
    """One run: phase, what went wrong first, reason, checkpoint, tasks, and what is wrong.

    `width`: the terminal's columns; None leaves sentences on one line.
    """
    lines = [headline(run, paint), *indent(sentences(run, paint, width))]
    checkpoint = checkpoint_line(run.get("checkpoint"))
    if checkpoint:
        lines.append(f"  {checkpoint}")
    if is_active(run):
        lines += ["", *indent(task_table(run.get("tasks") or [], paint))]
    else:
        lines += indent(ended_tasks(run.get("tasks") or []))
    troubles = [*trouble_lines(run, paint, width)]
    if troubles:
        lines += ["", *indent(troubles)]
    return "\n".join(lines)


def sentences(run: Document, paint: Paint, width: int | None = None) -> list[str]:
    """What went wrong first, and the reason of the phase; what both say is said once."""
    reason, cause = str(run.get("reason") or ""), run.get("first_cause")
    if not cause or run.get("phase") == "SUCCEEDED":
        return fold(reason, width and width - 2, indent="  ") if reason else []
    sentence, done = str(cause.get("sentence")), str(cause.get("done") or "")
    rest = reason.removeprefix(sentence).removeprefix("; ")
    style = "red" if rest != reason else "yellow"
    if is_active(run) and done and rest:
        sentence = f"{sentence}; {done}"
    lines = labelled("first cause:", sentence, paint, style, width)
    return [*lines, *(fold(rest, width and width - 2, indent="  ") if rest else [])]


def labelled(label: str, text: object, paint: Paint, style: str, width: int | None = None) -> list[str]:
    """`label text`, the label in its colour; folded to what two columns of indent leave of the terminal."""
    first, *others = fold(f"{label} {text}", width and width - 2, indent="  ")
    return [paint(label, style) + first.removeprefix(label), *others]


def headline(run: Document, paint: Paint) -> str:
    """`mnist-20261120-1  RUNNING  generation 2, 1 restart, step 120, 3.4 steps/s`."""
    facts = []
    if run.get("generation"):
        facts.append(f"generation {run['generation']}")
    if run.get("restarts"):
        facts.append(plural(run["restarts"], "restart"))
    if run.get("global_step") is not None:
        facts.append(f"step {run['global_step']}")
    if is_active(run) and run.get("steps_per_s") is not None:
        facts.append(f"{pace(run['steps_per_s'])} steps/s")
    facts += metrics(run)
    return "  ".join(
        filter(None, [paint(title(run), "bold"), phase(run.get("phase"), paint), ", ".join(facts)])
    )


def title(run: Document) -> str:
    """Its id; it starts with the name."""
    return str(run.get("run_id") or run.get("name") or "?")


def phase(name: object, paint: Paint) -> str:
    """A phase, in the colour of how bad it is. Yellow: on its way."""
    text = str(name or "?")
    return paint(text, *_PHASE_STYLE.get(text, ("yellow",)))


def checkpoint_line(checkpoint: Document | None) -> str:
    """`checkpoint: step 100, verified, 12 s old, /shared/mnist/gen-000002/ckpt-100`, or nothing."""
    if not checkpoint:
        return ""
    step = checkpoint.get("global_step")
    facts = ["step unknown" if step is None else f"step {step}"]
    if checkpoint.get("removed"):
        facts.append("verified while it trained, and removed at its end")
    else:
        facts.append("verified" if checkpoint.get("verified") else "not verified")
    if checkpoint.get("age_s") is not None:
        facts.append(f"{duration(checkpoint['age_s'])} old")
    if checkpoint.get("path"):
        facts.append(str(checkpoint["path"]))
    return "checkpoint: " + ", ".join(facts)


_COLUMNS = ("TASK", "HOST", "PHASE", "PID", "STEP", "STEPS/S", "CPU", "MEM", "HEARD")
_RIGHT = frozenset({"PID", "STEP", "STEPS/S", "CPU", "MEM", "HEARD"})
_ALWAYS = frozenset({"TASK", "HOST", "PHASE", "PID", "STEP"})


def task_table(tasks: Sequence[Document], paint: Paint) -> list[str]:
    """One line per task. A column that nobody fills is left out, but for those that people look for."""
    rows = [_task_row(task) for task in tasks]
    shown = [c for i, c in enumerate(_COLUMNS) if c in _ALWAYS or any(row[i] != "-" for row in rows)]
    keep = [_COLUMNS.index(c) for c in shown]
    phase_at = shown.index("PHASE")
    styles = {
        (number, phase_at): _PHASE_STYLE.get(row[2], ("yellow",)) for number, row in enumerate(rows, start=1)
    }
    styles |= {(0, i): ("dim",) for i in range(len(shown))}
    return table([shown, *([row[i] for i in keep] for row in rows)], paint, right=_RIGHT, styles=styles)


def _task_row(task: Document) -> list[str]:
    heard = task.get("heartbeat_age_s")
    return [
        str(task.get("task")),
        str(task.get("host")),
        str(task.get("phase")),
        _or_dash(task.get("pid")),
        _or_dash(task.get("global_step")),
        "-" if task.get("steps_per_s") is None else pace(task["steps_per_s"]),
        "-" if task.get("cpu_percent") is None else f"{task['cpu_percent']:.0f}%",
        "-" if task.get("rss_bytes") is None else size(task["rss_bytes"]),
        "-" if heard is None else f"{duration(heard)} ago",
    ]


def ended_tasks(tasks: Iterable[Document]) -> list[str]:
    """`worker:0 on gpu-a: exit 0`, for a run that has ended."""
    return [f"{t.get('task')} on {t.get('host')}: {exit_text(t)}" for t in tasks]


def exit_text(task: Document) -> str:
    """How a task ended, as far as is known."""
    cause = task.get("cause")
    why = f" ({cause})" if cause not in (None, "finished") else ""
    if cause == "ordered":
        return "stopped by orch"
    if task.get("exit_code") is not None:
        return f"exit {task['exit_code']}{why}"
    if task.get("signal"):
        return f"signal {task['signal']}{why}"
    return f"{str(task.get('phase') or '?').lower()}{why}"


def trouble_lines(run: Document, paint: Paint, width: int | None = None) -> list[str]:
    """What is wrong with it: hosts that do not answer, warnings, the first cause, the problem and the way out."""
    hosts = run.get("hosts") or [] if is_active(run) else []
    lines = [line for host in hosts if (line := host_line(host, paint))]
    proof = run.get("proof") or {}
    if not is_active(run) and proof.get("unreachable"):
        lines.append(
            f"{', '.join(proof['unreachable'])} {paint('unreachable', 'yellow')}: what is left there is not known"
        )
    warnings = [*(run.get("warnings") or []), *_dropped(run)]
    lines += [f"{paint('warning:', 'yellow')} {warning}" for warning in warnings]
    problem = run.get("problem")
    if problem:
        if problem.get("message") != run.get("reason"):
            lines.append(f"{paint('problem:', 'red')} {problem.get('message')}")
        if problem.get("hint"):
            lines.append(f"{paint('hint:', 'cyan')} {problem['hint']}")
    cause = run.get("first_cause")
    if cause and run.get("phase") == "FAILED":
        lines += explanation(cause, paint, width)
    return lines


def _dropped(run: Document) -> list[str]:
    """What a host's full disk could not take of the logs."""
    return [
        f"{size(task['log_dropped_bytes'])} of the log of {task.get('task')} were dropped: "
        f"the disk of {task.get('host')} did not take them"
        for task in run.get("tasks") or []
        if task.get("log_dropped_bytes")
    ]


def host_line(host: Document, paint: Paint) -> str:
    """A host that is not simply connected and at work; nothing for one that is."""
    link, state = host.get("link"), str(host.get("state"))
    style = _HOST_STYLE.get(state)
    if style is None and link not in ("UNREACHABLE", "CONNECTING"):
        return ""
    away = link != "CONNECTED" and host.get("heard_age_s") is not None
    heard = f", last heard {duration(host['heard_age_s'])} ago" if away else ""
    reason = host.get("reason") or host.get("problem")
    why = f": {printable(str(reason))}" if reason else ""
    if style is None:
        state, style = ("unreachable", "yellow") if link == "UNREACHABLE" else ("connecting", "")
    return f"{host.get('host')} {paint(state, style) if style else state}{heard}{why}"


_LINES_MAX = 8
"""Of the last lines, where they end in no traceback."""


def explanation(cause: Document, paint: Paint, width: int | None = None) -> list[str]:
    """What a death means, what a person can do, and the last lines of whoever died first."""
    lines = []
    for label, key in (("means:", "means"), ("you can:", "advice")):
        if cause.get(key):
            lines += labelled(label, cause[key], paint, "cyan", width)
    who = f"{cause['task']} | " if cause.get("task") else ""
    texts = [printable(line) for line in telling(cause.get("last_lines") or [])]
    return lines + [f"  {who}{cut(text, width and width - len(who) - 4)}".rstrip() for text in texts]


def telling(lines: Sequence[str]) -> Sequence[str]:
    """Of the last lines those of the last traceback, else the last few."""
    begin = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return lines[begin[-1] :] if begin else lines[-_LINES_MAX:]


def first_cause(cause: Document, paint: Paint) -> str:
    """The headline of a death."""
    done = f"; {cause['done']}" if cause.get("done") else ""
    return f"{paint('first cause:', 'red')} {cause.get('sentence')}{done}"


def outcome(run: Document, paint: Paint, *, width: int | None = None) -> str:
    """How a run ended, for whoever waited for it."""
    told = [*sentences(run, paint, width), *trouble_lines(run, paint, width)]
    return "\n".join([headline(run, paint), *indent(told)])


def progress(run: Document) -> str:
    """One line without colour, for a log of what happens: phase, sentence, steps of all tasks."""
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


def metrics(run: Document) -> list[str]:
    """`epoch 2`, `loss 0.1234` and whatever else the chief reports."""
    epoch = run.get("training_epoch")
    shown = [] if epoch is None else [f"epoch {epoch}"]
    found = run.get("metrics") or {}
    return shown + [f"{name} {value:.4g}" for name, value in found.items() if isinstance(value, (int, float))]


def event(event: Document, paint: Paint) -> str:
    """`12:00:03  restarting  worker:1  the gang starts again as generation 3`, by UTC."""
    task, message = event.get("task"), str(event.get("message") or "")
    if task and message.startswith(str(task)):
        task = None  # said once
    return "  ".join(
        filter(
            None,
            [
                paint(clock_time(str(event.get("time") or "")), "dim"),
                paint(str(event.get("kind")), "cyan"),
                str(task) if task else "",
                message,
            ],
        )
    )


def proof(run: Document, paint: Paint) -> str:
    """What was looked at after a kill, host by host, and what is left."""
    document = run.get("proof") or {}
    lines = [f"{title(run)}: {phase(run.get('phase'), paint)}"]
    for host, found in (document.get("hosts") or {}).items():
        left, ports = found.get("left") or [], found.get("ports_busy") or []
        by = f" (by {found['by']})" if found.get("by") else ""
        if not left and not ports:
            lines.append(f"  {host}: no process left, ports free{by}")
        lines += [f"  {host}: {paint('cannot be killed:', 'red')} {left_text(item)}" for item in left]
        if ports:
            lines.append(f"  {host}: {paint('ports busy:', 'red')} {', '.join(map(str, ports))}")
    for host in document.get("unreachable") or []:
        lines.append(
            f"  {host}: {paint('unreachable', 'yellow')}, nothing is known; it is fenced off when back"
        )
    return "\n".join(lines)


def left_text(item: object) -> str:
    """`pid 4242: uninterruptible sleep`, of the wire's form or of a sentence."""
    if isinstance(item, Mapping):
        return f"pid {item.get('pid')}: {item.get('why')}"
    return str(item)


def table(
    rows: Sequence[Sequence[str]],
    paint: Paint,
    *,
    right: frozenset[str] = frozenset(),
    styles: Mapping[tuple[int, int], tuple[str, ...]] | None = None,
) -> list[str]:
    """Columns two blanks apart; the first row names them. Colours do not count for the width."""
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
    """Two columns."""
    return [f"  {line}" if line else "" for line in lines]
