"""Reads cluster.yaml and returns a checked spec, or every diagnostic about it.

A diagnostic reads `file:line:col: where: sentence`. All of them are reported at once, in the order of the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from orchestrator.core.errors import SpecError
from orchestrator.spec.diagnostics import SHOWN_MAX, Diagnostic, Loc, render, where
from orchestrator.spec.document import Node, parse
from orchestrator.spec.forms import RecipientFile, env_name_diagnostic
from orchestrator.spec.models import ClusterSpec, Notify
from orchestrator.spec.parts import parts_of
from orchestrator.spec.recipient_files import file_refusal
from orchestrator.spec.relations import relations
from orchestrator.spec.sentences import KEY, sentence

SPEC_BYTES_MAX = 1024 * 1024

_NAMED_BY_USERS = (("run", "env"), ("run", "secrets"))


def load_spec(path: str | Path) -> ClusterSpec:
    """Return the spec of a file.

    Raises:
        SpecError: the spec is wrong; the message has one line per diagnostic.
    """
    spec, diagnostics = check_spec(path)
    if spec is None:
        raise SpecError(render(str(path), diagnostics))
    return spec


def check_spec(path: str | Path) -> tuple[ClusterSpec | None, list[Diagnostic]]:
    """Return the spec of a file; or None, and the diagnostics in the order of the file."""
    text, said = _read(path)
    if text is None:
        return None, said
    root, diagnostics = parse(text)
    if root is None:
        return None, sorted(diagnostics)
    spec: ClusterSpec | None = None
    data = root.data()
    try:
        spec = ClusterSpec.model_validate(data)
    except ValidationError as error:
        diagnostics += _told(error, root)
    for loc, words in relations(parts_of(data, Path(path).absolute().parent)):
        diagnostics += _diagnostic(root, loc, words)
    return (None, sorted(set(diagnostics))) if diagnostics else (spec, [])


def check_form(text: str) -> list[Diagnostic]:
    """Return what is wrong with the form of a spec that is no file yet: nothing beside it is looked for."""
    root, diagnostics = parse(text)
    if root is None:
        return sorted(diagnostics)
    try:
        ClusterSpec.model_validate(root.data())
    except ValidationError as error:
        diagnostics += _told(error, root)
    return sorted(set(diagnostics))


def check_own(path: str | Path, base_dir: Path) -> tuple[Notify | None, list[Diagnostic]]:
    """Return the user's own `notify:`, whose keys stand at the top of a file of its own; or None, and what is wrong."""
    text, said = _read(path)
    if text is None:
        return None, said
    root, diagnostics = parse(text, plain_keys={("on",)})
    if root is None:
        return None, sorted(diagnostics)
    try:
        notify = Notify.model_validate(root.data() or {})
    except ValidationError as error:
        return None, sorted({*diagnostics, *_told(error, root, within=("run", "notify"))})
    for number, to in enumerate(notify.to):
        if isinstance(to, RecipientFile) and (words := file_refusal(to, base_dir)):
            diagnostics += _diagnostic(root, ("to", number), words)
    return (None, sorted(set(diagnostics))) if diagnostics else (notify, [])


def located(path: str | Path, loc: Loc, words: str) -> str:
    """Return `file:line:column: key: words` for a problem that was found after the file was read."""
    text, said = _read(path)
    root = parse(text)[0] if text is not None else None
    if root is None:
        return render(str(path), said) if said else words
    return render(str(path), list(_diagnostic(root, loc, words)))


def _told(error: ValidationError, root: Node, *, within: Loc = ()) -> Iterator[Diagnostic]:
    """Yield pydantic's errors as diagnostics, without the values: a value of env may be secret.

    `within` is where the file's content would stand in a cluster spec.
    """
    found = [(tuple(e["loc"]), e) for e in error.errors(include_url=False, include_input=False)]
    found.sort(key=lambda pair: root.place(pair[0]))
    for number, (loc, about) in enumerate(found):
        of_key = about["type"] == "extra_forbidden"
        if loc and loc[-1] == KEY:
            loc, of_key = loc[:-1], True
        # finding the word that was meant takes time, and diagnostics beyond SHOWN_MAX are only counted
        words = (
            sentence({**about, "loc": (*within, *about["loc"])}, root.find(loc))
            if number < SHOWN_MAX
            else "one of many"
        )
        yield from _diagnostic(root, loc, words, of_key=of_key)


def _diagnostic(root: Node, loc: Loc, words: str, *, of_key: bool = False) -> Iterator[Diagnostic]:
    """Yield a diagnostic with its position, or none where there is one from YAML already."""
    node = root.find(loc)
    if node is not None and node.broken:
        return
    if loc[:2] in _NAMED_BY_USERS and env_name_diagnostic(str(loc[-1])):
        of_key = True
    line, column = root.place(loc, of_key=of_key)
    yield Diagnostic(line, column, where(_shown(loc)), words)


def _shown(loc: Loc) -> Loc:
    """Remove from a place what is not the name of a variable: `env: {TOKEN=abc: …}` holds a secret."""
    return loc[:2] if loc[:2] in _NAMED_BY_USERS and not str(loc[-1]).isidentifier() else loc


def _read(path: str | Path) -> tuple[str | None, list[Diagnostic]]:
    """Read the text of the file if it is a regular file. Its size is checked before it is read."""

    def no(words: str, line: int = 1, column: int = 1) -> tuple[None, list[Diagnostic]]:
        return None, [Diagnostic(line, column, "file", words)]

    try:
        # O_NONBLOCK because a named pipe must be refused, and opening one would block
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        return no(f"cannot be read: {why}")
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        return no("is a directory" if stat.S_ISDIR(found.st_mode) else "is not a regular file")
    with open(fd, "rb") as file:
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
