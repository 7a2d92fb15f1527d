"""Reads cluster.yaml and returns a checked spec, or every diagnostic about it.

A diagnostic reads `file:line:col: where: sentence`. All of them are reported at once, in the order of the file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from orchestrator.core.errors import SpecError
from orchestrator.spec import own_inventory
from orchestrator.spec.checks import SAID
from orchestrator.spec.diagnostics import SHOWN_MAX, Diagnostic, Loc, did_you_mean, render, shown, where
from orchestrator.spec.document import Node, parse
from orchestrator.spec.forms import RecipientFile, env_name_diagnostic
from orchestrator.spec.models import ClusterSpec, Inventory, Notify
from orchestrator.spec.parts import absolute, parts_of
from orchestrator.spec.relations import relations
from orchestrator.spec.secrets import file_refusal

M = TypeVar("M", bound=BaseModel)

# Translates pydantic's errors into one sentence that says what is wrong, and the way out. A sentence never
# shows a value of `env`, `args` or `secrets`, since it may be secret.

KEY = "[key]"
"""The last element of pydantic's location where the key of a mapping is wrong, and not its value."""


def sentence(error: Mapping[str, Any], node: Node | None) -> str:
    """Return the sentence for an error. `node` is the value that it is about, if there is one."""
    type_, loc, ctx = error["type"], tuple(error["loc"]), error.get("ctx", {})
    if type_ == SAID:
        return str(ctx["sentence"])
    if type_ in _BY_TYPE:
        return _BY_TYPE[type_](loc, ctx, node)
    return str(error["msg"])


def model_at(loc: Loc) -> type[BaseModel]:
    """Return the model that has the last key of a place."""
    model: type[BaseModel] = ClusterSpec
    for step in loc[:-1]:
        known = model.model_fields.get(step) if isinstance(step, str) else None
        model = (_model_in(known.annotation) if known else None) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(part) for part in get_args(annotation))
    return next((model for model in models if model), None)


def _kind(node: Node | None) -> str:
    value = node.value if node else None
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds = {dict: "a mapping", list: "a list", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "nothing")


def _got(node: Node | None) -> str:
    if node is None or isinstance(node.value, (dict, list)) or node.value is None:
        return f"this is {_kind(node)}"
    return f"got {shown(node.value)}"


def _missing(loc: Loc, _ctx: Mapping[str, Any], _node: Node | None) -> str:
    if loc == ("version",):
        return "is missing; write version: 1"
    about = (model_at(loc).model_fields[str(loc[-1])].description or "").split(". ")[0].rstrip(".")
    return f"is missing: {about[:1].lower()}{about[1:]}"


def _unknown_key(loc: Loc, _ctx: Mapping[str, Any], _node: Node | None) -> str:
    key, model = str(loc[-1]), model_at(loc)
    if key in model.model_fields:
        return f"is a key of a cluster spec; an inventory has {', '.join(Inventory.model_fields)}"
    if hint := did_you_mean(key, model.model_fields):
        return f"unknown key{hint}"
    homes = [name or "the top level" for name, home in _HOMES.items() if key in home.model_fields]
    if homes:
        return f"unknown key here; it belongs to {' or '.join(homes)}"
    return f"unknown key; known here are {', '.join(model.model_fields)}"


def _homes() -> dict[str, type[BaseModel]]:
    """Return the models by the key that holds them."""
    homes: dict[str, type[BaseModel]] = {"": ClusterSpec}
    for owner in (ClusterSpec, model_at(("run", "script"))):
        for name, field in owner.model_fields.items():
            if model := _model_in(field.annotation):
                homes[name] = model
    return homes


_HOMES = _homes()


def _text(_loc: Loc, _ctx: Mapping[str, Any], node: Node | None) -> str:
    if node is not None and node.bare and node.value is not None:
        return f"must be text, and without quotes YAML reads this as {_kind(node)}; put it in quotes"
    return f"must be text, and this is {_kind(node)}"


