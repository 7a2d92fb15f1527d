"""One file of hosts for several specs: its hosts stand in each, and what is wrong with them is said in that file."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.spec import own_inventory
from orchestrator.spec.load import load_spec, located
from orchestrator.spec.plan import plan_spec
from tests.unit.spec.good_spec import GOOD

HOSTS = GOOD[GOOD.index("hosts:") : GOOD.index("run:")]
SPEC = GOOD.replace(HOSTS, "inventory: lab/hosts.yaml\n")


def refusal(folder: Path, hosts: str | None, spec: str = SPEC) -> list[str]:
    """Return what is said of a spec and its inventory, without the folder."""
    (folder / "lab").mkdir(exist_ok=True)
    (folder / "cluster.yaml").write_text(spec)
    if hosts is not None:
        (folder / "lab/hosts.yaml").write_text(hosts)
    with pytest.raises(SpecError) as error:
        load_spec(folder / "cluster.yaml")
    return error.value.message.replace(f"{folder}/", "").splitlines()


def test_its_hosts_and_ssh_and_setup_stand_in_the_spec_with_paths_of_its_own_directory(folder: Path) -> None:
    (folder / "lab").mkdir()
    (folder / "lab/requirements.txt").write_text("tensorflow==2.21.0\n")
    more = "ssh: {user: ml, identity_file: key, known_hosts: /etc/known}\nsetup: {requirements: requirements.txt}\n"
    (folder / "lab/hosts.yaml").write_text(HOSTS + more)
    (folder / "cluster.yaml").write_text(SPEC)
    plan = plan_spec(load_spec(folder / "cluster.yaml"), folder)
    assert [(host.name, host.address, host.gpus) for host in plan.hosts] == [
        ("gpu-a", "10.0.0.11", (0, 1, 2, 3)),
        ("gpu-b", "10.0.0.12", (0, 1, 2, 3)),
    ]
    assert (plan.hosts[0].user, plan.hosts[0].known_hosts) == ("ml", "/etc/known")
    assert plan.hosts[0].identity_file == str(folder / "lab/key")
    own = SPEC + "ssh: {user: me}\n"
    (folder / "cluster.yaml").write_text(own)
    assert plan_spec(load_spec(folder / "cluster.yaml"), folder).hosts[0].user == "me", "the spec's own"


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (None, ["cluster.yaml:3:12: inventory: lab/hosts.yaml cannot be read: No such file or directory"]),
        ("hosts: []\n", ["lab/hosts.yaml:1:1: hosts: there is none; list at least one host with its name"]),
        (
            "hosts:\n  - {name: gpu-a, gpu: 4}\nrun: {}\n",
            [
                "lab/hosts.yaml:2:19: hosts[0].gpu: unknown key; did you mean `gpus`?",
                "lab/hosts.yaml:3:1: run: is a key of a cluster spec; an inventory has version, hosts, ssh, setup",
            ],
        ),
        ("hosts: [\n", ["lab/hosts.yaml:2:1: yaml: "]),
        (
            "hosts:\n  - {name: gpu-a}\n  - {name: gpu-a}\n",
            ["lab/hosts.yaml:3:12: hosts[1].name: "],
        ),
    ],
)
def test_what_is_wrong_in_it_is_said_with_its_place(folder: Path, hosts: str | None, said: list[str]) -> None:
    found = refusal(folder, hosts)
    assert len(found) == len(said)
    assert all(line.startswith(begin) for line, begin in zip(found, said, strict=True)), found


def test_a_spec_has_hosts_or_an_inventory(folder: Path) -> None:
    assert refusal(folder, HOSTS, SPEC + HOSTS) == [
        "cluster.yaml:3:12: inventory: `hosts` are in this file too; leave out either"
    ]


def test_what_is_found_after_the_file_was_read_is_said_of_the_file_that_has_it(folder: Path) -> None:
    (folder / "lab").mkdir()
    (folder / "lab/hosts.yaml").write_text(HOSTS)
    (folder / "cluster.yaml").write_text(SPEC)
    said = located(folder / "cluster.yaml", ("hosts", 1, "gpus"), "is too many")
    assert said == f"{folder}/lab/hosts.yaml:3:45: hosts[1].gpus: is too many"


def test_the_users_own_inventory_stands_in_where_a_spec_names_no_hosts_and_a_chosen_one_for_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    bare, spec = GOOD.replace(HOSTS, ""), folder / "cluster.yaml"
    spec.write_text(bare)
    with pytest.raises(SpecError, match="hosts: is missing: the machines; or `inventory`"):
        load_spec(spec)
    own = folder / "config/orch/inventory.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(HOSTS + "ssh: {identity_file: key}\n")
    loaded = load_spec(spec)
    assert ([host.name for host in loaded.hosts], loaded.inventory) == (["gpu-a", "gpu-b"], str(own))
    assert plan_spec(loaded, folder).hosts[0].identity_file == str(own.parent / "key")
    spec.write_text(GOOD)
    assert load_spec(spec).inventory is None, "its own hosts"
    other = folder / "other.yaml"
    other.write_text(HOSTS.replace("gpu-", "new-"))
    chosen = own_inventory.chosen.set(str(other))
    try:
        assert [host.name for host in load_spec(spec).hosts] == ["new-a", "new-b"]
        other.unlink()
        with pytest.raises(SpecError) as missing:
            load_spec(spec)
        assert missing.value.message == f"{other}:1:1: file: cannot be read: No such file or directory"
        other.write_text("hosts:\n  - {name: x, gpu: 1}\n")
        with pytest.raises(SpecError) as wrong:
            load_spec(spec)
        assert wrong.value.message.startswith(f"{other}:2:15: hosts[0].gpu: unknown key")
    finally:
        own_inventory.chosen.reset(chosen)
    own.write_text("hosts: [\n")
    spec.write_text(bare)
    with pytest.raises(SpecError) as torn:
        load_spec(spec)
    assert torn.value.message.startswith(f"{own}:2:1: yaml: ")
