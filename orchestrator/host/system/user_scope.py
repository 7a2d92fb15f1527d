"""A scope of the user's own systemd: there a shim may make control groups without being root.

A login's own group belongs to root. The user's systemd (user@UID.service) owns its part of the hierarchy, and moves a
process of the user into it when it is asked. It ends with the user's last login, and everything in it too, unless the
user lingers; so it is used for users who linger only.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import durable, logind

BUSCTL_S = 5.0
MOVE_S = 2.0
"""How long systemd may take to move the process, after it has accepted to."""

LINGER = "/var/lib/systemd/linger"
_RUNTIME = "/run/user"
_AGAIN_S = 0.005


def is_there() -> bool:
    """Return whether the user has a systemd that survives logouts, and that can be asked."""
    return os.path.exists(os.path.join(LINGER, logind.user_name())) and can_be_asked()


def can_be_asked() -> bool:
    """Return whether the user has a systemd that can be asked, for as long as the user is logged in or lingers."""
    import shutil

    return os.path.exists(os.path.join(_runtime_dir(), "bus")) and shutil.which("busctl") is not None


def enter(name: str, root: str) -> str | None:
    """Move the calling process into a new scope, and return the directory in which it may make groups.

    Args:
        name: A name that no other scope of the user has.
        root: Where the control groups are mounted.

    None if the user's systemd cannot do it. The process itself is moved to a group below: the kernel counts memory
    only for groups whose parent has no process.
    """
    if not is_there() or not _ask(f"orch-{name}.scope"):
        return None
    give_up_at = time.monotonic() + MOVE_S
    while f"/orch-{name}.scope" not in (own := _own_group()):
        if time.monotonic() >= give_up_at:
            return None
        time.sleep(_AGAIN_S)
    scope = os.path.join(root, own.lstrip("/"))
    leaf = os.path.join(scope, "shim")
    try:
        os.mkdir(leaf)
        with open(os.path.join(leaf, "cgroup.procs"), "w") as file:
            file.write("0")
    except OSError:
        return None
    return scope


def _ask(unit: str) -> bool:
    """Ask for a scope with this process in it. Return whether it was accepted."""
    properties = ["3", "PIDs", "au", "1", str(os.getpid()), "Delegate", "b", "true"]
    properties += ["CollectMode", "s", "inactive-or-failed"]
    command = ["busctl", "--user", f"--timeout={BUSCTL_S:.0f}", "call", "org.freedesktop.systemd1"]
    command += ["/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "StartTransientUnit"]
    command += ["ssa(sv)a(sa(sv))", unit, "fail", *properties, "0"]
    runtime_dir = _runtime_dir()
    bus = f"unix:path={runtime_dir}/bus"
    environ = {**os.environ, "XDG_RUNTIME_DIR": runtime_dir, "DBUS_SESSION_BUS_ADDRESS": bus}
    import subprocess  # here, since every agent imports this module, and few ask

    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=BUSCTL_S + 1.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _own_group() -> str:
    """Return our group in the unified hierarchy, from its root; empty if there is none."""
    lines = durable.text_of("/proc/self/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _runtime_dir() -> str:
    return os.path.join(_RUNTIME, str(os.getuid()))
