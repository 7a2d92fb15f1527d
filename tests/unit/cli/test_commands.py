"""Each command as a person calls it: arguments in; stdout, stderr and the exit code out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from orchestrator import __version__
from orchestrator.adapters.runlogs import RunLogs
from orchestrator.cli.main import COMMANDS, run
from orchestrator.cli.session import Session
from orchestrator.cli.watching import LAST_LINES_MAX_S
from tests.contract.fake_api import FakeApi, event_document, run_document, task_document

RUN = "mnist-20261120-1"
SPEC = """\
version: 1
name: mnist
hosts:
  - {name: here, transport: local, slots: 2}
run:
  strategy: multi_worker_mirrored
  script: train.py
  workdir: .
  tasks: {worker: {replicas: 2}}
  ports: 20000-20999
"""


class Desk(Session):
    """A session without a terminal, whose time passes only in its pauses."""

    def __init__(self, root: Path) -> None:
        environ = {"ORCH_STATE_DIR": str(root / "state"), "ORCH_RUNTIME_DIR": str(root / "run")}
        self.stdout, self.stderr = StringIO(), StringIO()
        super().__init__(self.stdout, self.stderr, environ)
        self.clock = 0.0
        self.on_pause: Callable[[], None] = lambda: None

    def pause(self, seconds: float) -> None:
        self.clock += seconds
        self.on_pause()

    def now(self) -> float:
        return self.clock

    def time(self) -> float:
        return 1000.0

    def __call__(self, *argv: str) -> int:
        return run(argv, self)

    @property
    def said(self) -> str:
        return self.stderr.getvalue()

    @property
    def put_out(self) -> str:
        return self.stdout.getvalue()


@pytest.fixture
def orch(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.paths.ensure()
    return desk


@pytest.fixture
def api(orch: Desk) -> Iterator[FakeApi]:
    with FakeApi(Path(orch.paths.socket)) as fake:
        yield fake


@pytest.fixture
def logs(orch: Desk) -> RunLogs:
    found = RunLogs(orch.paths.state_dir)
    found.append(RUN, "worker:0", 1, 0, b"990.000000 o loading\n995.000000 e oops\n")
    found.append(RUN, "worker:1", 1, 0, b"992.000000 o also\n")
    return found


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return str(tmp_path / "cluster.yaml")


def phases(api: FakeApi, *changes: dict[str, Any]) -> None:
    """Each look at the status finds the next change; the last one stays."""
    left = list(changes)

    def advance() -> None:
        if left:
            api.runs[-1].update(left.pop(0))

    api.on_status = advance


# -- the frame ---------------------------------------------------------------------------------------------


def test_version(orch: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert orch("--version") == 0
    assert capsys.readouterr().out == f"orch {__version__}\n"


def test_help_names_every_command(orch: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert orch("--help") == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f"  {name} " not in shown] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(orch: Desk, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert orch(name, "--help") == 0
    assert f"orch {name}" in capsys.readouterr().out


def test_a_mistyped_command(orch: Desk) -> None:
    assert orch("stauts") == 2
    assert orch.said == (
        "error: no such command: 'stauts'; did you mean `orch status`?\n"
        "hint: `orch --help` shows how it is used\n"
    )


def test_a_mistyped_option(orch: Desk) -> None:
    assert orch("status", "--jsn") == 2
    assert orch.said.startswith("error: No such option")
    assert "`orch status --help`" in orch.said


def test_a_bug_says_that_it_is_one(orch: Desk, api: FakeApi) -> None:
    api.runs.append({"name": 1, "tasks": 5})
    assert orch("status") == 70
    assert orch.said.startswith(f"error: this is a bug in orch {__version__}: TypeError: ")


def test_no_coordinator(orch: Desk) -> None:
    assert orch("status") == 3
    assert orch.said.startswith(
        f"error: no coordinator is running behind {orch.paths.socket}\nhint: start it"
    )


def test_a_runtime_directory_of_somebody_else(orch: Desk) -> None:
    os.chmod(orch.paths.runtime_dir, 0o755)
    assert orch("status") == 1
    assert "others can enter it" in orch.said


# -- status ------------------------------------------------------------------------------------------------


def test_status_json_is_the_coordinators_document(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    assert orch("status", "--json") == 0
    assert json.loads(orch.put_out) == {"schema": 1, "runs": [run_document()]}
    assert orch.said == ""


def test_status_of_one_run(orch: Desk, api: FakeApi) -> None:
    api.runs += [run_document(name="other", run_id="other-20261120-1"), run_document()]
    assert orch("status", "mnist", "--json") == 0
    assert [found["name"] for found in json.loads(orch.put_out)["runs"]] == ["mnist"]


def test_status_of_a_name_takes_the_run_that_is_active(orch: Desk, api: FakeApi) -> None:
    api.runs += [run_document(phase="FAILED"), run_document(run_id="mnist-20261120-2")]
    assert orch("status", "mnist", "--json") == 0
    assert orch("status", "mnist-20261120-1", "--json") == 0
    decoder, text = json.JSONDecoder(), orch.put_out
    first, end = decoder.raw_decode(text)
    second, _ = decoder.raw_decode(text, end + 1)
    assert [found["runs"][0]["run_id"] for found in (first, second)] == ["mnist-20261120-2", RUN]


@pytest.mark.parametrize(("name", "hint"), [("mnits", "did you mean 'mnist'?"), ("xyz", "there are: mnist")])
def test_status_of_a_run_that_is_not(orch: Desk, api: FakeApi, name: str, hint: str) -> None:
    api.runs.append(run_document())
    assert orch("status", name) == 2
    assert orch.said == f"error: no run is named '{name}'\nhint: {hint}\n"


def test_status_without_runs(orch: Desk, api: FakeApi) -> None:
    assert orch("status") == 0
    assert orch.put_out == "no runs; `orch up FILE` starts one\n"


def test_watch_without_a_terminal_shows_it_once(orch: Desk, api: FakeApi) -> None:
    assert orch("status", "-w") == 0
    assert orch.put_out == "no runs; `orch up FILE` starts one\n"


# -- kill --------------------------------------------------------------------------------------------------

PROVEN = {
    "hosts": {
        "gpu-a": {"left": [], "ports_busy": [], "by": "cgroup"},
        "gpu-b": {"left": [], "ports_busy": [], "by": "marker"},
    },
    "unreachable": [],
}


def kills(api: FakeApi, proof: dict[str, Any]) -> None:
    """A run that stops, and is KILLED at the third look from then."""

    def kill(found: dict[str, Any]) -> None:
        found.update(phase="STOPPING", reason="2 tasks are asked to end")
        phases(api, {}, {}, {"phase": "KILLED", "proof": proof})

    api.on_kill = kill


def test_kill_proves_it(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    kills(api, PROVEN)
    assert orch("kill") == 0
    assert orch.put_out == (
        f"{RUN}: KILLED\n"
        "  gpu-a: no process left, ports free (by cgroup)\n"
        "  gpu-b: no process left, ports free (by marker)\n"
    )
    assert orch.said == f"{RUN}: STOPPING: 2 tasks are asked to end\n"
    assert api.posted == [("/v1/runs/mnist/kill", {"force": False})]


def test_kill_names_the_host_that_did_not_answer(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    kills(api, {"hosts": {"gpu-a": {"left": [], "ports_busy": []}}, "unreachable": ["gpu-b"]})
    assert orch("kill", "mnist") == 4
    assert "  gpu-a: no process left, ports free\n  gpu-b: unreachable, nothing is known" in orch.put_out
    assert "error: nothing is known of gpu-b: no answer\n" in orch.said


@pytest.mark.parametrize("left", ["pid 4242: D state", {"pid": 4242, "why": "D state"}])
def test_kill_names_what_cannot_be_killed(orch: Desk, api: FakeApi, left: object) -> None:
    api.runs.append(run_document())
    kills(api, {"hosts": {"gpu-a": {"left": [left], "ports_busy": [20001]}}, "unreachable": ["gpu-b"]})
    assert orch("kill", "--force", "mnist") == 6
    assert "error: could not be killed: gpu-a pid 4242: D state; gpu-a has busy ports: 20001\n" in orch.said
    assert api.posted == [("/v1/runs/mnist/kill", {"force": True})]


def test_kill_of_a_run_that_has_ended(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(phase="SUCCEEDED"))
    assert orch("kill", "mnist") == 0
    assert (orch.put_out, orch.said) == ("", f"{RUN} has ended before: SUCCEEDED\n")
    assert api.posted == []


def test_kill_without_a_name_where_two_run(orch: Desk, api: FakeApi) -> None:
    api.runs += [run_document(), run_document(name="big", run_id="big-20261120-1")]
    assert orch("kill") == 2
    assert orch.said == "error: 2 runs are active: mnist, big\nhint: name the one to kill\n"
    assert api.posted == []


def test_kill_all(orch: Desk, api: FakeApi) -> None:
    api.runs += [run_document(phase="FAILED"), run_document(name="big", run_id="big-20261120-1")]
    kills(api, PROVEN)
    assert orch("kill", "--all", "--json") == 0
    assert [found["run_id"] for found in json.loads(orch.put_out)["runs"]] == ["big-20261120-1"]
    assert orch("kill", "--all") == 0
    assert orch.said.endswith("no run is active; there is nothing to kill\n")


def test_kill_all_and_a_name(orch: Desk, api: FakeApi) -> None:
    assert orch("kill", "--all", "mnist") == 2


def test_a_kill_that_takes_too_long(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(phase="STOPPING", reason="waits for gpu-b"))
    assert orch("kill", "--timeout", "2s") == 7
    assert f"error: {RUN} is still STOPPING: waits for gpu-b\n" in orch.said


# -- drain, undrain ----------------------------------------------------------------------------------------


NOT_WAITING = "`orch drain gpu-b --now` does not wait"


def _stands(api: FakeApi, **changes: object) -> None:
    answer = {"host": "gpu-b", "state": "drained", "reason": "by the user", "tasks": ["worker:1"]}
    api.standing = {**answer, "checkpoints": True, **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            ": worker:1 will leave it at the next verified checkpoint; `orch drain gpu-b --now` does not wait",
        ),
        (
            {"checkpoints": False},
            ": worker:1 will leave it at the next restart; `orch drain gpu-b --now` does not wait",
        ),
        ({"tasks": []}, ": it is given no task"),
    ],
)
def test_drain_says_what_follows(orch: Desk, api: FakeApi, changes: dict[str, object], said: str) -> None:
    api.runs.append(run_document(hosts=[{"host": "gpu-a"}, {"host": "gpu-b"}]))
    _stands(api, **changes)
    assert orch("drain", "gpu-b") == 0
    assert orch.put_out == f"gpu-b is drained for {RUN}{said}\n"
    assert api.posted == [(f"/v1/runs/{RUN}/drain", {"host": "gpu-b"})]


def test_drain_at_once_and_undrain(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(hosts=[{"host": "gpu-a"}, {"host": "gpu-b"}]))
    _stands(api)
    assert orch("drain", "gpu-b", "--now", "--name", "mnist") == 0
    assert orch.put_out == f"gpu-b is drained for {RUN}: its tasks are being stopped\n"
    assert orch("undrain", "gpu-b", "--json") == 0
    assert api.posted == [
        (f"/v1/runs/{RUN}/drain", {"host": "gpu-b", "now": True}),
        (f"/v1/runs/{RUN}/undrain", {"host": "gpu-b"}),
    ]


@pytest.mark.parametrize(
    ("argv", "runs", "said"),
    [
        (("gpu-x",), 1, "error: no active run has a host 'gpu-x'\nhint: their hosts: gpu-a, gpu-b\n"),
        (("gpu-b",), 0, "error: no run is active; there is nothing to drain\n"),
        (("gpu-b",), 2, "error: 2 runs are active: mnist, big\nhint: name the one to drain\n"),
        (("gpu-b", "--name", "mnits"), 1, "error: no run is named 'mnits'\nhint: did you mean 'mnist'?\n"),
    ],
)
def test_drain_of_what_is_not(orch: Desk, api: FakeApi, argv: tuple[str, ...], runs: int, said: str) -> None:
    hosts = [{"host": "gpu-a"}, {"host": "gpu-b"}]
    both = [run_document(hosts=hosts), run_document(name="big", run_id="big-20261120-1", hosts=hosts)]
    api.runs += both[:runs]
    assert orch("drain", *argv) == (1 if runs == 0 else 2)
    assert orch.said == said
    assert api.posted == []


# -- logs --------------------------------------------------------------------------------------------------


def test_logs_need_no_coordinator(orch: Desk, logs: RunLogs) -> None:
    assert orch("logs") == 0
    assert orch.put_out == "worker:0 | loading\nworker:1 | also\nworker:0 | oops\n"
    assert orch.said == ""


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("mnist", "worker:1"), "worker:1 | also\n"),
        (("worker:1",), "worker:1 | also\n"),
        ((RUN, "--tail", "1"), "worker:0 | oops\n"),
        (("--since", "9s"), "worker:1 | also\nworker:0 | oops\n"),
        (("--since", "1970-01-01T00:16:34+00:00"), "worker:0 | oops\n"),
    ],
)
def test_logs_of_a_part(orch: Desk, logs: RunLogs, argv: tuple[str, ...], expected: str) -> None:
    assert orch("logs", *argv) == 0
    assert orch.put_out == expected


def test_logs_as_json(orch: Desk, logs: RunLogs) -> None:
    assert orch("logs", "--json", "--tail", "1") == 0
    assert json.loads(orch.put_out) == {
        "time": "1970-01-01T00:16:35.000000Z",
        "run": RUN,
        "task": "worker:0",
        "generation": 1,
        "stream": "stderr",
        "text": "oops",
    }


def test_the_first_cause_is_the_headline(orch: Desk, logs: RunLogs) -> None:
    cause = {"task": "worker:1", "generation": 1, "sentence": "worker:1 was killed", "last_lines": ["also"]}
    logs.put_first_cause(RUN, cause, now=993.0)
    assert orch("logs") == 0
    assert orch.said == "first cause: worker:1 was killed\n\n"
    assert "orch" not in orch.put_out  # not decided yet


def test_the_first_cause_stands_at_its_place_in_the_log_and_is_ours(orch: Desk, logs: RunLogs) -> None:
    cause = {"task": "worker:1", "generation": 1, "sentence": "worker:1 was killed", "done": "restart"}
    logs.put_first_cause(RUN, cause, now=993.0)
    assert orch("logs") == 0
    assert orch.put_out == (
        "worker:0 | loading\n"
        "worker:1 | also\n"
        "orch     | first cause: worker:1 was killed; restart\n"
        "worker:0 | oops\n"
    )
    orch.stdout.truncate(0)
    orch.stdout.seek(0)
    assert orch("logs", "--json", "--tail", "2") == 0
    own = json.loads(orch.put_out.splitlines()[0])
    assert (own["task"], own["stream"], own["time"]) == (None, "orch", "1970-01-01T00:16:33.000000Z")
    assert orch("logs", RUN, "worker:0") == 0


def test_logs_follow_waits_for_lines_that_are_on_their_way(orch: Desk, logs: RunLogs, api: FakeApi) -> None:
    late = b"999.000000 e the last word\n"
    here = logs.end(RUN, "worker:1", 1)
    task = {"task": "worker:1", "host": "gpu-b", "generation": 1, "log_bytes": here + len(late)}
    api.runs.append(run_document(phase="FAILED", tasks=[task]))

    def arrive() -> None:
        if orch.clock > 1.0:
            logs.append(RUN, "worker:1", 1, here, late)

    orch.on_pause = arrive
    assert orch("logs", "-f", "--tail", "0") == 0
    assert orch.put_out.endswith("worker:1 | the last word\n")
    assert orch.clock < 2.0


def test_logs_follow_does_not_wait_for_a_host_that_is_gone(orch: Desk, logs: RunLogs, api: FakeApi) -> None:
    tasks = [{"task": f"worker:{n}", "host": f"h{n}", "generation": 1, "log_bytes": 1 << 20} for n in (0, 1)]
    api.runs.append(run_document(phase="FAILED", tasks=tasks, hosts=[{"host": "h1", "link": "UNREACHABLE"}]))
    assert orch("logs", "-f") == 0
    assert orch.clock == pytest.approx(LAST_LINES_MAX_S, abs=0.1)  # h0 answers, and its lines do not come
    api.runs[0]["tasks"] = tasks[1:]
    before = orch.clock
    assert orch("logs", "-f") == 0
    assert orch.clock == before


WHY = {"task": "worker:1", "generation": 1, "sentence": "worker:1 was killed", "last_lines": ["also"]}


def test_why_shows_the_last_end_or_all_of_them(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.first_causes += [WHY, {**WHY, "generation": 2, "sentence": "worker:0 was killed"}]
    assert orch("why", "mnist") == 0
    assert "worker:0 was killed" in orch.put_out
    assert "worker:1 was killed" not in orch.put_out
    assert orch("why", "--all") == 0
    assert "worker:1 was killed" in orch.put_out


def test_why_as_json(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.first_causes += [{**WHY, "generation": 0}, WHY]
    assert orch("why", "--json") == 0
    found = json.loads(orch.put_out)
    assert (found["schema"], found["run_id"], found["first_causes"]) == (1, RUN, [WHY])


@pytest.mark.parametrize("is_there", [True, False])
def test_why_of_an_unknown_run(orch: Desk, request: pytest.FixtureRequest, is_there: bool) -> None:
    if is_there:
        request.getfixturevalue("api").runs.append(run_document())
    assert orch("why", "nosuch") == 2
    assert "no run is named 'nosuch'" in orch.said


def test_why_works_without_a_coordinator(orch: Desk, logs: RunLogs) -> None:
    logs.put_first_cause(RUN, {**WHY, "generation": 1}, now=1.0)
    logs.put_first_cause(RUN, {**WHY, "generation": 2}, now=2.0)
    logs.put_first_cause(RUN, {**WHY, "generation": 2, "done": "generation 3 starts"}, now=3.0)
    assert orch("why", "--all") == 0
    assert orch.put_out.count("worker:1 was killed") == 2
    assert "this is what it put down before" in orch.said


def test_logs_follow_ends_with_the_run(orch: Desk, logs: RunLogs, api: FakeApi) -> None:
    api.runs.append(run_document())

    def go_on() -> None:
        if api.runs[0]["phase"] == "SUCCEEDED":
            return
        logs.append(RUN, "worker:1", 1, logs.end(RUN, "worker:1", 1), b"999.000000 o new\n")
        api.runs[0]["phase"] = "SUCCEEDED"

    orch.on_pause = go_on
    assert orch("logs", "-f", "--tail", "1") == 0
    assert orch.put_out == "worker:0 | oops\nworker:1 | new\n"


def test_logs_follow_outlives_the_coordinator(orch: Desk, logs: RunLogs) -> None:
    pauses = iter(range(3))

    def three_times() -> None:
        if next(pauses, None) is None:
            raise KeyboardInterrupt

    orch.on_pause = three_times
    assert orch("logs", "-f") == 130
    assert orch.said.count("no coordinator is running") == 1


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("mnits",), "error: no run is named 'mnits'\nhint: did you mean 'mnist'?\n"),
        (
            ("mnist", "worker:7"),
            f"error: {RUN} has no log of worker:7\nhint: there are: worker:0, worker:1\n",
        ),
        (("mnist", "wroker"), "error: not a task: 'wroker'; a task reads like worker:3\n"),
        (("--since", "soon"), "error: --since 'soon' is neither a duration nor a time\n"),
    ],
)
def test_logs_of_what_is_not(orch: Desk, logs: RunLogs, argv: tuple[str, ...], complaint: str) -> None:
    assert orch("logs", *argv) == 2
    assert orch.said.startswith(complaint)


def test_logs_where_nothing_ever_ran(orch: Desk) -> None:
    assert orch("logs") == 1
    assert orch.said.startswith("error: no run has left a log here\n")


# -- events, stacks, coordinator ---------------------------------------------------------------------------


def test_events(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.events += [
        event_document(1, "started", "generation 1 starts"),
        event_document(2, "task-died", "killed by signal 9", task="worker:1"),
    ]
    assert orch("events", "mnist") == 0
    assert orch.put_out == (
        "2026-11-20 12:00:01  started  generation 1 starts\n"
        "2026-11-20 12:00:02  task-died  worker:1  killed by signal 9\n"
    )


def test_events_as_json_lines(orch: Desk, api: FakeApi) -> None:
    api.events += [event_document(1, "a", "x"), event_document(2, "b", "y")]
    assert orch("events", "--json", "--after", "1") == 0
    assert [json.loads(line) for line in orch.put_out.splitlines()] == api.events[1:]


def test_events_follow_until_the_run_has_ended(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.events.append(event_document(1, "a", "x"))

    def end() -> None:
        api.runs[0]["phase"] = "SUCCEEDED"
        if len(api.events) == 1:
            api.events.append(event_document(2, "ended", "y"))

    looks = iter([lambda: None, lambda: None, end])
    api.on_status = lambda: next(looks, end)()
    assert orch("events", "mnist", "-f", "--json") == 0
    assert [json.loads(line)["seq"] for line in orch.put_out.splitlines()] == [1, 2]


def test_stacks(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.stacks = {"worker:0": "Thread 1\n  a.py:1\n", "worker:1": "Thread 1\n"}
    assert orch("stacks") == 0
    assert orch.put_out == "worker:0\nThread 1\n  a.py:1\n\nworker:1\nThread 1\n"


def test_coordinator_status(orch: Desk, api: FakeApi) -> None:
    assert orch("coordinator", "status") == 0
    assert orch.put_out.startswith("pid         4711\nepoch       3\nversion     0.1.0\n")
    assert orch("coordinator", "start") == 0
    assert orch.said == "the coordinator runs already (pid 4711)\n"


def test_coordinator_stop_waits_for_the_end(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    orch.on_pause = api.join_close
    assert orch("coordinator", "stop") == 0
    assert orch.said == f"the coordinator (pid 4711) has ended; {RUN} goes on unwatched\n"


def test_coordinator_stop_twice(orch: Desk) -> None:
    assert orch("coordinator", "stop") == 0
    assert orch.said == "no coordinator is running\n"


# -- files -------------------------------------------------------------------------------------------------


def test_validate(orch: Desk, spec: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(SPEC.replace("hosts:", "hsots:"))
    assert orch("validate", spec) == 0
    assert orch.put_out == f"{spec}: ok\n"
    assert orch("validate", spec, str(tmp_path / "bad.yaml")) == 2
    assert "bad.yaml:3:1: " in orch.said


def test_plan_is_a_document_without_secrets(orch: Desk, spec: str) -> None:
    assert orch("plan", spec, "--json") == 0
    tasks = json.loads(orch.put_out)["tasks"]
    assert [task["task"] for task in tasks] == ["worker:0", "worker:1"]
    assert tasks[0]["tf_config"]["task"] == {"type": "worker", "index": 0}
    assert json.loads(tasks[1]["env"]["TF_CONFIG"])["cluster"]["worker"] == [t["address"] for t in tasks]


def test_a_dry_run_is_the_plan_and_starts_nothing(orch: Desk, spec: str) -> None:
    assert orch("plan", spec) == 0
    planned = orch.put_out
    assert orch("up", spec, "--dry-run") == 0
    assert orch.put_out == planned * 2
    assert not os.path.exists(orch.paths.coordinator_log)


def test_schema(orch: Desk) -> None:
    assert orch("schema") == 0
    assert "properties" in json.loads(orch.put_out)


def test_completion(orch: Desk) -> None:
    assert orch("completion", "zsh") == 0
    assert "_ORCH_COMPLETE" in orch.put_out


# -- up ----------------------------------------------------------------------------------------------------


def test_up_waits_until_it_trains(orch: Desk, api: FakeApi, spec: str) -> None:
    phases(api, {}, {"phase": "RENDEZVOUS"}, {"phase": "RUNNING"})
    api.events.append(event_document(1, "started", "generation 1 starts"))
    api.events.append(event_document(2, "started", "an older run's", run="mnist-20261119-1"))
    assert orch("up", spec) == 0
    assert orch.put_out == f"{RUN}\n"
    assert orch.said == (
        "2026-11-20 12:00:01  started  generation 1 starts\n"
        f"{RUN} trains; `orch logs -f mnist` shows what it prints\n"
    )
    path, body = api.posted[0]
    assert (path, body["from_scratch"], body["plan"]["tasks"][1]["id"]) == (
        "/v1/runs",
        False,
        {"type": "worker", "index": 1},
    )


def test_up_detach(orch: Desk, api: FakeApi, spec: str) -> None:
    assert orch("up", spec, "--detach", "--json") == 0
    assert json.loads(orch.put_out) == {"run_id": RUN, "name": "mnist", "created": True}


def test_up_of_what_runs_already(orch: Desk, api: FakeApi, spec: str) -> None:
    api.runs.append(run_document())
    api.events.append(event_document(1, "started", "long ago"))
    assert orch("up", spec) == 0
    assert orch.put_out == f"{RUN}\n"
    assert orch.said == (
        f"{RUN} runs already, with this very plan; nothing was changed\n"
        f"{RUN} trains; `orch logs -f mnist` shows what it prints\n"
    )


@pytest.mark.parametrize(("phase", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("KILLED", 1)])
def test_up_wait_ends_with_the_runs_own_outcome(
    orch: Desk, api: FakeApi, spec: str, phase: str, code: int
) -> None:
    phases(api, {"phase": "RUNNING"}, {}, {"phase": phase})
    assert orch("up", spec, "--wait") == code
    assert f"{RUN}  {phase}" in orch.said


def test_up_of_a_run_that_fails_says_why(orch: Desk, api: FakeApi, spec: str) -> None:
    cause = {"task": "worker:1", "sentence": "worker:1 on here exited with 1", "last_lines": ["Boom"]}
    problem = {"message": "here: no Python", "hint": "install it", "exit_code": 5}
    phases(api, {"phase": "FAILED", "first_cause": cause, "problem": problem})
    assert orch("up", spec) == 5
    for text in (
        "first cause: worker:1 on here exited with 1\n",
        "worker:1 | Boom\n",
        "problem: here: no Python",
    ):
        assert text in orch.said


def test_up_wait_gives_up(orch: Desk, api: FakeApi, spec: str) -> None:
    assert orch("up", spec, "--wait", "--timeout", "3s") == 7
    assert f"error: {RUN} is still PENDING after 3.0 s: connecting\n" in orch.said


def test_up_follow_shows_the_logs_and_the_outcome(orch: Desk, api: FakeApi, spec: str, logs: RunLogs) -> None:
    phases(api, {"phase": "RUNNING"}, {"global_step": 130}, {"phase": "SUCCEEDED", "reason": "accuracy"})
    assert orch("up", spec, "--follow") == 0
    assert orch.put_out == f"{RUN}\nworker:0 | loading\nworker:1 | also\nworker:0 | oops\n"
    assert f"{RUN}  SUCCEEDED" in orch.said


def test_up_follow_says_a_first_cause_once(orch: Desk, api: FakeApi, spec: str, logs: RunLogs) -> None:
    decided = {**WHY, "done": "restart at once"}
    phases(api, {"phase": "RUNNING"}, {"phase": "SUCCEEDED", "reason": "accuracy"})
    api.events += [
        event_document(1, "stopping", "it stops"),
        event_document(2, "backoff", "restart: worker:1 was killed", data={"first_cause": decided}),
    ]
    logs.put_first_cause(RUN, decided, now=996.0)
    assert orch("up", spec, "--follow") == 0
    assert orch.put_out.count("first cause: worker:1 was killed; restart at once") == 1
    assert "it stops" in orch.said
    assert "worker:1 was killed" not in orch.said


def test_ctrl_c_in_follow_leaves_it_running(orch: Desk, api: FakeApi, spec: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    orch.on_pause = interrupt
    assert orch("up", spec, "--follow") == 0
    assert "orch logs -f mnist\n  orch status mnist\n  orch kill mnist\n" in orch.said
    assert orch("up", spec, "--wait") == 130


def test_up_waits_for_a_coordinator_that_comes_back(orch: Desk, api: FakeApi, spec: str) -> None:
    phases(api, {"phase": "PENDING"})
    again: list[FakeApi] = []

    def restart() -> None:
        if not again:
            api.close()
            again.append(api)
        elif len(again) == 1:
            other = FakeApi(Path(orch.paths.socket))
            other.runs = [run_document(phase="SUCCEEDED", name="mnist")]
            again.append(other.__enter__())

    orch.on_pause = restart
    try:
        assert orch("up", spec, "--wait") == 0
    finally:
        for server in again[1:]:
            server.close()
    assert orch.said.count("the run goes on without it") == 1
    assert "the coordinator is back\n" in orch.said


def test_up_with_two_ways_to_stay(orch: Desk, spec: str) -> None:
    assert orch("up", spec, "--wait", "--detach") == 2


def test_up_of_a_file_that_is_not(orch: Desk, tmp_path: Path) -> None:
    assert orch("up", str(tmp_path / "none.yaml")) == 2
    assert "none.yaml" in orch.said


def test_one_task_is_shown_for_a_run_with_one(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(tasks=[task_document(0)]))
    assert orch("status") == 0
    assert "worker:0" in orch.put_out
    assert "worker:1" not in orch.put_out
