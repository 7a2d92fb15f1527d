"""The check whether logind kills a user's processes at logout (KillUserProcesses). Runs on hosts, and on the head.

A shim is in a session of its own and survives the end of its SSH connection. It does not survive a logind that kills
what a login leaves behind, unless it has moved to the user's own systemd.
"""

from __future__ import annotations

import os

from orchestrator.both import durable

_PLACES = ("etc", "run", "usr/local/lib", "usr/lib")
"""Where logind.conf and its drop-ins are, in order of precedence."""


def ends_tasks(user: str, *, can_leave: bool, root: str = "/", cgroup: str | None = None) -> str | None:
    """Return a warning where the end of this login would end our tasks; None if not, or if unknown.

    Args:
        can_leave: whether shims can move from the login to the user's own systemd, which stays if the user lingers.
        root: the directory of the machine's files.
        cgroup: the content of /proc/self/cgroup.
    """
    killed = kills_at_logout(user, root=root, cgroup=cgroup)
    if killed is None or (can_leave and os.path.exists(os.path.join(root, "var/lib/systemd/linger", user))):
        return None
    way_out = (
        f"`loginctl enable-linger {user}` keeps them"
        if can_leave
        else f"have root set `KillExcludeUsers=root {user}` in /etc/systemd/logind.conf. Lingering does not keep them: "
        "they cannot move to the user's own systemd, which takes cgroup v2, busctl and /run/user/UID/bus"
    )
    return f"{killed}: tasks would die with the last connection; {way_out}"


def kills_at_logout(user: str, *, root: str = "/", cgroup: str | None = None) -> str | None:
    """Return that the end of this login kills our processes, and why; None if not, or if unknown.

    It does so whether the user lingers or not: that keeps only what runs under the user's own systemd.

    Args:
        root: the directory of the machine's files.
        cgroup: the content of /proc/self/cgroup.
    """
    if cgroup is None:
        cgroup = durable.text_of("/proc/self/cgroup")
    if ".scope" not in cgroup or "session-" not in cgroup:
        return None  # we run in a service or a container, or there is no logind
    # Read [Login] as systemd does: the first main file that exists, then all drop-ins by name; later ones win
    settings: dict[str, str] = {}
    for place in _PLACES:
        main = os.path.join(root, place, "systemd/logind.conf")
        if os.path.exists(main):
            _parse(main, settings)
            break
    drop_ins: dict[str, str] = {}
    for place in reversed(_PLACES):
        directory = os.path.join(root, place, "systemd/logind.conf.d")
        for name in _names(directory):
            if name.endswith(".conf"):
                drop_ins[name] = os.path.join(directory, name)
    for name in sorted(drop_ins):
        _parse(drop_ins[name], settings)
    if user in settings.get("KillExcludeUsers", "root").split():
        return None
    is_on = settings.get("KillUserProcesses", "").lower() in ("yes", "true", "1", "on")
    only = settings.get("KillOnlyUsers", "").split()
    if not (user in only if only else is_on):  # logind asks KillUserProcesses only if KillOnlyUsers is empty
        return None
    why = "KillOnlyUsers" if only else "KillUserProcesses=yes"
    return f"logind kills the processes of {user} at logout ({why})"


def user_name(uid: int | None = None) -> str:
    """Return the name of a user, or its number where it has no name. Without `uid`, it is our own user."""
    import pwd

    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _parse(path: str, into: dict[str, str]) -> None:
    section = ""
    for raw in durable.text_of(path).splitlines():
        line = raw.strip()
        if line.startswith("["):
            section = line
        elif section == "[Login]" and "=" in line and line[0] not in "#;":
            name, _, value = line.partition("=")
            into[name.strip()] = value.strip()


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
