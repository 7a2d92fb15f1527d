"""Fetches files that a run's tasks left in their working directories: for `orch fetch`, and for `run.outputs`.

The host first returns the SHA-256 of a file. The partial copy has that name until it is whole, so a fetch that broke
off continues, and its result is compared. An existing file with another content is not replaced unless a person asks
for that.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from pathspec import GitIgnoreSpec

from orchestrator.both.within import Tree
from orchestrator.core.errors import ConnectFailed, HostError, OrchestratorError, UsageError
from orchestrator.core.plan import TaskId
from orchestrator.core.state.run import Run
from orchestrator.core.words import size
from orchestrator.head.code.push_rules import OUTPUTS_MARK
from orchestrator.head.links.conversation import Asks, Lends, LinkDown, OrderRefused, refused
from orchestrator.head.node import disk
from orchestrator.head.transfer import files
from orchestrator.protocol.bounds import Digest
from orchestrator.protocol.check import check_of
from orchestrator.protocol.orders.tasks import TaskFile
from orchestrator.protocol.paths import RelativePath

SHARE_BYTES = 32 << 20
"""How much of a file one call pulls. Then the caller can report the progress and call again."""

REPOSITORIES = (".git", ".hg", ".svn", ".bzr", ".jj")
"""Directories into which nothing is written, in any spelling of upper and lower case."""

State = Literal["fetched", "here", "differs", "more"]
"""`here`: the file existed before. `differs`: a file with another content exists. `more`: a part was pulled."""


class Output(NamedTuple):
    """A file that a task has left."""

    host: str
    file: TaskFile
    to: RelativePath
    """Its path below the directory that a person named. It is unique among the files of a run."""


class Left(NamedTuple):
    """The files that a run left, as far as its hosts answered."""

    outputs: list[Output]
    left_out: dict[str, int]
    """By host, how many files are not listed: links, names that cannot be shown, and files above the limit."""
    unreached: dict[str, str]


class FetchedPart(NamedTuple):
    """The part of a file that one call has pulled."""

    state: State
    sha256: str
    here_bytes: int
    fetched_bytes: int


def find(run: Run, lease: Lends, *, task: TaskId | None = None) -> Left:
    """Ask the hosts of the run's tasks, or of one task, for the files left there. It blocks."""

    def list_host(host: str) -> tuple[list[Output], int]:
        listed, left_out = lease(run, host, lambda link: files.listing(link, run, host, "outputs"))
        named = [file for file in listed if task is None or file["task"] == str(task)]
        to = [destination(run, file, alone=task is not None) for file in named]
        return list(map(Output, itertools.repeat(host), named, to)), left_out

    names = sorted({each.host for each in run.tasks if task in (None, each.id)})
    answers, unreached = files.of_each(names, list_host)
    outputs = [output for listed, _ in answers.values() for output in listed]
    left_out = {host: count for host, (_, count) in answers.items() if count}
    return Left(sorted(outputs, key=lambda output: output.to), left_out, unreached)


def listed(run: Run, lease: Lends, patterns: Sequence[str], task: str | None) -> dict[str, Any]:
    """Return a document of the files that a run has left and that the patterns name. It blocks."""
    left = find(run, lease, task=_task_of(run, task))
    return _document(run, *chosen(left.outputs, patterns), left.left_out, left.unreached)


def _document(
    run: Run, wanted: list[Output], hidden: int, left_out: dict[str, int], unreached: dict[str, str]
) -> dict[str, Any]:
    beyond = not_fetched(run, wanted)
    return {
        "run_id": run.run_id,
        "files": [
            {"host": each.host, "to": each.to, **each.file, "why": beyond.get(each.to)} for each in wanted
        ],
        "hidden": hidden,
        "left_out": {host: count for host, count in left_out.items() if count},
        "unreached": unreached,
    }


def saved(run: Run, lease: Lends, generation: int, path: str) -> dict[str, Any]:
    """Return a document as `listed` does, of what the chief has saved as that checkpoint. It blocks.

    Args:
        run: the run.
        lease: provides the link.
        generation: which of its generations has saved it, or was given it.
        path: the file, the directory, or the prefix of files, below the generation's directory. Empty: all in it.
    """
    host = run.task(run.chief).host
    try:
        listed, left_out = lease(run, host, lambda link: files.listing(link, run, host, "saved", generation))
    except (LinkDown, OrderRefused) as e:
        return _document(run, [], 0, {}, {host: str(e)})
    below = (f"{path}/", f"{path}.") if path else ""
    mine = [file for file in listed if file["path"] == path or file["path"].startswith(below)]
    plain = [file for file in mine if not file["path"].parts[-1].startswith(".orch-")]
    return _document(run, [Output(host, file, file["path"]) for file in plain], 0, {host: left_out}, {})


