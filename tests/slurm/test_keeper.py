"""The keeper of a node, on a real Slurm: what outlives a channel, what it says, and what reads as no connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.errors import AllocationGone, ConnectFailed
from orchestrator.head.reach.relayed import RelayTransport
from orchestrator.head.reach.slurm.transport import slurm_transport
from orchestrator.head.reach.transport import Channel
from tests.patience import comes
from tests.slurm.kept import Kept
from tests.slurm.lab import SlurmLab

pytestmark = pytest.mark.slurm

SOON_S = 15.0


@pytest.fixture
def kept(slurm_lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setenv("SLURM_CONF", str(slurm_lab.conf))
    slurm_lab.wait_idle()
    made = Kept(slurm_lab, tmp_path, "--gres=gpu:2")
    yield made
    made.close()


@pytest.fixture
def transport(kept: Kept) -> RelayTransport:
    return slurm_transport(str(kept.bundle))


def line_of(channel: Channel) -> bytes:
    heard = b""
    while not heard.endswith(b"\n"):
        data = channel.read(1)
        assert data, f"ended after {heard!r}: {channel.stderr_tail()}"
        heard += data
    return heard.strip()


def within(seconds: float, happens: Callable[[], bool]) -> bool:
    return comes(happens, seconds)


def test_what_a_channel_started_outlives_its_srun(kept: Kept, transport: RelayTransport) -> None:
    kept.keep(1)
    channel = transport.open(
        kept.host(1), "setsid sh -c 'echo $$; exec sleep 300 >/dev/null 2>&1' </dev/null & exec cat"
    )
    pid = int(line_of(channel))
    channel._child.kill()  # type: ignore[attr-defined]
    assert within(SOON_S, lambda: channel.read(1) == b"")
    assert within(SOON_S, lambda: "cat" not in kept.lab.on(1, "ps", "-eo", "args").splitlines()), (
        "as its channel"
    )
    assert kept.lab.lives(1, pid), "Slurm ends a step whose srun has died: it was not this one's"
    again = transport.open(kept.host(1), f"kill {pid}; echo done")
    assert line_of(again) == b"done", "a new channel reaches what is there"
    assert within(SOON_S, lambda: not kept.lab.lives(1, pid))


def test_a_warning_is_told_and_ends_nothing(kept: Kept, transport: RelayTransport) -> None:
    said = kept.keep(1)
    assert said["gpus"] == "0,1", "the GPUs of the job are seen by what the keeper starts"
    channel = transport.open(kept.host(1), "exec cat")
    for name in ("USR1", "TERM"):
        kept.lab.run("scancel", f"--signal={name}", kept.job_id)
        assert kept.hears() == {"leaving": name}
        channel.write(b"here\n")
        assert line_of(channel) == b"here"
    channel.close()


def test_a_node_without_a_keeper_is_not_connected(kept: Kept, transport: RelayTransport) -> None:
    with pytest.raises(ConnectFailed, match="no keeper answers there"):
        transport.open(kept.host(2), "true")


@pytest.mark.fault(78)
def test_errors_of_srun_are_no_refusal(kept: Kept, transport: RelayTransport) -> None:
    with pytest.raises(ConnectFailed, match="not connected"):
        transport.open(replace(kept.host(1), address="no-such-node"), "true")


@pytest.mark.long
def test_a_node_without_power_is_not_connected(kept: Kept) -> None:
    kept.lab.power_off(3)
    try:
        with pytest.raises(ConnectFailed):
            RelayTransport(slurm_transport(str(kept.bundle))._engine, open_s=2.0).open(kept.host(3), "true")
    finally:
        kept.lab.power_on(3)


@pytest.mark.fault(78)
def test_an_allocation_that_has_ended_is_a_fact(kept: Kept, transport: RelayTransport) -> None:
    kept.lab.run("scancel", kept.job_id)
    with pytest.raises(AllocationGone, match=r"CANCELLED|COMPLETING"):
        transport.open(kept.host(1), "true")
    with pytest.raises(AllocationGone, match="does not know job 999999"):
        transport.open(replace(kept.host(1), allocation="999999.0"), "true")
    with pytest.raises(AllocationGone, match="requeued"):
        transport.open(replace(kept.host(1), allocation=f"{kept.job_id}.7"), "true")


@pytest.mark.long
@pytest.mark.fault(79)
def test_slurmd_may_die_and_come_back(kept: Kept, transport: RelayTransport) -> None:
    kept.keep(2)
    channel = transport.open(kept.host(2), "exec cat")
    kept.lab.kill_slurmd(2)
    channel.write(b"still here\n")
    assert line_of(channel) == b"still here", "a channel does not need slurmd"
    with pytest.raises(ConnectFailed):
        RelayTransport(transport._engine, open_s=3.0).open(kept.host(2), "true")
    kept.lab.start_slurmd(2)
    again = transport.open(kept.host(2), "echo back")
    assert line_of(again) == b"back"


@pytest.mark.long
def test_the_environment_of_a_command_names_the_job_and_no_step(
    kept: Kept, transport: RelayTransport
) -> None:
    kept.keep(1)
    channel = transport.open(kept.host(1), "env")
    heard = b""
    while data := channel.read(65536):
        heard += data
    names = {line.partition(b"=")[0] for line in heard.splitlines()}
    assert b"SLURM_JOB_ID" in names
    assert not {name for name in names if name.startswith((b"SLURM_STEP", b"SLURM_PROCID", b"PMI"))}
