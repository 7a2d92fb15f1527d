"""`orch ckpt`: list and verify the checkpoints of a run, pin one, roll back to one, and remove old ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from orchestrator.cli.checkpoints import ask, saved_as
from orchestrator.cli.commands import fetch as fetching
from orchestrator.cli.help import Group, json_option
from orchestrator.cli.host_queries import must_confirm
from orchestrator.cli.run_choice import complete_checkpoint, complete_run, run_and, run_argument
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import table
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.words import counted, duration, size

_COLUMNS = ("GEN", "STEP", "SIZE", "SAVED", "BY", "VERIFIED", "NOTES", "NAME")

Document = Mapping[str, Any]


def listing(answer: Document, session: Session) -> str:
    """Return the table, newest generation first. `newest` marks the checkpoint from which the run would resume."""
    rows = [list(_COLUMNS)]
    styles: dict[tuple[int, int], tuple[str, ...]] = {(0, x): ("bold",) for x in range(len(_COLUMNS))}
    for y, checkpoint in enumerate(answer["checkpoints"], start=1):
        now = session.time()
        notes = ["newest"] if (checkpoint["name"] == answer["newest"]) else []
        notes += ["pinned"] if checkpoint["pinned"] else []
        notes += ["on the head node"] if checkpoint.get("pulled") else []
        notes += ["set aside"] if checkpoint["set_aside"] else []
        by = checkpoint.get("by") or {}
        step, generation = checkpoint["global_step"], checkpoint["generation"]
        rows.append(
            [
                "-" if generation is None else str(generation),
                "-" if step is None else str(step),
                size(checkpoint["bytes"]),
                f"{duration(max(0.0, now - checkpoint['saved_at']))} ago",
                "seed" if checkpoint["given"] else f"{by['task']} on {by['host']}" if by else "-",
                _verified(checkpoint, now),
                ", ".join(notes),
                str(checkpoint["name"]),
            ]
        )
        if checkpoint["whole"] is False:
            styles[y, 5] = ("red",)
        elif checkpoint["verified_at"] is not None:
            styles[y, 5] = ("green",)
    return "\n".join(table(rows, session.paint, right=frozenset({"GEN", "STEP", "SIZE"}), styles=styles))


def _verified(checkpoint: Document, now: float) -> str:
    if checkpoint.get("writing"):
        return "being written"
    if checkpoint["whole"] is False:
        return f"no: {checkpoint['why']}"
    if checkpoint.get("proof") == "names":
        return "never: its format cannot be"
    if checkpoint["verified_at"] is None:
        return "not yet"
    without = ", no checksums" if checkpoint.get("proof") == "structure" else ""
    return f"{duration(max(0.0, now - checkpoint['verified_at']))} ago{without}"


@click.group(
    cls=Group,
    about_runs=True,
    examples=[
        ("orch ckpt ls", "List the checkpoints of the active run, else of the newest"),
        ("orch ckpt rollback mnist --to 120 --restart", "Go back to step 120 now"),
    ],
)
def command() -> None:
    """List, verify, pin, roll back and remove the checkpoints of a run.

    A CHECKPOINT is named by its global step (120), its generation (gen-5), or its NAME in `orch ckpt ls`. Without the
    name of a run: the active run, else the newest.
    """


@command.subcommand(
    examples=[
        ("orch ckpt ls", "List the checkpoints of the active run, else of the newest"),
        ("orch ckpt ls mnist --json", "List those of the run mnist, for scripts"),
    ]
)
@run_argument()
@json_option()
def ls(session: Session, name: str | None) -> None:
    """List the checkpoints.

    The table shows which task saved each one, when, and whether it is verified. A verified checkpoint has been read in
    full without an error. A seed is the copy that a generation started from.
    """
    _show(ask(session, "list", name), session)


@command.subcommand(
    examples=[
        ("orch ckpt verify", "Verify the checkpoints of the active run, else of the newest"),
        ("orch ckpt verify mnist --json", "Verify those of the run mnist, for scripts"),
    ]
)
@run_argument()
@json_option()
def verify(session: Session, name: str | None) -> None:
    """Read every checkpoint in full now.

    Exit code 1 if the newest one is broken. A checkpoint that a task is writing at this moment is listed, but
    neither verified nor called broken; the exit code is then that of the newest one before it.
    """
    session.say("Reading every checkpoint …")
    answer = ask(session, "read", name)
    _show(answer, session)
    newest = next((item for item in answer["checkpoints"] if item["name"] == answer["newest"]), None)
    for item in answer["checkpoints"]:
        if item.get("writing") and not item["set_aside"]:
            session.say(f"not verified, since it is being written: {item['name']}")
    if newest is None:
        raise OrchestratorError(f"{answer['run_id']} has no checkpoint to resume from")
    if newest.get("proof") == "names":
        raise OrchestratorError(
            f"the newest checkpoint is of a format that cannot be verified: {newest['name']}",
            hint="a restart uses it all the same; docs/checkpoints.md lists the formats that can be verified",
        )
    if not newest["whole"]:
        raise OrchestratorError(
            f"the newest checkpoint is broken: {newest['name']}: {newest['why']}",
            hint="a restart uses the newest verified checkpoint before it",
        )


@command.subcommand(
    acts=True,
    examples=[
        ("orch ckpt rollback --to 120", "The next `orch up --continue` starts from step 120"),
        ("orch ckpt rollback mnist --to gen-5 --restart", "Restart the run mnist from generation 5 now"),
    ],
)
@run_argument()
@click.option(
    "--to",
    "checkpoint",
    required=True,
    shell_complete=complete_checkpoint,
    help="A global step, gen-N, or a NAME of `orch ckpt ls`.",
)
@click.option("--restart", is_flag=True, help="Restart the tasks of an active run from it.")
@json_option()
def rollback(session: Session, name: str | None, checkpoint: str, restart: bool) -> None:
    """Go back to a checkpoint.

    The next generation starts from it, and newer checkpoints are set aside. Nothing is removed: a rollback to a
    checkpoint that was set aside brings it back. Exit code 6 if the run is active and --restart is not given.
    """
    answer = ask(session, "rollback", name, checkpoint, restart=restart)
    target = answer["checkpoint"]
    aside = answer["set_aside"]
    what = f"; set aside: generation {', '.join(map(str, aside))}" if aside else ""
    then = (
        "restarting its tasks from it" if answer["active"] else "the next `orch up --continue` starts from it"
    )
    back = f"back to step {target['global_step']} ({target['name']}){what}"
    session.answer(answer, f"{answer['run_id']}: {back}; {then}")
    if not session.wants_json:
        session.say("The checkpoint is pinned; `orch ckpt unpin` removes the pin")


@command.subcommand(
    acts=True,
    examples=[
        ("orch ckpt pin 120", "Keep the checkpoint of step 120 of the active run, else of the newest"),
        ("orch ckpt pin mnist gen-5", "Keep the newest checkpoint of generation 5 of the run mnist"),
    ],
)
@run_and("checkpoint", complete_checkpoint)
@json_option()
def pin(session: Session, name: str | None, checkpoint: str) -> None:
    """Pin a checkpoint, so that it stays. Neither the spec's `keep` nor the script's own clean-up removes it."""
    _pinned("pin", session, name, checkpoint)


@command.subcommand(
    acts=True,
    examples=[
        ("orch ckpt unpin 120", "Unpin the checkpoint of step 120 of the active run, else of the newest"),
        ("orch ckpt unpin mnist gen-5", "Unpin that of generation 5 of the run mnist"),
    ],
)
@run_and("checkpoint", complete_checkpoint)
@json_option()
def unpin(session: Session, name: str | None, checkpoint: str) -> None:
    """Remove the pin of a checkpoint."""
    _pinned("unpin", session, name, checkpoint)


@command.subcommand(
    acts=True,
    examples=[
        ("orch ckpt rm gen-1", "Remove generation 1 of the active run, else of the newest"),
        (
            "orch ckpt rm mnist set-aside --yes",
            "Remove all that is set aside of the run mnist, and do not ask",
        ),
    ],
)
@run_and("checkpoint", complete_checkpoint)
@click.option("--yes", is_flag=True, help="Remove without asking.")
@json_option()
def rm(session: Session, name: str | None, checkpoint: str, yes: bool) -> None:
    """Remove a generation, or all that is set aside.

    CHECKPOINT is gen-N (a generation with all its checkpoints) or `set-aside`. The checkpoint that the next start
    resumes from is never removed, and pinned copies stay: `orch ckpt unpin` removes those. A rollback or a start from
    scratch sets checkpoints aside; they are kept until this command removes them.
    """
    listed = ask(session, "list", name)
    chosen = [entry for entry in listed["checkpoints"] if _is_meant(entry, checkpoint)]
    generations = sorted({int(entry["generation"]) for entry in chosen})
    if chosen and not yes:
        which = ", ".join(f"gen-{number}" for number in generations)
        total = size(sum(int(entry["bytes"]) for entry in chosen))
        question = f"{listed['run_id']}: remove {which} in {listed['dir']}, {total}?"
        must_confirm(session, question, otherwise="nothing was removed")
    answer = ask(session, "rm", str(listed["run_id"]), checkpoint)
    which = ", ".join(f"gen-{number}" for number in answer["removed"]) or "nothing"
    done = f"{answer['run_id']}: removed {which}; {size(answer['bytes'])} are free again"
    session.answer({"schema": 1, **answer}, done)


@command.subcommand(
    examples=[
        ("orch ckpt fetch", "Fetch the newest checkpoint of the active run, else of the newest"),
        ("orch ckpt fetch mnist 120 --to saved", "Fetch that of step 120 of the run mnist into saved/"),
    ]
)
@click.argument("name", required=False, shell_complete=complete_run)
@click.argument("checkpoint", required=False, shell_complete=complete_checkpoint)
@click.option("--to", "directory", type=click.Path(), help="The directory. Default: NAME-outputs/RUN_ID.")
@click.option("--force", is_flag=True, help="Replace files that are there with another content.")
@json_option()
def fetch(
    session: Session, name: str | None, checkpoint: str | None, directory: str | None, force: bool
) -> None:
    """Fetch the files of a checkpoint from the host that saves. Exit code 6 if a file here has another content."""
    listed = ask(session, "list", name)
    wanted = str(listed["newest"]) if checkpoint is None else checkpoint
    found = [
        entry
        for entry in listed["checkpoints"]
        if entry["generation"] is not None
        and (checkpoint or listed["newest"] is not None)
        and wanted in (entry["name"], str(entry["global_step"]), f"gen-{entry['generation']}")
    ]
    if not found:
        raise UsageError(
            f"{listed['run_id']} has no checkpoint {checkpoint!r}"
            if checkpoint
            else "there is no checkpoint",
            hint="`orch ckpt ls` shows what there is",
        )
    run_id = str(listed["run_id"])
    request = fetching.Request(run_id, (), None, directory, force, saved_as(found[0]))
    fetching.fetched(session, request)


def _is_meant(checkpoint: Document, what: str) -> bool:
    if what == "set-aside":
        return bool(checkpoint["set_aside"]) and checkpoint["generation"] is not None
    digits = what.removeprefix("gen-")
    return digits != what and digits.isdecimal() and int(digits) == checkpoint["generation"]


def _pinned(verb: str, session: Session, name: str | None, checkpoint: str) -> None:
    answer = ask(session, verb, name, checkpoint)
    pinned = answer["checkpoint"]
    done = "unpinned" if verb == "unpin" else "already pinned" if answer.get("already") else "pinned"
    which = f"step {pinned['global_step']} of generation {pinned['generation']} ({pinned['name']})"
    session.answer(answer, f"{which}: {done}")


def _show(answer: Document, session: Session) -> None:
    if session.wants_json:
        session.put_json({"schema": 1, **answer})
        return
    checkpoints = answer["checkpoints"]
    session.say(
        f"{answer['run_id']}: {counted(len(checkpoints), 'checkpoint')} in {answer['dir']} on {answer['host']}"
    )
    if checkpoints:
        session.put(listing(answer, session))
    aside = [item for item in checkpoints if item["set_aside"]]
    if aside:
        total = size(sum(int(item["bytes"]) for item in aside))
        session.say(
            f"Set aside: {counted(len(aside), 'checkpoint')}, {total}, kept until `orch ckpt rm set-aside`"
        )
