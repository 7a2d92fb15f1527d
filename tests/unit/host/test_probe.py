"""What a host says of itself: where a library would listen, which packages a task finds, which GPUs are there."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from orchestrator.core.strategy import STRATEGIES
from orchestrator.host.agent import gpus, probe
from orchestrator.host.agent.probe import own_name

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_address_of_a_name_is_one_that_can_be_listened_on(address: str) -> None:
    assert own_name(address) == {"name": address, "address": address, "why": None}


def test_an_address_of_another_machine_is_none() -> None:
    found = own_name("192.0.2.77")
    assert found["address"] is None
    assert (found["why"] or "").startswith("it resolves to 192.0.2.77: ")


def versions(python: Path, environ: dict[str, str]) -> dict[str, str | None]:
    """Return what the isolated probe of an interpreter finds."""
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); import json\n"
        "from orchestrator.host.agent import probe\n"
        f"print(json.dumps({{n: probe._version(n, probe._installed()) for n in {STRATEGIES['single'].packages!r}}}))"
    )
    told = subprocess.run([python, "-I", "-c", code], env=environ, capture_output=True, text=True, check=True)
    found: dict[str, str | None] = json.loads(told.stdout)
    return found


def test_packages_are_found_where_a_task_finds_them(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    assert set(versions(python, {}).values()) == {None}
    by_hand = tmp_path / "by-hand" / "tensorflow"
    by_hand.mkdir(parents=True)
    (by_hand / "__init__.py").write_text("raise SystemExit('a probe imports no TensorFlow')")
    there = versions(python, {"PYTHONPATH": str(by_hand.parent)})
    assert there["tensorflow"] == "unknown", "it has no metadata, and can be imported"
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    user_site = tmp_path / "home" / ".local" / "lib" / f"python{minor}" / "site-packages"
    (user_site / "tensorflow_cpu-2.20.0.dist-info").mkdir(parents=True)
    (user_site / "tensorflow_cpu-2.20.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: 2.20.0\n"
    )
    home = {"HOME": str(tmp_path / "home")}
    assert versions(Path(sys.base_prefix) / "bin" / "python3", home)["tensorflow"] == "2.20.0"
    assert versions(python, home)["tensorflow"] is None, "a virtual environment does not see the user's"
    config = tmp_path / "bare" / "pyvenv.cfg"
    config.write_text(config.read_text().replace("packages = false", "packages = true"))
    assert versions(python, home)["tensorflow"] == "2.20.0"


@pytest.mark.parametrize(
    ("module", "gpus", "why"),
    [
        ("class config:\n    list_physical_devices = staticmethod(lambda kind: ['0', '1'])", 2, None),
        (
            "raise ImportError('libcudart.so.12: cannot open')",
            None,
            "ImportError: libcudart.so.12: cannot open",
        ),
        ("import os; os._exit(3)", None, "it ended with 3, and said nothing"),
        ("import time; time.sleep(60)", None, None),
    ],
)
def test_tensorflow_is_imported_as_a_task_would(
    tmp_path: Path, module: str, gpus: int | None, why: str | None
) -> None:
    (tmp_path / "tensorflow.py").write_text(f"print('oneDNN is on')\n{module}\n")
    found = probe.imported(
        {"env": {"PYTHONPATH": str(tmp_path)}, "within_s": 1.0 if "sleep" in module else 60.0}
    )
    assert (found["gpus"], found["why"]) == (gpus, why)


@pytest.mark.parametrize(
    ("tool", "found"),
    [
        ("echo 'GPU 0: A (UUID: GPU-1)'; echo 'GPU 1: A (UUID: GPU-2)'", (["GPU-1", "GPU-2"], None)),
        ("echo 'NVIDIA-SMI has failed'; exit 9", (None, "nvidia-smi says: NVIDIA-SMI has failed")),
        ("exit 9", (None, "nvidia-smi fails (9)")),
        ("exit 0", ([], None)),
        (None, (None, "there is no nvidia-smi and no device of a GPU")),
    ],
)
def test_the_gpus_are_those_of_the_driver_or_it_is_said_why_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str | None, found: tuple[list[str] | None, str]
) -> None:
    if tool is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{tool}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_OTHER_DRIVERS", ())
    assert gpus.present()[:2] == found


def test_a_gpu_has_one_number_and_its_instances_have_uuids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [
        "GPU 0: A100 (UUID: GPU-1)",
        "GPU 1: A100 (UUID: GPU-2)",
        "  MIG 3g.20gb Device 0: (UUID: MIG-7)",
    ]
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{chr(10).join(listed)}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpus.present() == (["GPU-1", "GPU-2"], None, {"MIG-7": 1})
    assert gpus.numbers(["GPU-2", 0, "MIG-7", "GPU-9"]) == [1, 0, "MIG-7", "GPU-9"]


def test_a_driver_without_its_tool_is_no_proof_of_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_OTHER_DRIVERS", (str(tmp_path),))
    assert gpus.present() == (None, None, {})


def test_modules_that_a_task_would_not_find_are_named_and_none_is_imported(tmp_path: Path) -> None:
    (tmp_path / "broken_one.py").write_text("raise SystemExit('it was imported')")
    (tmp_path / "linked.pth").write_text(f"{tmp_path / 'elsewhere'}\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/editable_one.py").write_text("")
    code = (
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "from orchestrator.host.agent import probe\n"
        "print(probe._missing(['json', 'sys', 'broken_one', 'editable_one', 'not_there_at_all']))"
    )
    environ = {"PYTHONPATH": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-I", "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert told.stdout == "['not_there_at_all']\n"


def test_a_script_is_compiled_by_the_hosts_own_python() -> None:
    assert probe._syntax("x = 1\n") is None
    assert probe._syntax("x = 1\ndef f(:\n") == "SyntaxError in line 2: invalid syntax"
    assert probe._syntax(None) is None
