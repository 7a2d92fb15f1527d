"""`orch tensorboard` over real SSH hosts, of a run that has ended, and real TensorBoard."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import process
from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.lab


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def test_all_tasks_and_generations_are_shown_in_order_also_after_the_end(cluster: Cluster) -> None:
    spec = cluster.spec(script="writes_summaries.py", checkpoint=False)
    cluster.ok("up", spec, "--wait")
    fetched = json.loads(cluster.ok("tensorboard", "t", "--fetch", "--json"))
    assert fetched["unreached"] == {}
    files = [path.relative_to(fetched["directory"]) for path in Path(fetched["directory"]).rglob("*.*")]
    assert sorted({str(path.parent) for path in files}) == ["worker-0/train", "worker-1/train"]
    assert len(files) == 4  # of two generations each, and no file of the script's own
    again = json.loads(cluster.ok("tensorboard", "t", "--fetch", "--json"))
    assert again["fetched_bytes"] == 0

    server = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "tensorboard", "--port", "0"],
        env=cluster.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stderr is not None
        said = ""
        while (found := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
            line = server.stderr.readline()
            assert line, f"it ended: {said}"
            said += line
        url = f"{found[0]}/data/plugin/scalars/scalars?tag=loss&run="
        wanted = get(url + "worker-1/train")
        while len(wanted) < 20:  # it loads in the background
            wanted = get(url + "worker-1/train")
        assert [step for _, step, _ in wanted] == list(range(1, 21))
        child = process.identity(int(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()))
        assert child is not None
    finally:
        server.kill()
        server.communicate()
    while process.alive(child):  # TensorBoard ends with us, even so
        time.sleep(0.05)


def test_a_host_that_is_away_is_named_and_the_rest_is_shown(cluster: Cluster) -> None:
    assert cluster.lab is not None
    cluster.ok("up", cluster.spec(script="writes_summaries.py", checkpoint=False), "--wait")
    away = cluster.lab.hosts[1]
    away.stop_sshd()
    try:
        done = cluster.orch("tensorboard", "t", "--fetch")
    finally:
        away.start_sshd()
    assert done.returncode == 0
    assert f"{away.name}: its files are missing or incomplete" in done.stderr
    assert (Path(done.stdout.strip()) / "worker-0" / "train").is_dir()
