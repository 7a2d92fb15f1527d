"""Calls that save where orch does not look, as the public tutorials write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.spec import own_paths
from orchestrator.spec.plan import load_plan


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("cb = keras.callbacks.BackupAndRestore('/tmp/backup')", (1, "BackupAndRestore", "/tmp/backup")),
        (
            "\nkeras.callbacks.BackupAndRestore(backup_dir='backup', save_freq=10)",
            (2, "BackupAndRestore", "backup"),
        ),
        (
            "checkpoint_dir = './training_checkpoints'\n"
            "prefix = os.path.join(checkpoint_dir, 'ckpt_{epoch}')\n"
            "callbacks = [tf.keras.callbacks.ModelCheckpoint(filepath=prefix, save_weights_only=True)]",
            (3, "ModelCheckpoint", "./training_checkpoints/ckpt_{epoch}"),
        ),
        (
            "manager = tf.train.CheckpointManager(ckpt, './tf_ckpts', max_to_keep=3)",
            (1, "CheckpointManager", "./tf_ckpts"),
        ),
        (
            "from pathlib import Path\nm = CheckpointManager(c, directory=Path('out') / name)",
            (2, "CheckpointManager", "out/{…}"),
        ),
        ("ModelCheckpoint(f'out/{name}.keras')", (1, "ModelCheckpoint", "out/{…}")),
    ],
)
def test_a_path_that_the_source_spells_out(source: str, expected: tuple[int, str, str]) -> None:
    (found,) = own_paths.own_paths(source)
    assert (found.line, found.call, found.path) == expected


@pytest.mark.parametrize(
    "source",
    [
        "BackupAndRestore(os.environ['ORCH_CHECKPOINT_DIR'])",
        "BackupAndRestore(os.environ.get('ORCH_CHECKPOINT_DIR', '/tmp/backup'))",
        "BackupAndRestore(args.backup)",
        "path = '/tmp/x'\npath = os.environ['ORCH_CHECKPOINT_DIR']\nBackupAndRestore(path)",
        "path = path\nBackupAndRestore(path)",
        "CheckpointManager(ckpt)",
        "print('BackupAndRestore(\"/tmp/backup\")')",
    ],
)
def test_what_is_decided_elsewhere_is_not_judged(source: str) -> None:
    assert own_paths.own_paths(source) == []


SPEC = """\
version: 1
name: t
hosts: [{{name: here, transport: local}}]
run:
  strategy: single
  workdir: .
  script: train.py
  {more}
"""


@pytest.mark.parametrize(
    ("more", "count"), [("checkpoint: {dir: /ckpt}", 1), ("args: []", 0)], ids=["checkpoints", "none"]
)
def test_it_is_said_where_a_run_has_checkpoints(tmp_path: Path, more: str, count: int) -> None:
    (tmp_path / "train.py").write_text("import keras\nkeras.callbacks.BackupAndRestore('/tmp/backup')\n")
    (tmp_path / "cluster.yaml").write_text(SPEC.format(more=more))
    plan, _ = load_plan(str(tmp_path / "cluster.yaml"))
    told = own_paths.sentences(plan)
    assert len(told) == count
    assert all(
        line == "train.py:2: BackupAndRestore saves into '/tmp/backup', where orch does not look: write "
        'os.environ["ORCH_CHECKPOINT_DIR"]'
        for line in told
    )


def test_a_script_that_cannot_be_read_is_the_matter_of_the_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def (\n")
    (tmp_path / "cluster.yaml").write_text(SPEC.format(more="checkpoint: {dir: /ckpt}"))
    plan, _ = load_plan(str(tmp_path / "cluster.yaml"))
    assert own_paths.sentences(plan) == []
