"""The environment of a task: what goes over what, and what of a login never reaches it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.host.shim.spawn import task_env
from orchestrator.protocol import wired

START: dict[str, Any] = {
    "host_dir": "/host",
    "run": "t-1",
    "task": "worker:1",
    "generation": 3,
    "bundle": "/bundle",
    "env": {},
}


def env(
    login: dict[str, str] | None = None,
    *,
    order: dict[str, str] | None = None,
    release: dict[str, str] | None = None,
    secrets: dict[str, str] | None = None,
    **start: Any,
) -> dict[str, str]:
    made = {**START, "env": order or {}, **start}
    return task_env(made, login or {}, secrets or {}, release or {}, "/host/runs/t-1/gen-000003")


@pytest.mark.parametrize(
    "name", ["ORCH_RESTARTS", "ORCH_CHECKPOINT_DIR", "ORCH_LOG_DIR", "ORCH_FD", "ORCH_X"]
)
def test_no_variable_of_ours_comes_from_the_login(name: str) -> None:
    assert name not in env({name: "of another run"})
    given = {"ORCH_RESTARTS", "ORCH_LOG_DIR"} & {name}
    assert env({name: "of another run"}, order=dict.fromkeys(given, "ours")).get(name) == (
        "ours" if given else None
    )


@pytest.mark.parametrize("name", sorted(wired.ALL))
def test_what_a_login_has_of_another_launcher_is_not_believed(name: str) -> None:
    """A stale TF_CONFIG in ~/.bashrc: a single process would wait for peers that nobody starts."""
    assert name not in env({name: "stale"})
    assert env({name: "stale"}, release={name: "of this generation"})[name] == "of this generation"
    assert env({name: "stale"}, order={name: "of the spec"})[name] == "of the spec"


def test_what_is_nearer_to_the_run_wins() -> None:
    assert env({"A": "login"})["A"] == "login"
    assert env({"A": "login"}, order={"A": "order"})["A"] == "order"
    assert env({"A": "login"}, order={"A": "order"}, release={"A": "release"})["A"] == "release"
    assert env({"A": "login"}, secrets={"A": "secret"})["A"] == "secret"
    assert env(order={"A": "order"}, secrets={"A": "secret"})["A"] == "secret"
    assert env({"PYTHONUNBUFFERED": ""})["PYTHONUNBUFFERED"] == ""
    assert env()["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize("way", ["order", "release", "secrets"])
def test_nothing_changes_the_marker_by_which_a_sweep_finds_the_task(way: str) -> None:
    ours = {
        "ORCH_HOST_DIR": "/host",
        "ORCH_RUN": "t-1",
        "ORCH_TASK": "worker:1",
        "ORCH_GENERATION": "3",
        "ORCH_CHECKPOINT_DIR": "/host/runs/t-1/gen-000003/scratch",
    }
    told: dict[str, Any] = {way: dict.fromkeys(ours, "another")}
    found = env(dict.fromkeys(ours, "another"), scratch=True, **told)
    assert {name: found[name] for name in ours} == ours


def test_our_code_comes_before_what_a_login_adds_to_the_path() -> None:
    assert env({"PYTHONPATH": "/theirs"})["PYTHONPATH"] == "/bundle:/theirs"
    assert env({"PYTHONPATH": "/theirs"}, order={"PYTHONPATH": "/specs"})["PYTHONPATH"] == "/bundle:/specs"
    assert env()["PYTHONPATH"] == "/bundle"


def test_a_proxy_of_the_login_files_is_gone_around_between_the_hosts() -> None:
    """GRPC reads http_proxy, and the workers of TensorFlow would wait for each other for ever."""
    order = {"no_grpc_proxy": "10.0.0.1,10.0.0.2"}
    assert env({"http_proxy": "p:1"}, order=order)["no_grpc_proxy"] == "10.0.0.1,10.0.0.2"
    assert env({"no_proxy": ".lab"}, order=order)["no_grpc_proxy"] == "10.0.0.1,10.0.0.2,.lab"
    both = {"no_proxy": ".lab", "no_grpc_proxy": "x"}
    assert env(both, order=order)["no_grpc_proxy"] == "10.0.0.1,10.0.0.2,x"
    assert env({"no_proxy": ".lab"})["no_proxy"] == ".lab"
    assert "no_grpc_proxy" not in env({"no_proxy": ".lab"})