def _task_of(run: Run, name: str | None) -> TaskId | None:
    """Return the task of that name. Raises UsageError if the run has none."""
    if name is None:
        return None
    known = {str(task.id): task.id for task in run.tasks}
    if name not in known:
        raise UsageError(f"{run.run_id} has no task {name!r}", hint=f"its tasks: {', '.join(known)}")
    return known[name]


def destination(run: Run, file: TaskFile, *, alone: bool) -> RelativePath:
    """Return the destination of a file: the chief's at the top, those of another task in a directory of its name.

    If the chief has a directory with a task's name, its files go into a directory of the chief's own name, so that no
    two files of a run have one destination.

    Args:
        run: the run.
        file: one of its files.
        alone: only this task's files are wanted, so they go to the top.

    Raises:
        OrderRefused: its path is too long.
    """
    if alone:
        return file["path"]
    taken = {files.task_name(str(task.id)) for task in run.tasks}
    if file["task"] == str(run.plan.chief) and file["path"].parts[0] not in taken:
        return file["path"]
    return files.below_task(file["task"], file["path"])


def chosen(outputs: Iterable[Output], patterns: Sequence[str]) -> tuple[list[Output], int]:
    """Return the files that the patterns match, and how many hidden ones were left out for want of a pattern.

    Patterns are read as in .gitignore: `*.csv` at any depth, `logs/` and all below it, `!*.tmp` not. As in a shell,
    only a pattern with a dot names what begins with one, and a directory that is named comes with all that is in it.
    Without patterns, all files except hidden ones match.
    """
    every = list(outputs)
    if not patterns:
        plain = [
            output for output in every if not any(part.startswith(".") for part in output.file["path"].parts)
        ]
        return plain, len(every) - len(plain)
    try:
        spec = GitIgnoreSpec.from_lines(patterns)
    except ValueError as e:
        raise UsageError(f"not a pattern: {e}") from e
    with_dot = [
        part
        for pattern in patterns
        if not pattern.startswith("!")
        for part in pattern.split("/")
        if part.startswith(".")
    ]

    def is_named(path: RelativePath) -> bool:
        hidden = next((at for at, part in enumerate(path.parts) if part.startswith(".")), None)
        return (
            hidden is None
            or (hidden > 0 and spec.match_file("/".join(path.parts[:hidden]) + "/"))
            or any(fnmatchcase(path.parts[hidden], part) for part in with_dot)
        )

    matched = [output for output in every if spec.match_file(output.file["path"])]
    named = [output for output in matched if is_named(output.file["path"])]
    return named, len(matched) - len(named)


def not_fetched(run: Run, wanted: Iterable[Output]) -> dict[str, str]:
    """Return by destination why a file is not fetched: its place, or the largest ones of each task above its limit."""
    limit, by_task, beyond = run.plan.output_bytes_max, dict[str, int](), dict[str, str]()
    for output in sorted(wanted, key=lambda each: each.file["bytes"]):
        task = output.file["task"]
        by_task[task] = by_task.get(task, 0) + output.file["bytes"]
        if by_task[task] > limit:
            beyond[output.to] = (
                f"{task} says that this file has {size(output.file['bytes'])}: with it, more than run.output_limit "
                f"({size(limit)}) would come of that task"
            )
        if (why := _why_no_place(output.to)) is not None:
            beyond[output.to] = why
    return beyond


def _why_no_place(path: RelativePath) -> str | None:
    """Return why nothing may be written there. What a repository holds runs by itself, such as its hooks."""
    # With `objects`, `refs` and `config` beside it, whatever they lie in
    if path.parts[-1].casefold() == "head":
        return "it would lie in what git takes for a repository, whose files git and the like run"
    of_repository = [part for part in path.parts if part.casefold() in REPOSITORIES]
    return f"it would lie in {of_repository[0]}, whose files git and the like run" if of_repository else None


