"""cluster.yaml in, a checked spec or every complaint about it out.

A complaint reads `file:line:col: where: sentence`. All of them are told at once, in the order of the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pydantic import ValidationError

from orchestrator.core.errors import SpecError
from orchestrator.spec.complaints import Complaint, Loc, render, where
from orchestrator.spec.document import Node, parse
from orchestrator.spec.models import ClusterSpec, env_name_complaint
from orchestrator.spec.parts import parts_of
from orchestrator.spec.relations import relations
from orchestrator.spec.sentences import KEY, sentence

SPEC_BYTES_MAX = 1024 * 1024

_NAMED_BY_USERS = (("run", "env"), ("run", "secrets"))


def load_spec(path: str | Path) -> ClusterSpec:
    """The spec of a file.

    Raises:
        SpecError: every complaint about it, a line each.
    """
    spec, complaints = check_spec(path)
    if spec is None:
        raise SpecError(render(str(path), complaints))
    return spec


def check_spec(path: str | Path) -> tuple[ClusterSpec | None, list[Complaint]]:
    """The spec of a file; or none, and what is wrong with it, in the order of the file."""
    text, said = _read(path)
    if text is None:
        return None, said
    root, complaints = parse(text)
    if root is None:
        return None, sorted(complaints)
    data = root.data()
    spec: ClusterSpec | None = None
    try:
        spec = ClusterSpec.model_validate(data)
    except ValidationError as error:
        # without the input: a value of env may be in it
        for found in error.errors(include_url=False, include_input=False):
            _add(complaints, root, tuple(found["loc"]), sentence(found, _about(root, tuple(found["loc"]))))
    for loc, words in relations(parts_of(data, Path(path).absolute().parent)):
        _add(complaints, root, loc, words)
    return (None, sorted(set(complaints))) if complaints else (spec, [])


def _about(root: Node, loc: Loc) -> Node | None:
    return root.find(loc[:-1] if loc and loc[-1] == KEY else loc)


def _add(complaints: list[Complaint], root: Node, loc: Loc, words: str) -> None:
    """One complaint with its place; none about what YAML's own complaints have taken out."""
    of_key = bool(loc) and (loc[-1] == KEY or words.startswith("unknown key"))
    loc = loc[:-1] if loc and loc[-1] == KEY else loc
    node = root.find(loc)
    if node is not None and node.broken:
        return
    if loc[:2] in _NAMED_BY_USERS and env_name_complaint(str(loc[-1])):
        of_key = True
    line, column = root.place(loc, of_key=of_key)
    complaints.append(Complaint(line, column, where(_shown(loc)), words))


def _shown(loc: Loc) -> Loc:
    """Without what is no name of a variable: `env: {TOKEN=abc: …}` holds a secret."""
    return loc[:2] if loc[:2] in _NAMED_BY_USERS and not str(loc[-1]).isidentifier() else loc


def _read(path: str | Path) -> tuple[str | None, list[Complaint]]:
    """The text of the file, if it is one. Its size is looked at before it is read."""

    def no(words: str, line: int = 1, column: int = 1) -> tuple[None, list[Complaint]]:
        return None, [Complaint(line, column, "file", words)]

    try:
        # O_NONBLOCK: a named pipe must be refused, not waited for
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        return no(f"cannot be read: {why}")
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return no("is a directory" if stat.S_ISDIR(found.st_mode) else "is not a regular file")
        content = b"" if found.st_size > SPEC_BYTES_MAX else file.read(SPEC_BYTES_MAX + 1)
    if found.st_size > SPEC_BYTES_MAX or len(content) > SPEC_BYTES_MAX:
        return no(f"has {found.st_size} bytes; a cluster spec has at most {SPEC_BYTES_MAX}")
    try:
        return content.removeprefix(b"\xef\xbb\xbf").decode(), []
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        start = content.rfind(b"\n", 0, error.start) + 1
        column = len(content[start : error.start].decode(errors="replace")) + 1
        return no(f"is not UTF-8: byte 0x{content[error.start]:02x}", line, column)
