"""What the workers have loaded is compared line by line of the script: models too, and the chief may load more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import json, os, sys, types
from orchestrator.task import own_files, this_task

class Weight:
    def __init__(self, value): self.value = value
    def numpy(self):
        import numpy as np
        return np.asarray(self.value)

class Model:
    def __init__(self, value=0): self.trainable_variables = [Weight(value)]
    def load_weights(self, path): self.trainable_variables = [Weight(int(open(path).read()))]

class Link:
    def send(self, message): print(json.dumps(message["loaded"]))

def load_model(path, compile=True):
    return Model(int(open(path).read()))

load_model.__module__ = "keras.src.saving.saving_api"
api = types.ModuleType(load_model.__module__)
api.load_model = load_model
keras = sys.modules["keras"] = types.ModuleType("keras")
keras.load_model = load_model
sys.modules[load_model.__module__] = api
models = types.ModuleType("keras.src.models.model")
models.Model = Model
found = own_files.patches()
found[load_model.__module__](api)
found[models.__name__](models)
this_task.link, this_task.strategy = Link(), object()
if sys.argv[1] == "chief":
    Model().load_weights(os.environ["ORCH_RESCUE_DIR"] + "/best")
for _ in range(2):
    keras.load_model(os.environ["ORCH_CHECKPOINT_DIR"] + "/best")
"""


def told(tmp_path: Path, task: str) -> list[dict[str, Any]]:
    script, chiefs, own = tmp_path / "train.py", tmp_path / "chief", tmp_path / task
    script.write_text(SCRIPT)
    own.mkdir(exist_ok=True)
    env = {"ORCH_CHECKPOINT_DIR": str(own), "ORCH_RESCUE_DIR": str(chiefs), "TF_CONFIG": "{}"}
    env["PYTHONPATH"] = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, str(script), task], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_load_of_the_chief_alone_leaves_the_others_comparable(tmp_path: Path) -> None:
    (tmp_path / "chief").mkdir()
    (tmp_path / "chief" / "best").write_text("8")
    chief, worker = told(tmp_path, "chief"), told(tmp_path, "worker")
    assert (len(chief), len(worker)) == (3, 2)
    assert chief[1:] == worker, "each load of a model by its line, of what the chief alone has saved"
    assert worker[1]["number"] == worker[0]["number"] + 1
    assert chief[0]["number"] not in [each["number"] for each in worker]
    assert all(0 <= each["number"] <= 10**15 for each in chief)
    (tmp_path / "worker" / "best").write_text("3")
    assert told(tmp_path, "worker")[0]["checksum"] != chief[1]["checksum"]
