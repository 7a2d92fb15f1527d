"""A snapshot that comes to a real agent: after a broken connection, on a full disk, and on one that hangs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import safe
from tests.contract.agent_harness import Client, client_in
from tests.contract.hanging_disk import hanging
from tests.contract.small_disk import mounted
from tests.patience import patient

PART_BYTES = 512 << 10
CONTENT = os.urandom(2 * safe.CHUNK_BYTES + 1000)
CHUNKS = [CONTENT[start : start + safe.CHUNK_BYTES] for start in range(0, len(CONTENT), safe.CHUNK_BYTES)]
DIGESTS = [sha256(chunk).hexdigest() for chunk in CHUNKS]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Client]:
    with client_in(tmp_path) as client:
        yield client


def snapshot(root: Path) -> dict[str, Any]:
    """Return the fields of the order to receive a snapshot of one file."""
    files = [("model/weights.bin", len(CONTENT), 1_700_000_000_000_000_000, DIGESTS)]
    manifest = {
        "digest": sha256(json.dumps(files).encode()).hexdigest(),
        "files": files,
        "piece_bytes": safe.CHUNK_BYTES,
        "bytes": len(CONTENT),
        "generation": 1,
        "global_step": 100,
        "saved_at": 1_700_000_000.0,
        "by": None,
    }
    return {"dir": str(root), "manifest": manifest}


def send(
    agent: Client, number: int, upto: int | None = None, of: bytes | None = None
) -> list[dict[str, Any]]:
    """Send the parts of a chunk, all of them before the first answer, and return the replies."""
    data, sent = of or CHUNKS[number], []
    for offset in range(0, len(data), PART_BYTES)[:upto]:
        part = data[offset : offset + PART_BYTES]
        last = offset + PART_BYTES >= len(data)
        sent.append(
            agent.send("blob", part, sha256=DIGESTS[number], offset=offset, last=last, store="checkpoints")
        )
    return [agent.answer(one)[0] for one in sent]


def test_it_is_there_with_its_name_time_and_content(agent: Client, tmp_path: Path) -> None:
    order = snapshot(tmp_path / "c")
    assert agent.ok("receive", **order) == {"missing": DIGESTS}
    for number in (2, 0, 1):
        assert {str(reply["ok"]) for reply in send(agent, number)} == {"{}"}
    assert agent.ok("receive", **order) == {"missing": []}
    assert agent.ok("receive", **order) == {"missing": []}, "asked twice, it is done once"
    home = tmp_path / "c" / ".orch" / "safe"
    (made,) = home.iterdir()
    assert made.name == order["manifest"]["digest"]
    weights = made / "model" / "weights.bin"
    assert (weights.read_bytes(), weights.stat().st_mtime) == (CONTENT, 1_700_000_000)


def test_a_damaged_chunk_is_told_and_asked_for_again(agent: Client, tmp_path: Path) -> None:
    order = snapshot(tmp_path / "c")
    agent.ok("receive", **order)
    replies = send(agent, 1, of=b"\0" * safe.CHUNK_BYTES)
    assert [reply["ok"] for reply in replies if reply["ok"]] == [{"damaged": True}]
    for number in (0, 2):
        send(agent, number)
    assert agent.ok("receive", **order) == {"missing": [DIGESTS[1]]}
    send(agent, 1)
    assert agent.ok("receive", **order) == {"missing": []}


def test_after_a_broken_connection_only_the_rest_is_asked_for(agent: Client, tmp_path: Path) -> None:
    order = snapshot(tmp_path / "c")
    agent.ok("receive", **order)
    send(agent, 0)
    send(agent, 1, upto=3)
    agent.close()
    again = Client((tmp_path / "host").resolve())
    try:
        (refused,) = send(again, 2)[:1]
        assert refused["error"]["code"] == "offset", "it must be asked first what it lacks"
        assert again.ok("receive", **order) == {"missing": DIGESTS[1:]}
        refused = send(again, 1, of=CHUNKS[1])[0]
        assert refused["ok"] == {}
        send(again, 2)
        assert again.ok("receive", **order) == {"missing": []}
    finally:
        again.close()


@pytest.mark.fault(36)
def test_row_36_a_disk_that_is_full_is_told_with_what_is_needed(agent: Client, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", megabytes=12) as disk:
        order = snapshot(disk.path / "c")
        agent.ok("receive", **order)
        send(agent, 0)
        error = send(agent, 1)[-1]["error"]
        assert error["code"] == "no-space"
        assert f"{len(CONTENT)} bytes are needed" in error["message"]
        assert not list((disk.path / "c" / ".orch" / "safe").iterdir())
        assert agent.ok("receive", **order) == {"missing": DIGESTS}


@pytest.mark.fault(44)
def test_row_44_a_directory_that_hangs_while_it_is_written_to_stops_no_heartbeat(
    agent: Client, tmp_path: Path
) -> None:
    agent.ok("watch", heartbeat_s=0.1)
    order = snapshot(tmp_path / "c")
    agent.ok("receive", **order)
    with hanging(tmp_path / "c"):
        last = agent.send("blob", CHUNKS[2], sha256=DIGESTS[2], offset=0, last=True, store="checkpoints")
        began_at, heard = time.monotonic(), len(agent.reports)
        while len(agent.reports) < heard + 10:
            assert agent.hear()
        assert time.monotonic() - began_at < patient(10)
        assert last not in agent.replies
    assert "Traceback" not in str(agent.answer(last)[0])
    assert agent.ok("receive", **order) == {"missing": DIGESTS}
