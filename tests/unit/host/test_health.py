"""What a host says of itself for `orch doctor`."""

from __future__ import annotations

import os
import pwd
import shutil
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from orchestrator.host.agent import health
from orchestrator.host.system import kernel_log
from tests.patience import patient

TOOL = """#!/bin/sh
case "$1" in
  --query-gpu=name) printf 'NVIDIA A100, 80GB\\nNVIDIA A100\\n' ;;
  --query-gpu=pci.bus_id) printf '00000000:3B:00.0\\n00000000:AF:00.0\\n' ;;
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
    xid = "4,1,2,-;NVRM: Xid (PCI:0000:af:00): 48, pid=7, name=python\n"
    (tmp_path / "kmsg").write_text(f"6,0,1,-;usb 1-1\n{xid}{xid}")
    monkeypatch.setattr(kernel_log, "KERNEL_LOG", str(tmp_path / "kmsg"))
    assert health._gpus() == [
        {"name": "NVIDIA A100", "ecc_errors": 3, "slowed": None, "xids": []},
        {"name": "NVIDIA A100", "ecc_errors": None, "slowed": "its temperature", "xids": [48]},
    ]


def test_directories_that_are_there_that_would_be_made_and_that_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "a" / "b")
    found = {one["path"]: one for one in health.directories(str(tmp_path), [missing, "/proc"])}
    assert found[str(tmp_path)]["exists"]
    assert not found[missing]["exists"]
    assert found[str(tmp_path)]["free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert found[missing]["free_bytes"] == pytest.approx(found[str(tmp_path)]["free_bytes"], rel=0.2)
    assert not found[missing]["read_only"]
    monkeypatch.setattr(health, "_DIRECTORY_S", 0.0)
    hangs = threading.Event()
    monkeypatch.setattr(health, "_directory", lambda _path, _group: hangs.wait())
    assert health.directories(str(tmp_path), [])[0]["why"] == "it has not answered for 0 s"
    hangs.set()


def test_several_directories_that_hang_take_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(health, "_DIRECTORY_S", 0.05)
    monkeypatch.setattr(health, "_directory", lambda _path, _group: hangs.wait())
    began_at = time.monotonic()
    found = health.directories("/h", [f"/d{number}" for number in range(100)])
    assert all(one["why"] for one in found)
    assert time.monotonic() - began_at < patient(1.0), "and not 5 s"
    hangs.set()


def test_how_fast_a_directory_is_written_and_synced_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    speed = health.write_speed(str(tmp_path))
    assert speed is not None
    assert speed > 0
    assert synced == [16 << 20]
    assert list(tmp_path.iterdir()) == []
    assert health.write_speed(str(tmp_path / "none")) is None


def test_whose_a_directory_is_and_that_of_ours_in_it(tmp_path: Path) -> None:
    (tmp_path / ".orch").mkdir(mode=0o700)
    found = health._directory(str(tmp_path), None)
    assert found["own"] == {
        "uid": os.getuid(),
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "mode": 0o700,
        "writable": True,
    }
    assert found["owner"] is not None
    assert health._directory(str(tmp_path / "none"), None)["owner"] is None
    if os.getuid() == 0:
        os.chown(tmp_path / ".orch", 61_234, 61_234)
        other = health._directory(str(tmp_path), None)["own"]
        assert other is not None
        assert (other["uid"], other["user"]) == (61_234, "61234")


def test_the_options_of_an_nfs_mount_are_those_of_the_innermost(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "89 22 0:49 / /shared rw - nfs4 nas:/hidden rw,hard\n"
        "90 22 0:50 / /shared rw,relatime shared:2 - nfs4 nas:/x rw,vers=4.2,soft,timeo=600,local_lock=none\n"
        "91 90 0:51 / /shared/my\\040runs ro,noatime - nfs nas:/y rw,nolock\n"
        "92 90 0:52 / /shared/local rw - xfs /dev/sdb rw\nhalf a line\n"
    )
    look = partial(health.nfs_options, mounts=str(tmp_path / "mountinfo"))
    assert look("/shared/mnist") == [
        "rw",
        "relatime",
        "rw",
        "vers=4.2",
        "soft",
        "timeo=600",
        "local_lock=none",
    ]
    assert look("/shared/my runs/a") == ["ro", "noatime", "rw", "nolock"]
    assert look("/shared/local/a") == look("/sharedness") == look("/home") == []
    assert health.nfs_options("/", str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", 10),
        ("sshd: /usr/sbin/sshd -D\0-f\0/etc/x", None),
    ],
)
def test_how_many_logins_the_sshd_above_us_takes(tmp_path: Path, title: str, found: int | None) -> None:
    for pid, parent, line in (
        (9, 8, "python3\0-I"),
        (8, 7, "sshd: ml@notty"),
        (7, 1, title),
        (1, 0, "/sbin/init"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text(line + "\0")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) c) S {parent} 0 0")
    assert health.startups(9, str(tmp_path)) == found


def test_proxies_are_told_without_their_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in health.PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://me:secret@proxy:3128")
    monkeypatch.setenv("HTTPS_PROXY", "not read by gRPC")
    assert health.proxies() == {"http_proxy": "proxy:3128"}


def test_the_size_of_the_newest_checkpoint(tmp_path: Path) -> None:
    assert health.save_bytes(str(tmp_path)) is None
    for generation, size in ((1, 50), (2, 70)):
        directory = tmp_path / f"gen-{generation:06}"
        directory.mkdir()
        (directory / "ckpt-1.index").write_bytes(b"i" * 10)
        (directory / "ckpt-1.data-00000-of-00001").write_bytes(b"d" * size)
    assert health.save_bytes(str(tmp_path)) == 80
