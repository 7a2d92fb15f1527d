"""Why a host cannot start our agent, as sentences, each with its way out."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from orchestrator.both.hostdir import limit_of
from orchestrator.core.errors import HostUnfit
from orchestrator.core.plan import ENVIRONMENTS

if TYPE_CHECKING:
    from orchestrator.core.plan import HostPlan
    from orchestrator.protocol.hello import BootAnswer


PYTHON_HINT = "give the full path of the training's Python as `python` in the cluster spec"


def no_python(host: HostPlan) -> HostUnfit:
    """Return the error of a Python that is not there: of the spec, or of an environment that was not made."""
    if host.python.startswith(f"{ENVIRONMENTS}/"):
        said = f"the environment of `setup:` is not made there: {host.python} is missing"
        return HostUnfit(
            host.name, said, hint=f"`orch setup {host.spec or 'FILE'}` makes it", code="no-environment"
        )
    return HostUnfit(host.name, f"there is no Python at {host.python}", hint=PYTHON_HINT, code="no-python")


def too_old(host: HostPlan, version: str) -> HostUnfit:
    """Return the error of a Python that is too old for the agent."""
    return HostUnfit(
        host.name,
        f"{host.python} is Python {version or 'of before 3.4'}; at least 3.10 is needed",
        hint="give the path of a newer one as `python` in the cluster spec",
        code="python-too-old",
    )


def unfit(host: HostPlan, answer: BootAnswer) -> HostUnfit:
    """Return the host's own refusal as a sentence."""
    kind, why, path = answer.get("error"), answer.get("why", ""), answer.get("path", "")
    if kind == "python-too-old":
        return too_old(host, answer.get("version", ""))
    if kind != "os":
        return HostUnfit(
            host.name,
            f"its agent could not be loaded: {why}",
            hint="connect again; if it stays so, this is a fault of orch: report it",
            code="agent",
        )
    number = answer.get("errno")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return HostUnfit(
            host.name,
            f"no space left for its orch directory ({path or why})",
            hint="free some space there, or set ORCH_HOST_DIR on the host to a directory with room",
            code="no-space",
        )
    if (limit := limit_of(number)) is not None:
        return HostUnfit(
            host.name,
            f"a limit of the user there keeps its agent from starting: {why}",
            hint=f"raise {limit} on the host: its rc files or /etc/security/limits.conf set it",
            code="limit",
        )
    return HostUnfit(
        host.name,
        f"cannot write its orch directory: {path}: {why}",
        hint="make it writable for the user of the SSH connection, or set ORCH_HOST_DIR on the host to a "
        "directory that is",
        code="not-writable",
    )
