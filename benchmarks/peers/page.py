"""docs/peers.md and its plots, of one run: pure functions from what was measured to Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf

from benchmarks import plots
from benchmarks.machine import Machine, heading
from benchmarks.peers.goodput import Goodput, middle

_HEAD = """<!-- Made by `make bench-peers`, which measures. Never edit it by hand. -->
# Beside the peers

Two workers on one machine train the same ConvNet (images of 28 × 28, a batch of 64 a worker, saved every 50 steps):
with TensorFlow's MultiWorkerMirroredStrategy under orch, in a shell loop for each worker, and under Ray Train's
TensorFlow trainer; with torch's DistributedDataParallel under torchrun. One of the workers gets a `kill -9` at each
interval. `make bench-peers` installs the peers into an environment of their own and measures.

- **goodput**: the steps that came about with kills, of those that the same way does undisturbed in the same time.
  So a framework's own speed does not count. A step that is done again counts once.
- **noticed**: from the kill to the end of the other worker's process.
- **first step**: from the kill to the first step of the new processes, whatever its number.
- **lost**: from the kill to the first step that had not been done before: the restart, and what is done again.
"""


def document(
    at: Machine, found: Mapping[str, Goodput], failures: Sequence[str], *, minutes: float, every_s: float
) -> str:
    """Return the page."""
    how = f"{minutes:g} minutes each, a kill every {every_s:g} s."
    parts = [_HEAD, f"{heading(at)} {how}"]
    parts += [f"![{name}](images/{name})" for name in images(found)]
    parts += [_table(found), *failures]
    return "\n\n".join(parts) + "\n"


def images(found: Mapping[str, Goodput]) -> dict[str, str]:
    """Return the plots by file name."""
    if not found:
        return {}
    shares = {
        name: plots.Spread(each.share * 100, each.share * 100, each.share * 100)
        for name, each in found.items()
    }
    lost = {name: _spread(each.lost_s) for name, each in found.items() if _finite(each.lost_s)}
    return {
        "peers-goodput.svg": plots.bars("goodput with a kill at each interval", "%", shares),
        "peers-lost.svg": plots.bars("lost by one kill", "s", lost),
    }


def _finite(samples: Sequence[float]) -> list[float]:
    return [sample for sample in samples if not isinf(sample)]


def _spread(samples: Sequence[float]) -> plots.Spread:
    known = _finite(samples)
    return plots.Spread(middle(known), min(known), max(known))


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
