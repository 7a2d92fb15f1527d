"""Format what is wrong with a run: hosts, warnings, the problem, and the cause that ended it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.both.repetition import excerpt
from orchestrator.cli.session import Paint
from orchestrator.cli.show.paragraphs import folded, indent, labelled
from orchestrator.cli.show.tables import table
from orchestrator.cli.show.terminal import cut, printable
from orchestrator.client.choice import is_active
from orchestrator.core.words import duration, size

Document = Mapping[str, Any]

_HOST_STYLE = {
    "lost": "red",
    "quarantined": "red",
    "stuck": "red",
    "drained": "yellow",
    "leaving": "yellow",
    "spare": "dim",
}
"""The states of hosts that are always shown."""


def trouble_lines(run: Document, paint: Paint, width: int | None = None) -> list[str]:
    """Return what is wrong: unreachable hosts, warnings, the problem, the hint, and of a failed run its first cause."""
    hosts = run.get("hosts") or [] if is_active(run) and run.get("phase") != "QUEUED" else []
    lines = folded((line for host in hosts if (line := host_line(host, paint))), width)
    proof = run.get("proof") or {}
    if not is_active(run) and proof.get("unreachable"):
        lines.append(
            f"{', '.join(proof['unreachable'])} {paint('unreachable', 'yellow')}: processes may be left there"
        )
    for host, why in (proof.get("gone") or {}).items():
        lines.append(f"{host} {paint('not checked', 'yellow')}: {printable(str(why))}")
    warnings = [*(run.get("warnings") or []), *_dropped(run), *_nonfinite(run)]
    lines += folded((f"{paint('warning:', 'yellow')} {warning}" for warning in warnings), width)
    problem = run.get("problem") or {}
    if problem.get("message") not in (None, run.get("reason")):
        lines += labelled("problem:", problem["message"], paint, "red", width)
    if problem.get("table"):
        lines += indent(cut(line, width and width - 4) for line in table(problem["table"], paint))
    cause = (run.get("first_cause") or {}) if run.get("phase") == "FAILED" else {}
    if problem.get("hint") not in (None, cause.get("advice")):
        lines += labelled("hint:", problem["hint"], paint, "cyan", width)
    return lines + (explanation(cause, paint, width) if cause else [])


def _nonfinite(run: Document) -> list[str]:
    """Return a warning for each metric that is NaN or infinite."""
    return [
        f"{name} is {odd['value']} since step {odd['global_step']}"
        for name, odd in (run.get("nonfinite") or {}).items()
    ]


def _dropped(run: Document) -> list[str]:
    """Return a warning for each log that lost a part because a host's disk was full."""
    return [
        f"{size(task['log_dropped_bytes'])} of the log of {task.get('task')} were lost: "
        f"the disk of {task.get('host')} could not take them"
        for task in run.get("tasks") or []
        if task.get("log_dropped_bytes")
    ]


def host_line(host: Document, paint: Paint) -> str:
    """Return a line about a host with a problem; empty if it is connected and at work."""
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
    """Return the lines of the last traceback, else the last few lines without banners and repetitions."""
    lines = excerpt(lines)
    begin = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return lines[begin[-1] :] if begin else lines[-_LINES_MAX:]
