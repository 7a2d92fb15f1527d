"""The environment of a task: what goes over what, and what of a login never reaches it."""

from __future__ import annotations

import base64
from pathlib import Path
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
    "python": "python3",
    "script": "train.py",
    "args": [],
    "code": "c0de",
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


def test_a_script_finds_the_python_that_trains(tmp_path: Path) -> None:
    for name in ("a/python", "b/python", "b/python3", "c/python3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    a, b, c = (str(tmp_path / name) for name in "abc")

    def path(python: str, login: str) -> str:
        return env({"PATH": login}, python=python)["PATH"]

    assert path(f"{b}/python3", f"{a}:/usr/bin") == f"{b}:{a}:/usr/bin"
    assert path(f"{b}/python3", f"{b}:{a}") == f"{b}:{a}"
    assert path(f"{c}/python3", f"{a}:{b}") == f"{c}:{a}:{b}"
    assert path(f"{c}/python3", f"{a}:{c}") == f"{a}:{c}"
    assert path(f"{a}/python", "") == f"{a}:"
    assert path("python3", f"{a}:{b}") == f"{a}:{b}"


def test_what_a_shim_of_python_has_set_for_the_agent_is_not_inherited() -> None:
    login = b"PATH=/shims:/usr/bin\0A=1\nB=2\0ORCH_X=1\0"
    agents = {"PATH": "/3.11/bin:/shims:/usr/bin", "PYENV_VERSION": "3.11", "A": "3"}
    found = env({**agents, "ORCH_LOGIN": base64.encodebytes(login).decode()})
    assert (found["PATH"], found["A"]) == ("/shims:/usr/bin", "1\nB=2")
    assert not {"PYENV_VERSION", "ORCH_LOGIN", "ORCH_X"} & found.keys()


def test_a_proxy_of_the_login_files_is_gone_around_between_the_hosts() -> None:
    """GRPC reads http_proxy, and the workers of TensorFlow would wait for each other for ever."""
    order = {"no_grpc_proxy": "10.0.0.1,10.0.0.2"}
    assert env({"http_proxy": "p:1"}, order=order)["no_grpc_proxy"] == "10.0.0.1,10.0.0.2"
    assert env({"no_proxy": ".lab"}, order=order)["no_grpc_proxy"] == "10.0.0.1,10.0.0.2,.lab"
    both = {"no_proxy": ".lab", "no_grpc_proxy": "x"}
    assert env(both, order=order)["no_grpc_proxy"] == "10.0.0.1,10.0.0.2,x"
    assert env({"no_proxy": ".lab"})["no_proxy"] == ".lab"
    assert "no_grpc_proxy" not in env({"no_proxy": ".lab"})
    assert env({"no_grpc_proxy": "x"})["no_grpc_proxy"] == "x"


@pytest.mark.parametrize(
    ("changed", "is_another"),
    [
        ({"code": "c0ffee"}, True),
        ({"args": ["--filters", "16"]}, True),
        ({"order": {"FILTERS": "16"}}, True),
        ({"run": "t-2", "generation": 4, "task": "worker:0", "order": {"ORCH_RESTARTS": "1"}}, False),
    ],
)
def test_a_script_is_another_one_by_its_code_arguments_and_variables(
    changed: dict[str, Any], is_another: bool
) -> None:
    assert (env(**changed)["ORCH_SCRIPT"] != env()["ORCH_SCRIPT"]) == is_another
