"""An unchanged script with Keras's own TensorBoard callback, profiler included: curves and model are fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.lean import python_for

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]


def test_the_curves_of_all_tasks_the_profile_and_the_model_of_an_unchanged_script_are_fetched(
    local_cluster: Cluster,
) -> None:
    here = local_cluster
    document = yaml.safe_load((ROOT / "cluster_specs/curves.yaml").read_text())
    python = python_for(ROOT / "examples" / document["run"]["script"])
    document["run"].update(args=["--epochs", "2"], workdir=str(ROOT / "examples"), python=python)
    document["run"]["checkpoint"]["dir"] = str(here.directory / "ckpt")
    spec = here.directory / "curves.yaml"
    spec.write_text(yaml.safe_dump(document))
    done = here.orch("up", str(spec), "--wait", timeout=150)
    assert done.returncode == 0, done.stderr + here.orch("logs", "curves").stdout[-3000:]
    fetched = json.loads(here.ok("tensorboard", "curves", "--fetch", "--json"))
    directory = Path(fetched["directory"])
    found = {str(path.relative_to(directory).parent) for path in directory.rglob("*") if path.is_file()}
    curves = {f"worker-{index}/logs/{part}" for index in (0, 1) for part in ("train", "validation")}
    assert curves <= found
    # On other workers, TensorFlow's profiler corrupts memory.
    assert {place.split("/")[0] for place in found if "plugins/profile" in place} == {"worker-0"}
    assert {note["task"] for note in here.events("curves", "transparent-profiler")} == {"worker:1"}
    outputs = here.run("curves")["outputs"]
    assert (Path(outputs["directory"]) / "model.keras").stat().st_size > 1000
    assert [(left["task"], left["files"]) for left in outputs["tasks"]] == [("worker:0", 1)]
    assert here.run("curves")["generation"] == 1, here.ok("why", "curves")
    assert here.ok("logs", "curves").count("TensorBoard writes into $ORCH_LOG_DIR") == 2


def test_that_nothing_was_found_is_said_with_the_way_out(local_cluster: Cluster) -> None:
    local_cluster.ok("up", local_cluster.spec("--steps", "3", checkpoint=False), "--wait")
    done = local_cluster.orch("tensorboard", "t", "--fetch")
    assert done.returncode == 0
    assert "no files of TensorBoard, neither in $ORCH_LOG_DIR nor below the working directory" in done.stderr
    assert "keras.callbacks.TensorBoard(os.environ['ORCH_LOG_DIR'])" in done.stderr
