"""`orch hosts`: show the hosts' hardware, who uses it, and why a host cannot be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from orchestrator.cli.help import Command
from orchestrator.cli.inventory_option import inventory_option
from orchestrator.cli.session import Paint, Session
from orchestrator.cli.show.tables import fitting
from orchestrator.cli.show.terminal import fold, printable
from orchestrator.client.hosts import document, is_free
from orchestrator.core.errors import SomeHostsOnly
from orchestrator.core.words import size

Host = Mapping[str, Any]


@click.command(
    cls=Command,
    about_runs=True,
    examples=[
        ("orch hosts cluster.yaml", "Show the hosts of a cluster spec, before anything is started on them"),
        ("orch hosts lab.yaml", "Show the hosts of an inventory"),
        ("orch hosts", "Show the hosts of your own inventory, and of the active runs"),
        ("orch hosts cluster.yaml --free", "Show only hosts that may take a task now"),
        ("orch hosts cluster.yaml --json", "Print everything that is known, for scripts"),
    ],
)
@click.argument("file", type=click.Path(), metavar="[FILE]", required=False)
@inventory_option
@click.option("--free", is_flag=True, help="Show only hosts on which a GPU and a slot are free.")
@click.option("--json", "as_json", is_flag=True, help="Print a document, for scripts.")
@click.pass_obj
def command(session: Session, file: str | None, free: bool, as_json: bool) -> int:
    """Show every host: CPUs, memory, disk, GPUs and slots with who holds them, and the runs of orch that live there.

    FILE is a cluster spec or an inventory; without it: your own inventory and the hosts of the active runs. The hosts
    are asked themselves, without the coordinator. Exit code 4 where one cannot be reached.
    """
    hosts = document(session, file)
    if free:
        hosts["hosts"] = [host for host in hosts["hosts"] if is_free(host)]
    if as_json:
        session.put_json(hosts)
    else:
        session.put("\n".join(lines(hosts["hosts"], session.paint, session.width)))
        if free and not hosts["hosts"]:
            session.say("No host is free")
    away = [str(host["host"]) for host in hosts["hosts"] if not host["reachable"]]
    return SomeHostsOnly.exit_code if away else 0


def lines(hosts: Sequence[Host], paint: Paint, width: int | None) -> list[str]:
    """Return the table of hosts, the table of their GPUs, and why some cannot be reached."""
    shown = fitting(
        ("HOST", "STATE", "CPUS", "LOAD", "MEM FREE", "DISK FREE", "GPUS", "RUNS"),
        [_host_row(host) for host in hosts],
        paint,
        width=width,
        right=frozenset({"CPUS", "LOAD", "MEM FREE", "DISK FREE"}),
        always=frozenset({"HOST", "STATE"}),
        drop=("CPUS", "DISK FREE", "LOAD", "RUNS", "MEM FREE", "GPUS"),
        styles={
            (n, "STATE"): ("green" if _state(host) in ("ready", "spare", "reachable") else "red",)
            for n, host in enumerate(hosts)
        },
    )
    gpus = [_gpu_row(host, gpu) for host in hosts for gpu in host["gpus"]]
    gpus += [
        dict.fromkeys(("MODEL", "USED", "MEM USED", "MEM FREE"), "")
        | {"HOST": str(host["host"]), "GPU": f"slot {slot['slot']}", "BY": printable(_by(slot))}
        for host in hosts
        for slot in host.get("slots") or []
    ]
    if gpus:
        shown += ["", *_gpu_table(gpus, paint, width)]
    problems = [host for host in hosts if not host["reachable"] or (host.get("reason"))]
    return (
        shown + ([""] if problems else []) + [line for host in problems for line in _why(host, paint, width)]
    )


def _gpu_table(rows: Sequence[Mapping[str, str]], paint: Paint, width: int | None) -> list[str]:
    return fitting(
        ("HOST", "GPU", "MODEL", "USED", "MEM USED", "MEM FREE", "BY"),
        rows,
        paint,
        width=width,
        right=frozenset({"GPU", "USED", "MEM USED", "MEM FREE"}),
        always=frozenset({"BY"}),
        drop=("MODEL", "MEM USED", "USED", "MEM FREE"),
        styles={(n, "BY"): ("green",) for n, row in enumerate(rows) if row["BY"] == "free"},
    )


def _state(host: Host) -> str:
    if not host["reachable"]:
        return "unreachable"
    return str(host.get("state") or ("spare" if host.get("spare") else "reachable"))


def _host_row(host: Host) -> dict[str, str]:
    row = {"HOST": str(host["host"]), "STATE": _state(host)}
    if not host["reachable"]:
        return row
    free = sum(1 for gpu in host["gpus"] if _by(gpu) == "free")
    runs = [", ".join([run["run_id"], *run["tasks"]]) for run in host["runs"]]
    return row | {
        "CPUS": str(host["cpus"]),
        "LOAD": "-" if host["load"] is None else f"{host['load']:.1f}",
        "MEM FREE": _of(host["memory_free_bytes"], host["memory_total_bytes"]),
        "DISK FREE": _of(host["disk_free_bytes"], host["disk_total_bytes"]),
        "GPUS": f"{free} of {len(host['gpus'])} free"
        if host["gpus"]
        else "-"
        if host["gpus_why"]
        else "unknown",
        "RUNS": printable("; ".join(runs)) or "-",
    }


def _gpu_row(host: Host, gpu: Mapping[str, Any]) -> dict[str, str]:
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    percent = gpu["utilization_percent"]
    return {
        "HOST": str(host["host"]),
        "GPU": str(gpu["index"]),
        "MODEL": printable(gpu["name"]) or "-",
        "USED": "-" if percent is None else f"{percent:.0f}%",
        "MEM USED": "-" if used is None else size(used),
        "MEM FREE": "-" if used is None or total is None else size(total - used),
        "BY": printable(_by(gpu)),
    }


def _by(gpu: Mapping[str, Any]) -> str:
    """Return who has a GPU or slot: who leased it, the run, or the user and the process; `free` if nobody does."""
    users = [
        str(process["run"] or f"{process['user'] or 'unknown user'} (pid {process['pid']})")
        for process in gpu.get("processes") or []
    ]
    if holder := gpu.get("held_by"):
        head = f", {holder['head']}" if holder["head"] else f", {holder['user']}" if holder["user"] else ""
        since = f", since {datetime.fromtimestamp(holder['since']):%Y-%m-%d %H:%M}" if holder["since"] else ""
        run = holder["run"] or "a process"
        users = [f"{run}{head}{since}", *(user for user in users if user != run)]
    named = list(dict.fromkeys(users))
    return (
        "free" if not named else ", ".join(named[:2]) + (f", {len(named) - 2} more" if len(named) > 2 else "")
    )


def _of(free: int | None, total: int | None) -> str:
    return "-" if free is None else size(free) if total is None else f"{size(free)} of {size(total)}"


def _why(host: Host, paint: Paint, width: int | None) -> list[str]:
    """Return why a host cannot be reached or gets no tasks, and the remedy."""
    text = host["problem"] if not host["reachable"] else f"{host['host']} {_state(host)}: {host['reason']}"
    reason = fold(printable(str(text)), width, indent="  ")
    hint = host["hint"] if not host["reachable"] else None
    return reason + (fold(f"  {paint('hint:', 'cyan')} {hint}", width, indent="    ") if hint else [])
