"""Ends a task whose generation is over: a newer one has begun in its checkpoint directory.

A task that nobody reaches may train on for hours, on a host that is cut off or of which the head does not know any
more. The directory of a newer generation is the sign: it is made only once nobody is to write into this one. The root
is read every few seconds, and before each save of ours.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from orchestrator.task import this_task
from orchestrator.task.shim_orders import STOPPED, end

EVERY_S = 5.0

MARKER = ".orch-seed.json"
"""In a directory that a generation was given (`checkpoints/places.py`, which tasks do not import)."""


def begin() -> None:
    """Look every few seconds from now on, in a thread of its own: the directory may hang, and nothing waits for it."""
    if _own() is not None:
        threading.Thread(target=_watch, name="orch-fence", daemon=True).start()


def check() -> None:
    """End this process if a newer generation has begun. Errors are ignored: a save would meet them itself."""
    own = _own()
    if own is None:
        return
    root, name = os.path.split(own)
    newer = _newer(root, name)
    if newer is None:
        return
    sentence = f"{newer} has begun in {root}: this task of {name} writes no more, and ends itself"
    if this_task.link is not None:
        this_task.link.say("superseded", sentence)
    else:
        print(f"orch: {sentence}", file=sys.stderr, flush=True)
    end(STOPPED)


def _watch() -> None:
    while True:
        check()
        time.sleep(EVERY_S)


def _own() -> str | None:
    """Return the directory of this generation; None where the checkpoints of this task are read by nobody else."""
    path = os.path.normpath(os.environ.get("ORCH_RESCUE_DIR") or this_task.checkpoint_dir() or ".")
    return path if _number(os.path.basename(path)) is not None else None


def _number(name: str) -> int | None:
    return int(name[4:]) if name.startswith("gen-") and name[4:].isdecimal() else None


def _newer(root: str, name: str) -> str | None:
    mine = _number(name) or 0
    try:
        owner = os.stat(os.path.join(root, name)).st_uid
        for entry in os.scandir(root):
            # What another user has put there says nothing.
            is_newer = (_number(entry.name) or 0) > mine and entry.stat(follow_symlinks=False).st_uid == owner
            if is_newer and os.path.isfile(os.path.join(entry.path, MARKER)):
                return entry.name
    except OSError:
        return None
    return None
