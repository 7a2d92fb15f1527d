"""`orch export` as it is typed: what Kubernetes could not run is refused, and nothing is printed."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.desk import Desk


def test_what_pods_could_not_do_is_refused_before_anything_is_printed(orch: Desk, spec: str) -> None:
    assert orch("export", "k8s", spec, "--image", "mine:1", "--code", "app") == 2
    assert "--code app is no absolute path" in orch.said
    path = Path(spec)
    path.write_text(path.read_text().replace("replicas: 2", "replicas: 2, replicas_min: 1"))
    assert orch("export", "k8s", spec, "--image", "mine:1") == 2
    assert "cluster.yaml:9:" in orch.said
    assert "run.tasks.worker.replicas_min: " in orch.said
    assert orch.put_out == ""