def _choice(loc: Loc, ctx: Mapping[str, Any], node: Node | None) -> str:
    if loc == ("version",):
        return f"this orch reads version 1; {_got(node)}"
    known = re.findall(r"'([^']*)'", str(ctx.get("expected", "")))
    if loc[-1] == KEY:  # the key itself is wrong, and not its value
        word = loc[-2]
        return f"must be one of {', '.join(known)}; got {shown(word)}{did_you_mean(word, known)}"
    hint = did_you_mean(node.value, known) if node else ""
    return f"must be one of {', '.join(known)}; {_got(node)}{hint}"


def _mapping(_loc: Loc, _ctx: Mapping[str, Any], node: Node | None) -> str:
    return f"must be a mapping (lines of key: value), and this is {_kind(node)}"


def _list(_loc: Loc, _ctx: Mapping[str, Any], node: Node | None) -> str:
    return f"must be a list, and this is {_kind(node)}"


def _bound(words: str, limit: str) -> Callable[[Loc, Mapping[str, Any], Node | None], str]:
    return lambda _loc, ctx, node: f"must be {words} {ctx[limit]}; {_got(node)}"


_BY_TYPE: Mapping[str, Callable[[Loc, Mapping[str, Any], Node | None], str]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_key,
    "string_type": _text,
    "int_type": lambda _loc, _ctx, node: f"must be a whole number; {_got(node)}",
    "bool_type": lambda _loc, _ctx, node: f"must be true or false; {_got(node)}",
    "literal_error": _choice,
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "too_short": lambda loc, _ctx, _node: (
        "there is none; list at least one host with its name" if loc == ("hosts",) else "must not be empty"
    ),
    "too_long": lambda _loc, ctx, _node: (
        f"must be at most {ctx['max_length']} long; it has {ctx['actual_length']}"
    ),
    "model_type": _mapping,
    "dict_type": _mapping,
    "list_type": _list,
    "tuple_type": _list,
}


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


def load_inventory(path: str | Path) -> Inventory | None:
    """Return a file that is an inventory alone; None where it is a cluster spec, which says what to run.

    Raises:
        SpecError: it is an inventory, and wrong.
    """
    text, problem = _read(path)
    parsed = parse(text) if text is not None else (None, problem)
    if (
        parsed[0] is not None
        and isinstance(parsed[0].value, dict)
        and parsed[0].value.keys() & {"name", "run"}
    ):
        return None
    _, inventory, diagnostics = _validated(Inventory, parsed)
    if inventory is None or diagnostics:
        raise SpecError(render(str(path), diagnostics))
    return inventory


def check_spec(path: str | Path) -> tuple[ClusterSpec | None, list[Diagnostic]]:
    """Return the spec of a file; or None, and the diagnostics in the order of the file."""
    text, problem = _read(path)
    if text is None:
        return None, problem
    base_dir = Path(path).absolute().parent
    parsed = parse(text)
    if parsed[0] is not None and (problem := _take_inventory(parsed[0], base_dir)):
        return None, problem
    root, spec, diagnostics = _validated(ClusterSpec, parsed)
    if root is not None:
        for loc, words in relations(parts_of(root.data(), base_dir)):
            diagnostics += _diagnostic(root, loc, words)
    return (None, sorted(set(diagnostics))) if diagnostics else (spec, [])


_PATHS = ("identity_file", "known_hosts", "requirements")


def _take_inventory(root: Node, base_dir: Path) -> list[Diagnostic]:
    """Put the hosts of the inventory into the document, and its path. Return what is wrong with that file.

    It is that of `--inventory`, or the one that the document names, or the user's own where it names no hosts at all.
    """
    if not isinstance(root.value, dict):
        return []
    named, chosen = root.child("inventory"), own_inventory.chosen.get()
    if chosen:
        for key in ("hosts", "inventory"):
            root.value.pop(key, None)
        file = chosen
    elif named is not None:
        if not isinstance(named.value, str) or not named.value:
            return []
        if root.child("hosts") is not None:
            return list(_diagnostic(root, ("inventory",), "`hosts` are in this file too; leave out either"))
        file = absolute(named.value, base_dir)
    elif root.value.keys() & {"hosts", "slurm", "kubernetes"} or not (file := own_inventory.own()):
        return []
    text, problem = _read(file)
    if text is None and (chosen or named is None):
        return [replace(each, file=file) for each in problem]
    if text is None:
        return list(_diagnostic(root, ("inventory",), f"{file} {problem[0].sentence}"))
    listed, _, diagnostics = _validated(Inventory, parse(text))
    if listed is None or diagnostics:
        return [replace(each, file=file) for each in diagnostics]
    for key, node in listed.value.items():
        if key not in root.value:
            root.value[key], root.keys[key] = node, listed.keys[key]
            node.file = file
            for holder in node.value if key == "hosts" else [node]:
                for path in filter(None, map(holder.child, _PATHS)):
                    path.value = absolute(path.value, Path(file).parent)
    root.value["inventory"] = Node(*root.place(("inventory",)), file)
    return []


