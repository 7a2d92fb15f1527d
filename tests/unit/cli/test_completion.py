"""What the shell offers when Tab is pressed: asked as the shell asks, by click's own protocol."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from orchestrator.cli import run_choice
from orchestrator.cli.main import PURPOSES, cli
from orchestrator.head.records.runlogs import RunLogs
from tests.contract.fake_api import FakeApi, run_document, task_document
from tests.unit.cli.desk import RUN, Desk


def offered(desk: Desk, *words: str) -> list[str]:
    """For the last of `words`, which has only been begun."""
    complete = ShellComplete(cli, {"obj": desk}, "orch", "_ORCH_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("drain", "gpu-"), ["gpu-a", "gpu-b"]),
        (("undrain", "gpu-b"), ["gpu-b"]),
        (("drain", "gpu-a", "--name", ""), ["mnist"]),
        (("chaos", "--kill", "w"), ["worker:0", "worker:1"]),
        (("chaos", "--cut", ""), ["gpu-a", "gpu-b"]),
        (("logs", "mn"), ["mnist"]),
        (("logs", "other"), []),
    ],
)
def test_names_are_those_of_what_runs(
    orch: Desk, api: FakeApi, words: tuple[str, ...], expected: list[str]
) -> None:
    hosts = [{"host": "gpu-a"}, {"host": "gpu-b"}]
    api.runs.append(run_document(tasks=[task_document(0), task_document(1)], hosts=hosts))
    assert offered(orch, *words) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ckpt", "rollback", "--to", ""), ["gen-5", "120", "gen-000005/ckpt-120"]),
        (("ckpt", "rollback", "mnist", "--to", "1"), ["120"]),
        (("ckpt", "pin", "mnist", "gen-5"), ["gen-5"]),
        (("ckpt", "pin", ""), ["mnist", "gen-5", "120", "gen-000005/ckpt-120"]),
        (("ckpt", "unpin", "nosuch", ""), []),
    ],
)
def test_checkpoints_are_those_of_the_run(
    orch: Desk, api: FakeApi, words: tuple[str, ...], expected: list[str]
) -> None:
    api.runs.append(run_document())
    api.checkpoints = {"checkpoints": [{"generation": 5, "global_step": 120, "name": "gen-000005/ckpt-120"}]}
    assert offered(orch, *words) == expected


def test_the_options_of_logs_and_the_runs_of_top(orch: Desk, api: FakeApi) -> None:
    hosts = [{"host": "gpu-a"}, {"host": "gpu-b"}]
    api.runs.append(run_document(tasks=[task_document(0), task_document(1)], hosts=hosts))
    assert offered(orch, "logs", "--host", "gpu-") == ["gpu-a", "gpu-b"]
    assert offered(orch, "logs", "--task", "") == ["worker:0", "worker:1"]
    assert offered(orch, "top", "m") == ["mnist"]


def test_commands_are_offered_as_help_shows_them(orch: Desk) -> None:
    """By the table: to ask each command for its sentence would import it."""
    found = ShellComplete(cli, {"obj": orch}, "orch", "_ORCH_COMPLETE").get_completions([], "")
    assert {item.value: item.help for item in found} == {
        name: told for commands in PURPOSES.values() for name, told in commands.items()
    }
    assert offered(orch, "dr") == ["drain"]
    assert offered(orch, "--ver") == ["--version"]


def test_without_a_coordinator_runs_come_from_the_disk(orch: Desk, logs: object) -> None:
    assert offered(orch, "logs", "") == ["mnist"]
    assert offered(orch, "chaos", "--kill", "") == []


def test_logs_know_the_tasks_and_hosts_of_runs_that_have_ended(orch: Desk, logs: RunLogs) -> None:
    logs.put_host(RUN, "worker:1", 1, "gpu-b")
    assert offered(orch, "logs", "mnist", "w") == ["worker:0", "worker:1"]
    assert offered(orch, "logs", RUN, "--task", "worker:1") == ["worker:1"]
    assert offered(orch, "logs", "--host", "") == ["gpu-b"]
    assert offered(orch, "logs", "nosuch", "") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "cursor", "expected"),
    [
        (["logs", "mn"], 2, ["mnist"]),
        (["logs", "mnist", ""], 3, ["worker:0", "worker:1"]),
        (["logs", "mnist", "worker", ":"], 4, ["0", "1"]),
        (["logs", "mnist", "worker", ":", "1"], 5, ["1"]),
        (["logs", "--task", "worker", ":", "1", "mn"], 6, ["mnist"]),
    ],
)
def test_bash_completes_tasks_although_it_cuts_words_at_colons(
    orch: Desk, logs: RunLogs, tmp_path: Path, words: list[str], cursor: int, expected: list[str]
) -> None:
    assert orch("completion", "bash") == 0
    program = tmp_path / "orch"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m orchestrator.cli.main "$@"\n')
    program.chmod(0o755)
    typed = " ".join(map(shlex.quote, ["orch", *words]))
    asked = f"{orch.put_out}\nCOMP_WORDS=({typed}) COMP_CWORD={cursor}\n_orch_completion {program}\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{asked}printf "%s\\n" "${{COMPREPLY[@]}}"'],
        env={**os.environ, **orch.environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")


def test_the_script_that_a_shell_reads(orch: Desk) -> None:
    assert orch("completion", "zsh") == 0
    assert "_ORCH_COMPLETE" in orch.put_out


def test_ctrl_c_while_words_are_completed_prints_nothing(orch: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_ctx: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_choice, "_runs_now", interrupted)
    monkeypatch.setenv("_ORCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "orch status ")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert orch() == 130
    assert (orch.put_out, orch.said) == ("", "")
