"""One gate for all that is shown: whatever a host or a spec says, it does nothing to a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.session import _COLOURS, Paint
from orchestrator.cli.show.terminal import inert, screen
from orchestrator.head.records.runlogs import RunLogs
from tests.contract.fake_api import FakeApi, event_document, run_document
from tests.unit.cli.desk import RUN, WHY, Desk

ATTACKS = {
    "clear": "\x1b[2J",
    "up": "\x1b[3A",
    "title": "\x1b]0;pwned\x07",
    "link": "\x1b]8;;http://evil/\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "device": "\x1bP$qm\x1b\\",
    "answer back": "\x05",
    "eight bits": "\x9b2J",
    "overwritten": "fine\rEVIL",
    "backspace": "x\x08y",
    "delete": "a\x7f",
    "concealed": "\x1b[8mhidden",
    "concealed among others": "\x1b[1;8;31mhidden",
    "blinking": "\x1b[5mx",
    "half": "\x1b[",
    "backwards": "SHA256:\u202eabc",
}


@pytest.mark.fault(60)
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.fault(60)
def test_what_acts_on_a_terminal_is_shown_as_text(tmp_path: Path, name: str) -> None:
    text = f"before {ATTACKS[name]} after"
    desk = Desk(tmp_path)
    desk.put(text)
    desk.say(text)
    desk.prompt(text)
    desk.put_json({"text": text})
    for shown in (desk.put_out, desk.said, screen(text).plain):
        assert "before" in shown
        assert "after" in shown
        for character in set(ATTACKS[name]) - {"\n"}:
            assert character.isprintable() == (character in shown), f"{character!r} in {shown!r}"
    assert json.loads(desk.put_out.partition("\n")[2])["text"] == text, "JSON says the same, escaped"


def test_colours_stay_and_end_with_the_text(tmp_path: Path) -> None:
    paint = Paint(on=True)
    for style in _COLOURS:
        assert inert(paint("x", style, "bold")) == paint("x", style, "bold")
    logged = "\x1b[38;5;208mwarn\x1b[0m \x1b[1;4;97;41merror\x1b[m \x1b[38;2;1;2;3mx\x1b[39m"
    assert inert(logged) == f"{logged}\x1b[0m"
    assert inert("\x1b[31mred") == "\x1b[31mred\x1b[0m"
    assert inert("two\nlines\tand a tab, é, 漢") == "two\nlines\tand a tab, é, 漢"


@pytest.mark.fault(60)
@pytest.mark.parametrize(
    "command", ["status", "status --json", "events", "events --json", "stacks", "logs", "why", "why --json"]
)
def test_no_command_lets_a_hosts_words_act(orch: Desk, api: FakeApi, logs: RunLogs, command: str) -> None:
    evil = "x" + "".join(attack for name, attack in ATTACKS.items() if name != "overwritten")
    cause = {**WHY, "sentence": evil, "last_lines": [evil], "host": evil}
    run = run_document() | {"reason": evil, "first_cause": cause}
    run["tasks"][0] |= {"host": evil, "address": evil}
    api.runs.append(run)
    api.events.append(event_document(1, "started", evil))
    api.first_causes.append(cause)
    api.stacks = {"worker:0": evil}
    logs.append(RUN, "worker:0", 1, logs.end(RUN, "worker:0", 1), f"996.000000 o {evil}\n".encode())
    orch(*command.split())
    shown = (orch.put_out + orch.said).replace("\x1b[0m", "")  # what ends a colour does no harm
    assert "x" in shown
    acting = {character for character in shown if not character.isprintable()} - {"\n", "\t"}
    assert not acting, shown