def bring(
    link: Asks, run: Run, output: Output, directory: str, *, sha256: str | None = None, replace: bool = False
) -> FetchedPart:
    """Fetch a file, or a part of it, to its place below a directory. Call again while the state is `more`.

    Args:
        link: to its host.
        run: the run.
        output: the file.
        directory: an absolute path.
        sha256: what an earlier call returned for this file.
        replace: replace a file with another content.

    Raises:
        LinkDown: the connection broke; the next call continues.
        OrderRefused: the host refused, or the content does not match its SHA-256.
        OSError: the disk of the head node refused.
    """
    if (why := _why_no_place(output.to)) is not None:
        raise refused("no-place", f"{output.to}: {why}")
    size_bytes, is_new = output.file["bytes"], sha256 is None
    if sha256 is None:
        digest = files.digest(link, run, output.file)
        sha256 = digest["sha256"]
        if digest["bytes"] != size_bytes:
            raise _changed(output)
    os.makedirs(directory, exist_ok=True)
    with Tree(directory) as top:
        kind = top.kind(output.to) if is_new else None
        if kind == stat.S_IFREG and _sha256(top, output.to) == sha256:
            return FetchedPart("here", sha256, size_bytes, 0)
        if kind is not None and not (replace and kind in (stat.S_IFREG, stat.S_IFLNK)):
            return FetchedPart("differs", sha256, 0, 0)
        inside = os.path.dirname(output.to)
        top.make(inside)
        why = disk.why_reserved(directory)
        if why is not None:
            raise refused("limit", why)
        partial_copy = os.path.join(inside, f".orch-{sha256}.part")
        with open(top.opened(partial_copy, os.O_RDWR | os.O_CREAT | os.O_APPEND), "ab") as copy:
            fetched = files.pull(link, run, output.file, copy, end=size_bytes, room=SHARE_BYTES)
            here = copy.seek(0, os.SEEK_END)
            copy.flush()
            if here < size_bytes and fetched:
                return FetchedPart("more", sha256, here, fetched)
        if _sha256(top, partial_copy) != sha256:
            top.remove(partial_copy)
            raise _changed(output)
        top.rename(partial_copy, output.to, durable=False)  # the next fetch notices a loss by a power cut
        return FetchedPart("fetched", sha256, size_bytes, fetched)


def requested_file(file: Any, sha256: Any) -> tuple[Output, str | None]:
    """Return the file of a request, as `listed` gave it, and its digest. Raises UsageError for anything else."""
    try:
        wanted = Output(str(file["host"]), check_of(TaskFile)(file), check_of(RelativePath)(file["to"]))
        return wanted, None if sha256 is None else check_of(Digest)(sha256)
    except (KeyError, TypeError, ValueError) as e:
        raise UsageError(f"file must be an entry of the list of outputs: {e!r}") from e


@contextlib.contextmanager
def explained(output: Output, directory: str) -> Iterator[None]:
    """Turn the exceptions of `bring` into errors with a host, a cause and a way out."""
    try:
        yield
    except OSError as e:
        raise OrchestratorError(f"{os.path.join(directory, output.to)}: {e.strerror or e}") from e
    except OrderRefused as e:
        raise HostError(output.host, str(e), hint=e.problem.hint, code=e.problem.code) from e
    except LinkDown as e:
        raise ConnectFailed(output.host, str(e), hint="fetch again: it goes on where it broke off") from e


def bring_whole(link: Asks, run: Run, output: Output, directory: str) -> State:
    """Fetch a whole file. Raises as `bring` does."""
    part = bring(link, run, output, directory)
    while part.state == "more":
        part = bring(link, run, output, directory, sha256=part.sha256)
    return part.state


def own_directory(directory: str) -> None:
    """Make a directory that git and the push of the next run ignore."""
    os.makedirs(directory, exist_ok=True)
    with Tree(directory) as top, contextlib.suppress(FileExistsError):
        top.create(".gitignore", f"{OUTPUTS_MARK}\n*\n".encode(), mode=0o666)


def _sha256(top: Tree, path: str) -> str:
    with open(top.opened(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed(output: Output) -> OrderRefused:
    message = f"{output.file['path']} changed while it was fetched, or was damaged on the way"
    return refused("changed", message, "fetch it again once nothing writes it")
