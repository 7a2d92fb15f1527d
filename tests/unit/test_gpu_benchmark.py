"""The measurement on GPUs, where there is none, and of what nvidia-smi says where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.figure import NotMeasured
from benchmarks.machine import ROOT


def smi(directory: Path, says: str, code: int = 0) -> None:
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that alone stands for all programs of that name."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(gpu, "PAGE", ROOT / "docs" / "no-such-page.md")
    return tmp_path


@pytest.mark.skipif(os.path.exists("/usr/bin/nvidia-smi"), reason="a GPU is here")
@pytest.mark.parametrize("there", [False, True])
def test_without_a_gpu_it_says_so_and_writes_nothing(
    there: bool, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if there:
        smi(programs, "No devices were found", code=6)
    assert gpu.main(["--write"]) == 1
    assert "no GPU here" in capsys.readouterr().err
    assert not gpu.PAGE.exists()


def test_a_python_without_a_framework_for_gpus_is_named(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(programs, "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)")
    monkeypatch.setattr(gpu, "_has", lambda module: module == "jax")
    assert gpu.names() == ["NVIDIA H200", "NVIDIA H200"]
    monkeypatch.setattr(gpu, "_has", lambda module: module == "tensorflow")
    with pytest.raises(NotMeasured, match="GPU_PYTHON names another"):
        gpu.names()


def test_what_each_process_holds_is_read_as_nvidia_smi_tells_it(programs: Path) -> None:
    smi(programs, "1234, 512\n77, [N/A]\n")
    assert gpu._used_mb() == {1234: 512.0}


def test_a_standby_is_left_out_where_there_is_no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_has", lambda _module: False)
    with pytest.raises(gpu.LeftOut, match="no TensorFlow"):
        gpu.standby(1)
    with pytest.raises(gpu.LeftOut, match="no TensorFlow"):
        gpu.rescue(2)
    monkeypatch.setattr(gpu, "_has", lambda _module: True)
    with pytest.raises(gpu.LeftOut, match="a GPU for each of two workers"):
        gpu.rescue(1)
