"""A script that would train once in each worker is refused before anything starts, with the way out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.commands.import_ import put
from orchestrator.core.errors import SpecError
from orchestrator.spec.foreign.layout import Layout, Machine, Training
from orchestrator.spec.plan import load_plan
from tests.unit.cli.desk import Desk

FIT = "import keras\nmodel = keras.Sequential()\nmodel.fit(x, y)\n"
LOOP = "import tensorflow as tf\nwith tf.GradientTape() as tape:\n    pass\n"


def spec(tmp_path: Path, script: str, strategy: str, tasks: str, more: str = "") -> str:
    (tmp_path / "train.py").write_text(script)
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "version: 1\nname: t\nhosts: [{name: a, address: 10.0.0.1, slots: 4}, {name: b, address: 10.0.0.2, slots: 4}]\n"
        f"run:\n  strategy: {strategy}\n  script: train.py\n  tasks: {tasks}\n{more}"
    )
    return str(file)


@pytest.mark.parametrize(
    ("script", "strategy", "tasks", "said"),
    [
        (
            FIT,
            "multi_worker_mirrored",
            "{worker: {replicas: 2}}",
            "train.py makes no strategy: two workers would train two copies; `transparent: true` makes one training of "
            "it",
        ),
        (
            f"import tensorflow as tf\ntf.distribute.MirroredStrategy()\n{FIT}",
            "multi_worker_mirrored",
            "{chief: {}, worker: {replicas: 2}}",
            "train.py makes a MirroredStrategy, which is of one machine: three workers would train three copies; "
            "`transparent: true` makes one training of it",
        ),
        (
            LOOP,
            "multi_worker_mirrored",
            "{worker: {replicas: 2}}",
            "train.py makes no strategy: two workers would train two copies; make a MultiWorkerMirroredStrategy in it, "
            "and take its steps with `strategy.run`",
        ),
        (
            FIT,
            "parameter_server",
            "{chief: {}, worker: {replicas: 2}, ps: {}}",
            "train.py makes no strategy: its chief would train alone; `strategy: multi_worker_mirrored` with "
            "`transparent: true` makes one training of it",
        ),
        (
            FIT,
            "horovod",
            "{worker: {replicas: 2}}",
            "train.py does not use horovod: two workers would train two copies; `strategy: multi_worker_mirrored` with "
            "`transparent: true` makes one training of it",
        ),
    ],
)
@pytest.mark.fault(118)
def test_it_is_refused_at_its_line(tmp_path: Path, script: str, strategy: str, tasks: str, said: str) -> None:
    file = spec(tmp_path, script, strategy, tasks)
    with pytest.raises(SpecError) as refused:
        load_plan(file)
    assert str(refused.value) == f"{file}:6:11: run.script: {said}"


def test_workers_that_are_split_over_the_hosts_are_counted_by_these(tmp_path: Path) -> None:
    file = Path(spec(tmp_path, FIT, "multi_worker_mirrored", "{worker: {gpus: split}}"))
    file.write_text(file.read_text().replace("slots: 4", "gpus: 4"))
    with pytest.raises(SpecError, match="two workers would train two copies"):
        load_plan(file)


@pytest.mark.parametrize(
    ("strategy", "tasks", "more"),
    [
        ("multi_worker_mirrored", "{worker: {replicas: 2}}", "  transparent: true\n"),
        ("multi_worker_mirrored", "{worker: {}}", ""),
        ("single", "{worker: {}}", ""),
        ("processes", "{worker: {replicas: 2}}", ""),
    ],
)
def test_one_training_is_not(tmp_path: Path, strategy: str, tasks: str, more: str) -> None:
    assert load_plan(spec(tmp_path, FIT, strategy, tasks, more))[0].strategy == strategy


@pytest.mark.parametrize(("script", "transparent"), [(FIT, True), (LOOP, False), ("import keras\n", False)])
def test_a_file_that_orch_writes_asks_for_it(tmp_path: Path, script: str, transparent: bool) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "train.py").write_text(script)
    layout = Layout(
        "hosts", (Machine("a"), Machine("b")), "multi_worker_mirrored", {"worker": 2}, Training("train.py")
    )
    file = str(tmp_path / "cluster.yaml")
    put(desk, replace(layout, checkpoint="/shared/t"), "t", file)
    assert ("transparent: true" in Path(file).read_text()) == transparent
    if transparent:
        assert load_plan(file)[0].options.transparent


@pytest.mark.parametrize(
    ("lines", "is_refused"),
    [
        ("os.environ['TF_CONFIG'] = '{}'\n", True),
        ("import json\nos.environ['TF_CONFIG'] = json.dumps({'cluster': {}})\n", True),
        ("os.environ.update({'TF_CONFIG': '{}'})\n", True),
        ("if 'TF_CONFIG' not in os.environ:\n    os.environ['TF_CONFIG'] = '{}'\n", False),
        ("os.environ.setdefault('TF_CONFIG', '{}')\n", False),
        ("def alone():\n    os.environ['TF_CONFIG'] = '{}'\n", False),
    ],
)
def test_a_script_that_names_its_own_peers_is_refused_with_its_line(
    tmp_path: Path, lines: str, is_refused: bool
) -> None:
    script = f"import os\n{lines}import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n"
    file = spec(tmp_path, script, "multi_worker_mirrored", "{worker: {replicas: 2}}")
    if not is_refused:
        load_plan(file)
        return
    with pytest.raises(
        SpecError, match=r"train.py:\d sets TF_CONFIG, and so other peers .* remove that line"
    ):
        load_plan(file)


def test_the_strategy_of_a_module_may_stand_beside_its_package(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("")
    (tmp_path / "lab" / "train.py").write_text(f"import shared\n{FIT}")
    (tmp_path / "shared.py").write_text(
        "import tensorflow as tf\nS = tf.distribute.MultiWorkerMirroredStrategy()\n"
    )
    file = Path(spec(tmp_path, FIT, "multi_worker_mirrored", "{worker: {replicas: 2}}"))
    file.write_text(file.read_text().replace("script: train.py", "module: lab.train"))
    assert load_plan(file)[0].strategy == "multi_worker_mirrored"
