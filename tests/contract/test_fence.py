"""A task of an older generation ends itself: real shims and runtimes, and a real seed of the next generation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.both import process
from orchestrator.checkpoints import places
from orchestrator.checkpoints.places import directory_of
from orchestrator.checkpoints.seed import seed
from orchestrator.task import fence
from tests.contract.agent_harness import Client, client_in
from tests.patience import comes, patient

SAVES_FOR_EVER = (
    "import os, time\n"
    "step = 0\n"
    "while True:\n"
    "    step += 1\n"
    "    with open(os.path.join(os.environ['ORCH_CHECKPOINT_DIR'], 'mine'), 'w') as file:\n"
    "        file.write(str(step))\n"
    "    time.sleep(0.05)\n"
)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Client]:
    with client_in(tmp_path) as client:
        client.ok("watch", heartbeat_s=0.1)
        yield client


def train(agent: Client, env: dict[str, str]) -> int:
    agent.start(agent.push(train=SAVES_FOR_EVER), hold=True)
    agent.until_phase("ready")
    agent.ok("release", generation=1, task="worker:0", env=env, seed=None)
    return int(agent.until_phase("running")["pid"])


@pytest.mark.fault(109)
@pytest.mark.parametrize("variable", ["ORCH_CHECKPOINT_DIR", "ORCH_RESCUE_DIR"])
def test_an_orphan_stops_writing_once_the_next_generation_has_begun(
    agent: Client, tmp_path: Path, variable: str
) -> None:
    root = str(tmp_path / "checkpoints")
    assert fence.MARKER == places.MARKER
    seed(root, 1)
    own, scratch = directory_of(root, 1), tmp_path / "scratch"
    scratch.mkdir()
    env = {"ORCH_CHECKPOINT_DIR": own, "ORCH_RESCUE_DIR": own}
    if variable == "ORCH_RESCUE_DIR":
        env["ORCH_CHECKPOINT_DIR"] = str(scratch)  # of a task that is not the chief
    pid = train(agent, env)
    wrote = Path(env["ORCH_CHECKPOINT_DIR"]) / "mine"
    comes(wrote.exists, patient(20.0))
    os.mkdir(os.path.join(root, "gen-000009"))  # of the script, or of anybody: nothing began there
    time.sleep(6.0)
    assert process.identity(pid) is not None, "nothing newer has begun"
    seed(root, 10, from_scratch=True)
    ended = agent.until_phase("exited")
    assert (ended["exit"]["code"], ended["exit"]["ordered"]) == (143, False)
    assert ended["said"][-1]["kind"] == "superseded"
    assert "gen-000010 has begun in " in ended["said"][-1]["message"]
    last = wrote.read_text()
    time.sleep(0.3)
    assert wrote.read_text() == last


SAVES_ONCE = (
    "import os, sys\n"
    "sys.modules['h5py'] = sys.modules['numpy'] = None\n"
    "from orchestrator.task.transparent import backup\n"
    "try:\n"
    "    backup.write(os.environ['ORCH_CHECKPOINT_DIR'], {}, None)\n"
    "except ImportError:\n"
    "    sys.exit(7)\n"
)

SAVES_IN_ITS_LOOP = (
    "import os, sys\n"
    "from orchestrator.task.loops import Loop\n"
    "seconds = iter(range(1000000))\n"
    "loop = Loop(lambda number: number, lambda: float(next(seconds)))\n"
    "while not loop.ask(): pass\n"
    "sys.exit(7)\n"
)


@pytest.mark.fault(109)
@pytest.mark.parametrize("script", [SAVES_ONCE, SAVES_IN_ITS_LOOP], ids=["of ours", "in a loop"])
def test_a_save_looks_first_whether_its_generation_is_over(tmp_path: Path, script: str) -> None:
    root = str(tmp_path / "checkpoints")
    seed(root, 3)
    env = {**os.environ, "ORCH_CHECKPOINT_DIR": directory_of(root, 3)}

    def save() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script], env=env, check=False, capture_output=True, text=True
        )

    before = save()
    assert before.returncode == 7, before.stderr  # it would have written
    seed(root, 4)
    after = save()
    assert after.returncode == 143, after.stderr
    assert "gen-000004 has begun in " in after.stderr
    assert sorted(os.listdir(directory_of(root, 3))) == [".orch-seed.json"], "nothing was written"
