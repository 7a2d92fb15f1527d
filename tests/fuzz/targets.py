"""What is fuzzed: for each target how its inputs are drawn, and a function that must not raise on any of them.

An input is JSON, so that one that was found can be kept in `found/` and read by a person. Bytes are in base64.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import hashlib
import json
import os
import shutil
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml
from hypothesis import strategies as st

from orchestrator.both.within import Tree
from orchestrator.checkpoints import verify
from orchestrator.checkpoints.discovery import find
from orchestrator.checkpoints.tensor_bundle import Bundle
from orchestrator.checkpoints.units import BY_CHECKSUMS, ORBAX, TENSORFLOW
from orchestrator.core.errors import HostError, JournalError, SpecError
from orchestrator.core.events import Submitted
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import CheckpointPlan, HostPlan
from orchestrator.core.state.instants import rebased
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.head.coordinator import status
from orchestrator.head.journal.journal import Journal
from orchestrator.head.journal.states import contents_of, dump_run
from orchestrator.head.journal.values import checksum
from orchestrator.head.links import bootstrap, edge
from orchestrator.head.links import wire as wire_events
from orchestrator.head.links.conversation import Answer, OrderRefused
from orchestrator.head.links.edge import WireError
from orchestrator.head.links.link import HostLink, Pace, Watch
from orchestrator.head.reach.ssh import errors
from orchestrator.head.reach.ssh.transport import SshTransport
from orchestrator.head.transfer import outputs, tensorboard
from orchestrator.protocol.orders.base import Order
from orchestrator.spec.document import parse
from orchestrator.spec.plan import load_plan
from tests import protocol_values, second_user
from tests.contract.fake_agent import BUNDLE
from tests.contract.test_api import Rig
from tests.lies import GONE, Way, anything, changed, news, places
from tests.protocol_orders import BY_NAME, TABLE
from tests.unit.core.phases import in_phase
from tests.unit.protocol import test_fuzz as wire

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "checkpoints"


@dataclass(frozen=True)
class Target:
    """One thing that reads what it cannot trust."""

    inputs: st.SearchStrategy[Any]
    takes: Callable[[Any], object]
    """Raises for an input that is not taken as it should be."""


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ---------------------------------------------------------------- hosts


@cache
def _link() -> HostLink:
    made = HostLink(wire.HOST, wire.Away(), lambda: BUNDLE, wire.Listening(), Pace(retry_s=(3600.0,)))
    made.attach(wire.RUN.run_id, Watch(1, 2.0, 10.0))
    return made


def take_frames(text: str) -> None:
    """Hear bytes of an agent whose orders all wait for a reply."""
    wire.hear(_link(), base64.b64decode(text))


def take_boot(text: str) -> None:
    """Start an agent on a host that says these bytes."""
    said = ""
    try:
        bootstrap.start_agent(wire.Script(base64.b64decode(text)), wire.HOST, BUNDLE)
    except (HostError, WireError) as e:
        said = str(e)
    assert said.startswith(wire.HOST.name) or not said


class _Sshd:
    """Says what it was given to whoever connects, and hangs up."""

    def __init__(self) -> None:
        self.says = b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._server.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(self.says)
                client.shutdown(socket.SHUT_WR)
                client.settimeout(1.0)
                while client.recv(4096):
                    pass


@cache
def _sshd() -> tuple[_Sshd, SshTransport]:
    errors.RETRY_DELAYS_S = (0.0,) * 8
    directory = Path(tempfile.mkdtemp(prefix="orch-fuzz-"))
    return _Sshd(), SshTransport(directory / "known_hosts")


def take_banner(text: str) -> None:
    """Connect to an sshd that says these bytes."""
    sshd, transport = _sshd()
    sshd.says = base64.b64decode(text)
    host = HostPlan("gpu-b", address="127.0.0.1", port=sshd.port, user="nobody")
    with pytest.raises(HostError) as refused:
        transport.open(host, bootstrap.COMMAND)
    assert str(refused.value).startswith("gpu-b")
    assert str(refused.value).isprintable()


banners = st.one_of(
    st.binary(max_size=300),
    st.tuples(
        st.sampled_from([b"SSH-2.0-", b"SSH-1.99-", b"SSH-", b"hello\r\nSSH-2.0-x\r\n", b"\r\n" * 40, b"\x00" * 300]),
        st.binary(max_size=80),
        st.sampled_from([b"", b"\r\n", b"\n", b"\r\n\x00\x00\x00\x0c\x0a\x14"]),
        st.binary(max_size=200),
    ).map(b"".join),
).map(_b64)  # fmt: skip


# ---------------------------------------------------------------- specs

HOSTILE = [
    "null", "true", "-1", "1e999", "99999999999999999999", "'", '"', "{", "[", "- ", ": ", "&a ", "*a", "!!python/x ",
    "\t", "\u202e", "\x00", "~", "no", "0x10", "../..", "$(id)", "worker", "2026-01-01", "|\n", "? ", "# ", "%",
    "gpus: [0, 0]", "replicas: 100000", "port: 65536", "1.5.1", "\u0661", "🙂", "<<: ", "---\n", "...",
]  # fmt: skip


@cache
def _specs() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / "cluster_specs").glob("*.yaml"))]


@st.composite
def specs(draw: st.DrawFn) -> str:
    """Draw an example's spec with some lines changed."""
    lines = draw(st.sampled_from(_specs())).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        what = draw(st.integers(0, 4))
        piece = draw(st.sampled_from(HOSTILE) | st.text(max_size=8))
        if what == 0:
            lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
        elif what == 1:
            key, colon, _ = lines[at].partition(":")
            lines[at] = f"{key}{colon} {piece}"
        elif what == 2:
            cut = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:cut] + piece + lines[at][cut:]
        elif what == 3:
            lines[at] = " " * draw(st.integers(0, 8)) + lines[at].strip()
        elif len(lines) > 1:
            del lines[at]
    return "\n".join(lines)


