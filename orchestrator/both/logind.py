"""The check whether logind kills a user's processes at logout (KillUserProcesses). Runs on hosts.

A shim is in a session of its own and survives the end of its SSH connection. It does not survive a logind that kills
what a login leaves behind.
"""

from __future__ import annotations

import os

from orchestrator.both import durable

_PLACES = ("etc", "run", "usr/local/lib", "usr/lib")
"""Where logind.conf and its drop-ins are, in order of precedence."""


def kills_at_logout(user: str, *, root: str = "/", cgroup: str | None = None) -> str | None:
    """Return a warning where the end of this login would kill our processes; None if not, or if unknown.

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
    if settings.get("KillUserProcesses", "").lower() not in ("yes", "true", "1", "on"):
        return None
    if user in settings.get("KillExcludeUsers", "root").split():
        return None
    only = settings.get("KillOnlyUsers", "").split()
    if only and user not in only:
        return None
    if os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)):
        return None
    return (
        f"logind kills the processes of {user} at logout (KillUserProcesses=yes): tasks would die with the last "
        f"connection; `loginctl enable-linger {user}` keeps them"
    )


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
