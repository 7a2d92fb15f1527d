"""`setup:` of a spec: what becomes of the requirements, and which environment a host gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.core.plan import HostPlan
from orchestrator.head.hosts.wheels import platforms
from orchestrator.spec.plan import load_environment, load_plan
from orchestrator.spec.setup import Environment, read

SPEC = """\
version: 1
name: t
hosts: [{name: a, python: /opt/py/bin/python3}, {name: b}]
setup: {requirements: requirements.txt, python: "3.11"%s}
run: {strategy: multi_worker_mirrored, script: train.py, tasks: {worker: {replicas: 2}}}
"""


def spec(directory: Path, requirements: str, more: str = "") -> Path:
    (directory / "requirements.txt").write_text(requirements)
    (directory / "train.py").write_text("")
    (directory / "cluster.yaml").write_text(SPEC % more)
    return directory / "cluster.yaml"


def test_the_same_content_is_the_same_environment_and_all_of_it_counts(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("b==2\n")
    (tmp_path / "limits.txt").write_text("c<3\n")
    file = spec(tmp_path, "# why\na==1  # this\n-r more.txt\n-c limits.txt\nd==4 \\\n  --hash=sha256:00\n")
    asked, hosts = load_environment(file)
    assert asked is not None
    assert (asked.requirements, asked.constraints) == ("a==1\nb==2\nd==4 --hash=sha256:00", "c<3")
    assert [host.python for host in hosts] == ["/opt/py/bin/python3", "python3"], "these make it"
    pythons = [host.python for host in load_plan(file)[0].hosts]
    assert pythons == [asked.python(host) for host in hosts]
    assert pythons[1].startswith("~/.local/share/orch/environments/")
    assert len(set(pythons)) == 2
    spec(tmp_path, "a==1\n-r more.txt\n-c limits.txt\nd==4 --hash=sha256:00\n", ", offline: true")
    assert [host.python for host in load_plan(file)[0].hosts] == pythons
    (tmp_path / "more.txt").write_text("b==3\n")
    assert not {host.python for host in load_plan(file)[0].hosts} & set(pythons)


@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        ("-e .\n", "requirements.txt:1: '-e .' lies on the head node only"),
        ("six\n./dist/x.whl\n", "requirements.txt:2: './dist/x.whl' lies on the head node only"),
        ("--find-links=wheels\n", "is a directory of the head node: `offline: true`"),
        ("-r none.txt\n", "none.txt cannot be read: No such file or directory"),
        ("-r .\n", "is not a regular file"),
    ],
)
def test_what_the_hosts_cannot_install_is_refused_with_its_line(
    tmp_path: Path, requirements: str, said: str
) -> None:
    with pytest.raises(SpecError, match=r"cluster.yaml:4:23: setup.requirements: ") as refused:
        load_plan(spec(tmp_path, requirements))
    assert said in str(refused.value)


def test_offline_takes_directories_of_the_head_and_hosts_are_told_of_no_index(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    path.write_text("-f wheels\n--index-url https://x/\nsix\n--pre\n")
    texts = read(str(path), offline=True)
    asked = Environment(str(path), texts["r"], texts["c"], None, offline=True)
    assert asked.installed == "six\n--pre"
    assert asked.key("a") != asked.key("b")
    assert (
        asked.python(HostPlan("h")) == f"~/.local/share/orch/environments/{asked.key('python3')}/bin/python"
    )


def test_other_constraints_are_another_environment() -> None:
    keys = {Environment("r.txt", "six", text, None, offline=False).key("python3") for text in ("", "six<2")}
    assert len(keys) == 2


def test_what_an_engine_lends_is_not_set_up(tmp_path: Path) -> None:
    file = spec(tmp_path, "six\n")
    file.write_text(
        SPEC.replace("hosts: [{name: a, python: /opt/py/bin/python3}, {name: b}]", "slurm: {nodes: 2}") % ""
    )
    with pytest.raises(SpecError, match="setup: is for hosts of the file"):
        load_plan(file)


def test_wheels_are_collected_for_the_platform_that_a_host_told() -> None:
    assert platforms("glibc-2.17", "x86_64")[:2] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert platforms("glibc-2.36", "aarch64")[0] == "manylinux_2_36_aarch64"
    assert platforms("glibc-2.36", "x86_64")[-2:] == ["manylinux1_x86_64", "linux_x86_64"]
    assert platforms("musl", "x86_64") == ["musllinux_1_2_x86_64", "musllinux_1_1_x86_64", "linux_x86_64"]


def test_a_package_of_the_users_that_ours_would_shadow_is_refused(tmp_path: Path) -> None:
    file = spec(tmp_path, "")
    (tmp_path / "orchestrator").mkdir()
    load_plan(file)  # data may lie there
    (tmp_path / "orchestrator" / "__init__.py").write_text("")
    with pytest.raises(
        SpecError, match=r"cluster.yaml:5:.*run.script: orchestrator/__init__.py lies beside train.py"
    ):
        load_plan(file)
    (tmp_path / "orchestrator" / "bundle_main.py").write_text("")
    load_plan(file)  # our own sources
    (tmp_path / "orchestrator" / "bundle_main.py").unlink()
    file.write_text(file.read_text().replace("script:", "runtime: off, script:"))
    load_plan(file)