# The two parsers of this library differ: only libyaml's takes a tab before a colon.
_TEXTS = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def take_spec(text: str) -> None:
    """Load a spec, as `orch validate` does: it is refused, or each value is what is written there."""
    with tempfile.TemporaryDirectory(prefix="orch-fuzz-") as directory:
        (Path(directory) / "examples").symlink_to(
            ROOT / "examples"
        )  # or each would be refused for its workdir
        path = Path(directory) / "cluster_specs" / "cluster.yaml"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            load_plan(path)
        except SpecError:
            return
        root, _ = parse(text)
        assert root is not None
        assert _is_written(root.data(), yaml.load(text, _TEXTS))


def _is_written(found: Any, written: Any) -> bool:
    """Return whether a value is what another reader of YAML, which takes all scalars for text, finds at its place."""
    match found:
        case dict():
            return found.keys() == written.keys() and all(_is_written(found[k], written[k]) for k in found)
        case list():
            return len(found) == len(written) and all(map(_is_written, found, written))
        case bool():
            return written.lower() in (("true", "yes", "on") if found else ("false", "no", "off"))
        case None:
            return written.lower() in ("", "~", "null")
        case str():
            return bool(found == written)
    return bool(type(found)(written) == found)


# ---------------------------------------------------------------- journals


def _runs() -> Iterator[Run]:
    for phase in Phase:
        yield in_phase(replace(wire.RUN, generation=2, generation_last=2), phase)


STATES = [json.loads(dump_run(run)) for run in _runs()]


@st.composite
def states(draw: st.DrawFn) -> Any:
    """Draw the state of a run with something else in one to three places."""
    state = draw(st.sampled_from(STATES))
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from([way for way in places(state) if way] or [()]))
        state = changed(state, way, draw(st.sampled_from(news(draw(anything)))))
    return json.dumps({} if state is GONE else state)


def take_state(text: str) -> None:
    """Take up a run as the next coordinator does, and show it; or set it aside."""
    row = ("t-1", "t", "2026-01-01", None, 1.0, text, None, None)
    found = contents_of([(*row, checksum(row))], lambda _run, _seq: [])
    for kept in found.kept:
        run = rebased(kept.run, 5.0)
        assert [run.plan.host(host.name) for host in run.hosts]
        unproven(run)
        dump_run(run)
        json.dumps(status.document([run], now=100.0, halted={}))


@cache
def _journal() -> bytes:
    with tempfile.TemporaryDirectory(prefix="orch-fuzz-") as directory:
        path = os.path.join(directory, "journal.db")
        journal = Journal(path)
        for run in _runs():
            journal.commit(run, Submitted(1.0), [])
        journal.close()
        return Path(path).read_bytes()


edits = st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 255)), min_size=1, max_size=6)
"""At which part of a file which byte is put."""


def _edited(data: bytes, changes: list[tuple[float, int]], cut: float | None) -> bytes:
    edited = bytearray(data)
    for place, byte in changes:
        if edited:
            edited[min(int(place * len(edited)), len(edited) - 1)] = byte
    return bytes(edited if cut is None else edited[: int(cut * len(edited))])


