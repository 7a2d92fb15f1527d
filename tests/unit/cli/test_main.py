"""The frame of all commands: help, words that are no command, and what is told of errors."""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.cli.main import _SYNONYMS, COMMANDS, acting_command
from orchestrator.cli.session import Session
from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import RUN, Desk, phases


def test_version(orch: Desk) -> None:
    assert orch("--version") == 0
    assert orch.put_out == f"orch {__version__}\n"


def test_help_names_every_command(orch: Desk) -> None:
    assert orch("--help") == 0
    assert [name for name in COMMANDS if f"  {name} " not in orch.put_out] == []


class Closed(StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


@pytest.mark.parametrize(
    ("argv", "code"), [(("status",), 0), (("events", "mnist"), 0), (("kill", "mnist"), 141)]
)
def test_who_reads_no_further_is_no_error_unless_there_was_more_to_do(
    orch: Desk, api: FakeApi, argv: tuple[str, ...], code: int
) -> None:
    api.runs.append(run_document())
    api.events.append(
        {"seq": 1, "time": "2026-11-20T12:00:00Z", "run": RUN, "kind": "running", "message": "trains"}
    )
    if argv[0] == "kill":
        phases(api, {}, {"phase": "KILLED"})
    orch.out = Closed()
    assert orch(*argv) == code
    assert ("stdout was closed before `orch kill` ended" in orch.said) == (code != 0)


@pytest.mark.parametrize("argv", [("status",), ("--help",), ("--version",), ("completion", "bash")])
def test_a_full_stdout_is_an_error_and_no_bug(orch: Desk, api: FakeApi, argv: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as orch.out:
        assert orch(*argv) == 1
    assert orch.said == "error: cannot write to stdout: No space left on device\n"


@pytest.mark.parametrize(
    ("argv", "acting"),
    [
        (("events", "kill"), None),
        (("ckpt", "ls", "rollback"), None),
        (("ckpt", "rollback", "mnist"), "ckpt rollback"),
        (("ckpt", "rollback", "--help"), None),
        (("kill", "events"), "kill"),
    ],
)
def test_a_command_is_known_by_its_place_and_not_by_the_name_of_a_run(
    argv: tuple[str, ...], acting: str | None
) -> None:
    assert acting_command(argv) == acting


def test_a_full_stdout_tells_what_may_not_be_done(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    phases(api, {}, {"phase": "KILLED"})
    with open("/dev/full", "w") as orch.out:
        assert orch("kill", "mnist") == 1
    assert "hint: the command may not have finished" in orch.said


def test_a_mistyped_command(orch: Desk) -> None:
    assert orch("stauts") == 2
    assert orch.said == (
        "error: no such command: 'stauts'; did you mean `orch status`?\n"
        "hint: `orch --help` shows its arguments and options\n"
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [("down", "kill"), ("ps", "status"), ("run", "up"), ("shell", "ssh"), ("help", "--help")],
)
def test_words_of_other_tools_lead_to_ours(orch: Desk, word: str, meant: str) -> None:
    assert orch(word, "mnist") == 2
    assert orch.said.startswith(f"error: no such command: '{word}'; did you mean `orch {meant}`?\n")


def test_every_word_of_other_tools_leads_somewhere() -> None:
    assert not _SYNONYMS.keys() & set(COMMANDS)
    assert {word for word in _SYNONYMS.values() if word[0] != "-"} <= set(COMMANDS)


def test_a_mistyped_option(orch: Desk) -> None:
    assert orch("status", "--jsn") == 2
    assert orch.said.startswith("error: no such option")
    assert "`orch status --help`" in orch.said


@pytest.mark.parametrize("words", [(), ("ckpt",), ("coordinator",), ("service",)])
def test_no_command_named_is_answered_with_those_there_are(orch: Desk, words: tuple[str, ...]) -> None:
    assert orch(*words) == 2
    assert orch.said.startswith("Usage: orch")
    assert "error:" not in orch.said


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


def test_talk_that_nobody_listens_to_ends_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as nobody, open(tmp_path / "out", "w") as out:
        session = Session(out, nobody, {"ORCH_STATE_DIR": str(tmp_path), "ORCH_RUNTIME_DIR": str(tmp_path)})
        session.say("starting")
        session.say("and once more; and its close, which flushes, does not complain either")
    assert (tmp_path / "out").read_text() == "", "nor does it go where the data goes"
