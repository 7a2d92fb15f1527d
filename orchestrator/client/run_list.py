"""All runs of this head node, newest first, each with what differed from the one before it of the same name."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import OrchestratorError, UsageError

if TYPE_CHECKING:
    from orchestrator.client.environment import Environment
    from orchestrator.core.differences import Change
    from orchestrator.core.state.run import Run
    from orchestrator.head.journal.states import Kept, Unreadable

_OWN = ("step", "restarts", "when")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Listed:
    """A run of the list."""

    run_id: str
    name: str
    phase: str
    created: str
    ended: str | None
    """As the journal has them: ISO 8601, in UTC."""
    step: int | None
    restarts: int
    metrics: dict[str, float]
    """The chief's last ones."""
    cause: str | None
    differs: tuple[Change, ...]
    """From the run before it of the same name."""
    other_code: bool | None
    """Whether its code differs from that run's; None: not known, or there is none before it."""
    tags: tuple[str, ...] = ()
    note: str = ""
    """As people have given it these."""

    def figure(self, key: str) -> float | None:
        """Return `step`, `restarts` or a metric; None if the run has none."""
        own: dict[str, float | None] = {"step": self.step, "restarts": self.restarts}
        return own[key] if key in own else self.metrics.get(key)

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        names = {"step": "global_step", "cause": "first_cause"}
        return {names.get(key, key): value for key, value in asdict(self).items()}


def listed(environment: Environment, name: str | None = None, tags: Collection[str] = ()) -> list[Listed]:
    """Return all runs, or those of a name, newest first: running, ended, and those that have left the journal.

    With `tags`, those that have all of these.
    """
    from orchestrator.client.choice import no_such_run, runs_of
    from orchestrator.head.code.snapshots import Snapshots
    from orchestrator.head.journal import reading
    from orchestrator.head.records import marks

    def left_out(run_id: str, error: OrchestratorError) -> None:
        environment.warn(f"{run_id} is left out: {error.message}")

    aside: list[Unreadable] = []
    runs = reading.everything(environment.paths, None, left_out, aside.append)
    named = [entry for entry in aside if name in (None, entry.run_id, entry.name)]
    for entry in named:
        environment.warn(entry.sentence)
    is_known = bool(named) or any(name in (one.run.run_id, one.run.plan.name) for one in runs)
    if name is not None and not is_known:
        raise no_such_run(name, [one.run.plan.name for one in runs])
    try:
        now = {run["run_id"]: run for run in runs_of(environment.client())}
    except OrchestratorError:
        now = {}
    snapshots = Snapshots(environment.paths.state_dir)
    codes = {one.run.run_id: snapshots.snapshot_of(one.run.run_id) for one in runs}
    before: dict[str, Run] = {}
    rows = []
    for one in runs:
        last, before[one.run.plan.name] = before.get(one.run.plan.name), one.run
        code, older = codes[one.run.run_id], codes[last.run_id] if last is not None else None
        differ = code.digest != older.digest if code is not None and older is not None else None
        marked = marks.read(environment.paths.run_dir(one.run.run_id))
        rows.append(_row(one, last, now.get(one.run.run_id) or {}, marked, other_code=differ))
    return [row for row in rows[::-1] if name in (None, row.run_id, row.name) and set(tags) <= set(row.tags)]


def _row(
    one: Kept,
    last: Run | None,
    live: Mapping[str, Any],
    marked: Mapping[str, Any],
    *,
    other_code: bool | None,
) -> Listed:
    from orchestrator.core.differences import differences

    run = one.run
    return Listed(
        run_id=run.run_id,
        name=run.plan.name,
        phase=live.get("phase", run.phase.value),
        created=one.created,
        ended=one.ended,
        step=live.get("global_step", run.global_step),
        restarts=live.get("restarts", run.budget.restarts),
        metrics=dict(live.get("metrics") or run.task(run.chief).progress.metrics),
        cause=run.first_cause.sentence if run.first_cause is not None else None,
        differs=tuple(differences(last.submitted, run.submitted)) if last is not None else (),
        other_code=other_code,
        tags=tuple(marked["tags"]),
        note=marked["note"],
    )


def chosen(rows: Iterable[Listed], conditions: Sequence[str]) -> list[Listed]:
    """Return the rows that fulfil all conditions, such as `val_accuracy>0.9`. Raises UsageError for another form."""
    left = list(rows)
    known = {key for row in left for key in row.metrics} | set(_OWN) - {"when"}
    for condition in conditions:
        match = re.fullmatch(r"\s*(\S+?)\s*(<=|>=|!=|<|>|=)\s*(\S+)\s*", condition)
        try:
            if match is None:
                raise ValueError
            key, sign, value = match[1], match[2], float(match[3])
        except ValueError:
            raise UsageError(
                f"{condition!r} is no condition",
                hint="such as `val_accuracy>0.9`, `step>=1000`, `restarts=0`",
            ) from None
        _must_be_known(key, known)
        holds = _COMPARISONS[sign]
        left = [row for row in left if (figure := row.figure(key)) is not None and holds(figure, value)]
    return left


def ordered(rows: Sequence[Listed], key: str) -> list[Listed]:
    """Return the rows by `when`, `step`, `restarts` or a metric; `-` before it: the largest first. None comes last."""
    what = key.removeprefix("-")
    _must_be_known(what, {name for row in rows for name in row.metrics} | set(_OWN))
    if what == "when":
        return list(rows) if key.startswith("-") else list(rows)[::-1]
    known = [row for row in rows if row.figure(what) is not None]
    known.sort(key=lambda row: row.figure(what) or 0.0, reverse=key.startswith("-"))
    return [*known, *(row for row in rows if row.figure(what) is None)]


def _must_be_known(key: str, known: set[str]) -> None:
    if key not in known:
        raise UsageError(f"no run has a figure {key!r}", hint=f"there are {', '.join(sorted(known))}")
