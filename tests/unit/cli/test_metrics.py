"""`orch metrics`: the numbers as Prometheus reads them, the board and the alerts that use them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

import orchestrator
from orchestrator.cli.commands.metrics import registry
from orchestrator.cli.options import parse_listen
from orchestrator.client.exposition import families
from orchestrator.core.errors import UsageError
from orchestrator.page import metrics
from orchestrator.page.serving import SILENT_MAX
from orchestrator.page.serving import server as serving_of
from orchestrator.protocol.limits import METRICS_MAX
from tests.contract.fake_api import FakeApi, run_document, task_document
from tests.unit.cli.desk import Desk

MONITORING = Path(orchestrator.__file__).parent.parent / "docs" / "monitoring"
PAGE = MONITORING.parent / "metrics.md"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool (Debian's prometheus) is not installed"
)

GPU = {
    "index": 0,
    "utilization_percent": 97,
    "memory_used_bytes": 71 << 30,
    "memory_total_bytes": 141 << 30,
    "power_w": 310.0,
    "temperature_c": 64,
}
HOST = {"host": "gpu-a", "link": "CONNECTED", "state": "ready", "cpu_percent": 50.0, "memory_percent": 25.0}


def everything() -> dict[str, Any]:
    """Return a document in which all is known that can be."""
    times = {"phase_age_s": 60.0, "elapsed_s": 3600.0, "eta_s": 1800.0, "steps_total": 240}
    run = run_document(hosts=[{**HOST, "gpus": [GPU]}], goodput=0.91, **times)
    return {"schema": 1, "runs": [run], "coordinator": {"version": "0.1.0"}}


def samples(document: dict[str, Any] | None) -> dict[tuple[str, str], float]:
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families(document)
        for sample in family.samples
    }


def test_the_numbers_have_base_units() -> None:
    found = samples(everything())
    expected = {
        ("orch_coordinator_up", ""): 1,
        ("orch_run_phase", "mnist,RUNNING"): 1,
        ("orch_run_phase", "mnist,FAILED"): 0,
        ("orch_run_global_step", "mnist"): 120,
        ("orch_run_remaining_seconds", "mnist"): 1800,
        ("orch_run_goodput_ratio", "mnist"): 0.91,
        ("orch_run_restarts_total", "mnist"): 1,
        ("orch_task_cpu_cores", "mnist,worker:0,gpu-a"): 0.982,
        ("orch_host_cpu_ratio", "gpu-a"): 0.5,
        ("orch_gpu_utilization_ratio", "gpu-a,0"): 0.97,
        ("orch_gpu_memory_used_bytes", "gpu-a,0"): 71 << 30,
    }
    assert {key: found.get(key) for key in expected} == pytest.approx(expected)


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    unknown = run_document(tasks=[task_document(0, steps_per_s=None, cpu_percent=None)], global_step=None)
    names = {name for name, _ in samples({"runs": [unknown]})}
    assert not names & {"orch_run_global_step", "orch_task_steps_per_second", "orch_task_cpu_cores"}
    assert samples(None) == {("orch_coordinator_up", ""): 0}


def test_labels_are_bounded() -> None:
    old, new = run_document(phase="FAILED"), run_document(run_id="mnist-20261120-2", global_step=7)
    many = {f"metric{n}" + "x" * 200: float(n) for n in range(300)} | {"val_loss": 1.0}
    found = samples({"runs": [old, {**new, "metrics": many}]})
    assert found["orch_run_global_step", "mnist"] == 7, "of a name the newest run"
    reported = [labels for name, labels in found if name == "orch_run_reported"]
    assert len(reported) == METRICS_MAX
    assert "mnist,val_loss" in reported
    assert max(map(len, reported)) <= len("mnist,") + 64


def test_a_hostile_name_does_not_break_the_format(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(metrics={'a"b\n\\c': 1.0, "nan": float("nan")}))
    text = generate_latest(registry(orch)).decode()
    found = {
        sample.labels.get("name")
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "orch_run_reported"
    }
    assert found == {'a"b\n\\c', "nan"}


def test_it_is_served_over_http_and_a_coordinator_that_ends_is_told(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    made = registry(orch)
    with serving(metrics.application(lambda: generate_latest(made), CONTENT_TYPE_LATEST, "t0ken")) as port:
        assert b'orch_run_global_step{run="mnist"} 120.0' in scraped(port)
        api.close()
        assert b"orch_coordinator_up 0.0" in scraped(port)


@contextlib.contextmanager
def serving(app: Starlette) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    made = serving_of(app)
    thread = threading.Thread(target=lambda: made.run(sockets=[listener]))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        made.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def scraped(port: int, **headers: str) -> bytes:
    asked = {"Authorization": "Bearer t0ken", **headers}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=asked)
    with urllib.request.urlopen(request, timeout=10) as answer:
        content: bytes = answer.read()
    return content


@pytest.mark.fault(52)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:9464"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_other_users_and_web_pages_read_nothing(headers: dict[str, str], status: int) -> None:
    with serving(metrics.application(lambda: b"orch 1", "text/plain", "t0ken")) as port:
        assert (
            scraped(port) == scraped(port, Host="localhost:9") == scraped(port, Host="[::1]:9") == b"orch 1"
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            scraped(port, **headers)
        assert caught.value.code == status
        assert "server" not in caught.value.headers, "which server it is is told to nobody"


@pytest.mark.fault(52)
def test_two_thousand_connections_that_say_nothing_cost_no_threads_and_keep_nobody_out() -> None:
    with serving(metrics.application(lambda: b"orch 1", "text/plain", "t0ken")) as port:
        assert scraped(port) == b"orch 1"
        before = threading.active_count()
        silent = []
        for number in range(2000):
            one = socket.create_connection(("127.0.0.1", port), timeout=10)
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127" if number % 2 else b"")
            silent.append(one)
        try:
            assert scraped(port) == b"orch 1"
            assert threading.active_count() <= before + 1
            silent[0].settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert silent[0].recv(1) == b"", "the oldest were closed"
        finally:
            for one in silent:
                one.close()


@pytest.mark.fault(52)
def test_connections_that_have_gone_close_none_of_those_that_wait() -> None:
    with (
        serving(metrics.application(lambda: b"orch 1", "text/plain", "t0ken")) as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as waits,
    ):
        for _ in range(2 * SILENT_MAX):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as gone:
                gone.shutdown(socket.SHUT_WR)
                assert gone.recv(1) == b"", "the server has seen that it goes"
        waits.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t0ken\r\n\r\n")
        assert waits.recv(12) == b"HTTP/1.1 200"


def test_once_prints_it_and_a_taken_port_is_said(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    assert orch("metrics", "--once") == 0
    assert 'orch_run_global_step{run="mnist"} 120.0\n' in orch.put_out
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert orch("metrics", "--listen", f"127.0.0.1:{port}") == 1
    assert f"error: cannot listen on 127.0.0.1:{port}: " in orch.said


@pytest.mark.parametrize(
    ("text", "expected"), [("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:1", ("::1", 1))]
)
def test_where_to_listen(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["9464", "localhost:9464", "127.0.0.1:99999", "127.0.0.1:x", ""])
def test_where_one_cannot_listen(text: str) -> None:
    with pytest.raises(UsageError, match="is no address with a port"):
        parse_listen(text)


def test_board_alerts_and_page_use_names_that_are_told() -> None:
    told = {name for name, _ in samples(everything())}
    board = json.loads((MONITORING / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for text in (*asked, (MONITORING / "alerts.yaml").read_text(), PAGE.read_text()):
        assert set(re.findall(r"\borch_[a-z_]+\b", text)) <= told
    assert told <= set(re.findall(r"\borch_[a-z_]+\b", PAGE.read_text()))


def promtool(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], input=given, capture_output=True, check=False, timeout=30)


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_metrics(orch: Desk, api: FakeApi) -> None:
    api.runs += everything()["runs"]
    done = promtool("check", "metrics", given=generate_latest(registry(orch)))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@needs_promtool
def test_the_alert_rules_are_right_and_fire_when_a_run_stalls() -> None:
    assert promtool("check", "rules", str(MONITORING / "alerts.yaml")).returncode == 0
    done = promtool("test", "rules", str(MONITORING / "alerts.test.yaml"))
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_scrapes_at_the_same_time_are_all_answered(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    found: list[bytes] = []
    made = registry(orch)
    threads = [threading.Thread(target=lambda: found.append(generate_latest(made))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [text.count(b"orch_coordinator_up 1.0") for text in found] == [1, 1, 1]
