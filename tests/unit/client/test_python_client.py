"""The Python client, against a coordinator that is played: what it returns, raises and shows."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client.environment import Environment
from orchestrator.client.waiting import AWAY_MAX_S, UNTOLD_MAX_S, WAIT_MAX_S, is_untold, wait_s
from orchestrator.core.errors import (
    CoordinatorUnreachable,
    OrchestratorError,
    SomeHostsOnly,
    UsageError,
    WaitTimedOut,
)
from orchestrator.core.state.phase_states import Phase
from orchestrator.head.records.runlogs import RunLogs
from tests.contract.fake_api import FakeApi, event_document, run_document

RUN = "mnist-20261120-1"


class Program(Environment):
    """A program whose time passes only in its pauses."""

    def __init__(self, root: Path) -> None:
        super().__init__({"ORCH_STATE_DIR": str(root / "state"), "ORCH_RUNTIME_DIR": str(root / "run")})
        self.paths.ensure()
        self.clock = 0.0

    def pause(self, seconds: float) -> None:
        self.clock += seconds

    def now(self) -> float:
        return self.clock


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def api(program: Program) -> Iterator[FakeApi]:
    with FakeApi(Path(program.paths.socket)) as fake:
        yield fake


@pytest.fixture
def client(program: Program) -> Client:
    return Client(environment=program)


def spec(root: Path) -> Path:
    (root / "train.py").write_text("")
    (root / "cluster.yaml").write_text(
        "version: 1\nname: mnist\nhosts:\n  - {name: here, transport: local, slots: 1}\n"
        "run:\n  strategy: single\n  script: train.py\n  workdir: .\n"
    )
    return root / "cluster.yaml"


def test_up_returns_the_run_and_wait_its_last_status(client: Client, api: FakeApi, tmp_path: Path) -> None:
    run = client.up(spec(tmp_path))
    assert (run.name, run.run_id, run.phase) == ("mnist", RUN, "PENDING")
    looks = iter(["RUNNING", "RUNNING", "FAILED"])
    api.on_status = lambda: api.runs[0].update(phase=next(looks, "FAILED"))
    assert run.wait(until="RUNNING")["phase"] == "RUNNING"
    assert run.wait()["phase"] == "FAILED"


def test_wait_gives_up_at_its_deadline_and_leaves_the_run(
    client: Client, api: FakeApi, program: Program
) -> None:
    api.runs.append(run_document())
    with pytest.raises(WaitTimedOut) as caught:
        client.run("mnist").wait(timeout_s=2.1)
    assert caught.value.exit_code == 7
    assert program.clock == pytest.approx(2.1)
    assert "the run continues" in str(caught.value.hint)
    assert api.posted == []


def test_a_wait_is_as_long_as_its_looks_are_expensive() -> None:
    assert [wait_s(look_s) for look_s in (0.001, 0.5, 60.0)] == [0.25, 5.0, 10.0]


def test_only_a_run_that_was_released_can_have_told_nothing_of_its_training() -> None:
    """`orch up` says then that its script has run for a while: of a run that waits for a host that is not so."""
    run = {"has_stepped": False, "phase_age_s": UNTOLD_MAX_S, "tasks": [{"stage": None}]}
    told = [phase for phase in Phase if is_untold({**run, "phase": phase.value})]
    assert told == [Phase.RUNNING]


def test_wait_gives_up_on_a_coordinator_that_stays_away(
    client: Client, api: FakeApi, program: Program
) -> None:
    api.runs.append(run_document())
    run = client.run("mnist")
    api.close()
    with pytest.raises((CoordinatorUnreachable, WaitTimedOut)) as caught:
        run.wait(timeout_s=600.0)
    assert caught.type is CoordinatorUnreachable
    assert AWAY_MAX_S <= program.clock < AWAY_MAX_S + WAIT_MAX_S


def test_events_are_those_of_the_run_until_it_has_ended(client: Client, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.events.append(event_document(1, "a", "x"))
    run = client.run()

    def end() -> None:
        api.runs[0]["phase"] = "SUCCEEDED"
        if len(api.events) == 1:
            api.events.append(event_document(2, "ended", "y"))
            api.events.append(event_document(3, "a", "of another", run="mnist-20261120-2"))

    found = []
    for event in run.events():
        found.append(event["seq"])
        api.on_status = end
    assert found == [1, 2]
    assert [event["seq"] for event in client.events("mnist")] == [1, 2, 3]


def test_logs_are_the_documents_of_the_command_line(client: Client, api: FakeApi, program: Program) -> None:
    api.runs.append(run_document())
    logs = RunLogs(program.paths.state_dir)
    logs.append(RUN, "worker:0", 1, 0, b"990.000000 o loading\n995.000000 e oops\n")
    logs.append(RUN, "worker:1", 1, 0, b"992.000000 o also\n")
    run = client.run()
    assert [line["text"] for line in run.logs()] == ["loading", "also", "oops"]
    assert [line["text"] for line in run.logs("worker:1")] == ["also"]
    assert [line["text"] for line in run.logs(since=991, tail=1)] == ["oops"]
    with pytest.raises(UsageError, match="has no log of worker:9"):
        run.logs("worker:9")


def test_logs_are_selected_as_on_the_command_line(client: Client, api: FakeApi, program: Program) -> None:
    api.runs.append(run_document())
    logs = RunLogs(program.paths.state_dir)
    for task, generation, host, text in (
        ("worker:0", 1, "gpu-a", b"990.000000 o step 1\n991.000000 e WARNING:root:slow\n"),
        ("worker:1", 1, "gpu-b", b"992.000000 o step 2\n"),
        ("worker:1", 2, "gpu-a", b"993.000000 o step 3\n994.000000 e ERROR:root:no\n"),
    ):
        logs.append(RUN, task, generation, 0, text)
        logs.put_host(RUN, task, generation, host)
    run = client.run()

    def texts(lines: Iterator[dict[str, object]]) -> list[object]:
        return [line["text"] for line in lines]

    assert texts(run.logs(grep="step [23]")) == ["step 2", "step 3"]
    assert texts(run.logs(grep="step", tail=1)) == ["step 3"]
    assert texts(run.logs(hosts="gpu-b")) == ["step 2"]
    assert texts(run.logs("worker:1", hosts=["gpu-a", "gpu-b"], generations=1)) == ["step 2"]
    assert texts(run.logs(generations=range(2, 9))) == ["step 3", "ERROR:root:no"]
    assert texts(run.logs(level="warning")) == ["WARNING:root:slow", "ERROR:root:no"]
    assert texts(run.logs(since=datetime.fromtimestamp(992.5, timezone.utc), level="info", grep="step")) == [
        "step 3"
    ]
    with pytest.raises(UsageError, match="has no log of gpu-c") as caught:
        run.logs(hosts="gpu-c")
    assert caught.value.hint == "its hosts: gpu-a, gpu-b"
    with pytest.raises(UsageError, match=r"'Adam\(' is no regular expression"):
        run.logs(grep="Adam(")
    with pytest.raises(UsageError, match="'loud' is none of the levels debug, info, warning, error"):
        run.logs(level="loud")  # type: ignore[arg-type]


def measured(name: str, generation: int, y: list[float | None], *, task: str = "") -> dict[str, object]:
    x = [float(n) for n in range(len(y))]
    return {"task": task, "name": name, "generation": generation, "x": x, "y": y}


def test_metrics_are_arrays_by_name(client: Client, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.series += [measured("loss", 1, [4.0, None, 2.0]), measured("loss", 2, [1.0])]
    api.series.append(measured("val/loss,mean", 1, [7.0]))
    api.series.append(measured("cpu_percent", 1, [50.0], task="worker:0"))
    found = client.run().metrics()
    assert list(found) == ["loss", "val/loss,mean"]
    assert list(found["val/loss,mean"].y) == [7.0]
    assert (list(found["loss"].x), list(found["loss"].y)) == ([0.0, 2.0, 0.0], [4.0, 2.0, 1.0])
    assert list(found["loss"].generation) == [1, 1, 2]
    assert list(client.run().metrics("worker:0/cpu_percent")["worker:0/cpu_percent"].y) == [50.0]
    with pytest.raises(UsageError, match="has no measurement 'lost'") as caught:
        client.run().metrics("lost")
    assert caught.value.hint == "it has: loss, val/loss,mean, worker:0/cpu_percent"


def test_a_frame_needs_pandas(client: Client, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.runs.append(run_document())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OrchestratorError, match="pandas is not installed"):
        client.run().metrics().frame()


def test_a_frame_has_the_last_value_of_a_step_that_was_trained_twice(client: Client, api: FakeApi) -> None:
    pandas = pytest.importorskip("pandas")
    api.runs.append(run_document())
    api.series += [measured("loss", 1, [4.0, 2.0]), measured("loss", 2, [3.0])]
    frame = client.run().metrics().frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["loss"].to_list() == [3.0, 2.0]


def test_kill_returns_the_proof_or_raises_what_is_left(client: Client, api: FakeApi) -> None:
    api.runs.append(run_document())
    proof = {"hosts": {"gpu-a": {"left": [], "ports_busy": []}}, "unreachable": []}
    api.on_kill = lambda run: run.update(phase="KILLED", proof=proof)
    assert client.run().kill(force=True)["proof"] == proof
    assert api.posted == [(f"/v1/runs/{RUN}/kill", {"force": True})]
    assert client.run("mnist").kill()["phase"] == "KILLED"  # it has ended: nothing is asked
    assert len(api.posted) == 1
    api.runs.append(run_document(name="other", run_id="other-20261120-1"))
    api.on_kill = lambda run: run.update(phase="KILLED", proof={"unreachable": ["gpu-b"]})
    for said in ("at first", "again"):
        with pytest.raises(SomeHostsOnly, match="could not check gpu-b") as caught:
            client.run("other").kill()
        assert caught.value.exit_code == 4, said
    assert len(api.posted) == 2


def test_why_comes_from_the_disk_where_no_coordinator_runs(client: Client, program: Program) -> None:
    logs = RunLogs(program.paths.state_dir)
    logs.append(RUN, "worker:0", 1, 0, b"990.000000 o loading\n")
    logs.put_first_cause(RUN, {"task": "worker:0", "generation": 1, "sentence": "it died"}, now=1.0)
    from orchestrator import Run

    found = Run(program, "mnist", RUN).why()
    assert (found["phase"], found["first_causes"][0]["sentence"]) == (None, "it died")
    with pytest.raises(CoordinatorUnreachable) as caught:
        client.runs()
    assert (caught.value.exit_code, bool(caught.value.hint)) == (3, True)


def test_any_thread_may_use_it(client: Client, api: FakeApi) -> None:
    api.runs.append(run_document())
    run, phases = client.run(), []
    threads = [threading.Thread(target=lambda: phases.append(run.phase)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert phases == ["RUNNING"] * 4


def test_importing_the_package_loads_nothing_until_the_client_is_asked_for() -> None:
    code = (
        "import sys, orchestrator; before = set(sys.modules); orchestrator.Client; "
        "print('orchestrator.client.client' in before, 'typing' in before or 'http.client' in before, "
        "'pydantic' in sys.modules, 'orchestrator.client.client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False", "True"]
