"""Commands that wait for hours before they submit: what they took first is whole then, whatever has ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.both.trial_records import MEASURED_PREFIX
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.reach.kubernetes import lent
from tests.contract.fake_api import FakeApi
from tests.unit.cli.desk import SPEC, Desk
from tests.unit.cli.pods import Pods

PODS = "kubernetes: {pods: 2, image: mine}"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Of a directory with a file of which nothing is kept once its run has ended."""
    file = tmp_path / "work" / "cluster.yaml"
    file.parent.mkdir()
    file.write_text(SPEC)
    file.with_name("train.py").touch()
    file.with_name("vocabulary.bin").write_bytes(b"\0words")
    return file


def two_hours_pass(orch: Desk, ended: str = "") -> None:
    """Let a coordinator see the end of a run, two hours after the code was taken. `ended`: the digest that it had."""
    snapshots = Snapshots(orch.paths.state_dir)
    if ended:
        snapshots.keep("ended-1", ended)
    for record in Path(snapshots.directory, "trees").glob("*.json"):
        age = record.stat().st_mtime - 7200.0
        os.utime(record, (age, age))
    snapshots.tidy(set())


def assert_whole(orch: Desk, digest: str) -> None:
    kept = Snapshots(orch.paths.state_dir).keep("begins-1", digest)
    assert {file.path for file in kept.files} == {"cluster.yaml", "train.py", "vocabulary.bin"}
    assert Path(kept.directory, "vocabulary.bin").read_bytes() == b"\0words"


def test_pods_are_waited_for(orch: Desk, api: FakeApi, pods: Pods, spec: Path) -> None:
    spec.write_text(SPEC.replace("hosts:\n  - {name: here, transport: local, slots: 2}", PODS))

    def on_pause() -> None:
        two_hours_pass(orch)
        (made,) = lent.all_of(orch.paths.state_dir)
        for name in made.pod_names:
            pods.run(name, made)

    orch.on_pause = on_pause
    assert orch("up", str(spec), "--on", "k8s", "--detach") == 0
    assert orch.clock > 0, "it waited"
    assert_whole(orch, api.posted[0][1]["code"])


@pytest.mark.parametrize("words", [("scale", "--replicas", "1,2"), ("prove",)])
def test_trainings_of_the_same_code_follow_each_other(
    orch: Desk, api: FakeApi, spec: Path, words: tuple[str, ...]
) -> None:
    spec.write_text(SPEC.replace("script:", "transparent: true\n  script:"))
    asked: list[str] = []

    def on_status() -> None:
        asked.append(api.posted[-1][1]["code"])
        two_hours_pass(orch, ended=asked[-1])
        api.runs[-1].update(phase="SUCCEEDED", metrics={f"{MEASURED_PREFIX}step_s": 0.1})

    api.on_status = on_status
    orch(words[0], str(spec), *words[1:])
    assert asked, orch.said
    assert_whole(orch, asked[-1])
