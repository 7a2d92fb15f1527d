"""Where and how a task's Python is started, for a probe: what a shim chooses there is what the task gets.

A shim, such as pyenv's, chooses by the working directory and the environment. So a probe runs in a directory with the
files by which it chooses, below the one that holds the tasks' own, and with the environment of the spec.
"""

from __future__ import annotations

import os
import time

from orchestrator.both.hostdir import HostFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_BEGINNING = "probe-"
_OLD_S = 600.0
_OF_SHELLS = frozenset(("_", "LC_CTYPE", "OLDPWD", "PATH", "PWD", "SHLVL"))
_OF_VERSION_MANAGERS = ("ASDF_", "MISE_", "PYENV_", "__MISE")


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a task of the spec's `env`."""
    from orchestrator.host.shim import spawn

    return {**spawn.login_environment(os.environ), **env}


def activated() -> dict[str, str]:
    """Return what `activate` of the spec has changed here, with the host's name and home left out; empty if none ran.

    A variable that it has removed is empty.
    """
    from orchestrator.host.shim import spawn

    if "ORCH_BEFORE" not in os.environ:
        return {}
    before, now = spawn.kept(os.environ["ORCH_BEFORE"]), spawn.login_environment(os.environ)
    own = {os.uname().nodename: "HOST", os.path.expanduser("~"): "~"}
    changed = {}
    for name in sorted(before.keys() | now.keys()):
        value = now.get(name, "")
        if (
            before.get(name, "") != value
            and name not in _OF_SHELLS - {"PATH"}
            and not name.startswith("ORCH_")
        ):
            for text, instead in own.items():
                value = value.replace(text, instead)
            changed[name] = value
    return changed


def make(host_dir: str, files: Sequence[tuple[str, str]]) -> str:
    """Return a new directory with these files, each with its text."""
    directory = os.path.join(host_dir, f"{_BEGINNING}{os.urandom(4).hex()}")
    os.mkdir(directory, 0o700)
    for name, text in files:
        with open(os.path.join(directory, os.path.basename(name)), "x", encoding="utf-8") as file:
            file.write(text)
    return directory


def remove(directory: str) -> None:
    """Remove the directory. What a Python has written there goes too."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def remove_old(host_dir: str) -> None:
    """Remove the directories of agents that died meanwhile."""
    for name in os.listdir(host_dir):
        directory = os.path.join(host_dir, name)
        if name.startswith(_BEGINNING) and os.lstat(directory).st_mtime < time.time() - _OLD_S:
            remove(directory)


def found(python: str, env: Mapping[str, str]) -> str:
    """Return the path of a Python: by PATH of that environment, as a task is started. Raises HostFault if none is."""
    python = os.path.expanduser(python)
    if "/" in python:
        return python
    for place in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(place, python)
        if os.path.isabs(path) and os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise HostFault(
        "no-python",
        f"there is no {python} in the PATH of the tasks",
        "give the full path of the Python that has TensorFlow as `python` in the cluster spec",
    )


def surroundings(parent: int) -> dict[str, Any]:
    """Return what a program may change before it starts another one, beside the environment. For the process itself."""
    import resource

    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "parent": parent,
        "affinity": sorted(os.sched_getaffinity(0)),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": {name: list(resource.getrlimit(getattr(resource, name))) for name in limits},
        "places": [_read(f"/proc/self/ns/{name}") for name in ("mnt", "net", "pid", "user")],
        "root": os.stat("/").st_ino,
    }


def started_as(command: str, executable: str, env: Mapping[str, str], was: Mapping[str, Any]) -> str:
    """Return what to start so that a task gets this Python: its own path; the command, where that does more.

    A shim only chooses, so it can be passed by. A script that enters a container, binds to processors or sets variables
    for the libraries must be started each time.

    Args:
        command: what was started.
        executable: the Python that it became, in this process.
        env: the environment that it was given.
        was: the `surroundings` of who started it, with its own pid as the parent.
    """
    now = dict(os.environ)
    changed = {name for name in now.keys() | env.keys() if now.get(name) != env.get(name)} - _OF_SHELLS
    if not os.path.isabs(executable) or surroundings(os.getppid()) != was:
        return command
    return command if any(not name.startswith(_OF_VERSION_MANAGERS) for name in changed) else executable


def _read(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
