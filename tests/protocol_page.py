"""`python -m tests.protocol_page` writes docs/protocol.md from the declared orders and the types of the frames."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from orchestrator.core.concerns import CONCERNS
from orchestrator.core.turn import Concern
from orchestrator.protocol import hello, replies, reports, runtime_lines
from orchestrator.protocol.bounds import Form, Inside, Json, Length, Range, Raw
from orchestrator.protocol.channel import BLOB_BYTES_MAX, JSON_BYTES_MAX
from orchestrator.protocol.limits import COUNT_MAX
from orchestrator.protocol.orders.base import Fence, Verb
from orchestrator.protocol.paths import RelativePath
from tests.protocol_orders import BY_NAME, TABLE, senders

PAGE = Path(__file__).parents[1] / "docs/protocol.md"

HEAD = f"""<!-- Made by `make docs` from orchestrator/protocol. Never edit it by hand. -->
# Protocol

This page describes all frames between coordinator, agent, shim and runtime. It is made from the types in
`orchestrator/protocol/` (`hello.py`, `reports.py`, `replies.py`, `runtime_lines.py`), and from the orders, which are
declared beside their types in `orders/`. mypy checks the code against these types. At run time, the head checks every
frame of a host against them (`check.py`), in one place: `head/links/edge.py`.

A **frame** (`protocol/channel.py`) is two big-endian uint32 (length of the JSON, length of the blob), one JSON
object in UTF-8, and the blob, which may be empty. The JSON has at most {JSON_BYTES_MAX >> 20} MiB, the blob at most
{BLOB_BYTES_MAX >> 20} MiB. Frames go over the SSH channel between coordinator and agent, and over the socket of a shim.

**Reports** repeat everything that is known of all tasks of the watched runs. So lost, repeated and late reports do
no harm, and a new coordinator learns everything from the first one. If several are waiting, the coordinator uses
the newest. **Orders** are idempotent: an order that arrives twice is done once.

**Invalid frames** never reach the core or the journal. A value of the wrong type (true is not a number, and neither
is `"5"`), out of its range, too long, or missing ends the connection, and the runs of the host get a sentence with
host and field. After the first time, the coordinator connects again at once. If it happens again, the host is shown
as misbehaving, and the next tries come after one, two, five and ten minutes. Unknown keys are dropped. In texts,
control characters and changes of the writing direction are written out: ESC becomes `\\x1b`.

**Frames that are too long** are shortened by their sender, to the lengths below. If a report is still longer than a
frame, the metrics, sentences and last lines of its tasks are cut further, and each such task says so
(`report-trimmed`). Tasks are never left out, since the core would take them for lost.

**Paths**: a *path* is relative. No part of it is empty, `.` or `..`, and it has no NUL. So what
is matched against a pattern is what is opened. A *path in `dir`* lies in the directory that the order named as
`dir`: a host may speak of no other. Any other path ends the connection, like every invalid frame.

In the tables, a field with `?` may be missing.
"""

AGENT = """## Agent to coordinator

`head/links/bootstrap.py` describes how an agent gets to a host, and what is exchanged before its hello.
In place of an agent, `orch exec` starts `host/command.py`, which sends frames of its own kind only (`CommandFrame`).
"""

ORDERS = """## Coordinator to agent

