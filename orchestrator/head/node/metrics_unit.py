"""The unit of `orch metrics`: it asks the coordinator and answers Prometheus, so it may do hardly anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.head.node.systemd import quoted

UNIT = "orch-metrics.service"


@dataclass(frozen=True, slots=True)
class MetricsUnit:
    """What the unit's text is made of. All paths are absolute."""

    command: Sequence[str]
    environment: Mapping[str, str]
    user: str
    system: bool = False
    """Whether the machine's manager runs it, as `user`; else the user's own manager does."""

    @property
    def text(self) -> str:
        """The unit file. It waits for no coordinator: where none answers, the metrics say so."""
        lines = [
            "[Unit]",
            "Description=orch metrics: the numbers of orch's runs, for Prometheus",
            *(["Wants=network-online.target", "After=network-online.target"] if self.system else []),
            "StartLimitIntervalSec=300",
            "StartLimitBurst=10",
            "",
            "[Service]",
            "# Ready when it listens, so that a port that is taken is told by whoever starts it.",
            "Type=notify",
            "NotifyAccess=main",
            *([f"User={self.user}"] if self.system else []),
            f"ExecStart={' '.join(quoted(word, command=True) for word in self.command)}",
            *(f"Environment={quoted(f'{name}={value}')}" for name, value in sorted(self.environment.items())),
            "Restart=on-failure",
            "RestartSec=5",
            "# 2: the address is none.",
            "RestartPreventExitStatus=2",
            "TasksMax=64",
            "MemoryMax=512M",
            "UMask=0077",
            *self._restrictions,
            "",
            "[Install]",
            f"WantedBy={'multi-user.target' if self.system else 'default.target'}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def _restrictions(self) -> list[str]:
        """All that it does not need: it writes nothing, starts nothing, and opens no device.

        Left out: PrivateTmp (the coordinator's socket may lie in /tmp), ProtectHome=yes (orch and the socket may lie in
        a home). A user's own manager could protect files only within a user namespace, in which files of others seem to
        belong to nobody.
        """
        common = [
            "NoNewPrivileges=yes",
            "LockPersonality=yes",
            "MemoryDenyWriteExecute=yes",
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
            "RestrictNamespaces=yes",
            "RestrictRealtime=yes",
            "RestrictSUIDSGID=yes",
            "SystemCallArchitectures=native",
            "SystemCallFilter=@system-service",
            "SystemCallErrorNumber=EPERM",
        ]
        if not self.system:
            return common
        return [
            *common,
            "CapabilityBoundingSet=",
            "PrivateDevices=yes",
            "ProtectClock=yes",
            "ProtectControlGroups=yes",
            "ProtectHome=read-only",
            "ProtectHostname=yes",
            "ProtectKernelLogs=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelTunables=yes",
            "ProtectProc=invisible",
            "ProtectSystem=strict",
        ]