def take_journal(found: Any) -> None:
    """Open a journal whose file was damaged: it is refused, or says what was changed, or reads as before."""
    with tempfile.TemporaryDirectory(prefix="orch-fuzz-") as directory:
        path = os.path.join(directory, "journal.db")
        Path(path).write_bytes(_edited(_journal(), *found))
        try:
            journal = Journal(path)
        except JournalError:
            return
        try:
            with contextlib.suppress(JournalError):
                contents = journal.contents()
                aside = {one.run_id for one in contents.unreadable}
                kept = {one.run.run_id: one.run for one in contents.kept}
                assert kept == {run.run_id: run for run in _runs() if run.run_id not in aside}
                journal.events()
                journal.put_away(lambda run_id: os.path.join(os.path.dirname(path), run_id))
        finally:
            with contextlib.suppress(sqlite3.Error):
                journal.close()


# ---------------------------------------------------------------- checkpoints


@cache
def _fixtures() -> list[str]:
    return sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.rglob("*") if path.is_file())


def take_checkpoint(found: Any) -> None:
    """Verify a checkpoint one of whose files was damaged: it is noticed, or what is in it reads as before."""
    name, changes, cut = found
    with tempfile.TemporaryDirectory(prefix="orch-fuzz-") as directory:
        copy = _copied(name.split("/")[0], Path(directory) / "gen-000001")
        damaged = copy / name
        damaged.write_bytes(_edited(damaged.read_bytes(), changes, cut))
        answer = verify(str(copy), pause=lambda _: None)
        json.dumps(answer)
        if (said := answer["checkpoint"]) is not None:
            whole = _undamaged(name.split("/")[0], str(Path(said["path"]).relative_to(copy)))
            assert _contents(copy, said["path"]) == whole


def _copied(top: str, place: Path) -> Path:
    """Return a new directory with this one of the fixtures in it."""
    place.mkdir()
    (shutil.copytree if (FIXTURES / top).is_dir() else shutil.copy)(FIXTURES / top, place / top)
    return place


@cache
def _undamaged(top: str, path: str) -> object:
    with tempfile.TemporaryDirectory(prefix="orch-fuzz-") as directory:
        whole = _copied(top, Path(directory) / "whole")
        return _contents(whole, whole / path)


def _contents(directory: Path, path: str | Path) -> object:
    """Return what a checkpoint holds, as far as `verify` vouches for it: everything, or how long it is."""
    with Tree(str(directory)) as tree:
        return _contents_of(tree, str(path))


def _contents_of(tree: Tree, path: str) -> object:
    (unit,) = (unit for unit in find(tree, tree.path).units if unit.path == path)
    if unit.kind == TENSORFLOW:
        bundle = Bundle(tree, unit.path)
        return {
            key: (
                entry.dtype,
                entry.elements,
                Path(bundle.shard_path(entry.shard)).read_bytes()[entry.offset : entry.offset + entry.size],
            )
            for key, entry in bundle.entries.items()
        }
    if unit.proof == BY_CHECKSUMS:
        with ZipFile(unit.path) as archive:
            return {member: archive.read(member) for member in archive.namelist()}
    return [os.path.getsize(part) for part in unit.parts if unit.kind != ORBAX]


# ---------------------------------------------------------------- a checkpoint directory that others may write into


@cache
def _second_user() -> second_user.SecondUser:
    return second_user.SecondUser()


def take_swap(drawn: Any) -> None:
    """Do something in a checkpoint directory in which a second user replaces something at one of our steps."""
    second_user.attack(_second_user(), *drawn)


swaps = st.tuples(
    *(st.sampled_from(list(kinds)) for kinds in (second_user.DEEDS, second_user.TARGETS, second_user.KINDS)),
    st.none() | st.integers(0, 250),
).map(list)


# ---------------------------------------------------------------- requests to the coordinator


@cache
def _head() -> Rig:
    """Return a coordinator with a run `t` on two hosts in memory; it ends with this process."""
    rig = Rig(Path(tempfile.mkdtemp(prefix="orch-fuzz-")))
    rig.submit(checkpoint=CheckpointPlan("/shared/t"))
    atexit.register(rig.close)
    return rig


FILE = {"task": "worker:0", "generation": 1, "place": "work", "path": "x", "bytes": 1, "host": "a", "to": "x"}

