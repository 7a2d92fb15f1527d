"""What is fetched of what tasks left: whole, of the tasks that a host has, and nowhere but below the directory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.plan import TaskId
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.links.conversation import Answer, Asks, LinkDown, OrderRefused
from orchestrator.head.transfer import files, outputs
from orchestrator.head.transfer.outputs import Output
from orchestrator.protocol.orders.base import Order, Place
from orchestrator.protocol.orders.tasks import TaskFile
from orchestrator.protocol.paths import RelativePath
from tests.unit.core.transcript import make_plan

MODEL = bytes(range(256)) * 40


class Host:
    """A host with the files of one task in its working directory, and what it says otherwise than it is."""

    def __init__(self, content: dict[str, bytes], *, task: str = "worker:0", generation: int = 2) -> None:
        self.content = content
        self.task, self.generation = task, generation
        self.told_bytes: dict[str, int] = {}
        self.chunk: Callable[[bytes], bytes] = lambda blob: blob
        self.asked: list[str] = []
        self.breaks_after = 10**9
        self.place: Place = "work"
        self.saved: Any = None

    def ask(self, order: Order[Any], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[Any]:
        assert (blob, timeout_s > 0) == (b"", True)
        verb, fields = order.verb.name, order.fields
        self.asked.append(verb)
        if verb == "files":
            assert fields["of"] == ("outputs" if self.place == "work" else "saved")
            self.saved = fields.get("saved")
            return Answer({"files": [self.file(path) for path in self.content], "left_out": 0}, b"")
        content = self.content[fields["path"]]
        if verb == "digest":
            return Answer({"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}, b"")
        if self.asked.count("file") > self.breaks_after:
            raise LinkDown("it is cut")
        return Answer({}, self.chunk(content[fields["offset"] : fields["offset"] + fields["bytes_max"]]))

    def file(self, path: str) -> TaskFile:
        size = self.told_bytes.get(path, len(self.content[path]))
        return {
            "task": self.task,
            "generation": self.generation,
            "place": self.place,
            "path": RelativePath(path),
            "bytes": size,
        }

    def output(self, path: str = "model.keras", to: str | None = None) -> Output:
        return Output("a", self.file(path), RelativePath(to or path))


@pytest.fixture
def run() -> Run:
    made = new_run("t-1", make_plan(["a", "b"], checkpoint=False), epoch=1, at=0.0)
    return replace(made, tasks=tuple(replace(task, generation=2) for task in made.tasks))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(files, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(outputs, "SHARE_BYTES", 3000)
    return Host({"model.keras": MODEL})


def leases(**hosts: Host | Exception) -> Callable[..., Any]:
    def lease(run: Run, name: str, use: Callable[[Asks], Any]) -> Any:
        assert run.host(name)
        found = hosts[name]
        if isinstance(found, Exception):
            raise found
        return use(found)

    return lease


def test_a_file_comes_in_parts_and_whole(run: Run, host: Host, tmp_path: Path) -> None:
    part = outputs.bring(host, run, host.output(), str(tmp_path))
    assert (part.state, part.here_bytes, part.fetched_bytes) == ("more", 3000, 3000)
    assert not (tmp_path / "model.keras").exists()
    while part.state == "more":
        part = outputs.bring(host, run, host.output(), str(tmp_path), sha256=part.sha256)
    assert part.state == "fetched"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"model.keras": MODEL}
    assert host.asked.count("digest") == 1
    assert outputs.bring(host, run, host.output(), str(tmp_path)).state == "here"


def test_a_fetch_that_broke_off_goes_on_where_it_was(run: Run, host: Host, tmp_path: Path) -> None:
    host.breaks_after = 4
    with pytest.raises(LinkDown):
        outputs.bring_whole(host, run, host.output(), str(tmp_path))
    host.breaks_after = 10**9
    asked = host.asked.count("file")
    assert outputs.bring_whole(host, run, host.output(), str(tmp_path)) == "fetched"
    assert host.asked.count("file") - asked == len(MODEL) // 1000 + 1 - 4
    assert (tmp_path / "model.keras").read_bytes() == MODEL


def test_what_is_here_with_another_content_is_replaced_only_by_a_persons_word(
    run: Run, host: Host, tmp_path: Path
) -> None:
    mine = tmp_path / "model.keras"
    mine.write_bytes(b"mine")
    assert outputs.bring(host, run, host.output(), str(tmp_path)).state == "differs"
    assert mine.read_bytes() == b"mine"
    part = outputs.bring(host, run, host.output(), str(tmp_path), replace=True)
    while part.state == "more":
        part = outputs.bring(host, run, host.output(), str(tmp_path), sha256=part.sha256, replace=True)
    assert mine.read_bytes() == MODEL


@pytest.mark.parametrize(
    "to", ["../x", "/etc/x", "a/../../x", "", ".", "a\0b", "a.csv/../numpy.py", "a//b", "a/"]
)
def test_no_name_of_a_request_leads_out_of_the_directory(host: Host, to: str) -> None:
    asked = {"host": "a", "to": "x", **host.file("model.keras")}
    assert outputs.requested_file(asked, None)[0].to == "x"
    for field in ("to", "path"):
        with pytest.raises(UsageError, match="is no path below a directory"):
            outputs.requested_file({**asked, field: to}, None)


@pytest.mark.parametrize(
    "path", [".git/hooks/post-checkout", "deep/.GIT/config", ".hg/hgrc", ".git", "HEAD", "model.keras/Head"]
)
def test_nothing_is_written_into_a_repository(run: Run, tmp_path: Path, path: str) -> None:
    host = Host({path: b"runs"})
    found = outputs.listed(run, leases(a=host, b=Host({})), [path.split("/")[-1], "/.*"], None)["files"]
    assert [(file["to"], "whose files git and the like run" in (file["why"] or "")) for file in found] == [
        (path, True)
    ]
    with pytest.raises(OrderRefused, match="it would lie in"):
        outputs.bring(host, run, host.output(path), str(tmp_path), replace=True)
    assert list(tmp_path.iterdir()) == []


def test_no_link_within_the_directory_is_followed(run: Run, host: Host, tmp_path: Path) -> None:
    home, fetched = tmp_path / "home", tmp_path / "fetched"
    home.mkdir()
    fetched.mkdir()
    (fetched / "data").symlink_to(home)
    with pytest.raises(OSError, match="a symbolic link is in its path"):
        outputs.bring(host, run, host.output(to="data/.bashrc"), str(fetched))
    assert list(home.iterdir()) == []
    (fetched / "model.keras").symlink_to(home / "of another")
    assert outputs.bring(host, run, host.output(), str(fetched)).state == "differs"
    assert outputs.bring_whole(host, run, host.output(to="new"), str(fetched)) == "fetched"
    (fetched / "model.keras").unlink()
    assert list(home.iterdir()) == []
    linked = tmp_path / "linked"  # the directory that a person names may be one
    linked.symlink_to(fetched)
    assert outputs.bring_whole(host, run, host.output(), str(linked)) == "fetched"


def test_more_bytes_than_asked_for_are_refused(run: Run, host: Host, tmp_path: Path) -> None:
    host.chunk = lambda blob: blob + b"more"
    with pytest.raises(OrderRefused, match=r"1004 bytes of .model\.keras., and 1000 were asked for"):
        outputs.bring(host, run, host.output(), str(tmp_path))


@pytest.mark.parametrize("change", ["content", "shorter", "longer"])
def test_what_is_not_as_it_was_said_is_thrown_away(run: Run, host: Host, tmp_path: Path, change: str) -> None:
    wanted = host.output()
    if change == "content":
        host.chunk = lambda blob: blob[::-1]
    elif change == "shorter":
        host.chunk = lambda _blob: b""
    else:
        host.content["model.keras"] += b"more"
    with pytest.raises(OrderRefused, match="changed while it was fetched"):
        outputs.bring_whole(host, run, wanted, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_host_names_only_files_of_its_own_tasks(run: Run) -> None:
    liar = Host({"model.keras": b"1"}, task="worker:1")
    found = outputs.find(run, leases(a=liar, b=Host({})))
    assert (found.outputs, found.unreached) == ([], {})


def test_what_was_left_is_found_where_a_standby_has_made_the_next_generation(run: Run) -> None:
    standby = Host({"model.keras": b"1"}, task="worker:1", generation=3)
    found = outputs.find(run, leases(a=Host({}), b=standby))
    assert [output.to for output in found.outputs] == ["worker-1/model.keras"]


def test_the_chiefs_files_lie_at_the_top_and_others_below_their_tasks(run: Run) -> None:
    both = leases(a=Host({"model.keras": b"1"}), b=Host({"model.keras": b"1"}, task="worker:1"))
    assert [one.to for one in outputs.find(run, both).outputs] == ["model.keras", "worker-1/model.keras"]
    alone = outputs.find(run, both, task=TaskId("worker", 1))
    assert [one.to for one in alone.outputs] == ["model.keras"]
    away = outputs.find(run, leases(a=Host({"x": b"1"}), b=LinkDown("b is away")))
    assert ([one.to for one in away.outputs], away.unreached) == (["x"], {"b": "b is away"})


def test_patterns_are_those_of_gitignore(run: Run) -> None:
    paths = ["a.csv", "deep/b.csv", "plots/x.png", "model.keras", ".hidden", ".cache/x"]
    host = Host(dict.fromkeys(paths, b"1"))
    found = outputs.find(run, leases(a=host, b=Host({}))).outputs

    def names(*patterns: str) -> list[str]:
        return [one.to for one in outputs.chosen(found, patterns)[0]]

    assert names("*.csv", "plots/") == ["a.csv", "deep/b.csv", "plots/x.png"]
    assert names("/a.csv") == ["a.csv"]
    assert names(".hidden") == names(".h*") == [".hidden"]
    assert names(".cache/") == names(".cache/x") == [".cache/x"]
    assert names("*.csv", "!deep/*") == ["a.csv"]
    visible, left_out = outputs.chosen(found, ["*"])
    assert ([one.to for one in visible], left_out) == (
        ["a.csv", "deep/b.csv", "model.keras", "plots/x.png"],
        2,
    )
    arrays = Host(dict.fromkeys(["data/.zarray", "data/0.0", ".envrc", "x/.envrc"], b"1"))
    of_zarr = outputs.find(run, leases(a=arrays, b=Host({}))).outputs
    assert [one.to for one in outputs.chosen(of_zarr, ["data/"])[0]] == ["data/.zarray", "data/0.0"]
    assert [one.to for one in outputs.chosen(of_zarr, ["**/.env*"])[0]] == [".envrc", "x/.envrc"]
    plain, hidden = outputs.chosen(found, [])
    assert ([one.to for one in plain], hidden) == (["a.csv", "deep/b.csv", "model.keras", "plots/x.png"], 2)


@pytest.mark.fault(95)
def test_a_task_that_leaves_more_than_its_limit_holds_up_no_other_file(run: Run) -> None:
    host, other = Host({"model.keras": b"1", "sparse": b"1"}), Host({"x": b"2"}, task="worker:1")

    def told(sparse_bytes: int) -> dict[str, str | None]:
        host.told_bytes["sparse"] = sparse_bytes
        found = outputs.listed(run, leases(a=host, b=other), [], None)
        return {file["to"]: file["why"] for file in found["files"]}

    assert set(told(run.plan.output_bytes_max - 1).values()) == {None}
    beyond = told(run.plan.output_bytes_max)
    assert (beyond["model.keras"], beyond["worker-1/x"]) == (None, None)
    assert beyond["sparse"] == (
        "worker:0 says that this file has 100 GiB: with it, more than run.output_limit (100 GiB) would come of "
        "that task"
    )


@pytest.mark.fault(95)
def test_no_two_files_of_a_run_belong_at_one_place(run: Run) -> None:
    names = ["x", "worker-1/x", "worker-0/x", "worker-0/worker-1/x", "worker-1", "worker-2/x"]
    chief, other = Host(dict.fromkeys(names, b"1")), Host(dict.fromkeys(names, b"2"), task="worker:1")
    found = outputs.find(run, leases(a=chief, b=other)).outputs
    assert len({one.to for one in found}) == len(found) == 2 * len(names)
    to = {(one.file["task"], str(one.file["path"])): one.to for one in found}
    assert to["worker:0", "worker-1/x"] == "worker-0/worker-1/x"
    assert to["worker:1", "x"] == "worker-1/x"
    assert to["worker:0", "worker-2/x"] == "worker-2/x"  # no task of this run


def test_a_host_that_names_a_file_twice_has_left_it_once(run: Run) -> None:
    class Twice(Host):
        def ask(self, order: Order[Any], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[Any]:
            answer = super().ask(order, blob, timeout_s=timeout_s)
            return Answer({**answer.ok, "files": 2 * answer.ok["files"]}, b"")

    found = outputs.find(run, leases(a=Twice({"x": b"1"}), b=Host({})))
    assert [one.to for one in found.outputs] == ["x"]


def test_a_task_that_is_none_is_named(run: Run) -> None:
    with pytest.raises(UsageError, match="has no task 'worker:7'"):
        outputs.listed(run, leases(), [], "worker:7")


@pytest.mark.parametrize(
    ("path", "comes"),
    [
        ("best.keras", ["best.keras"]),
        ("ckpt-5", ["ckpt-5.data-00000-of-00001", "ckpt-5.index"]),
        ("120", ["120/state"]),
        ("", ["120/state", "best.keras", "ckpt-5.data-00000-of-00001", "ckpt-5.index", "ckpt-50.index"]),
    ],
)
def test_a_checkpoint_comes_with_all_its_files_and_no_other(path: str, comes: list[str]) -> None:
    names = (
        ".orch-seed.json",
        "120/state",
        "best.keras",
        "ckpt-5.data-00000-of-00001",
        "ckpt-5.index",
        "ckpt-50.index",
    )
    host = Host(dict.fromkeys(names, b"1"))
    host.place = "saved"
    run = new_run("t-1", make_plan(["a", "b"], checkpoint=True), epoch=1, at=0.0)
    run = replace(run, tasks=tuple(replace(task, generation=2) for task in run.tasks))
    document = outputs.saved(run, leases(a=host), 2, path)
    assert [file["to"] for file in document["files"]] == comes
    assert run.plan.checkpoint is not None
    assert host.saved == {"dir": f"{run.plan.checkpoint.dir}/gen-000002", "task": "worker:0", "generation": 2}
    away = outputs.saved(run, leases(a=LinkDown("it is off")), 2, path)
    assert (away["files"], away["unreached"]) == ([], {"a": "it is off"})
