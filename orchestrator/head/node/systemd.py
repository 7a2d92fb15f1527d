"""Writes, enables, shows and removes the coordinator's unit, with systemd's own programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.both import durable
from orchestrator.core.errors import OrchestratorError, Refused
from orchestrator.core.words import duration

UNIT = "orch-coordinator.service"

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorUnit:
    """The values in the text of the coordinator's unit. All paths are absolute."""

    command: Sequence[str]
    environment: Mapping[str, str]
    user: str
    system: bool = False
    """Whether the machine's manager runs it, as `user`; else the user's own manager does."""
    state_dir: str
    uid: int

    @property
    def text(self) -> str:
        """Return the text of the unit file."""
        after = ["network-online.target"] if self.system else []
        if self.system and self.environment.get("ORCH_RUNTIME_DIR", "").startswith(f"/run/user/{self.uid}/"):
            # Otherwise the directory exists only after a login.
            after.append(f"user-runtime-dir@{self.uid}.service")
        variables = {**self.environment, "ORCH_SERVICE": f"{'system' if self.system else 'user'}/{UNIT}"}
        lines = [
            "[Unit]",
            "Description=orch coordinator: TensorFlow training over SSH",
            *([f"Wants={' '.join(after)}", f"After={' '.join(after)}"] if after else []),
            "StartLimitIntervalSec=300",
            "StartLimitBurst=10",
            "",
            "[Service]",
            "Type=notify",
            "NotifyAccess=main",
            *([f"User={self.user}"] if self.system else []),
            f"ExecStart={' '.join(quoted(word, command=True) for word in self.command)}",
            *(f"Environment={quoted(f'{name}={value}')}" for name, value in sorted(variables.items())),
            "Restart=on-failure",
            "RestartSec=5",
            "UMask=0077",
            "NoNewPrivileges=yes",
            "LockPersonality=yes",
            "RestrictRealtime=yes",
            "SystemCallArchitectures=native",
            "# Ready when it answers. Restarted when its deciding thread has not notified systemd for two minutes.",
            "TimeoutStartSec=300",
            "WatchdogSec=120",
            f"WorkingDirectory={escaped(self.state_dir)}",
            "# The coordinator alone: tasks on this machine (transport: local) outlive it, as tasks on hosts do.",
            "KillMode=process",
            "# When a task runs out of memory, the coordinator goes on and handles it.",
            "OOMPolicy=continue",
            "TasksMax=infinity",
            "TimeoutStopSec=30",
            "# 6: another coordinator has this journal.",
            "RestartPreventExitStatus=2 6",
            "# NoNewPrivileges holds for tasks on this machine too: no sudo, and no setuid program such as "
            "nvidia-modprobe.",
            *self._protections,
            "",
            "[Install]",
            f"WantedBy={'multi-user.target' if self.system else 'default.target'}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def _protections(self) -> list[str]:
        """Return settings that take away what neither the coordinator nor its children need.

        Tasks on this machine (transport: local) are children. Left out for their sake: PrivateTmp (the socket may lie
        in /tmp, and the files of tasks there would be removed with the service), ProtectSystem=strict and ProtectHome
        (checkpoints lie anywhere), PrivateDevices and ProtectClock (they hide the GPUs), MemoryDenyWriteExecute (XLA
        compiles), RestrictSUIDSGID (shared directories are often setgid), RestrictNamespaces (a task may be a
        container).
        """
        if not self.system:
            # A user's own manager could protect the system only within a user namespace, in which files of others
            # seem to belong to nobody; and the user cannot write there anyway.
            return []
        names = ("ORCH_RUNTIME_DIR", "ORCH_HOST_DIR")
        ours = {self.state_dir, *(self.environment[name] for name in names if name in self.environment)}
        return [
            "ProtectSystem=full",
            *(f"ReadWritePaths={quoted('-' + path)}" for path in sorted(ours)),
            "ProtectHostname=yes",
            "ProtectKernelLogs=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelTunables=yes",
        ]


def escaped(text: str) -> str:
    """Return a path for a setting, with % escaped. Raises Refused for text that no unit file can hold."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise Refused(
            f"a unit file cannot hold a line break or control character: {text!r}",
            hint="choose another directory",
        )
    return text.replace("%", "%%")


def quoted(text: str, *, command: bool = False) -> str:
    """Return one word of a setting that takes several. `command`: of a command line, where $ is escaped too."""
    text = escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text.replace("$", "$$") if command else text}"'


class Systemd:
    """The manager of one user, or of the machine."""

    def __init__(self, environ: Mapping[str, str], *, system: bool, root: str = "/") -> None:
        self._environ = environ
        self._root = root
        self.system = system
        if system:
            self.directory = os.path.join(root, "etc/systemd/system")
        else:
            home = environ.get("HOME") or os.path.expanduser("~")
            config = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
            self.directory = os.path.join(config, "systemd/user")

    @property
    def path(self) -> str:
        """Return the path of our unit file."""
        return os.path.join(self.directory, UNIT)

    def check(self) -> None:
        """Raise Refused if there is no systemd, or we may not change the machine's units."""
        if not os.path.isdir(os.path.join(self._root, "run/systemd/system")):
            raise Refused(
                "this machine was not booted by systemd",
                hint="`orch coordinator start` runs it in the background; `orch service install --print` only shows "
                "the unit",
            )
        if self.system and os.geteuid() != 0:
            raise Refused(
                "a unit of the machine is root's to install",
                hint=f"orch service install --system --print | sudo tee {self.path}; "
                f"sudo systemctl enable --now {UNIT}",
            )

    def ctl(self, *arguments: str) -> str:
        """Run `systemctl` for our manager, and return its output. Raises OrchestratorError with its error message."""
        return self._run(["systemctl", *([] if self.system else ["--user"]), *arguments])

    def ask(self, question: str) -> str:
        """Return the one word that `systemctl is-active` or `is-enabled` prints, whatever the exit code."""
        command = ["systemctl", *([] if self.system else ["--user"]), question, UNIT]
        return self._call(command).stdout.strip() or "unknown"

    def enable_linger(self, user: str) -> None:
        """Let the user's services start at boot and run while nobody is logged in. Raises OrchestratorError."""
        self._run(["loginctl", "enable-linger", user])

    def lingers(self, user: str) -> bool:
        """Return whether the user's services run while nobody is logged in."""
        return os.path.exists(os.path.join(self._root, "var/lib/systemd/linger", user))

    def write(self, text: str) -> None:
        """Write the unit file, whole or not at all."""
        os.makedirs(self.directory, exist_ok=True)
        durable.write(self.path, text.encode(), mode=0o644)

    def _run(self, command: list[str]) -> str:
        done = self._call(command)
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
            raise OrchestratorError(f"`{' '.join(command)}` failed: {output}")
        return done.stdout

    def _call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as e:
            raise Refused(f"there is no {command[0]} on this machine") from e
        except subprocess.TimeoutExpired as e:
            raise OrchestratorError(
                f"`{' '.join(command)}` has not ended after {duration(_TIMEOUT_S)}"
            ) from e
