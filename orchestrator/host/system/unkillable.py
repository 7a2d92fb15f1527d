"""The processes of ours on this host that SIGKILL did not end. Every agent reports them: no run is placed beside them.

    unkillable/<boot id>.<pid>.<start time>    the id of its run; the file's time is when the kill was given up

The file is removed once the process is gone, and after a reboot its boot id is another. So nothing here needs to
survive a power cut.
"""

from __future__ import annotations

import os

from orchestrator.both import logind, process
from orchestrator.protocol.limits import LEFT_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orchestrator.protocol.reports import Unkillable

DIRECTORY = "unkillable"


def why(who: process.Identity) -> str | None:
    """Return why a process lives although SIGKILL was sent to it; None if it is gone."""
    letter = process.state(who)
    if letter is None:
        return None
    owner = _foreign_owner(who.pid)
    if owner is not None:
        return f"it runs as {owner}, and {logind.user_name()} may not end it"
    if letter != "D":
        return f"alive after SIGKILL (state {letter})"
    waits_in = process.wait_channel(who.pid)
    return "D state: it waits in the kernel" + (f" ({waits_in})" if waits_in else "")


def _foreign_owner(pid: int) -> str | None:
    """Return the user of a process that we may not signal; None if we may."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return logind.user_name(process.owner(pid) or 0)
    except OSError:
        return None
    return None


def remember(host_dir: str, run: str, processes: Iterable[process.Identity]) -> None:
    """Record those of the run's processes that still live after their kill. Errors of the disk are ignored."""
    for who in processes:
        if process.state(who) is None:
            continue
        try:
            os.makedirs(os.path.join(host_dir, DIRECTORY), mode=0o700, exist_ok=True)
            # The name alone is enough to find the process, if the disk has no room for the run.
            with open(_path(host_dir, who), "x") as file:
                file.write(run)
        except OSError:
            continue


def known(host_dir: str) -> list[Unkillable]:
    """Return those that still live, and forget the others."""
    living: list[Unkillable] = []
    for who, run, since in _living(host_dir):
        reason = why(who)
        if reason is not None and len(living) < LEFT_MAX:
            name = process.command(who.pid)
            living.append({"run": run, "pid": who.pid, "command": name, "since": since, "why": reason})
    return living


def living_of_run(host_dir: str, run: str) -> list[process.Identity]:
    """Return those of one run that still live: a sweep tries again to kill them."""
    return [who for who, marked_run, _ in _living(host_dir) if marked_run == run]


def _living(host_dir: str) -> Iterator[tuple[process.Identity, str, float]]:
    try:
        names = sorted(os.listdir(os.path.join(host_dir, DIRECTORY)))
    except OSError:
        return
    for name in names:
        boot_id, _, rest = name.partition(".")
        pid, _, start_time = rest.partition(".")
        if not (pid.isdecimal() and start_time.isdecimal()):
            continue  # somebody else's
        who = process.Identity(boot_id, int(pid), int(start_time))
        path = _path(host_dir, who)
        try:
            if not process.alive(who):
                os.unlink(path)
                continue
            with open(path, errors="replace") as file:
                yield who, file.read(256).strip() or "a run of unknown name", os.stat(path).st_mtime
        except OSError:
            continue


def _path(host_dir: str, who: process.Identity) -> str:
    return os.path.join(host_dir, DIRECTORY, f"{who.boot_id}.{who.pid}.{who.start_time}")
