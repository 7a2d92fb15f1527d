"""The changes from one state of a run to the next: computed, packed, and applied."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from pydantic_core import to_jsonable_python

from orchestrator.core.deadlines import next_deadline
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import TASK_TYPES, Plan
from orchestrator.core.state.instants import rebased
from orchestrator.core.state.phase_states import Backoff
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.strategy import STRATEGIES
from orchestrator.head.journal.values import adapter
from orchestrator.reporting import describe


def changes(old: Run | None, new: Run) -> bytes | None:
    """Return the changes that make `new` of `old`; None if they are equal. Without `old`, return the whole state."""
    if old is None:
        return _packed({"run": to_jsonable_python(new)})
    parts = _changed(old, new)
    return _packed({"changed": parts}) if parts is not None else None


def _packed(content: Mapping[str, Any]) -> bytes:
    """Return the changes compressed: the heartbeats of 64 hosts are 35 KB, and 8 KB compressed."""
    return zlib.compress(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())


def _unpacked(packed: bytes) -> Any:
    """Return what `_packed` was given. Raises ValueError if the bytes are damaged."""
    try:
        return json.loads(zlib.decompress(packed))
    except zlib.error as e:
        raise ValueError(f"an entry of the journal is damaged: {e}") from e


def _changed(old: Any, new: Any) -> Any:
    """Return the changes of a part: an object of the changes of its parts, or a list of the one new value."""
    if old is new:
        return None
    if is_dataclass(old) and type(old) is type(new):
        pairs = [(name, getattr(old, name), getattr(new, name)) for name in _names(old.__class__)]
        parts = {name: _changed(was, now) for name, was, now in pairs if was is not now}
    elif (
        isinstance(old, tuple)
        and isinstance(new, tuple)
        and old
        and len(old) == len(new)
        and is_dataclass(old[0])
    ):
        pairs = [
            (str(i), was, now) for i, (was, now) in enumerate(zip(old, new, strict=True)) if was is not now
        ]
        parts = {name: _changed(was, now) for name, was, now in pairs}
    elif (
        isinstance(old, dict)
        and isinstance(new, dict)
        and old.keys() <= new.keys()
        and all(isinstance(name, str) for name in new)
    ):
        pairs = [(name, old.get(name), now) for name, now in new.items()]
        parts = {
            name: _changed(was, now) if name in old else [to_jsonable_python(now)]
            for name, was, now in pairs
            if was is not now or name not in old
        }
    else:
        return None if old == new else [to_jsonable_python(new)]
    changed_parts = {name: part for name, part in parts.items() if part is not None}
    return changed_parts or None


@cache
def _names(type_: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(type_))


def changed(run: Run | None, packed: bytes | None) -> Run | None:
    """Return the run with the changes of an entry; None if they cannot be applied to it.

    Raises ValueError if the result is no state that this program understands.
    """
    if packed is None:
        return run
    content = _unpacked(packed)
    if "run" in content:
        return _read(content["run"])
    if run is None:
        return None
    state = to_jsonable_python(run)
    return _read(state) if _apply(state, content["changed"]) else None


def state_after(state: str, entries: Iterable[tuple[bytes | None, bytes | None]]) -> Run:
    """Return the run of a state that was written whole, with the changes of the entries since then applied.

    Args:
        state: the run as JSON.
        entries: for each, the changes of the state before its event, and the changes that its event made.

    Raises ValueError if the result is no run that this program understands.
    """
    parts = [_unpacked(packed) for entry in entries for packed in entry if packed is not None]
    if not parts:
        return _whole(adapter(Run).validate_json(state))
    known = json.loads(state)
    try:
        fits = all(_apply(known, part["changed"]) for part in parts)
    except (KeyError, TypeError, AttributeError, IndexError):
        fits = False
    if not fits:
        raise ValueError("the entries after it do not fit it")
    return _whole(_read(known))


def _whole(run: Run) -> Run:
    """Return the run. Raises ValueError if its parts do not fit together."""
    why = why_not_whole(run)
    if why is not None:
        raise ValueError(why)
    return run


def _read(state: Any) -> Run:
    return adapter(Run).validate_python(state)  # type: ignore[no-any-return]


def _apply(state: Any, parts: Mapping[str, Any]) -> bool:
    for name, part in parts.items():
        key: Any = int(name) if isinstance(state, list) else name
        if isinstance(state, list) and key >= len(state):
            return False
        if isinstance(part, list):
            state[key] = part[0]
        elif state[key] is None or not _apply(state[key], part):
            return False
    return True


def why_no_run(plan: Plan) -> str | None:
    """Return why no run can begin with this plan, which a client sent; None if one can."""
    try:
        return why_not_whole(new_run("begun-20260101-000000", plan, epoch=1, at=0.0))
    except Exception as e:  # as below
        return f"it is inconsistent: {type(e).__name__}: {e}"


def why_not_whole(run: Run) -> str | None:
    """Return what is inconsistent in a run that was read; None if all that it names exists.

    A journal may have been damaged, or written by another program. A run whose parts do not fit together must not be
    taken up, since any code that reads it could fail.
    """
    missing = next(_missing(run), None)
    if missing is not None:
        return missing
    try:
        moved = rebased(run, 0.0)
        next_deadline(moved)
        unproven(moved)
        describe.reason(moved, now=moved.since_at)
    except Exception as e:  # whatever it is, the run cannot be used
        return f"it is inconsistent: {type(e).__name__}: {e}"
    return None


def _missing(run: Run) -> Iterator[str]:
    """Yield a sentence for each thing that the run names and that does not exist."""
    planned = {host.name for host in run.plan.hosts}
    known = {host.name for host in run.hosts}
    if not run.tasks or not run.plan.tasks:
        yield "it has no tasks"
    for strategy in sorted({plan.strategy for plan in (run.plan, run.asked or run.plan)} - STRATEGIES.keys()):
        yield f"the plan has the strategy {strategy!r}, which does not exist"
    for what, names in (("run", known), ("plan", {task.host for task in run.plan.tasks})):
        for name in sorted(names - planned):
            yield f"the {what} names the host {name!r}, which the plan does not have"
    for name in sorted({task.host for task in run.plan.tasks} - known):
        yield f"the plan gives tasks to the host {name!r}, which the run does not have"
    ids = {task.id for task in run.plan.tasks}
    for type_ in sorted({task.id.type for task in run.plan.tasks} - set(TASK_TYPES)):
        yield f"the plan has tasks of the type {type_!r}, which does not exist"
    for task in run.tasks:
        if task.id not in ids:
            yield f"the plan does not have the task {task.id}"
        if task.host not in known:
            yield f"{task.id} is on the host {task.host!r}, which the run does not have"
    for slot, assignee in run.replacements.items():
        if slot not in planned or (assignee is not None and assignee not in known):
            yield f"the tasks of {slot!r} are given to the host {assignee!r}, but one of these hosts does not exist"
    if isinstance(run.phase_state, Backoff) and run.phase_state.full_host not in ("", *known):
        yield f"it waits for the host {run.phase_state.full_host!r}, which the run does not have"
