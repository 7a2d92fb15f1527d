"""`orch import` as it is typed: what it prints is a spec, and what makes none is refused."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.desk import Desk


def test_the_line_with_mpi_becomes_a_spec(orch: Desk, tmp_path: Path) -> None:
    words = "-np 4 -H server1:2,server2:2 -bind-to none -x NCCL_DEBUG=INFO python train.py --lr 0.1"
    assert orch("import", "mpirun", *words.split()) == 0
    assert "# Note: left out, for orch has no counterpart: -bind-to." in orch.put_out
    assert "worker: {replicas: 4, gpus: 1}" in orch.put_out
    assert 'args: ["--lr", "0.1"]' in orch.put_out
    file = tmp_path / "cluster.yaml"
    assert orch("import", "mpirun", "--output", str(file), *words.split()) == 0
    assert orch("import", "mpirun", "--output", str(file), *words.split()) == 2, "it is there already"


def test_what_makes_no_spec_is_refused_and_nothing_is_written(orch: Desk, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    given = ("horovodrun", "--output", str(file), "-H", "a:1", "python", "t.py")
    assert orch("import", given[0], "--name", "My Run", *given[1:]) == 2
    assert "makes no cluster spec: name: " in orch.said
    assert orch("import", "horovodrun", "--output", str(file), "-H", "a:1", "-p", "99999", "t.py") == 2
    assert "makes no cluster spec: hosts[0].port: " in orch.said
    assert orch("import", "ansible", "--output", str(file), str(tmp_path / "none.ini")) == 2
    assert "cannot read" in orch.said
    assert not file.exists()


def test_variables_beside_an_inventory_may_lie_in_a_directory(orch: Desk, tmp_path: Path) -> None:
    (tmp_path / "group_vars" / "all").mkdir(parents=True)
    (tmp_path / "hosts").write_text("[gpus]\ngpu-a\n")
    for name, text in (
        ("a.yml", "ansible_user: ml\n"),
        ("b.yaml", "ansible_port: 23\n"),
        (".swp", "\0"),
        ("x.md", ":"),
    ):
        (tmp_path / "group_vars" / "all" / name).write_text(text)
    (tmp_path / "group_vars" / "all" / "more").mkdir()
    assert orch("import", "ansible", str(tmp_path / "hosts")) == 0
    assert "user: ml" in orch.put_out
    assert "port: 23" in orch.put_out


def test_blank_lines_of_an_ssh_config_say_nothing(orch: Desk, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host gpu-a\n\n  User ml\n   \nHost gpu-b\n")
    assert orch("import", "ssh-config", "--file", str(tmp_path / "config")) == 0
    assert "name: gpu-a" in orch.put_out
    assert "name: gpu-b" in orch.put_out
