"""The texts of `orch top`. Pure functions. What hosts say acts on no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from orchestrator.cli.session import Paint
from orchestrator.cli.show import render, times
from orchestrator.cli.show.task_table import LEAST, MEASURED, gpus_of, task_row
from orchestrator.cli.show.terminal import inert, printable
from orchestrator.cli.show.troubles import trouble_lines
from orchestrator.cli.top.feed import Seen
from orchestrator.core.words import counted, duration
from orchestrator.head.records.log_file import LogLine

Document = Mapping[str, Any]

_PACE, *_MEASURED = MEASURED
COLUMNS = ("TASK", "HOST", "PHASE", "STEP", _PACE, "HEARTBEAT", *_MEASURED, "GPU", "W")
_DROP = (*LEAST[:-1], "W", "GPU", "HEARTBEAT", _PACE)

TROUBLE_FIRST = "trouble first"
ORDERS = {
    TROUBLE_FIRST: "",
    "STEP": "global_step",
    "HEARTBEAT": "heartbeat_age_s",
    **{column: name for column, (name, _) in MEASURED.items() if column != "RESCUE"},
}
"""By what tasks are sorted, and the number of a task that says it."""
_SMALLEST_FIRST = ("global_step", "steps_per_s")
"""The slowest are looked for; of all else those that have the most."""
_TROUBLE = ("FAILED", "LOST", "UNREACHABLE", "STALLED")

_GLYPHS = {"RUNNING": "▶", "SUCCEEDED": "✓", "FAILED": "✕", "KILLED": "✕", "STOPPING": "■"}
_STYLES = {"RUNNING": "green", "SUCCEEDED": "green", "FAILED": "red", "KILLED": "red", "LOST": "red"}
_BAR = 20
_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = Paint(on=False)


def safe(text: object, style: str = "") -> Text:
    """Return a text of somebody else as one line that acts on no terminal."""
    return Text(inert(" ".join(str(text).split())), style=style, no_wrap=True, overflow="ellipsis")


def head(seen: Seen, width: int = 120) -> Text:
    """Return the three lines on top: the run and how far it is, its sentence, and what broke first."""
    if seen.run is None and seen.troubles:
        return Text("\n").join([safe("No run can be shown"), _link(seen), safe(seen.troubles[0], "yellow")])
    if seen.run is None:
        text = safe("No runs yet; `orch up FILE` starts one" if seen.has_asked else "Asking the coordinator…")
        return Text("\n").join([text, _link(seen), Text("")])
    run = seen.run if seen.away is None else {**seen.run, "eta_s": None, "bottleneck": None}
    phase = str(run.get("phase"))
    first = Text.assemble(
        (render.title(run), "bold"),
        "  ",
        (f"{_GLYPHS.get(phase, '◌')} {phase}", _STYLES.get(phase, "yellow")),
        "  ",
        _link(seen),
        "  ",
    )
    others = f"  {counted(len(seen.runs), 'run')} (r)" if len(seen.runs) > 1 else ""
    # On a narrow screen, what tells least is left out first: the bar, then the number of runs, then the last facts.
    choices = [(_facts(run, bar), others) for bar in (_BAR, _BAR // 2, 0)]
    facts = choices[-1][0]
    choices += [(facts[:count], "") for count in range(len(facts), -1, -1)]
    room = width - first.cell_len
    lines = ((" ".join(some), rest) for some, rest in choices)
    shown, rest = next(line for line in lines if sum(map(len, line)) <= room or not line[0])
    first.append_text(safe(shown))
    first.append(rest, "dim")
    cause = run.get("first_cause") or {}
    wrong = [line.strip() for line in trouble_lines({**run, "first_cause": None}, _PLAIN)]
    third = Text("")
    if cause and phase == "RUNNING" and (cause.get("generation") or 0) < (run.get("generation") or 0):
        # It is over: its time, and no alarm over a run that trains.
        when = times.shown(cause["ended_time"]) if cause.get("ended_time") else "earlier"
        third = safe(f"{when}: {cause.get('sentence')}", "dim")
    elif cause and phase != "SUCCEEDED":
        after = "" if phase == "KILLED" else cause.get("done") or ""  # nothing goes on
        third = safe(f"✕ {cause.get('sentence')}; {after}".rstrip("; "), "red")
    elif wrong:
        third = safe(wrong[0], "yellow")
    elif render.bottleneck_line(run):
        third = safe(render.bottleneck_line(run), "yellow")
    sentence = render.rest_of_reason(run) or render.checkpoint_line(run.get("checkpoint"))
    second = safe(sentence) if seen.away is None else safe(f"{seen.away}; this is its last record", "red")
    return Text("\n").join([first, second, third])


def _link(seen: Seen) -> Text:
    if not seen.has_asked:
        return Text("")
    return Text("● live", style="green") if seen.away is None else Text("● away", style="red")


def _facts(run: Document, bar_cells: int) -> list[str]:
    facts = [f"gen {run['generation']}"] if run.get("generation") else []
    step, total = run.get("global_step"), run.get("steps_total")
    if step is not None and total:
        share = min(1.0, step / total)
        done = round(share * bar_cells)
        bar = f"{'▓' * done}{'░' * (bar_cells - done)} " if bar_cells else ""
        facts.append(f"{step:,}/{total:,} {bar}{share:.0%}")
    elif step is not None:
        facts.append(f"step {step:,}")
    if run.get("eta_s") is not None:
        facts.append(f"ETA {duration(run['eta_s'])}")
    kept = render.goodput(run)
    return [*facts, *([f"goodput {kept:.0%}"] if kept is not None else [])]


def sparkline(name: str, points: Sequence[float], width: int) -> Text:
    """Return `steps/s ▁▂▅▇▇ 3.4`: the largest value of each column, so that no peak is lost.

    >>> str(sparkline("loss", [4.0, 2.0, 1.0], 12))
    'loss █▃▁ 1'
    """
    if not points:
        return Text(f"{name} -", style="dim")
    last = f"{points[-1]:.4g}"
    room = max(1, width - len(name) - len(last) - 2)
    per = -(-len(points) // room)
    shown = [max(points[at : at + per]) for at in range(0, len(points), per)]
    low, high = min(shown), max(shown)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    bars = "".join(_BLOCKS[round((value - low) * scale)] for value in shown)
    return Text.assemble((name, "dim"), " ", (bars, "cyan"), " ", (last, "bold"))


def is_in_trouble(task: Document) -> bool:
    """Return whether a task failed, is lost, or was ended by something that nobody ordered."""
    return task.get("phase") in _TROUBLE or task.get("cause") not in (None, "finished", "ordered")


def ordered(tasks: Sequence[Document], by: str, wanted: str = "") -> list[Document]:
    """Return the tasks whose task, host, phase or cause has a text, in the order of one of `ORDERS`.

    Without a column, those in trouble come first, and then all as in the spec. What is not known comes last.
    """
    text = wanted.strip().lower()
    told = [
        (" ".join(str(task.get(key) or "") for key in ("task", "host", "phase", "stage", "cause")), task)
        for task in tasks
    ]
    found = [task for words, task in told if text in words.lower()]
    name = ORDERS[by]
    if not name:
        return sorted(found, key=lambda task: not is_in_trouble(task))
    sign = 1 if name in _SMALLEST_FIRST else -1
    known = [task for task in found if task.get(name) is not None]
    known.sort(key=lambda task: sign * task[name])
    return [*known, *(task for task in found if task.get(name) is None)]


def task_rows(
    run: Document, width: int, *, by: str = TROUBLE_FIRST, wanted: str = ""
) -> tuple[list[str], dict[str, list[Text]]]:
    """Return the columns that have something and fit, and the cells by task, as `ordered` has them."""
    hosts = {host.get("host"): host for host in run.get("hosts") or []}
    rows = {
        str(task["task"]): _cells(task, hosts.get(task.get("host")) or {})
        for task in ordered(run.get("tasks") or [], by, wanted)
    }
    shown = [name for name in COLUMNS if any(row[name].plain != "-" for row in rows.values())]
    for name in _DROP:
        taken = sum(max([len(key), *(row[key].cell_len for row in rows.values())]) + 2 for key in shown)
        if taken <= width:
            break
        shown = [key for key in shown if key != name]
    return shown, {task: [row[name] for name in shown] for task, row in rows.items()}


def _cells(task: Document, host: Document) -> dict[str, Text]:
    shown = task_row(task, host)
    phase = shown["PHASE"]
    power = [gpu.get("power_w") for gpu in gpus_of(task, host)]
    watts = [value for value in power if value is not None]
    return {
        **{name: safe(text) for name, text in shown.items()},
        "PHASE": safe(phase, _STYLES.get(phase.partition(":")[0], "yellow")),
        "W": safe(f"{sum(watts):.0f}" if watts else "-"),
    }


def event(document: Document, *, utc: bool = False) -> Text:
    """Return one event in one line: `03:12:44 CET failed  worker:3 …`, in local time or UTC."""
    time = times.event_time(document.get("time"), utc=utc)[11:]
    return Text.assemble(
        (time, "dim"), " ", (str(document.get("kind")), "cyan"), "  ", safe(document.get("message") or "")
    )


def log_line(line: LogLine, *, with_task: bool) -> Text:
    """Return one line of a log, with its task where several are shown."""
    text = Text.from_ansi(inert(printable(line.text)), no_wrap=True)
    own = line.stream == "w"
    return Text.assemble((f"{line.task} | ", "red" if own else "dim"), text) if with_task or own else text
