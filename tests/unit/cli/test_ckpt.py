"""`orch ckpt` as a person calls it."""

from __future__ import annotations

import json
from typing import Any

from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import Desk


def checkpoint(step: int | None = 120, **changes: Any) -> dict[str, Any]:
    found = {
        "generation": 5,
        "name": f"gen-000005/ckpt-{step}",
        "path": f"/shared/mnist/gen-000005/ckpt-{step}",
        "kind": "tensorflow",
        "global_step": step,
        "bytes": 5 << 20,
        "saved_at": 940.0,
        "resumes": True,
        "whole": True,
        "why": None,
        "verified_at": 988.0,
        "pinned": False,
        "set_aside": False,
        "by": {"run": "mnist-1", "host": "gpu-a", "task": "worker:0"},
        "given": False,
    }
    return {**found, **changes}


def answer(*checkpoints: dict[str, Any], newest: str | None = None, **more: Any) -> dict[str, Any]:
    document = {
        "run_id": "mnist-1",
        "host": "gpu-a",
        "dir": "/shared/mnist",
        "checkpoints": list(checkpoints),
    }
    return {**document, "newest": newest or (checkpoints[0]["name"] if checkpoints else None), **more}


def test_the_list_is_data_and_its_headline_talk(orch: Desk, api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1")]
    api.checkpoints = answer(
        checkpoint(),
        checkpoint(100, whole=False, why="cut off", verified_at=None, set_aside=True),
        checkpoint(80, whole=None, verified_at=None, pinned=True, given=True, generation=None),
        checkpoint(140, whole=None, verified_at=None, writing=True),
    )
    assert orch("ckpt", "ls") == 0
    assert orch.said == (
        "mnist-1: 4 checkpoints in /shared/mnist on gpu-a\n"
        "Set aside: 1 checkpoint, 5.0 MiB, kept until `orch ckpt rm set-aside`\n"
    )
    rows = [line.split() for line in orch.put_out.splitlines()]
    assert rows[0][:4] == ["GEN", "STEP", "SIZE", "SAVED"]
    assert " ".join(rows[1]) == (
        "5 120 5.0 MiB 1 min ago worker:0 on gpu-a 12 s ago newest gen-000005/ckpt-120"
    )
    assert " ".join(rows[2][4:]).endswith("no: cut off set aside gen-000005/ckpt-100")
    assert " ".join(rows[3]).startswith("- 80 5.0 MiB 1 min ago seed not yet pinned")
    assert "worker:0 on gpu-a being written gen-000005/ckpt-140" in " ".join(rows[4])


def test_what_reading_cannot_prove_is_said(orch: Desk, api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1")]
    unknown = checkpoint(proof="names", kind="unknown", whole=None, verified_at=None)
    api.checkpoints = answer(unknown, checkpoint(100, proof="structure"), checkpoint(80, proof="checksums"))
    assert orch("ckpt", "ls") == 0
    rows = [" ".join(line.split()) for line in orch.put_out.splitlines()]
    assert "worker:0 on gpu-a never: its format cannot be newest" in rows[1]
    assert "12 s ago, no checksums gen-000005/ckpt-100" in rows[2]
    assert "12 s ago gen-000005/ckpt-80" in rows[3]
    assert orch("ckpt", "verify") == 1
    assert "is of a format that cannot be verified: gen-000005/ckpt-120" in orch.said


def test_the_list_as_a_document_and_of_nothing(orch: Desk, api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1")]
    api.checkpoints = answer()
    assert orch("ckpt", "ls", "mnist", "--json") == 0
    assert json.loads(orch.put_out) == {"schema": 1, **answer()}
    assert orch("ckpt", "verify") == 1
    assert "no checkpoint to resume from" in orch.said


def test_verify_fails_where_the_newest_is_torn_and_not_where_an_older_is(orch: Desk, api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1")]
    api.checkpoints = answer(checkpoint(), checkpoint(100, whole=False, why="cut off"))
    assert orch("ckpt", "verify") == 0
    api.checkpoints = answer(checkpoint(whole=False, why="cut off"), checkpoint(100))
    assert orch("ckpt", "verify") == 1
    assert "gen-000005/ckpt-120: cut off" in orch.said


def test_verify_names_what_is_being_written_and_judges_the_one_before_it(orch: Desk, api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1")]
    writing = checkpoint(140, whole=None, verified_at=None, writing=True)
    api.checkpoints = answer(writing, checkpoint(), newest="gen-000005/ckpt-120")
    assert orch("ckpt", "verify") == 0
    assert "not verified, since it is being written: gen-000005/ckpt-140\n" in orch.said
    broken = checkpoint(whole=False, why="cut off")
    api.checkpoints = answer(writing, broken, newest="gen-000005/ckpt-120")
    assert orch("ckpt", "verify") == 1
    api.checkpoints = answer(writing) | {"newest": None}
    assert orch("ckpt", "verify") == 1
    assert "it is being written: gen-000005/ckpt-140\nerror: mnist-1 has no checkpoint to resume" in orch.said


def test_going_back_says_what_comes_next(orch: Desk, api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1")]
    api.checkpoints = answer() | {"checkpoint": checkpoint(), "set_aside": [7, 6], "active": True}
    assert orch("ckpt", "rollback", "mnist", "--to", "120", "--restart") == 0
    assert api.posted == [
        ("/v1/runs/mnist-1/checkpoints/rollback", {"checkpoint": "120", "restart": True}),
    ]
    assert "back to step 120" in orch.put_out
    assert "set aside: generation 7, 6; restarting its tasks from it" in orch.put_out
    api.checkpoints["active"] = False
    assert orch("ckpt", "rollback", "mnist", "--to", "120") == 0
    assert "the next `orch up --continue` starts from it" in orch.put_out


def test_pins_and_bad_input(orch: Desk, api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1")]
    api.checkpoints = {"checkpoint": checkpoint(), "already": True}
    assert orch("ckpt", "pin", "mnist", "gen-5") == 0
    assert orch.put_out == "step 120 of generation 5 (gen-000005/ckpt-120): already pinned\n"
    api.checkpoints = {"checkpoint": checkpoint()}
    assert orch("ckpt", "unpin", "mnist", "120") == 0
    assert orch.put_out.endswith(": unpinned\n")
    assert orch("ckpt", "unpin", "gen-5") == 0, "the run may be left out"
    assert api.posted[-1] == ("/v1/runs/mnist-1/checkpoints/unpin", {"checkpoint": "gen-5", "restart": False})
    assert orch("ckpt", "pin", "mnits", "120") == 2
    assert "did you mean 'mnist'?" in orch.said
    assert orch("ckpt", "rollback", "mnist") == 2
    api.runs = []
    assert orch("ckpt", "ls") == 1
    assert orch.said.endswith("error: there are no runs yet\nhint: `orch up FILE` starts one\n")


def test_what_is_removed_is_named_with_its_size_and_asked_for(orch: Desk, api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1")]
    api.checkpoints = answer(checkpoint(), checkpoint(generation=4, name="gen-000004/ckpt-9", set_aside=True))
    for wanted in ("gen-4", "set-aside"):
        assert orch("ckpt", "rm", "mnist", wanted) == 6
        assert "no terminal to confirm on; nothing was removed" in orch.said
    assert api.posted == []
    api.checkpoints = {**api.checkpoints, "removed": [4], "bytes": 5 << 20}
    assert orch("ckpt", "rm", "mnist", "set-aside", "--yes") == 0
    assert api.posted == [("/v1/runs/mnist-1/checkpoints/rm", {"checkpoint": "set-aside", "restart": False})]
    assert orch.put_out == "mnist-1: removed gen-4; 5.0 MiB are free again\n"
