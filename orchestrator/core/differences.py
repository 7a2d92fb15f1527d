"""How two plans differ, in the keys of the cluster spec. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import SequenceMatcher
from typing import Any

from orchestrator.core.plan import Plan
from orchestrator.core.words import duration, listed


@dataclass(frozen=True, slots=True)
class Change:
    """The old and the new value of one key of the spec; None if the key is missing or empty."""

    key: str
    old: str | None
    new: str | None

    @property
    def sentence(self) -> str:
        """Return a sentence such as `args --lr: 0.1 -> 0.01`."""
        if self.old is None:
            return f"{self.key}: {self.new} is new"
        return (
            f"{self.key}: {self.old} -> {self.new}"
            if self.new is not None
            else f"{self.key}: {self.old} is removed"
        )


def differences(old: Plan, new: Plan) -> list[Change]:
    """Return what has changed from one plan to the other, key by key."""
    changes: list[Change] = []
    for field in fields(Plan):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after or not field.compare:
            continue
        match field.name:
            case "args":
                changes += _arguments(before, after)
            case "hosts":
                changes += _named(field.name, {h.name: h for h in before}, {h.name: h for h in after})
            case "tasks":
                changes += _tasks(old, new)
            case "needs":
                changes += _needs(old, new)
            case _:
                changes += _values(field.name, before, after)
    return changes


def sentence(changes: Sequence[Change]) -> str:
    """Return them in one sentence."""
    return listed([change.sentence for change in changes])


def _values(key: str, old: Any, new: Any) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _named(key, old, new)
    elif is_dataclass(old) and type(old) is type(new):
        for field in fields(old):
            if (
                field.compare and field.name != "allocation"
            ):  # what an engine has lent is no change of the spec
                yield from _values(f"{key}.{field.name}", getattr(old, field.name), getattr(new, field.name))
    else:
        yield Change(key.removesuffix("_s"), _shown(key, old), _shown(key, new))


def _named(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name in old and name in new:
            yield from _values(f"{key}.{name}", old[name], new[name])
        else:
            yield Change(key, name if name in old else None, name if name in new else None)


def _tasks(old: Plan, new: Plan) -> Iterator[Change]:
    counts = [Counter(task.id.type for task in plan.tasks) for plan in (old, new)]
    for type_ in dict.fromkeys([*counts[0], *counts[1]]):
        if counts[0][type_] != counts[1][type_]:
            yield Change(f"tasks.{type_}.replicas", str(counts[0][type_]), str(counts[1][type_]))
    before = {task.id: task for task in old.tasks}
    for task in new.tasks:
        was = before.get(task.id)
        if was is not None:
            yield from _values(f"tasks.{task.id}.host", was.host, task.host)
            yield from _values(f"tasks.{task.id}.gpus", was.gpus, task.gpus)


def _needs(old: Plan, new: Plan) -> Iterator[Change]:
    """Yield what is asked of the hosts otherwise; how many tasks and GPUs there are is said by the tasks."""
    before = {ask.type: ask for ask in old.needs}
    for ask in new.needs if old.needs else ():
        for key in ("on", "labels", "gpu_bytes", "memory_bytes", "together"):
            if (was := before.get(ask.type)) is not None:
                yield from _values(f"tasks.{ask.type}.{key}", getattr(was, key), getattr(ask, key))


def _arguments(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    for what, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        before, after = old[i1:i2], new[j1:j2]
        option = old[i1 - 1] if i1 and old[i1 - 1].startswith("-") and "=" not in old[i1 - 1] else ""
        pairs = [
            (was.partition("="), is_now.partition("=")) for was, is_now in zip(before, after, strict=False)
        ]
        if what == "equal":
            continue
        if len(before) == len(after) and all(was[0] == is_now[0] and was[1] for was, is_now in pairs):
            yield from (Change(f"args {was[0]}", was[2], is_now[2]) for was, is_now in pairs)
        else:
            named = f"args {option}" if option and before and after else "args"
            yield Change(named, " ".join(before) or None, " ".join(after) or None)


def _shown(key: str, value: Any) -> str | None:
    if value is None or value == ():
        return None
    if key.endswith("_s") and isinstance(value, int | float):
        return duration(value)
    if is_dataclass(value):
        known = [(field.name, getattr(value, field.name), field.default) for field in fields(value)]
        return (
            ", ".join(f"{name} {item}" for name, item, usual in known if item not in (None, usual))
            or "all defaults"
        )
    if isinstance(value, tuple | list):
        return ", ".join(str(item) for item in value)
    return str(value)
