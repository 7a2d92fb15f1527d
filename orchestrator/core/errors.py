"""Errors, split by who must act. Each is one sentence and, where there is one, a hint with the way out.

Expected failures of the world (a host refused) are events inside the loop, not exceptions; these are what
reaches a person. `exit_code` is the contract of the command line.
"""

from __future__ import annotations


class OrchestratorError(Exception):
    """Something a person must know. str() is one sentence; `hint` is what to do about it."""

    exit_code = 1
    code = "failed"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(OrchestratorError):
    """The command line asks for something that cannot be."""

    exit_code = 2
    code = "usage"


class SpecError(OrchestratorError):
    """The cluster spec is wrong; the author of the file must act. One line per diagnostic, all at once."""

    exit_code = 2
    code = "spec"


class CoordinatorUnreachable(OrchestratorError):
    """No coordinator answers."""

    exit_code = 3
    code = "coordinator-unreachable"


class JobNotRunning(CoordinatorUnreachable):
    """No coordinator answers, since its Slurm job does not run. `is_over`: the job has ended, and none comes back."""

    def __init__(self, message: str, *, hint: str | None, is_over: bool) -> None:
        super().__init__(message, hint=hint)
        self.is_over = is_over


class CoordinatorBusy(OrchestratorError):
    """The coordinator did not handle the request in time, and has changed nothing."""

    code = "busy"


class SomeHostsOnly(OrchestratorError):
    """The operation worked on some hosts and not on others."""

    exit_code = 4
    code = "some-hosts"


class HostError(OrchestratorError):
    """A host refused or failed; its owner must act. `host` is its name in the cluster spec."""

    code = "host"

    def __init__(self, host: str, message: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(f"{host}: {message}", hint=hint)
        self.host = host
        self.detail = message
        if code:
            self.code = code


class ConnectFailed(HostError):
    """No SSH connection: nothing answers, or not in time. Worth another try."""

    code = "connect"


class AllocationGone(HostError):
    """The engine that lent the host has taken it back: orch can no longer reach what ran there."""

    code = "allocation-gone"


class AuthRefused(HostError):
    """The host refused orch's SSH keys."""

    exit_code = 5
    code = "auth"


class HostKeyUnknown(HostError):
    """The host's key is in no known_hosts file."""

    exit_code = 5
    code = "host-key-unknown"


class HostKeyChanged(HostError):
    """The host's key is not the one that is known. No authentication was tried."""

    exit_code = 5
    code = "host-key-changed"


class HostUnfit(HostError):
    """The host answers, and cannot do what the run needs: no Python, no space, HOME not writable."""

    code = "host-unfit"


class Refused(OrchestratorError):
    """Refused for safety; nothing was changed."""

    exit_code = 6
    code = "refused"


class DecisionsStopped(Refused):
    """A bug in orch has stopped all decisions about that run; its tasks train on."""

    code = "decisions-stopped"


class WaitTimedOut(OrchestratorError):
    """`--wait` gave up; the run goes on."""

    exit_code = 7
    code = "wait-timed-out"


class JournalError(OrchestratorError):
    """The journal is damaged, of another version, or cannot be written."""

    code = "journal"


class InvariantViolated(AssertionError):
    """A bug in orch. Only the loop catches it, and decides nothing about that run any more."""


class TransitionNotAllowed(InvariantViolated):
    """A run was to enter a phase that cannot follow the one that it is in. See `transitions`."""
