"""The runner of public scripts: what it changes in a copy, and what its table says. No public script is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomllib

from tests.public_scripts import left
from tests.public_scripts.__main__ import _compared, _last, _proof, whole_collection
from tests.public_scripts.page import OWN, RESULTS, good, name_of, table_of, verdict
from tests.public_scripts.running import as_script, of_tf_keras, shortened

COLLECTION = Path(__file__).parents[1] / "public_scripts" / "collection.toml"


def test_a_copy_is_short_and_keeps_its_lines() -> None:
    text = (
        "import keras_core as keras\nbatch_size = 256\nnum_epochs = 40\nmodel.fit(x, epochs=15)\nWIDTH = 64\n"
    )
    assert shortened(text, [["WIDTH = 64", "WIDTH = 8"]]) == (
        "import keras as keras\nbatch_size = 32\nnum_epochs = 2\nmodel.fit(x, epochs=2)\nWIDTH = 8\n"
    )


def test_a_copy_for_tf_keras_imports_it_by_the_names_of_keras() -> None:
    text = "import keras\nimport keras_tuner\nfrom keras import layers\n  from keras.layers import Dense\nkeras.Input\n"
    assert of_tf_keras(text) == (
        "import tf_keras as keras\nimport keras_tuner\nfrom tf_keras import layers\n"
        "  from tf_keras.layers import Dense\nkeras.Input\n"
    )


def test_a_notebook_becomes_a_script_without_its_shell_commands(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["!pip install x\n", "import os\n", "x = 5 % 3"]},
        {"cell_type": "code", "source": ["print(x)"]},
    ]
    (tmp_path / "one.ipynb").write_text(json.dumps({"cells": cells}))
    assert as_script(tmp_path / "one.ipynb") == "pass\nimport os\nx = 5 % 3\nprint(x)"


def test_the_collection_names_at_least_60_scripts_once_with_the_checksums_of_those_that_are_fetched() -> None:
    collection = whole_collection()
    names = [name_of(script) for script in collection["script"]]
    assert len(names) == len(set(names)) >= 60
    of = {each["name"] for each in collection["collection"]}
    assert {script["of"] for script in collection["script"]} == {*of, OWN}
    assert all(len(script["sha256"]) == 64 for script in collection["script"] if script["of"] != OWN)
    assert {*json.loads(RESULTS.read_text())} <= {*names}, "a row of a script that is gone"


def test_the_proof_of_a_run_is_the_worst_of_its_fits() -> None:
    equal = "orch: proved equal at step 1: the gradients of 4 weights … (they differ by at most {} of their length)"
    assert _proof("\n".join(["x", equal.format("1.2e-07"), equal.format("4.3e-05"), "y"])) == "equal (4e-05)"
    noisy = (
        "orch: the gradient of the first step is not proved to be that of one process; not compared: noise\nx"
    )
    assert _proof(noisy) == "no: noise"
    assert _proof("Epoch 1/2") == ""


def test_what_a_script_leaves_is_all_but_what_lay_beside_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "given.csv").touch()
    work = tmp_path / "work"
    (work / "logs").mkdir(parents=True)
    (work / "given").symlink_to(tmp_path / "data")
    (work / "logs" / "train.csv").touch()
    (work / "best.keras").touch()
    assert left.names(work) == ["best.keras", "logs/train.csv"]


def test_what_is_in_the_files_may_differ_as_a_training_does(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for place, more in ((one, 0.0), (other, 1e-5)):
        place.mkdir()
        np.save(place / "scores.npy", np.array([1.0 + more, 0.0]))
        np.savez(place / "both.npz", a=np.arange(3), b=np.ones(2) * (1.0 + 100 * more))
        (place / "log.csv").write_text(f"epoch,loss\n0,{0.25 + more}\n")
        (place / "words.txt").write_text("one\n" if place is one else "two\n")
        (place / "drawing.png").write_bytes(b"1" if place is one else b"2")
    assert left.compared(one, other) == (4, ["words.txt"])
    np.savez(other / "both.npz", a=np.arange(3), b=np.ones(2) * 1.1)
    (other / "log.csv").write_text("epoch,loss\n0,0.2501,9\n")
    assert left.compared(one, other) == (4, ["both.npz", "log.csv", "words.txt"])


def ran(weights: float | None, loss: float | None, count: int = 2) -> dict[str, Any]:
    killed = {"worker": "worker:1", "at": 8, "from": 6}
    return {
        "outcome": "ran",
        "killed": killed,
        "weights": count,
        "weights_apart": weights,
        "loss_apart": loss,
    }


@pytest.mark.parametrize(
    ("noise", "seen", "says"),
    [
        ([], ran(1e-6, 0.0), "equal (1e-06)"),
        (["Dropout"], ran(0.3, 0.05), "alike (loss 5.0%)"),
        ([], ran(0.3, 0.05), "differs (weights 3e-01, loss 5%)"),
        (["Dropout"], ran(0.3, 0.7), "differs (weights 3e-01, loss 70%)"),
        ([], ran(None, None), "other weights"),
        ([], ran(0.0, None, count=0), "trains nothing"),
        ([], {"outcome": "refused", "why": "train.py:7: …"}, "refused"),
    ],
)
def test_equal_is_said_of_equal_weights_only(noise: list[str], seen: dict[str, Any], says: str) -> None:
    row = {"noise": noise, "2": seen}
    assert verdict(row, "2") == says
    assert good(row, "2") == says.startswith(("equal", "alike", "refused"))
    assert good(row, "3"), "what was not run promises nothing"


@pytest.mark.parametrize(
    ("noise", "run", "itself", "says"),
    [
        ([], "2", {"moved": ran(0.2, 0.0)}, "unstable (3e-01; by itself 2e-01)"),
        ([], "2", {"moved": ran(0.1, 0.0)}, "differs (weights 3e-01, loss 5%)"),
        ([], "2", {"moved": ran(0.2, 0.01)}, "differs (weights 3e-01, loss 5%)"),
        ([], "2", {"moved": {"outcome": "not run"}}, "differs (weights 3e-01, loss 5%)"),
        (["Dropout"], "still", {"moved still": ran(0.2, 0.03)}, "unstable (3e-01; by itself 2e-01)"),
        (["Dropout"], "still", {"redrawn": ran(0.2, 0.9)}, "differs (weights 3e-01, loss 5%)"),
        (["Dropout"], "2", {"redrawn": ran(0.2, 0.04)}, "alike (loss 5.0%; by itself 4.0%)"),
    ],
)
def test_what_differs_from_itself_is_measured(
    noise: list[str], run: str, itself: dict[str, Any], says: str
) -> None:
    loss = 0.05 if not says.startswith("unstable") else 0.01
    row = {"noise": noise, run: ran(0.3, loss if run != "still" else 0.05), "itself": itself}
    assert verdict(row, run) == says
    assert good(row, run) == (not says.startswith("differs"))


def test_an_error_is_told_with_the_line_that_says_what_it_is() -> None:
    lines = [
        "ValueError: an earlier one",
        "AttributeError: Exception encountered when calling Patches.call().",
        "",
        "\x1b[1mmodule 'keras.ops' has no attribute 'backend'\x1b[0m",
        "Arguments received by Patches.call():",
    ]
    assert _last("\n".join(lines)) == (
        "AttributeError: Exception encountered when calling Patches.call(). "
        "module 'keras.ops' has no attribute 'backend'"
    )
    assert _last("no error at all\n") == "no error at all"
    graph = "tf.InvalidArgumentError: Graph execution error:\n\nDetected at node x defined at:\n  File y\nbad depth\n"
    assert _last(graph) == "tf.InvalidArgumentError: Graph execution error: bad depth"


def test_weights_are_compared_by_the_largest_of_their_array() -> None:
    expected = {"weights": [np.array([0.0, 2.0])], "fits": [{"loss": [3.0, 2.0]}]}
    found = {"weights": [np.array([0.01, 2.0])], "fits": [{"loss": [3.0, 1.9]}]}
    apart = {"weights": 1, "weights_apart": 0.005, "loss_apart": 0.05}
    assert _compared(expected, found) == pytest.approx(apart)
    assert _compared(expected, {**found, "weights": [np.zeros(3)]})["weights_apart"] is None


def test_the_table_says_what_was_not_run_and_why() -> None:
    collection = tomllib.loads(COLLECTION.read_text())
    first, second = (name_of(script) for script in collection["script"][:2])
    known: dict[str, Any] = {
        first: {"outcome": "not run", "why": "it fails alone: a | b"},
        second: {
            "outcome": "ran",
            "fits": 1,
            "noise": [],
            "2": {
                **ran(1e-6, 0.0),
                "proof": "equal (3e-07)",
                "files": ["log.csv"],
                "files_apart": ["best.keras"],
            },
        },
    }
    lines = list(table_of(collection, known))
    assert "1 of " in lines[0]
    assert "1 of them as the page promises, 0 not" in lines[0]
    assert f"| {first} |  |  |  |  |  |  |  |  | not run: it fails alone: a \\| b | unknown |" in lines
    known[second]["2"] |= {"files_apart": [], "files_compared": 1, "files_differing": []}
    assert "| the same 1, 1 by what is in them |" in "".join(table_of(collection, known))
    known[second]["2"] |= {"files_differing": ["log.csv"]}
    assert "| differ: log.csv |" in "".join(table_of(collection, known))
    told = "equal (1e-06); worker:1 at step 8, from 6"
    assert f"| {second} | 1 | {told} | equal (3e-07) | other: best.keras |  |  |  |  |  | unknown |" in lines
    assert sum("no time for it" in line for line in lines) == len(collection["script"]) - 2