An order is `{"order": VERB, "id": N, …}` with the fields below. Its reply has the same `id`; an order without an id
gets no reply. The fence says which coordinators a host accepts. *newest*: the order names a run and the epoch of
its coordinator, and the host refuses it with code `superseded` if it has seen a higher epoch for that run.
*begins*: the same, and a host that does not know the run creates its directory. *anybody*: every coordinator, since
the order changes nothing of a run. An order whose fence is not *newest* names it in its field `fence`.
"""

REPEATED = """An order to a host that is not connected is dropped, and the answer to another may be lost. When the
host is up again, its link repeats [`watch`](#watch), and each concern of the run (`core/concerns.py`) repeats what is
not known to be done.
"""

SHIM = """## Agent and shim

The agent writes start.json: the `start` order without its secrets, and `host_dir` and `bundle`;
`cgroup: false` disables the control group. It runs `python -I -S -X utf8 <bundle.pyz> shim <generation dir>`, and
writes the secrets to its stdin as one line of JSON. The shim detaches, and answers with one line on stdout:
`{"pid": N}` or `{"error": {"code", "message", "hint"}}`. `shim.connect(generation_dir)` returns a connected socket.
The frames on it are:

- From the agent to the shim: `watch` (with `heartbeat_s` for this connection), `release`, `stop` and `stacks`, as
  the coordinator sent them. Before it forwards a release, the agent copies `seed` into `scratch/`. The shim only
  creates that directory, and sets ORCH_CHECKPOINT_DIR to it.
- From the shim to the agent: replies as above, and reports.

To stop a task, the shim asks the runtime. It sends SIGTERM to the main process only if no runtime runs it, or if
the script has its own handler. The shim ends when exit.json is on the disk. From then on,
`shim.recover(generation_dir)` returns the Task (None while the shim lives). The shim gives every task
ORCH_HOST_DIR, ORCH_RUN, ORCH_TASK and ORCH_GENERATION. By these the sweep finds its processes; ORCH_HOST_DIR must
match too, since two hosts of a lab may share one kernel.
"""

RUNTIME = """## Shim and runtime

One inherited socket (its number in ORCH_FD), JSON lines. What the plan asks of the runtime is in the task's
environment from the start, ORCH_RUNTIME, a JSON object: of the strategy's row `strategy`, `module` (of
`task/`), `frameworks` (what a process imports before its release), `packages`, `tf_class` and `served` (task
types); then `serve` (those types are `task/strategies/server.py`, no script runs), `replicas_on_cpu`,
`communication`, `communication_timeout_s`, `bytes_per_pack`, `keras`, `tpu`, `tpu_wait_s` and `children`
(false: the Pythons that the script starts are left alone). With `horovod` the
release brings ORCH_HOROVOD, a JSON object that the runtime takes out of the environment: `alone` (all ranks are
on one host), `slots` (to rank 0, which serves the rendezvous: the places of all ranks, as Horovod's SlotInfo).
"""

FROM_AGENT = (hello.HelloFrame, hello.CommandFrame, reports.ReportFrame, replies.OkFrame, replies.ErrorFrame)
LINES = (*get_args(runtime_lines.RuntimeLine), runtime_lines.ShimLine)


def page() -> str:
    """Return the page."""
    shown: set[str] = set()
    parts = [HEAD, AGENT, *_types(FROM_AGENT, shown), ORDERS, _table(), REPEATED, _repeated()]
    for row in TABLE:
        parts += _order(row, shown)
    parts += [SHIM, *_types((reports.ShimReportFrame,), shown), RUNTIME, *_types(LINES, shown)]
    return "\n".join(parts)


def _table() -> str:
    lines = ["| order | fence | what the agent does | made by |", "|---|---|---|---|"]
    for row in TABLE:
        about = _about(row).partition("\n")[0].rstrip(".")
        makers = ", ".join(f"`{file}`" for file in senders()[row.name])
        lines.append(f"| [`{row.name}`](#{row.name}) | {row.fence.value} | {about} | {makers} |")
    return "\n".join(lines) + "\n"


def _repeated() -> str:
    """Return the table of what is repeated, by the annotations of the functions that do it."""
    lines = ["| concern | what it repeats when a host is up again |", "|---|---|"]
    for concern in CONCERNS:
        what = "; ".join(_shown(action) for action in repeated(concern))
        lines += [f"| {concern.name} | {what} |"] if what else []
    return "\n".join(lines) + "\n"


def repeated(concern: Concern) -> list[Any]:
    """Return the actions that a concern repeats, by its annotation: one list, or one of several."""
    hint = get_type_hints(concern.repeats).get("return")
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [action for kind in kinds for action in get_args(kind)]


def _shown(action: Any) -> str:
    order = getattr(action, "order", None)
    about = (inspect.getdoc(action) or "").partition(". ")[0]
    return f"[`{BY_NAME[order].name}`](#{order})" if order is not None else f"{about[0].lower()}{about[1:]}"


def _about(row: Verb[Any, Any]) -> str:
    return inspect.getdoc(row.request) or ""


def _order(row: Verb[Any, Any], shown: set[str]) -> list[str]:
    of = ["`run`", "`epoch`"] if row.fence is not Fence.ANYBODY or "run" in _fields(row.request) else []
    parts = [f"### {row.name}\n\n{_about(row)}\n"]
    own = [name for name in _fields(row.request) if name not in ("order", "fence", "id", "run", "epoch")]
    also = f"{' and '.join(of)}" if of else ""
    if own:
        parts.append(f"Fields{f': {also}, and' if also else ''}:\n")
        parts.append(_rows(row.request, own))
    elif also:
        parts.append(f"Fields: {also}.\n")
    if row.refusals:
        parts.append(f"Refused with: {', '.join(f'`{code}`' for code in row.refusals)}.\n")
    parts.append(f"Reply: [{row.answer.__name__}](#{row.answer.__name__.lower()}).\n")
    return [*parts, *_types(_nested(row.request, own), shown), *_types((row.answer,), shown)]


def _types(types: Iterable[Any], shown: set[str]) -> Iterator[str]:
    """Yield the section of each type once, followed by those of its fields' types."""
    for type_ in types:
        if type_.__name__ in shown:
            continue
        shown.add(type_.__name__)
        names = list(_fields(type_))
        yield f"#### {type_.__name__}\n\n{inspect.getdoc(type_)}\n"
        if names:
            yield _rows(type_, names)
        yield from _types(_nested(type_, names), shown)


def _rows(type_: Any, names: list[str]) -> str:
    hints, notes = _fields(type_), _notes(type_)
    required = type_.__required_keys__
    lines = ["| field | is | |", "|---|---|---|"]
    for name in names:
        mark = "" if name in required else "?"
        note = " ".join(notes.get(name, "").split()).replace("|", "\\|")
        lines.append(f"| `{name}`{mark} | {_words(hints[name])} | {note} |")
    return "\n".join(lines) + "\n"


def _fields(type_: Any) -> dict[str, Any]:
    hints = get_type_hints(type_, include_extras=True)
    return {name: get_args(h)[0] if get_origin(h) is NotRequired else h for name, h in hints.items()}


def _notes(type_: Any) -> dict[str, str]:
    """Return the strings below a type's fields, with those of its bases."""
    found: dict[str, str] = {}
    (tree,) = ast.parse(inspect.getsource(type_)).body
    assert isinstance(tree, ast.ClassDef)
    for name in tree.bases:  # Python 3.11 does not keep the bases of a TypedDict
        base = getattr(sys.modules[type_.__module__], getattr(name, "id", ""), None)
        if is_typeddict(base):
            found |= _notes(base)
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        is_note = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_note:
            found[field.target.id] = str(ast.literal_eval(after.value))  # type: ignore[attr-defined]
    return found


def _nested(type_: Any, names: Iterable[str]) -> Iterator[Any]:
    """Yield the TypedDicts that these fields name."""
    hints = _fields(type_)
    for name in names:
        yield from _named(hints[name])


def _named(hint: Any) -> Iterator[Any]:
    if is_typeddict(hint):
        yield hint
    for argument in get_args(hint):
        yield from _named(argument)


def _words(hint: Any) -> str:
    """Return a type in words."""
    if get_origin(hint) in (Union, UnionType):
        (inner,) = [argument for argument in get_args(hint) if argument is not NoneType]
        return f"{_words(inner)}, or null"
    bounds: dict[type, Any] = {}
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        if get_origin(hint) in (Union, UnionType):
            return _words(hint)
        bounds = {type(bound): bound for bound in rest}
    origin, arguments = get_origin(hint), get_args(hint)
    most = f", at most {bounds[Length].max}" if Length in bounds else ""
    if Json in bounds or hint is object:
        return "any JSON"
    if Raw in bounds:
        return "object"
    if is_typeddict(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin is list:
        return f"list{most}: {_words(arguments[0])}"
    if origin is dict:
        return f"object{most} by {_words(arguments[0])}: {_words(arguments[1])}"
    if origin is tuple:
        return f"list of {'; '.join(map(_words, arguments))}"
    if hint is RelativePath:
        return "path"
    if Inside in bounds:
        return "path in `dir`" + (
            ", that generation's" + (" itself" if bounds[Inside].itself else "")
            if bounds[Inside].what == "generation"
            else ""
        )
    if hint is str:
        return bounds[Form].words if Form in bounds else f"text{most}"
    if hint is bool:
        return "true or false"
    kind = "whole number" if hint is int else "number"
    return kind + _range(bounds[Range]) if Range in bounds else kind


def _range(bounds: Range) -> str:
    low, high = bounds
    if high >= COUNT_MAX:
        return "" if low < 0 else f" from {low}"
    return f" from {low:g} to {high:g}" if high >= 1e6 else f" from {low} to {high}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
