"""The checkpoints of a run: finding the ones that read whole, and handing one to the next generation.

`python <bundle> checkpoints VERB ARGUMENTS` runs under the run's own Python, in a process of its own. The arguments are
one JSON object, and so is what it prints: the answer, or `{"error": {"code", "message", "hint"}}`.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.both.within import Tree
    from orchestrator.checkpoints.units import Unit

USAGE = "checkpoints verify|seed|snapshot|list|read|pin|unpin|rollback|rm ARGUMENTS, which are a JSON object"

_PATHS = ("root", "directory", "path")
"""The arguments that may be relative."""

ABOUT = ("list", "read", "pin", "unpin", "rollback", "rm")
"""The verbs behind `orch ckpt`, which people use; see `inventory`."""


TRIES_MAX = 5
"""How often `verify` looks at a directory that changes while it is read."""


RETRY_S = 0.05


def verify(
    directory: str, pause: Callable[[float], None] = time.sleep, *, step_max: int | None = None
) -> dict[str, Any]:
    """Return the newest checkpoint in a generation's directory that reads whole, and the newer ones it rejected.

    A running training removes and rewrites its checkpoints. One that was removed or rewritten while it was read is
    not called torn, nor one that was written a moment ago; the directory is looked at again. One whose
    format nothing here verifies is `verified: false`: no name says that it is unfinished, and nobody writes it.
    A file of ours that claims a step above `step_max` is rejected.
    """
    from orchestrator.both.within import Tree

    waits = _Waits(pause)
    try:
        root = Tree(os.path.dirname(directory))
    except FileNotFoundError:
        return {"checkpoint": None, "rejected": []}
    with root as tree:
        for _ in range(TRIES_MAX):
            answer, changed = _inspect(tree, directory, waits, step_max)
            if not changed:
                break
            waits.pause(RETRY_S)
    return {**answer, "waited_s": round(waits.waited_s, 3)} if waits.waited_s else answer


class _Waits:
    """How long one `verify` has waited for writers: the interval to the next follows the time spent reading alone."""

    def __init__(self, pause: Callable[[float], None]) -> None:
        self._pause = pause
        self.waited_s = 0.0
        self.waited_for: set[str] = set()
        """Torn checkpoints already waited for: once each, so that a busy writer does not delay an older checkpoint."""

    def pause(self, seconds: float) -> None:
        self.waited_s += seconds
        self._pause(seconds)

    def settles(self, unit: Unit) -> bool:
        """Wait for the writer of a torn checkpoint. Return whether there was anything to wait for."""
        from orchestrator.checkpoints.places import OWN

        is_first = unit.path not in self.waited_for
        self.waited_for.add(unit.path)
        return unit.settle(OWN, self.pause if is_first else lambda _: None, torn=True)


def _inspect(tree: Tree, directory: str, waits: _Waits, step_max: int | None) -> tuple[dict[str, Any], bool]:
    """Look once. Return the answer, and whether a checkpoint changed while it was read."""
    from orchestrator.checkpoints import discovery, places
    from orchestrator.checkpoints.records import Records
    from orchestrator.checkpoints.torn import Torn

    records, contents = Records(tree), discovery.find(tree, directory)
    discovery.doubt(contents, step_max, [])
    rejected = [{"path": path, "why": why} for path, why in contents.skipped]
    rank = max((unit.rank for unit in contents.units), default=None)
    changed = False
    for unit in contents.units:
        if unit.rank != rank:
            break
        unit.settle(places.OWN, waits.pause)
        try:
            unit.read()
        except Torn as e:
            if _is_as_it_was(tree, unit, directory) and not waits.settles(unit):
                rejected.append({"path": unit.path, "why": str(e)})
            else:
                changed = True
            continue
        if not unit.is_verified and not _is_as_it_was(tree, unit, directory):
            rejected.append({"path": unit.path, "why": "it is still being written"})
            changed = True
            continue
        if records.find(unit) is None:
            records.add(unit, None)
            records.save()
        return {"checkpoint": _summary(unit), "rejected": rejected}, changed
    return {"checkpoint": None, "rejected": rejected}, changed


def _is_as_it_was(tree: Tree, unit: Unit, directory: str) -> bool:
    from orchestrator.checkpoints import discovery

    return any(unit.is_same(now) for now in discovery.find(tree, directory).units)


def _summary(unit: Unit) -> dict[str, Any]:
    return {
        "global_step": unit.global_step,
        "path": unit.path,
        "saved_at": unit.saved_at,
        "kind": unit.kind,
        "bytes": unit.bytes,
        "verified": unit.is_verified,
    }


def checkpoints_main(argv: list[str]) -> int:
    """Run the verb in `argv` and print one JSON object. Return 0, 1 after an error, or 2 for wrong usage."""
    from orchestrator.checkpoints.places import SeedError

    try:
        does, arguments = _verbs()[argv[0]], dict(json.loads(argv[1]))
    except (ValueError, TypeError, LookupError) as e:
        return _error("usage", f"these are no arguments: {e!r}", f"usage: {USAGE}", 2)
    for name in arguments.keys() & set(_PATHS):
        arguments[name] = arguments[name] and os.path.abspath(arguments[name])
    try:
        answer = does(**arguments)
    except SeedError as e:
        return _error(e.code, str(e), e.hint, 1)
    except OSError as e:
        from orchestrator.checkpoints import places

        if places.is_full(e):
            refusal = places.no_space(e, str(e.filename or "the checkpoint directory"))
            return _error(refusal.code, str(refusal), refusal.hint, 1)
        path = f": {e.filename}" if e.filename else ""
        hint = "look at the checkpoint directory's space and permissions on this host"
        return _error("checkpoint-dir", f"{e.strerror or e}{path}", hint, 1)
    print(json.dumps(answer))
    return 0


def _verbs() -> dict[str, Callable[..., Mapping[str, Any]]]:
    """Return the function of each verb. Its parameters are the verb's arguments."""
    from functools import partial

    from orchestrator.checkpoints import inventory, places, safe, seed

    def changed(change: Callable[[str, str], dict[str, Any]], root: str, what: str, group: str | None) -> Any:
        places.admit(root, group)
        return change(root, what)

    changes = (inventory.pin, inventory.unpin, inventory.rollback, inventory.rm)
    return {
        "verify": verify,
        "seed": seed.seed,
        "snapshot": safe.snapshot,
        "list": lambda root, **_: inventory.listed(root),
        "read": lambda root, **_: inventory.listed(root, read=True),
        **{change.__name__: partial(changed, change) for change in changes},
    }


def _error(code: str, message: str, hint: str | None, status: int) -> int:
    print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}))
    return status


if __name__ == "__main__":
    sys.exit(checkpoints_main(sys.argv[1:]))
