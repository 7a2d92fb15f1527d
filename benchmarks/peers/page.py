"""docs/peers.md and its plots, of one run: pure functions from what was measured to Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf

from benchmarks import plots
from benchmarks.machine import Machine, heading
from benchmarks.peers.goodput import Goodput, Times, middle

_HEAD = """<!-- Made by `make bench-peers`, which measures. Never edit it by hand. -->
# Beside the peers

Two workers train the same ConvNet (images of 28 × 28, a batch of 64 a worker, saved every {saved}): with TensorFlow's
MultiWorkerMirroredStrategy under orch, in a shell loop for each worker, and under Ray Train's TensorFlow trainer; with
torch's DistributedDataParallel under torchrun. Each has the settings with which it comes{but}. As root each worker has
a host of its own, a network namespace. `make bench-peers` installs the peers into an environment of their own.

One of the workers gets a `kill -9` at each interval:

- **goodput**: the steps that came about with kills, of those that the same way does undisturbed in the same time.
  So a framework's own speed does not count. A step that is done again counts once. The undisturbed minute comes first:
  where the machine gets faster or slower after it, that is in the goodput by several percent, and is not in what is
  lost.
- **noticed**: from the kill to the end of the other worker's process.
- **first step**: from the kill to the first step of the new processes, whatever its number.
- **lost**: from the kill to the first step that had not been done before: the restart, and what is done again.
"""

_NOTICING = """## Until it is noticed

From what befalls one worker to the end of the other one's process, which it keeps waiting. Frozen: its process gets
SIGSTOP. Cut off: its host's link is down, and every packet is lost."""

_STARTING = """## Starting a script on many SSH hosts

From the command to the process on the last host, with the script brought there; the faster of two. orch looks over the
hosts, installs its agent and goes on watching; the others do not."""


def document(
    at: Machine,
    found: Mapping[str, Goodput],
    started: Mapping[str, Mapping[int, float]],
    failures: Sequence[str],
    times: Times,
    *,
    minutes: float,
) -> str:
    """Return the page.

    Args:
        at: the machine.
        found: what was measured of each way to train.
        started: the seconds of each way to start, by the number of hosts.
        failures: what could not be measured, a sentence each.
        times: how long each way to train was measured.
        minutes: how long all of it took.
    """
    how = (
        f"{times.window_s / 60:g} minutes each, a kill every {times.every_s:g} s. It took {minutes:.0f} min."
    )
    but = "; orch has `restart: {rescue: auto}`" if times.save_s else ""
    head = _HEAD.replace("{but}", but).replace(
        "{saved}", f"{times.save_s:g} s" if times.save_s else "50 steps"
    )
    parts = [head, f"{heading(at)} {how}", *(f"- {failure}" for failure in failures)]
    parts += [f"![{name}](images/{name})" for name in images(found, {}, times)]
    if any(_parts_of_a_kill(each) for each in found.values()):
        parts.append("The second plot splits the kill that lost the median of those that were made up for.")
    if found:
        parts += [_table(found), *([] if times.save_s else [_NOTICING, _noticing(found, times)])]
    if started:
        parts += [_STARTING, *(f"![{name}](images/{name})" for name in images({}, started, times))]
        parts.append(_starting(started))
    return "\n\n".join(parts) + "\n"


def name_of(times: Times) -> str:
    """Return the page's name, without its suffix: training that rarely saves has a page of its own."""
    return "peers-rarely" if times.save_s else "peers"


def images(
    found: Mapping[str, Goodput], started: Mapping[str, Mapping[int, float]], times: Times
) -> dict[str, str]:
    """Return the plots by file name."""
    shown, name = {}, name_of(times)
    saved = f"a save every {times.save_s / 60:g} min, " if times.save_s else ""
    if found:
        shares = {
            way: plots.Spread(each.share * 100, each.share * 100, each.share * 100)
            for way, each in found.items()
        }
        title = f"steps that count: {saved}a kill every {times.every_s:g} s"
        shown[f"{name}-goodput.svg"] = plots.bars(title, "%", shares)
    lost = {way: parts for way, each in found.items() if (parts := _parts_of_a_kill(each))}
    if lost:
        shown[f"{name}-lost.svg"] = plots.stacked("lost by one kill", "s", lost)
    if started:
        took: dict[str, dict[float, plots.Spread]] = {
            way: {hosts: plots.Spread(s, s, s) for hosts, s in by_hosts.items()}
            for way, by_hosts in started.items()
        }
        shown[f"{name}-start.svg"] = plots.lines("until a script runs on all hosts", "s", "hosts", took, {})
    return shown


def _noticing(found: Mapping[str, Goodput], times: Times) -> str:
    def shown(seconds: float | None) -> str:
        if seconds is None:
            return "not measured"
        return f"not in {times.patience_s:g} s" if isinf(seconds) else f"{seconds:.2f} s"

    rows = ["| | killed, median | frozen | cut off |", "|---|---:|---:|---:|"]
    rows += [
        f"| {name} | {_one(middle(each.noticed_s))} | {shown(each.frozen_s)} | {shown(each.cut_s)} |"
        for name, each in found.items()
    ]
    return "\n".join(rows)


def _starting(started: Mapping[str, Mapping[int, float]]) -> str:
    sizes = sorted({size for by_hosts in started.values() for size in by_hosts})
    rows = ["| hosts | " + " | ".join(started) + " |", "|---:|" + "---:|" * len(started)]
    for size in sizes:
        cells = [
            f"{by_hosts[size]:.1f} s" if size in by_hosts else "not measured" for by_hosts in started.values()
        ]
        rows.append(f"| {size} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _parts_of_a_kill(found: Goodput) -> dict[str, float]:
    """Return where the time went after the kill that lost the median of those made up for; empty if none was."""
    made_up = [
        kill
        for kill in zip(found.lost_s, found.first_step_s, found.noticed_s, strict=True)
        if not isinf(kill[0])
    ]
    if not made_up:
        return {}
    lost_s, first_step_s, noticed_s = sorted(made_up)[len(made_up) // 2]
    noticed_s = min(
        noticed_s, first_step_s
    )  # where the other one's process lived on, it was noticed otherwise
    return {
        "until the other worker's process has ended": noticed_s,
        "from there to the first step": first_step_s - noticed_s,
        "from there to the first step that is not done again": lost_s - first_step_s,
    }


def _table(found: Mapping[str, Goodput]) -> str:
    rows = [
        "| | goodput | steps/s undisturbed | noticed, median (worst) | first step | lost, median (worst) | kills |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    rows += [
        f"| {name} | {each.share * 100:.0f} % | {each.undisturbed:.1f} | {_seconds(each.noticed_s)} | "
        f"{_seconds(each.first_step_s)} | {_seconds(each.lost_s)} | {len(each.lost_s)} |"
        for name, each in found.items()
    ]
    return "\n".join(rows)


def _seconds(samples: Sequence[float]) -> str:
    if not samples:
        return "-"
    return f"{_one(middle(samples))} ({_one(max(samples))})"


def _one(seconds: float) -> str:
    return "not before the next kill" if isinf(seconds) else f"{seconds:.2f} s"