BODIES: dict[str, Callable[[], Any]] = {
    "/v1/runs": lambda: {"plan": _head().plan(name="u"), "secrets": {"A": "b"}, "recipients": ["ntfy://x"]},
    "/v1/examine": lambda: {"plan": _head().plan(name="u"), "host": "a"},
    "/v1/runs/t/drain": lambda: {"host": "a", "now": False, "gone": False},
    "/v1/runs/t/undrain": lambda: {"host": "a"},
    "/v1/runs/t/outputs": lambda: {"patterns": ["*.csv"], "task": "worker:0"},
    "/v1/runs/t/saved": lambda: {"generation": 1, "path": "manager/ckpt-2"},
    "/v1/runs/t/outputs/fetch": lambda: {"file": FILE, "directory": "/nowhere/at/all", "sha256": "0" * 64},
    "/v1/runs/t/checkpoints/verify": lambda: {"what": "gen-000001/x", "restart": False},
    "/v1/runs/t/checkpoints/rollback": lambda: {"what": "120", "restart": False},
    "/v1/runs/t/chaos": lambda: {"fault": "kill", "target": "worker:0", "for_s": 1.0},
}
"""By path: a request that is well formed."""


@st.composite
def requests(draw: st.DrawFn) -> list[Any]:
    """Draw a request whose body has something else in one to three places."""
    path = draw(st.sampled_from(sorted(BODIES)))
    body = BODIES[path]()
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(list(places(body))))
        body = changed(body, way, draw(st.sampled_from(news(draw(anything)))))
        if body is GONE:
            break
    return [path, "" if body is GONE else json.dumps(body)]


def take_request(found: Any) -> None:
    """Ask the coordinator: what it does not take is the asker's error, with the place, and has changed nothing."""
    path, body = found
    head = _head()
    before = _kept_by(head)
    code, answer = head.raw("POST", path, body.encode("utf-8", "surrogatepass"))
    if code < 400:
        for run in _kept_by(head)[0] - before[0]:
            head.client.post(f"/v1/runs/{run}/kill", {"force": True})
        return
    error = answer["error"]
    assert code in (400, 409, 502), error
    assert error["exit_code"] != 70, error
    assert error["message"], error
    # What was begun and killed before may go meanwhile.
    added = [after - was for after, was in zip(_kept_by(head), before, strict=True)]
    assert added == [set(), set()], "what is refused leaves nothing behind"


def _kept_by(head: Rig) -> tuple[set[str], set[str]]:
    """Return the runs that the coordinator has, and the files that it keeps of them beside the journal."""
    runs = {run["run_id"] for run in head.client.get("/v1/status")["runs"]}
    state = Path(head.paths.state_dir)
    kept = {str(path) for part in ("runs", "secrets", "recipients") for path in (state / part).glob("*")}
    return runs, kept


damage = st.tuples(edits, st.none() | st.floats(0.0, 1.0))

streams = st.lists(wire.mutated() | st.binary(max_size=80), min_size=1, max_size=3).map(b"".join)

checkpoints = st.tuples(st.sampled_from(_fixtures()), edits, st.none() | st.floats(0.0, 1.0))

# ---------------------------------------------------------------- the answers of a hostile host

HOST_RUN = replace(
    wire.RUN, generation=1, tasks=tuple(replace(task, generation=1) for task in wire.RUN.tasks)
)

parts = st.sampled_from(
    [
        "..",
        ".",
        "",
        "a",
        "a.csv",
        "numpy.py",
        ".git",
        ".envrc",
        "gen-000001",
        "worker-1",
        "~",
        "x" * 300,
        "a\0b",
        "\ud800",
        "link",
    ]
)
paths = st.builds(
    lambda start, inside: start + "/".join(inside),
    st.sampled_from(["", "", "/", "//", "/c/", "/c/gen-000001/", "GUARD/", "../"]),
    st.lists(parts, max_size=5),
)
numbers = st.sampled_from(
    [0, 1, 4, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400, 1e308, -0.0, 2.5e11, 6e10]
)
hostile = (
    paths
    | numbers
    | st.sampled_from(["worker:0", "worker:1", "worker:-1", "../x:0", "logs", "work", "", None, True])
)


@st.composite
def answers(draw: st.DrawFn) -> list[Any]:
    """Draw an order of the table, and what is put into places of its answer: [order, [[place, value], …]]."""
    row = draw(st.sampled_from([row.name for row in TABLE if places_in(row.name)]))
    there = places_in(row)
    return [
        row,
        [[list(draw(st.sampled_from(there))), draw(hostile)] for _ in range(draw(st.integers(1, 3)))],
    ]


