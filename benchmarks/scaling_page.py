"""The measured part of docs/scaling.md: pure functions from figures to Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

BEGIN = "<!-- measured: begin, by `make scaling`; what stands here is overwritten -->"
END = "<!-- measured: end -->"


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast some replicas trained the ConvNet."""

    strategy: str
    way: str
    """`under orch` or `by hand`."""
    replicas: int
    images_per_s: float
    step_ms: float


@dataclass(frozen=True, slots=True)
class Dense:
    """The step time of the big dense model in milliseconds, and the estimate for a network of 1 Gbit/s."""

    alone_ms: float
    together_ms: float
    reckoned: tuple[tuple[int, float, float], ...]
    """(workers, milliseconds to send, and how many single workers they are then worth)."""


def replaced(document: str, measured: str) -> str:
    """Replace what is between the marks of a document. Raises ValueError where it has no marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}"


def scaling(rates: Sequence[Rate], cores: int) -> str:
    """Return a row for each strategy and number of replicas. Efficiency is relative to one replica started so."""
    known = {(rate.strategy, rate.way, rate.replicas): rate for rate in rates}
    rows = []
    for (strategy, way, replicas), rate in sorted(known.items(), key=lambda item: _order(item[1])):
        one = known.get((strategy, way, 1))
        efficiency = _percent(rate.images_per_s / one.images_per_s / replicas) if one else "-"
        shared = replicas > cores
        rows.append(
            (
                strategy,
                way,
                f"{replicas}{' on ' + str(cores) + ' cores' if shared else ''}",
                f"{rate.images_per_s:.0f}",
                f"{rate.step_ms:.1f}",
                efficiency + (" (oversubscribed)" if shared else ""),
            )
        )
    title = "**The digits ConvNet**, a batch of 128 for each replica, each on a core of its own where there are enough:"
    header = ("strategy", "started", "replicas", "images/s", "ms a step", "efficiency")
    text = f"{title}\n\n{_table(header, rows)}"
    most = max(rate.replicas for rate in rates)
    if most > cores:
        text += (
            f"\n\nMore replicas than cores share them: {most} on {cores} cores can at best do the work of {cores}, "
            f"an efficiency of {_percent(cores / most)}; that row shows what the sharing costs, and nothing of how "
            f"{most} would scale."
        )
    return text


def _order(rate: Rate) -> tuple[bool, bool, int]:
    return rate.strategy == "mirrored", rate.way != "under orch", rate.replicas


def dense(figures: Dense) -> str:
    """Return the table of one and two workers as measured over loopback, and of more on a network as estimated."""
    share = max(0.0, 1 - figures.alone_ms / figures.together_ms)
    rows = [
        ("1", f"{figures.alone_ms:.0f}", "0 %", "1.00"),
        (
            "2, over loopback",
            f"{figures.together_ms:.0f}",
            _percent(share),
            f"{2 * figures.alone_ms / figures.together_ms:.2f}",
        ),
    ]
    for workers, sending_ms, work in figures.reckoned:
        step_ms = figures.alone_ms + sending_ms
        rows.append(
            (
                f"{workers}, reckoned at 1 Gbit/s",
                f"{step_ms:.0f}",
                _percent(sending_ms / step_ms),
                f"{work:.2f}",
            )
        )
    title = "**41 million parameters in dense layers**, a batch of 32 for each worker, each pinned to a core:"
    return f"{title}\n\n{_table(('workers', 'ms a step', 'of it communication', 'work of … workers'), rows)}"


def data(steps: Iterable[tuple[str, float]], policies: Mapping[str, float]) -> str:
    """Return the table of the data pipeline. Each row adds one improvement."""
    measured = list(steps)
    first = measured[0][1]
    rows = [(name, f"{seconds:.2f}", f"{first / seconds:.1f}") for name, seconds in measured]
    title = "**The data pipeline**, 1024 PNG images in 8 files from storage that thinks 20 ms for each 32, one worker:"
    both = ", ".join(f"{policy} {seconds:.2f} s" for policy, seconds in policies.items())
    return (
        f"{title}\n\n{_table(('pipeline', 's an epoch', 'times as fast'), rows)}\n\n"
        f"Two workers, without cache, by auto_shard_policy: {both} an epoch."
    )


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
