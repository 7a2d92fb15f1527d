"""`notify:` in a spec and in one's own file: what is refused, with its place, and that no address is ever shown."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.core.plan import NotifyPlan
from orchestrator.spec.own_notify import OwnNotify, load_own
from orchestrator.spec.plan import load_plan, load_recipients
from orchestrator.spec.recipients import refusal, services

SPEC = """\
version: 1
name: mnist
hosts: [{name: here, transport: local}]
run:
  strategy: single
  script: train.py
  ports: 20000-20999
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "slack").write_text("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ\n")
    (tmp_path / "slack").chmod(0o600)
    return tmp_path


def spec(folder: Path, notify: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(f"{SPEC}  notify: {notify}\n")
    return path


def test_the_plan_names_services_and_no_addresses(folder: Path) -> None:
    notify = '{on: [failed, stalled], to: ["ntfy://s3cret-topic", {file: slack}, "ntfy://other"], lines: 3}'
    path = spec(folder, notify)
    plan, secrets = load_plan(path)
    assert plan.notify == NotifyPlan(("failed", "stalled"), ("ntfy", "slack", "ntfy-2"), 3)
    assert secrets == {}, "no task gets them"
    for word in ("s3cret", "TIiaj", "other"):
        assert word not in json.dumps(asdict(plan))
    assert [services([url])[0] for url in load_recipients(path)] == ["ntfy", "slack", "ntfy"]


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        (
            '{on: [faild], to: ["ntfy://t"]}',
            "8:17: run.notify.on[0]: must be one of failed, restarted, stalled, nonfinite, host-lost, quarantined, "
            "succeeded, disk-full; got 'faild'; did you mean `failed`?",
        ),
        (
            '{to: ["slak://t0ken"]}',
            "8:17: run.notify.to[0]: slak:// is no service that apprise knows; did you mean `slack`?",
        ),
        (
            '{to: ["https://hooks.example.org/t0ken"]}',
            "8:17: run.notify.to[0]: https:// is no service; for a webhook write jsons://HOST/PATH",
        ),
        (
            '{to: ["slack://t0ken"]}',
            "8:17: run.notify.to[0]: is no complete URL of slack; see https://appriseit.com/services/ for its form",
        ),
        (
            '{to: ["t0ken"]}',
            "8:17: run.notify.to[0]: must be a URL such as ntfy://TOPIC or slack://…; what is there is not shown, for "
            "it may be secret",
        ),
        (
            '{to: ["syslog://"]}',
            "8:17: run.notify.to[0]: syslog:// shows a message on this machine's own screen; choose a service that "
            "reaches you elsewhere",
        ),
        (
            "{to: [{file: t0ken}]}",
            "8:17: run.notify.to[0]: must be a file on this machine with the value in it; ",
        ),
        (
            "{to: [{fil: t0ken}]}",
            "8:17: run.notify.to[0]: must be a URL such as ntfy://TOPIC, or {file: PATH}",
        ),
        ("{to: [3]}", "8:17: run.notify.to[0]: must be a URL such as ntfy://TOPIC, or {file: PATH}"),
        ("{to: []}", "8:12: run.notify.to: must not be empty"),
        ("{on: [failed]}", "8:3: run.notify.to: is missing: the recipients"),
        ('{too: ["ntfy://t0ken"]}', "8:12: run.notify.too: unknown key; did you mean `to`?"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_without_the_address(
    folder: Path, notify: str, said: str
) -> None:
    with pytest.raises(SpecError) as error:
        load_plan(spec(folder, notify))
    assert f":{said}" in error.value.message
    assert "t0ken" not in error.value.message


def test_a_file_with_an_address_is_the_users_alone(folder: Path) -> None:
    (folder / "slack").chmod(0o644)
    with pytest.raises(SpecError, match=r"to\[0\]: others may read the file \(mode 0644\); chmod 600 it"):
        load_plan(spec(folder, "{to: [{file: slack}]}"))
    (folder / "slack").chmod(0o600)
    (folder / "slack").write_text("slak://t0ken")
    with pytest.raises(SpecError, match=r"to\[0\]: slak:// is no service") as error:
        load_plan(spec(folder, "{to: [{file: slack}]}"))
    assert "t0ken" not in error.value.message


def test_ones_own_file_is_read_and_checked_alike(tmp_path: Path) -> None:
    own = tmp_path / "notify.yaml"
    assert load_own(str(own)) == load_own("") == OwnNotify()
    own.write_text('on: [restarted]\nto: ["ntfy://t0ken"]\n')
    own.chmod(0o644)
    with pytest.raises(SpecError, match="1:1: file: others may read or own it") as error:
        load_own(str(own))
    assert "chmod 600" in str(error.value.hint)
    own.chmod(0o600)
    assert load_own(str(own)) == OwnNotify(("restarted",), ("ntfy://t0ken",), 10)
    assert "t0ken" not in repr(load_own(str(own)))
    own.write_text('on: [restartd]\nto: ["ntfi://t0ken"]\n')
    with pytest.raises(SpecError) as error:
        load_own(str(own))
    lines = error.value.message.splitlines()
    assert [line.split(": ", 1)[0].removeprefix(str(own)) for line in lines] == [":1:6", ":2:6"]
    assert "t0ken" not in error.value.message


def test_without_apprise_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    said = refusal("ntfy://t0ken")
    assert (
        said
        == "needs the library apprise, which is not installed; `pip install '.[notify]'` in the clone of orch "
        "installs it"
    )
