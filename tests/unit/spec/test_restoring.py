"""What a fault costs, by the script's sources, and advice that a script survives by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.plan import Plan
from orchestrator.reporting.fault_costs import fault_costs, sentence
from orchestrator.spec import own_paths
from orchestrator.spec.plan import load_plan
from orchestrator.spec.restoring import with_checkpoint

HEAD = "import os, keras\nmodel = keras.Sequential()\n"
FIT = "model.fit(x, y, callbacks=callbacks)\n"
ADD = "add `orchestrator.keras.Checkpoint()` to the callbacks of its `fit`, or write `transparent: true`"


def plan_of(tmp_path: Path, script: str, more: str = "", strategy: str = "single", tasks: str = "{}") -> Plan:
    (tmp_path / "train.py").write_text(script)
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "version: 1\nname: t\nhosts: [{name: a, address: 10.0.0.1, slots: 2}, {name: b, address: 10.0.0.2, slots: 2}]\n"
        f"run:\n  strategy: {strategy}\n  script: train.py\n  tasks: {{worker: {tasks}}}\n{more}"
    )
    return load_plan(str(file))[0]


KEPT = "  checkpoint: {dir: /shared/t}\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (HEAD + FIT, f"train.py saves nothing; {ADD}"),
        (
            HEAD + "callbacks = [keras.callbacks.ModelCheckpoint('best.keras')]\n" + FIT,
            f"train.py:3 saves by ModelCheckpoint, and nothing restores; {ADD}",
        ),
        (
            HEAD
            + "place = os.environ['ORCH_CHECKPOINT_DIR']; callbacks = [keras.callbacks.ModelCheckpoint(place + '/a')]\n"
            + FIT,
            f"train.py:3 saves by ModelCheckpoint, and nothing restores; {ADD}",
        ),
        (
            HEAD + FIT + "model.save('final.keras')\nkeras.models.load_model('final.keras').evaluate(x, y)\n",
            f"train.py:4 saves by save, and nothing restores; {ADD}",
        ),
        (
            HEAD
            + "def recover_labels(y):\n    return y\nrecover_labels(1)\n"
            + FIT
            + "model.save('final.keras')\n",
            f"train.py:7 saves by save, and nothing restores; {ADD}",
        ),
        (
            HEAD + "model = keras.models.load_model('base.keras')\n" + FIT + "model.save('final.keras')\n",
            f"train.py:5 saves by save, and nothing restores; {ADD}",
        ),
        (
            "import tensorflow as tf\nwith tf.GradientTape() as tape:\n    pass\n",
            'train.py saves nothing; restore in it the newest checkpoint of os.environ["ORCH_CHECKPOINT_DIR"], and '
            "save there",
        ),
    ],
)
def test_a_script_that_restores_nothing_costs_everything(tmp_path: Path, script: str, why: str) -> None:
    costs = fault_costs(plan_of(tmp_path, script, KEPT))
    assert costs == {"kind": "everything", "why": why}
    assert sentence(costs) == f"a fault costs everything since step 0: {why}"


@pytest.mark.parametrize(
    "script",
    [
        HEAD + "callbacks = [keras.callbacks.BackupAndRestore(os.environ['ORCH_CHECKPOINT_DIR'])]\n" + FIT,
        HEAD + "if os.path.exists('a.keras'):\n    model = keras.models.load_model('a.keras')\n"
        "callbacks = [keras.callbacks.ModelCheckpoint('a.keras')]\n" + FIT,
        HEAD
        + "place = os.environ['ORCH_CHECKPOINT_DIR']\nmodel.load_weights(place + '/w')\n"
        + FIT
        + "model.save_weights(place + '/w')\n",
        "import tensorflow as tf\nwith tf.GradientTape() as tape:\n    pass\n"
        "manager = tf.train.CheckpointManager(c, 'x')\nc.restore(manager.latest_checkpoint)\n",
        "import trainer\ntrainer.main()\n",
        # Lines of two functions say nothing of their order
        HEAD + "def train():\n    before()\n    " + FIT + "    model.save('a.keras')\n"
        "def before():\n    model.load_weights('a.keras')\ntrain()\n",
        HEAD
        + "def train():\n    "
        + FIT
        + "class T:\n    def go(self):\n        model.load_weights('a')\n        train()\n"
        "model.save_weights('a')\n",
        # A callback of a library, which is called what it does
        HEAD + "from lab.callbacks import AutoResume\ncallbacks = [AutoResume('/shared')]\n" + FIT,
        HEAD + "import lab\ncallbacks = [lab.RestoreTraining('/shared')]\n" + FIT,
        "import json, os\njson.load(open(os.environ['ORCH_CHECKPOINT_DIR'] + '/state'))\n",
    ],
)
def test_a_script_that_may_restore_costs_what_came_since_the_save(tmp_path: Path, script: str) -> None:
    assert fault_costs(plan_of(tmp_path, script, KEPT))["kind"] == "since-save"


def test_each_kind_says_why(tmp_path: Path) -> None:
    plain = HEAD + FIT
    two = {"strategy": "multi_worker_mirrored", "tasks": "{replicas: 2}"}
    assert fault_costs(plan_of(tmp_path, plain))["why"].startswith("nothing is kept: give `checkpoint:")
    own = plan_of(tmp_path, plain, KEPT + "  transparent: true\n", **two)
    untried = {"kind": "nothing", "why": "a survivor hands over its state (rescue: not rehearsed yet)"}
    assert fault_costs(own) == fault_costs(own, "", ["1.0 MB in 0.1 s", ""]) == untried
    tried = fault_costs(own, "", ["1.0 MB in 0.1 s", "1.0 MB in 0.2 s"])
    assert tried == {"kind": "nothing", "why": "a survivor hands over its state (rescue: 1.0 MB in 0.1 s)"}
    assert fault_costs(own, "", ["1.0 MB in 0.1 s", "no: the disk is full"]) == {
        "kind": "since-save",
        "why": "it saves as often as costs least; a survivor would hand over nothing: the disk is full",
    }
    assert fault_costs(own, "its optimizer cannot be read")["kind"] == "since-save", "the run has found out"
    ten = plan_of(
        tmp_path, plain, "  checkpoint: {dir: /shared/t, every: 10m}\n  transparent: true\n", "mirrored"
    )
    assert fault_costs(ten) == {"kind": "since-save", "why": "at most 10 min"}
    off = replace(own, restart=replace(own.restart, rescue_s=0.0))
    assert fault_costs(off)["kind"] == "since-save"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("steps_per_execution=4", "steps_per_execution=4"),
        ("'adam', jit_compile=True", "jit_compile=True"),
        ("steps_per_execution=1, jit_compile=False", ""),
        ("steps_per_execution=many", ""),
        ("jit_compile='auto'", ""),
    ],
)
def test_what_keeps_steps_from_being_handed_over_is_said_before_the_start(
    tmp_path: Path, given: str, why: str
) -> None:
    two = {"strategy": "multi_worker_mirrored", "tasks": "{replicas: 2}"}
    script = HEAD + f"model.compile({given})\n" + FIT
    costs = fault_costs(plan_of(tmp_path, script, KEPT + "  transparent: true\n", **two))
    assert costs["kind"] == ("since-save" if why else "nothing")
    if why:
        said = f"train.py:3 has {why}, whose steps are not atomic"
        assert costs["why"] == f"it saves as often as costs least; a survivor would hand over nothing: {said}"
    one = fault_costs(plan_of(tmp_path, script, KEPT + "  transparent: true\n", "mirrored"))
    assert one["why"] == "it saves as often as costs least", "there is no survivor"
    strategy = (
        "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\nimport orchestrator.keras\n"
    )
    with_callback = strategy + script.replace("=callbacks", "=[orchestrator.keras.Checkpoint()]")
    assert fault_costs(plan_of(tmp_path, with_callback, KEPT, **two))["kind"] == costs["kind"]


def test_a_loop_of_train_on_batch_begins_anew_under_transparent(tmp_path: Path) -> None:
    loop = HEAD + "for batch in batches:\n    model.train_on_batch(*batch)\n"
    kept = KEPT + "  transparent: true\n"
    said = (
        "train.py:4 trains by train_on_batch, a loop of the script's own: `transparent: true` keeps only fits"
    )
    assert fault_costs(plan_of(tmp_path, loop, kept, "mirrored")) == {"kind": "everything", "why": said}
    assert fault_costs(plan_of(tmp_path, loop + FIT, kept, "mirrored"))["kind"] == "since-save"


def test_advice_alone_lets_the_script_survive(tmp_path: Path) -> None:
    """To move what saves, without what restores, made the run end at its first death."""
    saves = HEAD + "callbacks = [keras.callbacks.ModelCheckpoint('out/best.keras')]\n" + FIT
    (told,) = own_paths.sentences(plan_of(tmp_path, saves, KEPT))
    assert "ORCH_CHECKPOINT_DIR" not in told
    assert told.endswith(f"nothing restores it: a fault costs everything; {ADD}")
    with_orch = saves.replace(
        "callbacks = [", "from orchestrator.keras import Checkpoint\ncallbacks = [Checkpoint(), "
    )
    assert own_paths.sentences(plan_of(tmp_path, with_orch, KEPT)) == []
    one_name = (
        HEAD
        + "place = 'out/best.keras'\nif os.path.exists(place):\n    model = keras.models.load_model(place)\n"
    )
    follows = one_name + "callbacks = [keras.callbacks.ModelCheckpoint(place)]\n" + FIT
    (told,) = own_paths.sentences(plan_of(tmp_path, follows, KEPT))
    assert told.endswith("write os.path.join(os.environ[\"ORCH_CHECKPOINT_DIR\"], 'best.keras')")
    (told,) = own_paths.sentences(
        plan_of(tmp_path, follows.replace("load_model(place)", "load_model('out/best.keras')"), KEPT)
    )
    assert "what saves and what restores must both use" in told


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        ("model.fit(x, y, epochs=3)", "model.fit(x, y, epochs=3, callbacks=[NEW])"),
        ("model.fit(x,\n    epochs=3,)", "model.fit(x,\n    epochs=3, callbacks=[NEW],)"),
        ("model.fit(x, callbacks=[a, b])", "model.fit(x, callbacks=[NEW, a, b])"),
        ("model.fit(x, callbacks=[])", "model.fit(x, callbacks=[NEW])"),
        ("model.fit(x, callbacks=made)", "model.fit(x, callbacks=[NEW, *(made or [])])"),
        ("labels.fit(y)\nmodel.fit(x, verbose=0)", "labels.fit(y)\nmodel.fit(x, verbose=0, callbacks=[NEW])"),
    ],
)
def test_the_patch_adds_what_restores_to_each_fit_of_keras(call: str, changed: str) -> None:
    head = '"""Ä."""\nfrom __future__ import annotations\nimport keras\n'
    patched = with_checkpoint(f"{head}{call}\n".encode())
    assert patched is not None
    expected = changed.replace("NEW", "orchestrator.keras.Checkpoint()")
    assert patched.decode() == f"{head}import orchestrator.keras\n{expected}\n"


@pytest.mark.parametrize("call", ["labels.fit(y)", "model.fit(x, epochs=2, **more)", "model.fit(x, epochs=2"])
def test_there_is_no_patch_where_it_might_be_wrong(call: str) -> None:
    assert with_checkpoint(f"import keras\n{call}\n".encode()) is None
