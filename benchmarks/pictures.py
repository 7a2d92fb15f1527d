"""The pictures of the page in README and docs: `python -m benchmarks.pictures`; with `--all DIR` all views, too.

Two workers on this machine train on handwritten digits (cluster_specs/local.yaml). One is killed; the run comes back.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.browsing import Ui
from tests.cluster.cluster import Cluster
from tests.lean import python_for
from tests.patience import comes

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDE, PHONE = (1200, 1000), (400, 860)
EPOCHS = 60
KILL_AT, SHOWN_AT = 500, 640


def main() -> None:
    """Train, kill a worker, and take the pictures."""
    from playwright.sync_api import sync_playwright

    every = Path(sys.argv[2]) if sys.argv[1:2] == ["--all"] else None
    with tempfile.TemporaryDirectory(prefix="orch-pictures-") as directory, sync_playwright() as started:
        cluster = Cluster(Path(directory))
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            run_id = _train(cluster, Path(directory))
            ui = Ui(cluster, browser)
            _take(ui, IMAGES / "run.png", WIDE, "r", run_id)
            _take(ui, IMAGES / "phone.png", PHONE, "r", run_id)
            if every is not None:
                _look_at_all(ui, every, run_id)
            ui.close()
        finally:
            browser.close()
            cluster.close()


def _train(cluster: Cluster, directory: Path) -> str:
    document = yaml.safe_load((ROOT / "cluster_specs/local.yaml").read_text())
    document["run"]["workdir"] = str(ROOT / "examples")
    document["run"]["python"] = python_for(ROOT / "examples" / document["run"]["script"])
    document["run"]["args"] = ["--epochs", str(EPOCHS)]
    document["run"]["checkpoint"]["dir"] = str(directory / "ckpt")
    spec = directory / "digits.yaml"
    spec.write_text(yaml.safe_dump(document))
    cluster.ok("up", str(spec), timeout=120)

    def reach(generation: int, step: int) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            run = cluster.shown("digits")
            is_there = run and run["generation"] >= generation and (run["global_step"] or 0) >= step
            return run if is_there else None

        run = comes(found, 600)
        assert run, f"generation {generation} has not come to step {step}: {cluster.ok('events', 'digits')}"
        return run

    os.kill(_pid_of(reach(1, KILL_AT)), signal.SIGKILL)
    return str(reach(2, SHOWN_AT)["run_id"])


def _pid_of(run: dict[str, Any]) -> int:
    return int(next(task["pid"] for task in run["tasks"] if task["task"] == "worker:1"))


def _take(ui: Ui, path: Path, size: tuple[int, int], *place: str, whole: bool = False) -> None:
    ui.page.set_viewport_size({"width": size[0], "height": size[1]})
    ui.go(*place)
    ui.page.wait_for_timeout(2500)
    ui.page.screenshot(path=str(path), full_page=whole)


def _look_at_all(ui: Ui, directory: Path, run_id: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    views = {
        "runs": (),
        "run": ("r", run_id),
        "logs": ("r", run_id, "logs"),
        "plan": ("r", run_id, "plan"),
        "pool": ("pool",),
    }
    for colours in ("light", "dark"):
        ui.page.emulate_media(color_scheme=colours)
        for size in (WIDE, PHONE):
            for name, place in views.items():
                _take(ui, directory / f"{name}-{colours}-{size[0]}.png", size, *place, whole=True)


if __name__ == "__main__":
    main()
