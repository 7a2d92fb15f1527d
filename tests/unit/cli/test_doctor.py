"""`orch doctor --fix`: what it does by itself, what it asks for, and what it leaves alone."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.both.logind import ends_tasks
from orchestrator.cli.commands import doctor, gc, trust
from orchestrator.cli.commands.doctor import _Fixes, _orphans
from orchestrator.cli.host_queries import confirm
from orchestrator.cli.orphans import Item
from orchestrator.cli.session import Session
from orchestrator.core.errors import Refused
from orchestrator.core.plan import HostPlan, Plan
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Problem
from orchestrator.head.hosts.examination import Examined
from orchestrator.head.journal.journal import Journal
from orchestrator.protocol.orders.driving import KnownRun
from orchestrator.reporting.findings import Finding, finding, problem_finding
from tests.unit.cli.desk import SPEC, Desk
from tests.unit.cli.test_orphans import a_run, journaled


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.paths.ensure()
    return made


def plan_of(**env: str) -> Plan:
    return Plan("t", "processes", (HostPlan("a", transport="local"),), (), "train.py", env=env)


def a_person(monkeypatch: pytest.MonkeyPatch, *typed: str) -> None:
    monkeypatch.setattr(doctor, "is_interactive", lambda _: True)
    monkeypatch.setattr("sys.stdin", StringIO("".join(f"{line}\n" for line in typed)))


def test_a_missing_tmpdir_is_made_whatever_its_name_is(desk: Desk, tmp_path: Path) -> None:
    name = tmp_path / "a b'; touch x; '$(touch y)"
    missing = [finding("storage.missing", "a: it does not exist", "a")]
    fixes = _Fixes(desk, plan_of(TMPDIR=str(name)), missing)
    assert fixes.all([]) == 1
    assert name.stat().st_mode & 0o777 == 0o700
    assert not any(Path(one).exists() for one in ("x", "y"))
    (tmp_path / "file").touch()
    fixes = _Fixes(desk, plan_of(TMPDIR=str(tmp_path / "file/in")), missing)
    assert fixes.all([]) == 0
    assert "Not a directory" in desk.said


def test_a_fix_that_hangs_on_a_host_is_given_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FIX_S", 0.05)
    monkeypatch.setattr(doctor, "_MAKE_DIRECTORY", "read -r d; read -r never")
    missing = [finding("storage.missing", "a: it does not exist", "a")]
    assert _Fixes(desk, plan_of(TMPDIR="/x"), missing).all([]) == 0
    assert "not ended within" in desk.said


@pytest.mark.parametrize("helps", [True, False])
def test_linger_is_enabled_only_where_the_host_says_that_it_helps(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    ran: list[tuple[str, str]] = []

    def carried_out(_session: object, host: HostPlan, command: str, *_: object, **__: object) -> str:
        ran.append((host.name, command))
        return ""

    monkeypatch.setattr(doctor, "carried_out", carried_out)
    conf = tmp_path / "etc/systemd/logind.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[Login]\nKillUserProcesses=yes\n")
    warning = ends_tasks("ml", can_leave=helps, root=str(tmp_path), cgroup="0::/user.slice/session-3.scope\n")
    found = [finding("host.ends-at-logout", f"a: {warning}", "a")]
    assert _Fixes(desk, plan_of(), found).all([]) == helps
    assert ran == [("a", "loginctl enable-linger")] * helps
    assert ("from now on stays" in desk.said) == helps


def test_a_coordinator_without_the_ssh_agent_that_you_have(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yours, dead = str(tmp_path / "agent"), str(tmp_path / "dead")
    plan = replace(plan_of(), hosts=(HostPlan("a"),))
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(yours)
        agent.listen()

        def found(plan: Plan = plan, **environ: str) -> list[str]:
            coordinator = subprocess.Popen(
                ["/bin/sh", "-c", "echo; read -r line"],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            try:
                assert coordinator.stdout is not None
                coordinator.stdout.readline()  # an environment is shown a moment after the program has begun
                client = SimpleNamespace(get=lambda _: {"pid": coordinator.pid})
                monkeypatch.setattr(desk, "client", lambda: client)
                return [one.message for one in doctor._agents(desk, plan)]
            finally:
                coordinator.communicate()

        assert found() == [], "you have none either"
        monkeypatch.setattr(desk, "environ", {**desk.environ, "SSH_AUTH_SOCK": yours})
        assert found(SSH_AUTH_SOCK=yours) == []
        (none,) = found()
        assert none.endswith("knows of none")
        (gone,) = found(SSH_AUTH_SOCK=dead)
        assert gone.endswith(f"asks {dead}, where nothing answers")
        assert found(plan_of()) == [], "no host is reached by SSH"


def run_of(name: str, owner: str, **more: Any) -> KnownRun:
    claim = {"id": owner, "head": "head-1", "user": "ml", "name": "t", "checkpoint_dir": None, "since": 1.0}
    told = {"run": name, "directory": True, "epoch": 1, "claim": claim, "driven": False, "alive": False}
    return cast("KnownRun", {**told, "processes": [], "bytes": 0, "age_s": 1.0, **more})


def test_orphans_are_what_this_head_began_and_knows_no_more(desk: Desk) -> None:
    with closing(Journal(desk.paths.journal)) as journal:
        me = journal.owner_id()
    runs = [
        run_of("t-1", me, alive=True, processes=[77]),
        run_of("t-2", "another", alive=True),
        run_of("t-3", me, driven=True),
        run_of("t-4", me),
        run_of("t-20260101-000000", me),
    ]
    journaled(desk, a_run(Phase.FAILED))
    found = _orphans(desk, plan_of(), {"a": runs})
    assert [item.run for item in found] == ["t-1", "t-4"]
    assert [doctor._orphan_finding(item).level for item in found] == ["warning", "fine"]


def test_a_script_that_reads_json_is_asked_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    journaled(desk)
    with closing(Journal(desk.paths.journal)) as journal:
        runs = {"here": [run_of("t-1", journal.owner_id())]}
    monkeypatch.setattr(doctor, "examined", lambda *_, **__: Examined((), {}, runs))
    removed: list[object] = []

    def remove(*words: object) -> dict[Item, str]:
        removed.append(words)
        return {}

    monkeypatch.setattr(gc, "remove", remove)
    file = Path(desk.paths.state_dir).parent / "cluster.yaml"
    file.write_text(SPEC)
    file.with_name("train.py").touch()
    for options, goes in ((["--json"], 0), ([], 1)):
        a_person(monkeypatch, "y")
        assert desk("doctor", str(file), "--fix", *options) == 0
        assert len(removed) == goes


@pytest.mark.parametrize(("typed", "goes"), [("y", True), ("n", False)])
def test_orphans_and_keys_need_a_yes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: str, goes: bool
) -> None:
    removed: list[Item] = []
    trusted: list[str] = []

    def remove(_session: object, _ask: object, items: list[Item], *_: object) -> dict[Item, str]:
        removed.extend(items)
        return {}

    monkeypatch.setattr(gc, "remove", remove)

    def trust_rounds(
        session: Session, _way: object, hosts: list[HostPlan], *_: object, **__: object
    ) -> object:
        if not confirm(session, "Trust this key?"):
            raise Refused("not confirmed; no key was added")
        trusted.extend(host.name for host in hosts)
        return [], len(hosts)

    monkeypatch.setattr(trust, "trust_rounds", trust_rounds)
    orphan = Item("t-1", "a", "directory", "alive", pids=(77,))
    unknown = problem_finding(Problem("host-key-unknown", "a: its key is not known", exit_code=5), "a")
    changed = replace(unknown, problem=Problem("host-key-changed", "a: another key", exit_code=5))

    def done(*found: Finding, asks: bool = True) -> int:
        desk.wants_json = not asks
        return _Fixes(desk, plan_of(), found).all([orphan])

    a_person(monkeypatch, typed, typed)
    assert done(unknown, asks=False) == 0, "nobody is asked"
    assert (removed, trusted) == ([], [])
    assert done(unknown) == 2 * goes, "what was not confirmed is not fixed"
    assert "kill its processes (pid 77 on a)" in desk.said
    assert (bool(removed), bool(trusted)) == (goes, goes)
    a_person(monkeypatch, typed)
    done(changed)
    assert len(trusted) == goes, "one that has changed is for `orch trust --replace`"