def check_form(text: str) -> list[Diagnostic]:
    """Return the diagnostics on the form of a spec that is not in a file yet: the files that it names are not read."""
    return sorted(set(_validated(ClusterSpec, parse(text))[2]))


def check_own(path: str | Path, base_dir: Path) -> tuple[Notify | None, list[Diagnostic]]:
    """Return the user's own `notify:`, from a file with its keys at the top level; or None, and the diagnostics."""
    text, problem = _read(path)
    if text is None:
        return None, problem
    root, notify, diagnostics = _validated(
        Notify, parse(text, plain_keys={("on",)}), within=("run", "notify")
    )
    for number, to in enumerate(notify.to if notify is not None else ()):
        if root is not None and isinstance(to, RecipientFile) and (words := file_refusal(to, base_dir)):
            diagnostics += _diagnostic(root, ("to", number), words)
    return (None, sorted(set(diagnostics))) if diagnostics else (notify, [])


def _validated(
    model: type[M], parsed: tuple[Node | None, list[Diagnostic]], *, within: Loc = ()
) -> tuple[Node | None, M | None, list[Diagnostic]]:
    """Return the document, the model if nothing is wrong with it, and what is wrong with either."""
    root, diagnostics = parsed
    if root is None:
        return None, None, diagnostics
    data = root.data()
    try:
        return root, model.model_validate({} if data is None and within else data), diagnostics
    except ValidationError as error:
        return root, None, [*diagnostics, *_diagnostics_of(error, root, within=within)]


def located(path: str | Path, loc: Loc, words: str) -> str:
    """Return `file:line:column: key: words` for a problem that was found after the file was read."""
    text, problem = _read(path)
    root = parse(text)[0] if text is not None else None
    if root is None:
        return render(str(path), problem) if problem else words
    _take_inventory(root, Path(path).absolute().parent)
    return render(str(path), list(_diagnostic(root, loc, words)))


def _diagnostics_of(error: ValidationError, root: Node, *, within: Loc = ()) -> Iterator[Diagnostic]:
    """Yield pydantic's errors as diagnostics, without the values: a value of env may be secret.

    `within` is where the file's content would stand in a cluster spec.
    """
    errors = [(tuple(e["loc"]), e) for e in error.errors(include_url=False, include_input=False)]
    errors.sort(key=lambda pair: root.place(pair[0]))
    for number, (loc, about) in enumerate(errors):
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
    top = root.child(loc[0]) if loc else None
    yield Diagnostic(line, column, where(_shown(loc)), words, top.file if top else "")


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
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        return no("is a directory" if stat.S_ISDIR(status.st_mode) else "is not a regular file")
    try:
        with open(fd, "rb") as file:
            content = b"" if status.st_size > SPEC_BYTES_MAX else file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:  # of the disk, or of a mount that broke
        return no(f"cannot be read: {error.strerror}")
    if status.st_size > SPEC_BYTES_MAX or len(content) > SPEC_BYTES_MAX:
        return no(f"has {status.st_size} bytes; a cluster spec has at most {SPEC_BYTES_MAX}")
    try:
        return content.removeprefix(b"\xef\xbb\xbf").decode(), []
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        start = content.rfind(b"\n", 0, error.start) + 1
        column = len(content[start : error.start].decode(errors="replace")) + 1
        return no(f"is not UTF-8: byte 0x{content[error.start]:02x}", line, column)
