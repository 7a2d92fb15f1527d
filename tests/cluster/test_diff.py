"""Honest `up`: what has changed while a run is active is said, applied by --restart, and said again on a resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.cluster import WORKDIR, Cluster

pytestmark = pytest.mark.lab


def test_up_of_changed_code_or_spec_says_what_has_changed_and_restart_applies_it(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    orch, workdir = local_cluster, tmp_path / "mine"
    workdir.mkdir()
    shutil.copy(WORKDIR / "fake_trainer.py", workdir)
    (workdir / "model.py").write_text("UNITS = 8\nDEPTH = 2\n")
    spec = Path(orch.spec("--save-every", "5", tasks=1, workdir=str(workdir)))
    first = orch.ok("up", str(spec)).strip()
    orch.wait(lambda run: bool((run["checkpoint"] or {}).get("verified")))
    again = orch.orch("up", str(spec))
    assert f"{first} is already running with this plan; nothing has changed" in again.stderr
    assert "do not differ" in orch.orch("diff", "t").stderr

    (workdir / "model.py").write_text("UNITS = 16\nDEPTH = 2\nRATE = 0.5\n")
    changed = orch.orch("up", str(spec))
    assert (changed.returncode, changed.stdout.strip()) == (0, first)
    assert (
        f"{first} is already running with this plan, but with other code: model.py: 2 lines" in changed.stderr
    )
    assert "nothing has changed" not in changed.stderr
    spec.write_text(spec.read_text().replace("'5'", "'6'"))
    refused = orch.orch("up", str(spec))
    assert refused.returncode == 6
    assert f"with another plan is active: {first}; args --save-every: 5 -> 6" in refused.stderr
    document = json.loads(orch.ok("diff", "t", "--json"))
    assert document["spec"] == [{"key": "args --save-every", "old": "5", "new": "6"}]
    assert document["code"] == [{"path": "model.py", "change": "changed", "added": 2, "removed": 1}]
    full = orch.orch("diff", "t", "--full", "--detailed-exitcode")
    assert full.returncode == 10
    lines = ["@@ -1,2 +1,3 @@", "-UNITS = 8", "+UNITS = 16", " DEPTH = 2", "+RATE = 0.5"]
    assert full.stdout.splitlines()[-5:] == lines

    restarted = orch.orch("up", str(spec), "--restart")
    assert restarted.returncode == 0, restarted.stderr
    told = "model.py: 2 lines; args --save-every: 5 -> 6"
    assert f"Ending {first} at its next checkpoint, to go on with: {told}" in restarted.stderr
    assert f"Since {first}, which saved its checkpoint, this has changed: {told}" in restarted.stderr
    second = restarted.stdout.strip()
    run = orch.wait(lambda run: run["run_id"] == second and (run["global_step"] or 0) > 10)
    assert run["generation"] > 1, "it goes on in the directory of the first"
    assert orch.orch("up", str(spec), "--restart").stdout.strip() == second, (
        "nothing has changed: nothing is done"
    )
    between = json.loads(orch.ok("diff", first, second, "--json"))
    assert (between["with"], between["packages"]) == (second, [])
    assert [one["path"] for one in between["code"]] == ["model.py"]
