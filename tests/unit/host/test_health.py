"""What a host says of itself for `orch doctor`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrator.host.agent import health

TOOL = """#!/bin/sh
case "$1" in
  --query-gpu=name) printf 'NVIDIA A100, 80GB\\nNVIDIA A100\\n' ;;
  --query-gpu=ecc.*) printf '3\\n[N/A]\\n' ;;
  *hw_thermal_slowdown) printf 'Not Active\\nActive\\n' ;;
  *) echo 'Field "x" is not a valid field to query.'; exit 2 ;;
esac
"""


def test_gpus_as_nvidia_smi_tells_them_and_what_this_driver_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if not Path("/dev/nvidiactl").exists():
        assert health._gpus() == []
    (tmp_path / "nvidia-smi").write_text(TOOL)
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert health._gpus() == [
        {"name": "NVIDIA A100", "ecc_errors": 3, "slowed": None},
        {"name": "NVIDIA A100", "ecc_errors": None, "slowed": "its temperature"},
    ]


def test_directories_that_are_there_that_would_be_made_and_that_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "a" / "b")
    found = {one["path"]: one for one in health.directories(str(tmp_path), [missing, "/proc"])}
    assert found[str(tmp_path)]["exists"]
    assert not found[missing]["exists"]
    assert found[missing]["free_bytes"] == found[str(tmp_path)]["free_bytes"]
    assert not found[missing]["read_only"]
    monkeypatch.setattr(health, "_DIRECTORY_S", 0.0)
    hangs = threading.Event()
    monkeypatch.setattr(health, "_directory", lambda _path: hangs.wait())
    assert health.directories(str(tmp_path), [])[0]["why"] == "it has not answered for 0 s"
    hangs.set()


def test_proxies_are_told_without_their_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in health.PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://me:secret@proxy:3128")
    monkeypatch.setenv("HTTPS_PROXY", "not read by gRPC")
    assert health.proxies() == {"http_proxy": "proxy:3128"}