@cache
def places_in(order: str) -> list[Way]:
    """Return the places of an order's answer that hold a text, a number or nothing."""
    whole = protocol_values.valid(BY_NAME[order].answer)
    return [way for way in places(whole) if way and not isinstance(_at(whole, way), (dict, list))]


def _at(value: Any, way: Way) -> Any:
    for step in way:
        value = value[step]
    return value


class _Liar:
    """A link to a host whose answer to one order is not so. Each file that it names has four bytes."""

    def __init__(self, order: str, answer: Any) -> None:
        self._order, self._answer = order, answer

    def ask(self, order: Order[Any], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[Any]:
        assert (blob, timeout_s > 0) == (b"", True)
        verb = order.verb.name
        told = (
            self._answer
            if verb == self._order
            else {"sha256": hashlib.sha256(b"good").hexdigest(), "bytes": 4}
        )
        data = b"good"[order.fields["offset"] :][: order.fields["bytes_max"]] if verb == "file" else b""
        return Answer(edge.answer(wire.HOST.name, order, {} if verb == "file" else told, data), data)


def take_answer(found: Any) -> None:
    """Take the answer of a host that names other paths, sizes, times and tasks. Nothing of it lies elsewhere."""
    name, changes = found
    with tempfile.TemporaryDirectory(prefix="orch-fuzz-") as directory:
        top = Path(directory)
        into, guarded = top / "project" / "into", top / "project" / "mine"
        into.mkdir(parents=True)
        guarded.mkdir()
        (into / "link").symlink_to(guarded)
        whole = protocol_values.valid(BY_NAME[name].answer)
        for way, value in changes:
            put = value.replace("GUARD", str(guarded)) if isinstance(value, str) else value
            if tuple(way) in set(places(whole)):
                whole = changed(whole, tuple(way), lambda _, put=put: put)  # type: ignore[misc]
        order = next(one for one in wire.ORDERS if one.verb.name == name)
        try:
            ok: Any = edge.answer(wire.HOST.name, order, whole, b"")
        except WireError as e:
            refused = str(e)
        else:
            refused = ""
        assert not refused or (refused.startswith(wire.HOST.name) and refused.isprintable())
        if refused:
            return
        if name == "seed":
            given = wire_events.seeded(ok, 1)
            of_seed = [
                given.path,
                *([given.source] if given.source else []),
                *(path for path, _ in given.rejected),
            ]
            assert all(os.path.normpath(path).startswith("/c") for path in of_seed)
            assert os.path.normpath(given.path).startswith("/c/gen-000001")
        elif name == "verify":
            wire_events.verified(ok, 1, at=3.0, began_at=2.0)
        elif name == "snapshot":
            assert all(os.path.normpath(f"/c/{file}").startswith("/c/") for file, *_ in ok["files"])
        elif name == "files":
            _fetch(_Liar(name, whole), into, top / "state")
        outside = {str(path.relative_to(top)) for path in top.rglob("*")}
        assert {path for path in outside if not path.startswith(("project/into/", "state"))} == {
            *("project", "project/into", "project/mine")
        }
        assert not {".git", ".GIT"} & {path.name for path in into.rglob("*")}


def _fetch(liar: _Liar, into: Path, state: Path) -> None:
    """Fetch what the host names, as `orch fetch`, `run.outputs` and `orch tensorboard` do."""

    def lease(run: Run, name: str, use: Callable[[Any], Any]) -> Any:
        assert run.host(name)
        return use(liar)

    for output in outputs.chosen(outputs.find(HOST_RUN, lease).outputs, ["*", ".*"])[0]:
        with contextlib.suppress(OSError, OrderRefused, WireError):
            outputs.bring(liar, HOST_RUN, replace_bytes(output), str(into))
    tensorboard.fetch(HOST_RUN, str(state), [wire.HOST.name], lease)


def replace_bytes(output: outputs.Output) -> outputs.Output:
    """Return the file with the size that the liar's files have: more would be asked for for ever."""
    return output._replace(file={**output.file, "bytes": 4})


TARGETS: dict[str, Target] = {
    "answer": Target(answers(), take_answer),
    "frames": Target(streams.map(_b64), take_frames),
    "boot": Target(wire.conversations().map(_b64), take_boot),
    "banner": Target(banners, take_banner),
    "spec": Target(specs(), take_spec),
    "state": Target(states(), take_state),
    "journal": Target(damage.map(list), take_journal),
    "checkpoint": Target(checkpoints.map(list), take_checkpoint),
    "request": Target(requests(), take_request),
}
"""By name: what `make fuzz` goes through."""

if os.geteuid() == 0:
    TARGETS["swap"] = Target(swaps, take_swap)
