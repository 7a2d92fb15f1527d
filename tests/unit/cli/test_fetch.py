"""`orch fetch` as a person calls it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.cli.session import Paint
from orchestrator.cli.show.render import left_lines
from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import Desk

DIGEST = "a" * 64


def file(to: str, size: int = 100) -> dict[str, Any]:
    return {
        "task": "worker:0",
        "host": "gpu-a",
        "generation": 1,
        "place": "work",
        "path": to,
        "bytes": size,
        "to": to,
    }


def listed(*files: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"run_id": "mnist-1", "files": list(files), "hidden": 0, "left_out": {}, "unreached": {}, **more}


def part(state: str, here: int = 100) -> dict[str, Any]:
    return {"state": state, "sha256": DIGEST, "here_bytes": here, "fetched_bytes": here}


@pytest.fixture(autouse=True)
def _ended(api: FakeApi) -> None:
    api.runs = [run_document(name="mnist", run_id="mnist-1", phase="SUCCEEDED")]


def test_a_file_is_asked_for_until_it_is_whole(orch: Desk, api: FakeApi) -> None:
    api.outputs = listed(file("model.keras", 300))
    api.parts = [part("more", 100), part("more", 200), part("fetched", 300)]
    assert orch("fetch", "mnist", "*.keras", "--task", "worker:0", "--to", "/somewhere", "--json") == 0
    document = json.loads(orch.put_out)
    assert (document["directory"], document["fetched_bytes"]) == ("/somewhere", 300)
    assert (document["files"][0]["state"], document["files"][0]["sha256"]) == ("fetched", DIGEST)
    asked = [body for path, body in api.posted if path == "/v1/runs/mnist-1/outputs"]
    assert asked == [{"patterns": ["*.keras"], "task": "worker:0"}]
    brought = [body for path, body in api.posted if path == "/v1/runs/mnist-1/outputs/fetch"]
    assert [body.get("sha256") for body in brought] == [None, DIGEST, DIGEST]
    assert {(body["directory"], body["replace"]) for body in brought} == {("/somewhere", False)}


def test_what_differs_is_named_and_the_way_out(orch: Desk, api: FakeApi) -> None:
    api.outputs = listed(file("a.csv"), file("b.csv"))
    api.parts = [part("differs", 0), part("fetched")]
    assert orch("fetch", "mnist", "--to", "/somewhere") == 6
    assert "not replaced, since their content here differs: a.csv" in orch.said
    assert "--force replaces them" in orch.said
    assert orch.put_out == "/somewhere\n"


def test_a_host_that_was_not_reached_is_named(orch: Desk, api: FakeApi) -> None:
    api.outputs = listed(file("a.csv"), unreached={"gpu-b": "gpu-b is away"}, left_out={"gpu-a": 2}, hidden=1)
    api.parts = [part("here")]
    assert orch("fetch", "mnist", "--to", "/somewhere") == 4
    assert "gpu-b: not reached, so what its tasks left is missing: gpu-b is away" in orch.said
    assert "gpu-a: 2 files left out: links" in orch.said
    assert "1 hidden file left out; a PATTERN brings them" in orch.said


def test_a_list_fetches_nothing(orch: Desk, api: FakeApi) -> None:
    api.outputs = listed(file("a.csv"))
    assert orch("fetch", "mnist", "--list") == 0
    assert [line.split() for line in orch.put_out.splitlines()][1] == [
        "a.csv",
        "100",
        "B",
        "worker:0",
        "gpu-a",
    ]
    assert all(not path.endswith("/fetch") for path, _ in api.posted)


@pytest.mark.fault(95)
@pytest.mark.parametrize("words", [("--list",), ("--to", "/somewhere")])
def test_the_name_of_a_file_forges_no_row(orch: Desk, api: FakeApi, words: tuple[str, ...]) -> None:
    forged = "a.csv\nmodel.keras   1 GiB  worker:0  gpu-b\t\u2028"
    api.outputs = listed(file(forged))
    api.parts = [part("fetched")]
    assert orch("fetch", "mnist", *words) == 0
    rows = (orch.put_out if "--list" in words else orch.said).splitlines()
    assert len([row for row in rows if "gpu-b" in row]) == 1
    assert any(r"a.csv\nmodel.keras   1 GiB  worker:0  gpu-b\t\u2028  " in row for row in rows)


@pytest.mark.fault(95)
def test_what_is_beyond_the_limit_is_named_and_all_else_comes(orch: Desk, api: FakeApi) -> None:
    api.outputs = listed({**file("sparse", 4 << 40), "why": "it is too large"}, file("z.csv"), file("a.csv"))
    api.parts = [part("fetched"), part("fetched")]
    assert orch("fetch", "mnist", "--to", "/somewhere", "--json") == 1
    told = json.loads(orch.put_out)["files"]
    assert [(one["to"], one["state"]) for one in told] == [
        ("a.csv", "fetched"),
        ("sparse", "failed"),
        ("z.csv", "fetched"),
    ]
    assert "sparse: it is too large" in orch.said
    assert "1 file could not be fetched: sparse" in orch.said


def test_a_list_of_nothing_says_so(orch: Desk, api: FakeApi) -> None:
    api.outputs = listed(hidden=2)
    assert orch("fetch", "mnist", "--list") == 0
    assert orch.put_out == ""
    assert "mnist-1: nothing to fetch: its tasks have left no file in their working directories" in orch.said
    assert "2 hidden files left out; a PATTERN brings them" in orch.said
    assert orch("fetch", "mnist", "*.csv", "--list") == 0
    assert "its tasks have left no file that matches *.csv in" in orch.said


def test_a_pattern_that_matches_nothing_is_an_error(orch: Desk, api: FakeApi) -> None:
    api.outputs = listed()
    assert orch("fetch", "mnist", "model.keras", "--to", "/somewhere") == 1
    assert "mnist-1 left no file that matches model.keras" in orch.said
    assert "left no file in their" not in orch.said, "it may have left others"
    assert orch("fetch", "mnist", "--to", "/somewhere") == 0


def test_a_word_that_is_no_task_is_refused(orch: Desk, api: FakeApi) -> None:
    assert orch("fetch", "mnist", "--task", "wroker:0") == 2
    assert api.posted == []


def test_the_end_of_a_run_says_what_was_left() -> None:
    def left(task: str, files: int, fetched: int) -> dict[str, Any]:
        return {"task": task, "host": "a", "files": files, "bytes": 12 << 20, "fetched": fetched}

    run: dict[str, Any] = {"name": "mnist", "outputs": None}
    assert left_lines(run, Paint(on=False)) == []
    run["outputs"] = {"pending": False, "directory": None, "tasks": [left("worker:0", 3, 0)], "problems": []}
    assert left_lines(run, Paint(on=False)) == ["worker:0 left 3 files, 12 MiB: `orch fetch mnist`"]
    run["outputs"] |= {"directory": "/o", "tasks": [left("worker:0", 1, 1)], "problems": ["b: away"]}
    assert left_lines(run, Paint(on=False)) == [
        "worker:0 left 1 file, 12 MiB; 1 of them in /o",
        "not fetched: b: away",
    ]
    run["outputs"] |= {"tasks": [left(f"worker:{n}", 2, 0) for n in range(10)], "problems": []}
    assert left_lines(run, Paint(on=False))[-1] == "and 2 tasks more left files: `orch fetch mnist`"


def saved(name: str, generation: int = 2, **more: Any) -> dict[str, Any]:
    path = f"/ckpt/gen-{generation:06d}/{name}"
    known = {"name": path[6:], "path": path, "kind": "keras", "generation": generation, "global_step": None}
    state = {"whole": True, "writing": False, "set_aside": False, "resumes": False, "saved_at": 1.0}
    return {**known, **state, **more}


BACKUP = saved("orch/fit-000/latest.weights.h5", resumes=True, global_step=120)


@pytest.mark.parametrize(
    ("words", "entries", "asked"),
    [
        ((), [BACKUP, saved("best.keras"), saved("last.keras")], (2, "best.keras")),
        ((), [saved("best_a.h5"), saved("best_b.h5", saved_at=2.0), saved("best_c.h5", 1)], (2, "best_b.h5")),
        ((), [BACKUP, saved("best.keras", whole=False), saved("best.keras", 1)], (1, "best.keras")),
        ((), [saved("best.keras", 3, set_aside=True), saved("best.keras", 1)], (1, "best.keras")),
        ((), [BACKUP, saved("model.keras")], (2, "model.keras")),
        (("last*",), [saved("best.keras"), saved("last.keras")], (2, "last.keras")),
        (("t/x.npz",), [saved("best/x-1.npz", kind="npz")], None),
        ((), [saved("best/best-1.npz", kind="npz")], (2, "best")),
        ((), [saved("a.keras"), saved("b.keras")], None),
        ((), [BACKUP], None),
        (("*.h5",), [saved("best.keras")], None),
    ],
)
def test_the_best_model_is_the_newest_that_is_called_so(
    orch: Desk, api: FakeApi, words: tuple[str, ...], entries: list[Any], asked: tuple[int, str] | None
) -> None:
    api.checkpoints = {"run_id": "mnist-1", "newest": BACKUP["name"], "checkpoints": entries}
    api.outputs, api.parts = listed(file("best.keras")), [part("fetched")]
    code = orch("fetch", "mnist", *words, "--best", "--to", "/somewhere")
    bodies = [body for path, body in api.posted if path == "/v1/runs/mnist-1/saved"]
    assert (code, bodies) == ((0, [{"generation": asked[0], "path": asked[1]}]) if asked else (1, []))
    assert asked or "hint: " in orch.said


@pytest.mark.parametrize(
    ("which", "path"), [((), "orch/fit-000/latest.weights.h5"), (("gen-1",), "a.keras"), (("7",), None)]
)
def test_a_checkpoint_is_fetched_by_its_names(
    orch: Desk, api: FakeApi, which: tuple[str, ...], path: str | None
) -> None:
    api.checkpoints = {
        "run_id": "mnist-1",
        "newest": BACKUP["name"],
        "checkpoints": [BACKUP, saved("a.keras", 1)],
    }
    api.outputs, api.parts = listed(file("a")), [part("fetched")]
    code = orch("ckpt", "fetch", "mnist", *which, "--to", "/somewhere")
    bodies = [body for where, body in api.posted if where == "/v1/runs/mnist-1/saved"]
    assert ([body["path"] for body in bodies], code) == (([path], 0) if path else ([], 2))


def test_a_checkpoint_that_went_away_meanwhile_is_no_success(orch: Desk, api: FakeApi) -> None:
    api.checkpoints = {"run_id": "mnist-1", "newest": None, "checkpoints": [saved("a.keras", 1)]}
    api.outputs = listed()
    assert orch("ckpt", "fetch", "mnist", "--to", "/somewhere") == 2, (
        "none counts, so the newest is not known"
    )
    assert "there is no checkpoint" in orch.said
    assert orch("ckpt", "fetch", "mnist", "gen-1", "--to", "/somewhere") == 1
    assert "no file of a.keras is in the directory of generation 1 any more" in orch.said
