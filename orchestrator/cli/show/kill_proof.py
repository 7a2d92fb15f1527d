"""Format the proof of a kill: what was found on each host. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.cli.session import Paint
from orchestrator.cli.show.phase_colours import phase
from orchestrator.cli.show.render import title
from orchestrator.client.killing import left_text
from orchestrator.core.words import proof_by

Document = Mapping[str, Any]


def proof(run: Document, paint: Paint) -> str:
    """Return what a kill found on each host, and what is left."""
    document = run.get("proof") or {}
    lines = [f"{title(run)}: {phase(run.get('phase'), paint)}"]
    for host, found in (document.get("hosts") or {}).items():
        left, ports = found.get("left") or [], found.get("ports_busy") or []
        by = f" (checked by {found['by']})" if found.get("by") else ""
        if not left and not ports:
            lines.append(f"  {host}: no leftover processes, ports free{by}")
        lines += [f"  {host}: {paint('cannot be killed:', 'red')} {left_text(item)}" for item in left]
        if ports:
            lines.append(f"  {host}: {paint('ports busy:', 'red')} {', '.join(map(str, ports))}")
    for host, why in (document.get("gone") or {}).items():
        lines.append(f"  {host}: {paint('not checked', 'yellow')}, {why}")
    for host in document.get("unreachable") or []:
        lines.append(
            f"  {host}: {paint('unreachable', 'yellow')}, not checked; its tasks are killed once it answers"
        )
    hosts = (document.get("hosts") or {}).values()
    lines += [
        f"  {by}: {proof_by(by)}" for by in sorted({str(found["by"]) for found in hosts if found.get("by")})
    ]
    return "\n".join(lines)
