"""A Pod that was exported, run for real by `podman kube play`: TERM, one more checkpoint, and a second attempt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.pods import pod_of

HERE = Path(__file__).parent
NO_PODMAN = 77

SPEC = """
version: 1
name: small
hosts: [{{name: any}}]
run:
  strategy: single
  script: saves_each_epoch.py
  args: ["12", "0.5"]
  workdir: workdir
  python: {python}
  checkpoint: {{dir: /checkpoints}}
  timing: {{kill_grace: 5s}}
"""

pytestmark = [
    pytest.mark.lab,
    pytest.mark.tensorflow,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces for podman need root"),
    pytest.mark.skipif(
        not shutil.which("podman") and not shutil.which("apt-get"),
        reason="neither podman nor apt-get is here",
    ),
]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_pod_saves_at_term_and_its_next_attempt_goes_on_there(tmp_path: Path) -> None:
    shutil.copytree(HERE / "workdir", tmp_path / "workdir")
    lab = tmp_path / "lab"
    lab.mkdir()
    shutil.copy(HERE / "play.py", lab)
    (tmp_path / "cluster.yaml").write_text(SPEC.format(python=sys.executable))
    words = [sys.executable, "-m", "orchestrator.cli.main", "export", "k8s", str(tmp_path / "cluster.yaml")]
    words += ["--image", "localhost/lent:1", "--save-wait", "20"]
    objects = []
    for more in ([], ["--claim-only"]):
        exported = subprocess.run([*words, *more], capture_output=True, text=True, check=True).stdout
        objects += list(yaml.safe_load_all(exported))
    plan = []
    lent = list(dict.fromkeys(["/usr", sys.prefix, sys.base_prefix]))
    for attempt, term_after in ((0, "epoch 3"), (1, None)):
        pods = pod_of(objects, index=0, uid="set-uid-1", attempt=attempt, lent=lent, at="/lab")
        (lab / f"pod-{attempt}.yaml").write_text(yaml.safe_dump_all(pods))
        file = f"/lab/pod-{attempt}.yaml"
        plan.append({"file": file, "pod": f"small-{attempt}", "term_after": term_after, "grace_s": 35})
    (lab / "plan.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [str(HERE / "pod_lab.sh"), str(lab), "/usr/bin/python3", "/lab/play.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NO_PODMAN:
        pytest.skip(f"podman cannot be had: {done.stdout.strip()[-200:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = json.loads((lab / "seen.json").read_text())
    assert first["code"] == 143, first
    assert "goes on until the next checkpoint is there" in first["log"]
    assert first["took_s"] < 20  # the checkpoint came with the next epoch
    assert second["code"] == 0, second
    assert "generation 2 restarts 1" in second["log"]
    assert "from /checkpoints/gen-000001/" in second["log"]
    assert "epoch 0" not in second["log"]
    assert "done at 48" in second["log"]
