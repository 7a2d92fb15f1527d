"""Making a host ready: the conversation, and what ends it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from orchestrator.both.hostdir import HostFault
from orchestrator.both.tree_digest import DIRECTORY, digest_of
from orchestrator.core.errors import SpecError
from orchestrator.core.events import HostPrepared, HostRefused
from orchestrator.core.state.host import Facts
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.head.code import codetree
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.hosts.preparation import CHUNK_BYTES, prepare
from orchestrator.head.links import edge
from orchestrator.head.links.conversation import Answer, LinkDown, OrderRefused
from orchestrator.host.system.codestore import Receiver
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.driving import Claimed, KnownRun
from orchestrator.protocol.orders.hosts import Facts as Probed
from tests.protocol_values import valid
from tests.unit.core.transcript import make_plan

VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": None, "numpy": "2.0.0"}


A = TypeVar("A")


class FakeLink:
    """A host that keeps what it is sent by its hash."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.blobs: dict[str, bytes] = {}
        self.kept: set[str] = set()
        self.probe: dict[str, Any] = {
            **valid(Probed),
            "python": "3.11.2",
            "versions": VERSIONS,
            "checkpoint_why": None,
            "checkpoint_others": None,
            "checkpoint_share": None,
            "gpus": None,
            "gpus_why": None,
            "gpus_in_use": [],
            "own_name": {"name": "a", "address": "10.0.0.1", "why": None},
            "unkillable": [],
            "missing": [],
        }
        del self.probe["syntax"]
        self.probe["executable"] = "/opt/python3"
        del self.probe["activated"]
        self.runs: list[dict[str, Any]] = []
        self.checkpoint: dict[str, Any] | None = None
        self.others: list[dict[str, Any]] = []
        self.refuse: dict[str, Problem] = {}
        self.broken = False

    def ask(self, order: Order[A], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[A]:
        assert timeout_s >= 60.0
        self.asked.append(dict(order.fields))
        if self.broken:
            raise LinkDown("the connection broke")
        verb = order.verb.name
        if verb in self.refuse:
            raise OrderRefused(self.refuse[verb])
        ok = getattr(self, f"on_{verb}")(order.fields, blob)
        return Answer(edge.answer("a", order, ok, b""), b"")

    def on_runs(self, _order: Mapping[str, Any], _blob: bytes) -> dict[str, Any]:
        return {"runs": self.runs, "checkpoint": self.checkpoint}

    def on_lease(self, _order: Mapping[str, Any], _blob: bytes) -> dict[str, Any]:
        return {"others": self.others}

    def on_probe(self, _order: Mapping[str, Any], _blob: bytes) -> dict[str, Any]:
        return self.probe

    def on_code(self, order: Mapping[str, Any], _blob: bytes) -> dict[str, Any]:
        files = [codetree.CodeFile(*entry) for entry in order["files"]]
        missing = sorted({file.sha256 for file in files if file.mode != DIRECTORY} - self.kept)
        return {"digest": digest_of(files), "missing": missing}

    def on_blob(self, order: Mapping[str, Any], blob: bytes) -> dict[str, Any]:
        digest = order["sha256"]
        content = self.blobs.get(digest, b"")[: order["offset"]] + blob
        self.blobs[digest] = content
        if order["last"] and hashlib.sha256(content).hexdigest() == digest:
            self.kept.add(digest)
        return {}

    def on_highest(self, _order: Mapping[str, Any], _blob: bytes) -> dict[str, Any]:
        return {"generation": 7}

    def verbs(self) -> list[str]:
        return [order["order"] for order in self.asked]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("model.fit(x)\n")
    (tmp_path / "data.bin").write_bytes(bytes(range(256)) * 5000)  # more than two chunks
    (tmp_path / "empty").write_bytes(b"")
    return tmp_path


def a_run(workdir: Path, **changes: Any) -> Run:
    plan = replace(make_plan(["a"], checkpoint=True), workdir=str(workdir), **changes)
    return new_run("t-1", plan, epoch=4, at=0.0)


def known(_: str) -> bool:
    return True


def at_last() -> float:
    return 99.0


def made_ready(
    link: FakeLink, run: Run, is_known: Callable[[str], bool] = known
) -> HostPrepared | HostRefused:
    """Prepare the host `a`, with the snapshots beside the working directory."""
    snapshots = Snapshots(f"{run.plan.workdir}.state")
    return prepare(link, run, "a", now=at_last, is_known=is_known, snapshots=snapshots)


def refused(link: FakeLink, run: Run) -> Problem:
    event = made_ready(link, run)
    assert isinstance(event, HostRefused)
    assert (event.at, event.host) == (99.0, "a")
    return event.problem


def test_it_probes_pushes_what_is_missing_and_looks_at_the_generations(workdir: Path) -> None:
    link = FakeLink()
    event = made_ready(link, a_run(workdir))
    digest = digest_of(codetree.manifest(str(workdir)))
    assert event == HostPrepared(99.0, "a", Facts("3.11.2", VERSIONS, digest, 7, executable="/opt/python3"))
    assert all((order["run"], order["epoch"]) == ("t-1", 4) for order in link.asked[1:])
    assert (link.asked[0]["dir"], link.asked[1]["checkpoint_dir"]) == ("/shared/t", "/shared/t")
    assert link.verbs()[:3] == ["runs", "probe", "code"]
    assert link.verbs()[-2:] == ["code", "highest"]
    contents = {hashlib.sha256(path.read_bytes()).hexdigest() for path in workdir.iterdir()}
    assert link.kept == contents
    sizes = [order["offset"] for order in link.asked if order["order"] == "blob"]
    assert max(sizes) == 2 * CHUNK_BYTES


class SharedHost(FakeLink):
    """A host whose agent gets the same files from another run, which sends something before each chunk of this one."""

    def __init__(self, workdir: Path, other: Callable[[Receiver, Mapping[str, Any], bytes], object]) -> None:
        super().__init__()
        self.directory = Path(f"{workdir}.blobs")
        self.receiver = Receiver(str(self.directory))
        self.other = other

    def on_blob(self, order: Mapping[str, Any], blob: bytes) -> dict[str, Any]:
        self.other(self.receiver, order, blob)
        try:
            whole = self.receiver.receive(order["sha256"], order["offset"], blob, order["last"])
        except HostFault as e:
            raise OrderRefused(Problem(e.code, e.message, e.hint)) from e
        self.kept = {path.name for path in self.directory.iterdir()}
        return {} if whole else {"damaged": True}


def test_two_runs_push_the_same_files_to_one_host_at_once(workdir: Path) -> None:
    def the_same(receiver: Receiver, order: Mapping[str, Any], blob: bytes) -> None:
        assert receiver.receive(order["sha256"], order["offset"], blob, order["last"])

    link = SharedHost(workdir, the_same)
    assert isinstance(made_ready(link, a_run(workdir)), HostPrepared)
    sent = [order["offset"] for order in link.asked if order["order"] == "blob"]
    assert sorted(sent) == [0, 0, 0, CHUNK_BYTES, 2 * CHUNK_BYTES], "nothing was sent twice"


@pytest.mark.parametrize("last_at", [None, 1, 2])
def test_what_another_run_has_sent_of_a_damaged_file_costs_this_one_only_a_second_push(
    workdir: Path, last_at: int | None
) -> None:
    """The other run ends after its first chunk, or brings its last one before the second or third of this run."""
    sent = list[int]()

    def damaged(receiver: Receiver, order: Mapping[str, Any], blob: bytes) -> None:
        if order["last"] and not order["offset"]:
            return  # another file
        number = order["offset"] // CHUNK_BYTES
        if number == len(sent) == 0 or (number == last_at and number not in sent):
            sent.append(number)
            receiver.receive(order["sha256"], order["offset"], bytes(len(blob)), number == last_at)

    link = SharedHost(workdir, damaged)
    assert isinstance(made_ready(link, a_run(workdir)), HostPrepared)
    assert sent == ([0] if last_at is None else [0, last_at])


def test_a_file_that_the_host_drops_twice_is_not_sent_for_ever(workdir: Path) -> None:
    def damaged(receiver: Receiver, order: Mapping[str, Any], _blob: bytes) -> None:
        if order["offset"]:
            receiver.receive(order["sha256"], order["offset"], b"x", True)

    assert refused(SharedHost(workdir, damaged), a_run(workdir)).code == "offset"


def test_an_empty_file_is_pushed_beside_an_empty_directory(workdir: Path) -> None:
    link = FakeLink()
    (workdir / "results").mkdir()
    assert isinstance(made_ready(link, a_run(workdir)), HostPrepared)
    assert hashlib.sha256(b"").hexdigest() in link.kept


@pytest.mark.fault(62)
def test_row_62_a_host_where_another_drives_the_run_is_changed_in_nothing(workdir: Path) -> None:
    link = FakeLink()
    claim = {**valid(Claimed), "id": "2" * 32, "name": "t", "checkpoint_dir": "/shared/t"}
    link.runs = [
        {**valid(KnownRun), "run": "t-0", "claim": claim, "watched": True, "driven": True, "tasks": []}
    ]
    problem = refused(link, a_run(workdir))
    assert (problem.code, problem.exit_code) == ("driven", 6)
    assert problem.message.startswith("a: t-0 is driven by ")
    assert link.verbs() == ["runs"]
    link.runs = []
    link.checkpoint = {"claim": {**claim, "run": "t-0"}, "host": "gpu-z", "ago_s": 3.0, "driven": True}
    assert "the checkpoint directory, by gpu-z" in refused(link, a_run(workdir)).message


def test_the_probe_gets_by_what_a_shim_chooses_and_nothing_that_is_not_pushed(workdir: Path) -> None:
    (workdir / ".python-version").write_text("3.11.7\n")
    (workdir / ".env").write_text("TOKEN=hush\n")
    (workdir / ".tool-versions").write_text("python 3.12.1\n")
    (workdir / ".gitignore").write_text(".tool-versions\n")
    (workdir / ".large").write_text("x" * 20_000)
    (workdir / ".git").mkdir()
    (workdir / "mise.toml").write_bytes(b"\xff")
    link = FakeLink()
    run = a_run(workdir, env={"PYENV_VERSION": "3.12.1"})
    event = made_ready(link, run)
    (asked,) = [order for order in link.asked if order["order"] == "probe"]
    assert asked["files"] == [(".gitignore", ".tool-versions\n"), (".python-version", "3.11.7\n")]
    assert asked["env"] == {"PYENV_VERSION": "3.12.1"}
    assert isinstance(event, HostPrepared)
    assert run.python("a") == "python3"
    assert run.with_host(replace(run.hosts[0], facts=event.facts)).python("a") == "/opt/python3"


def test_what_activate_changed_is_kept_without_its_secrets(workdir: Path) -> None:
    link = FakeLink()
    link.probe["activated"] = {"LOADED": "tf", "API_TOKEN": "hush", "URL": "https://me:hush@x"}
    event = made_ready(link, a_run(workdir))
    assert isinstance(event, HostPrepared)
    assert event.facts.activated == {"LOADED": "tf", "API_TOKEN": "***", "URL": "***"}


def test_what_is_there_already_is_not_sent_again(workdir: Path) -> None:
    link = FakeLink()
    made_ready(link, a_run(workdir))
    link.asked.clear()
    made_ready(link, a_run(workdir))
    assert link.verbs() == ["runs", "probe", "code", "highest"]


def test_without_a_checkpoint_nothing_is_asked_of_it(workdir: Path) -> None:
    link = FakeLink()
    link.probe["checkpoint_writable"] = False
    event = made_ready(link, a_run(workdir, checkpoint=None))
    assert isinstance(event, HostPrepared)
    assert event.facts.highest_generation == 0
    assert "highest" not in link.verbs()
    assert link.asked[1]["checkpoint_dir"] is None
    assert "dir" not in link.asked[0]


def test_a_checkpoint_directory_that_cannot_be_written_is_refused_with_the_reason(workdir: Path) -> None:
    link = FakeLink()
    link.probe.update(checkpoint_writable=False, checkpoint_why="Read-only file system")
    problem = refused(link, a_run(workdir))
    assert problem.message == (
        "a: the checkpoint directory /shared/t cannot be written: Read-only file system"
    )
    assert link.verbs() == ["runs", "probe"], "nothing is pushed to a host that cannot serve"


@pytest.mark.parametrize("shared", [True, False])
def test_a_late_host_must_see_the_runs_share_where_there_is_one(workdir: Path, shared: bool) -> None:
    link = FakeLink()
    link.probe["checkpoint_share"] = "" if shared else "a token of its own"
    run = a_run(workdir)
    assert run.plan.checkpoint is not None
    plan = replace(run.plan, checkpoint=replace(run.plan.checkpoint, shared=shared))
    run = replace(run, plan=plan, share="the token of the first")
    if shared:
        assert "its share is not mounted" in refused(link, run).message
    else:
        assert isinstance(made_ready(link, run), HostPrepared)
    assert link.asked[1].get("share") == ("the token of the first" if shared else None)


def test_a_checkpoint_directory_that_others_may_write_into_is_refused(workdir: Path) -> None:
    link = FakeLink()
    link.probe["checkpoint_others"] = "everybody"
    problem = refused(link, a_run(workdir))
    assert problem.message == (
        "a: everybody may write into the checkpoint directory /shared/t, and so decide what this run resumes from"
    )
    assert (problem.code, problem.key) == ("checkpoint-shared", "run.checkpoint.group")
    assert "checkpoint: {group: NAME}" in (problem.hint or "")
    assert (link.asked[1].get("group"), link.verbs()) == (None, ["runs", "probe"])


TWO_GPUS: dict[str, Any] = {"gpus": ["GPU-a", "GPU-b"], "gpu_instances": {}}


def taken(gpu: int, user: str | None) -> dict[str, Any]:
    return {"gpus_in_use": [{"gpu": gpu, "pid": 4242, "user": user, "name": "python3"}]}


@pytest.mark.parametrize(
    ("gpus", "told", "said"),
    [
        ((0, 1), {**TWO_GPUS, **taken(1, "ana")}, "GPU 1 by pid 4242 of ana (python3)"),
        ((1,), {**TWO_GPUS, **taken(1, None)}, "pid 4242 of a user who cannot be seen"),
        (("GPU-b",), {**TWO_GPUS, **taken(1, "ana")}, "GPU 1 by pid 4242 of ana (python3)"),
        (("GPU-c",), TWO_GPUS, "the run is to have GPU-c, and its driver shows GPU-a, GPU-b"),
        (
            (1,),
            {**TWO_GPUS, "gpu_instances": {"MIG-7": 1}},
            "GPU 1, which is divided into MIG instances: MIG-7",
        ),
        (
            ("MIG-8",),
            {**TWO_GPUS, "gpu_instances": {"MIG-7": 1}},
            "its driver shows GPU-a, GPU-b, MIG-7",
        ),
        ((0, 2), TWO_GPUS, "the run is to have GPU 2, and its driver shows 2, counted from 0"),
    ],
)
@pytest.mark.fault(22, 23)
def test_a_gpu_that_is_in_use_or_missing_is_refused(
    workdir: Path, gpus: tuple[int, ...], told: dict[str, Any], said: str
) -> None:
    link = FakeLink()
    link.probe.update(told)
    problem = refused(link, on_gpus(a_run(workdir), gpus))
    assert said in problem.message
    assert problem.message.startswith("a: ")
    assert problem.exit_code == 6
    assert link.verbs() == ["runs", "lease", "probe"]


def test_a_gpu_whose_lease_another_has_is_refused_with_its_holder(workdir: Path) -> None:
    link = FakeLink()
    held = {"gpu": 1, "user": "ana", "run": "x-1", "head": "ana@lab-2", "since": 1.8e9}
    unknown = {"gpu": 2, "user": None, "run": None, "head": None, "since": None}
    link.others = [held, unknown]
    problem = refused(link, on_gpus(a_run(workdir), (1, 2)))
    assert problem.message == (
        "a: GPU 1 is held by x-1 of user ana, begun on ana@lab-2, since 2027-01-15 08:00:00 UTC; "
        "GPU 2 is held by a process that does not answer"
    )
    assert (problem.code, problem.exit_code) == ("gpu-leased", 6)
    assert link.verbs() == ["runs", "lease"], "nothing was changed there"
    link.others = [{**held, "gpu": None}]
    assert "a GPU is held by x-1" in refused(link, on_gpus(a_run(workdir), (1, 2))).message, (
        "it says not which"
    )


@pytest.mark.parametrize(
    "told",
    [
        {**TWO_GPUS, **taken(1, "ana")},
        {"gpus": None},
        {"gpus": ["GPU-a"], "gpu_instances": {}, "gpus_in_use": []},
    ],
)
def test_the_gpus_that_the_run_does_not_have_are_nobodys_business(
    workdir: Path, told: dict[str, Any]
) -> None:
    link = FakeLink()
    link.probe.update(told)
    assert isinstance(made_ready(link, on_gpus(a_run(workdir), (0,))), HostPrepared)


@pytest.mark.fault(22)
@pytest.mark.parametrize("gpus", [(0, 1), ()])
def test_a_host_without_a_gpu_is_refused_where_the_spec_says_that_it_has_some(
    workdir: Path, gpus: tuple[int, ...]
) -> None:
    link = FakeLink()
    link.probe.update(gpus=None, gpus_why="there is no nvidia-smi and no device of a GPU")
    run = on_gpus(a_run(workdir), gpus)
    (host,) = run.plan.hosts
    run = replace(run, plan=replace(run.plan, hosts=(replace(host, gpus=(0, 1)),)))
    problem = refused(link, run)
    assert problem.message == (
        "a: the spec says that it has the GPUs 0, 1, and it has none: there is no nvidia-smi and no device of a GPU"
    )
    assert "remove `gpus`" in (problem.hint or "")
    assert problem.exit_code == 6


@pytest.mark.fault(22)
@pytest.mark.parametrize(
    ("strategy", "script", "runtime", "why"),
    [
        ("multi_worker_mirrored", "import steps\n", True, "multi_worker_mirrored needs it"),
        ("parameter_server", "import tensorflow as tf\n", True, "the script imports it"),
        ("processes", "import tensorflow as tf\n", True, "the script imports it"),
        ("processes", "import helpers\n", True, "the script imports it"),
        ("processes", "import torch\n", True, None),
        ("processes", "try:\n    import tensorflow\nexcept ImportError:\n    pass\n", True, None),
        ("single", "import keras\n", True, None),
        ("multi_worker_mirrored", "import subprocess\n", False, None),
        ("multi_worker_mirrored", "import tensorflow\n", False, "the script imports it"),
        ("single", "def broken(\n", True, None),
    ],
)
def test_a_python_without_tensorflow_is_refused_where_the_training_needs_it(
    workdir: Path, strategy: str, script: str, runtime: bool, why: str | None
) -> None:
    (workdir / "train.py").write_text(script)
    (workdir / "helpers.py").write_text("import tensorflow as tf\n")
    link = FakeLink()
    link.probe["versions"] = {"tensorflow": None, "keras": None, "tf_keras": None, "numpy": None}
    run = a_run(workdir)
    run = replace(run, plan=replace(run.plan, strategy=strategy, runtime=runtime))
    if why is None:
        assert isinstance(made_ready(link, run), HostPrepared)
        return
    problem = refused(link, run)
    assert problem.message == f"a: python3 has no TensorFlow, and {why}"
    assert (problem.hint or "").startswith("on a: `python3 -m pip install 'tensorflow'`; ")
    assert problem.exit_code == 6
    elsewhere = replace(run, plan=replace(run.plan, env={"PYTHONPATH": "/opt/tf"}))
    assert isinstance(made_ready(link, elsewhere), HostPrepared), "it may be there"


def test_a_script_that_a_host_cannot_compile_or_import_for_is_refused_with_the_place(workdir: Path) -> None:
    (workdir / "train.py").write_text("import yaml\nimport tomli\n")
    link, run = FakeLink(), a_run(workdir)
    link.probe["missing"] = ["tomli", "what-was-not-asked"]
    problem = refused(link, run)
    assert (problem.code, problem.exit_code) == ("no-module", 6)
    assert problem.message.startswith("a: ")
    assert problem.message.endswith("does not have what the script imports: tomli (train.py:2)")
    (asked,) = [order for order in link.asked if order["order"] == "probe"]
    assert (asked["modules"], asked["source"]) == (["yaml", "tomli"], "import yaml\nimport tomli\n")
    link.probe["syntax"] = "line 3: invalid syntax"
    assert "cannot compile train.py: line 3" in refused(link, run).message
    begun = FakeLink()
    made_ready(begun, replace(run, code="0" * 64))
    (asked,) = [order for order in begun.asked if order["order"] == "probe"]
    assert (asked["modules"], asked.get("source")) == ([], None), "its code is not that of now"


def on_gpus(run: Run, gpus: tuple[int, ...]) -> Run:
    """Return the run, with those GPUs for its task."""
    (task,) = run.plan.tasks
    return replace(run, plan=replace(run.plan, tasks=(replace(task, gpus=gpus),)))


def test_software_that_cannot_train_the_script_is_refused_before_the_push(workdir: Path) -> None:
    link = FakeLink()
    link.probe["versions"] = {**VERSIONS, "keras": "3.0.0"}
    problem = refused(link, a_run(workdir))
    assert problem.code == "keras"
    assert problem.message.startswith("a: ")
    assert link.verbs() == ["runs", "probe"]


@pytest.mark.parametrize(
    "script",
    ["from steps import train\ntrain()\n", "from parts.steps import train\n", "from parts import steps\n"],
)
def test_a_fit_in_a_module_beside_the_script_is_found(workdir: Path, script: str) -> None:
    (workdir / "train.py").write_text(script)
    (workdir / "parts").mkdir()
    (workdir / "parts" / "__init__.py").write_text("")
    for place in (workdir, workdir / "parts"):
        (place / "steps.py").write_text("def train():\n    model.fit(x)\n")
    link = FakeLink()
    link.probe["versions"] = {**VERSIONS, "keras": "3.0.0"}
    assert refused(link, a_run(workdir)).code == "keras"


def test_a_transparent_script_can_only_fit_wherever_it_does(workdir: Path) -> None:
    (workdir / "train.py").write_text("import experiments\n")
    link = FakeLink()
    link.probe["versions"] = {**VERSIONS, "keras": "3.0.0"}
    run = a_run(workdir)
    plan = replace(run.plan, options=replace(run.plan.options, transparent=True))
    assert refused(link, replace(run, plan=plan)).code == "keras"


@pytest.mark.parametrize(
    ("own", "hosts", "said"),
    [
        ({"address": "127.0.1.1", "why": None}, ["a", "b"], "resolves to 127.0.1.1: gloo, by which horovod"),
        (
            {"address": None, "why": "Name or service not known"},
            ["a"],
            "no such place: Name or service not known",
        ),
        ({"address": "127.0.1.1", "why": None}, ["a"], None),
        ({"address": "10.0.0.1", "why": None}, ["a", "b"], None),
    ],
)
def test_a_host_that_knows_itself_as_loopback_breaks_gloos_ring(
    workdir: Path, own: dict[str, Any], hosts: list[str], said: str | None
) -> None:
    link = FakeLink()
    link.probe["own_name"] = {"name": "gpu-a", **own}
    plan = replace(make_plan(hosts, checkpoint=True), workdir=str(workdir), strategy="horovod")
    run = new_run("t-1", plan, epoch=4, at=0.0)
    if said is None:
        assert isinstance(made_ready(link, run), HostPrepared)
    else:
        problem = refused(link, run)
        assert (problem.code, said in problem.message) == ("own-name", True), problem
        assert "/etc/hosts" in (problem.hint or "")
    mirrored = replace(plan, strategy="multi_worker_mirrored")
    assert isinstance(
        made_ready(link, new_run("t-1", mirrored, epoch=4, at=0.0)),
        HostPrepared,
    )


@pytest.mark.parametrize("changes", [{"runtime": False}, {"script": "empty"}])
def test_keras_is_nobodys_business_where_fit_is_not_used(workdir: Path, changes: dict[str, Any]) -> None:
    link = FakeLink()
    link.probe["versions"] = {**VERSIONS, "keras": "3.0.0"}
    assert isinstance(made_ready(link, a_run(workdir, **changes)), HostPrepared)


def test_what_the_host_refuses_names_the_host_once(workdir: Path) -> None:
    link = FakeLink()
    link.refuse["code"] = Problem("no-space", "no space left for the code", "free some")
    assert refused(link, a_run(workdir)) == Problem("no-space", "a: no space left for the code", "free some")
    link.refuse["code"] = Problem("no-space", "a: no space left for the code")
    assert refused(link, a_run(workdir)).message == "a: no space left for the code"


@pytest.mark.fault(112)
def test_what_was_submitted_is_pushed_whatever_is_edited_meanwhile(workdir: Path) -> None:
    run = a_run(workdir)
    (workdir / "train.py").write_text("import numpy\nimport helper\n")
    (workdir / "helper.py").write_text("import scipy\n")
    snapshots = Snapshots(f"{workdir}.state")
    snapshots.keep(run.run_id, snapshots.take(run.plan).digest)
    digest = digest_of(codetree.manifest(str(workdir)))
    (workdir / "train.py").write_text("import torch (\n")
    (workdir / "helper.py").unlink()
    link = FakeLink()
    event = made_ready(link, run)
    assert isinstance(event, HostPrepared)
    assert event.facts.code == digest
    assert b"import numpy\nimport helper\n" in link.blobs.values()
    (asked,) = [order for order in link.asked if order["order"] == "probe"]
    assert asked["source"] == "import numpy\nimport helper\n", "the host compiles what runs"
    assert asked["modules"] == ["numpy", "scipy"]


@pytest.mark.fault(112)
def test_a_spare_that_comes_after_an_edit_gets_what_the_run_began_with(workdir: Path) -> None:
    run = a_run(workdir)
    first = made_ready(FakeLink(), run)
    assert isinstance(first, HostPrepared)
    (workdir / "train.py").unlink()
    spare = FakeLink()
    late = replace(run, code=first.facts.code, hosts=(replace(run.hosts[0], untouched=True),))
    event = made_ready(spare, late)
    assert isinstance(event, HostPrepared)
    assert event.facts.code == first.facts.code
    assert b"model.fit(x)\n" in spare.blobs.values()


def test_a_snapshot_that_the_disk_damaged_is_named(workdir: Path) -> None:
    run = a_run(workdir)
    snapshots = Snapshots(f"{workdir}.state")
    taken = snapshots.take(run.plan)
    snapshots.keep(run.run_id, taken.digest)
    (Path(taken.directory) / "train.py").write_text("model.fit(0)\n")
    problem = refused(FakeLink(), run)
    assert problem.code == "code-damaged"
    assert problem.message.endswith("is damaged on the head node: train.py")


def test_a_link_to_what_a_host_does_not_have_is_named_before_anything_runs(workdir: Path) -> None:
    class WithoutData(FakeLink):
        def on_code(self, order: Mapping[str, Any], blob: bytes) -> dict[str, Any]:
            return {**super().on_code(order, blob), "dangling": ["data"]}

    (workdir / "data").symlink_to("/data/mnist")
    link = WithoutData()
    problem = refused(link, a_run(workdir))
    assert problem.code == "code-link"
    assert problem.message == (
        "a: links of the working directory lead to what is not on this host: data -> /data/mnist"
    )
    assert b"/data/mnist" in link.blobs.values()


def test_the_hosts_of_a_run_share_one_look_at_the_working_directory(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    survey = codetree.survey

    def look(directory: str, _withheld: object = ()) -> codetree.Survey:
        looks.append(directory)
        return survey(directory)

    monkeypatch.setattr(codetree, "survey", look)
    run = a_run(workdir)
    prepared = [made_ready(FakeLink(), run) for _ in range(3)]
    assert all(isinstance(event, HostPrepared) for event in prepared)
    assert len(looks) == 1


def test_a_broken_link_is_nobodys_fault_and_passes_through(workdir: Path) -> None:
    link = FakeLink()
    link.broken = True
    with pytest.raises(LinkDown):
        made_ready(link, a_run(workdir))


def test_a_run_of_an_older_orch_goes_on_with_the_code_that_it_began_with(workdir: Path) -> None:
    """No snapshot was taken when it was submitted."""
    began = replace(a_run(workdir), code=digest_of(codetree.manifest(str(workdir))))
    same = made_ready(FakeLink(), began)
    assert isinstance(same, HostPrepared)
    assert same.facts.code == began.code
    (workdir / "train.py").write_text("model.fit(y)\n")
    other = replace(began, run_id="t-2")
    link = FakeLink()
    changed = made_ready(link, other)
    assert isinstance(changed, HostPrepared)
    assert changed.facts.code == began.code
    assert link.verbs() == ["runs", "probe", "highest"]


def test_a_workdir_that_is_gone_stops_only_a_run_that_has_not_begun(tmp_path: Path) -> None:
    gone = a_run(tmp_path / "gone")
    with pytest.raises(SpecError, match="gone is no directory"):
        made_ready(FakeLink(), gone)
    event = made_ready(FakeLink(), replace(gone, code="c0de"))
    assert isinstance(event, HostPrepared)
    assert event.facts.code == "c0de"


def test_a_spare_of_an_older_run_cannot_have_code_of_which_there_is_no_copy(workdir: Path) -> None:
    run = a_run(workdir)
    late = replace(run, code="0" * 64, hosts=(replace(run.hosts[0], untouched=True),))
    problem = refused(FakeLink(), late)
    assert problem.code == "code-unknown"
    assert "this head node has no copy of it" in problem.message
    (workdir / "train.py").unlink()
    assert isinstance(made_ready(FakeLink(), replace(run, code="0" * 64)), HostPrepared)
