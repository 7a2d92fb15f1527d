"""Public scripts in the first hour of a newcomer: `python -m tests.public_scripts.first_hour DIR`.

Two hosts of the lab are in ~/.ssh/config; each has a venv with TensorFlow. For each script of `first_hour.toml`: what
its author published is put into an empty directory, then `orch init gpu-a gpu-b --script …` and `orch up cluster.yaml`
are typed, and no file is edited. In the middle of the training one worker is ended by SIGKILL. `--page` writes the
results into docs/first-hour.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tomllib

from tests.cluster.cluster import Cluster
from tests.cluster.lab import Lab, LabHost
from tests.lean import WITH_SCIKIT_LEARN, python_with
from tests.patience import comes
from tests.public_scripts import files
from tests.public_scripts.page import commit
from tests.public_scripts.small_data import _NOTHING

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "first-hour.md"
BEGIN = "<!-- ten public scripts: begin, by `python -m tests.public_scripts.first_hour` -->"
END = "<!-- ten public scripts: end -->"
KILL_AT = 5
SEEN_AFTER_S = 20.0
"""How long one that trains again behind the step of the kill is seen to its end."""
LIMIT_S = 600.0
"""Of a script: from what its author published to the end of its training."""


def main() -> None:
    """Run what is asked for, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.public_scripts.first_hour", description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", help="has the repositories as OWNER/NAME")
    parser.add_argument("--fetch", action="store_true", help="get the files that are missing from GitHub")
    parser.add_argument("--only", default="", help="only scripts whose path contains one of these words")
    parser.add_argument("--results", type=Path, default=Path("build/first-hour.json"))
    parser.add_argument("--no-try", action="store_true", help="leave out the trial of `orch init`")
    parser.add_argument("--page", action="store_true", help="only write the results into docs/first-hour.md")
    args = parser.parse_args()
    collection = tomllib.loads((HERE / "first_hour.toml").read_text())
    known: dict[str, Any] = json.loads(args.results.read_text()) if args.results.exists() else {}
    if args.page:
        _write_page(collection, known)
        return
    if args.directory is None:
        parser.error("name the directory of the repositories")
    for script in collection["script"]:
        name = f"{script['of']}: {script['path']}"
        if name in known or not any(word in name for word in args.only.split(",")):
            continue
        of = next(each for each in collection["collection"] if each["name"] == script["of"])
        paths = [script["path"], *script.get("beside", [])]
        if args.fetch:
            _fetch(of, paths, args.directory)
        with _newcomer(args.results.parent.resolve()) as cluster:
            more = ["--no-try"] if args.no_try else []
            row = _first_hour(cluster, script, args.directory / of["repository"], paths, more)
        known[name] = row
        shown = {key: value for key, value in row.items() if key not in ("init", "log")}
        print(script["path"], json.dumps(shown), flush=True)
        args.results.parent.mkdir(parents=True, exist_ok=True)
        args.results.write_text(json.dumps(known, indent=1))


def _fetch(of: dict[str, str], paths: list[str], directory: Path) -> None:
    for path in paths:
        target = directory / of["repository"] / path
        if not target.exists():
            address = f"https://raw.githubusercontent.com/{of['repository']}/{of['commit']}/{path}"
            target.parent.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(address, timeout=30) as answer:
                target.write_bytes(answer.read())


@contextlib.contextmanager
def _newcomer(place: Path) -> Iterator[Cluster]:
    """Yield somebody with a fresh HOME, two hosts of their ~/.ssh/config, and nothing else."""
    own = place / "first-hour"
    shutil.rmtree(own, ignore_errors=True)
    (own / "home/.ssh").mkdir(parents=True)
    with Lab(2) as lab:
        for host in lab.hosts:
            _furnish(host)
        blocks = [
            f"Host gpu-{letter}\n  HostName {host.address}\n  Port {host.port}\n"
            for letter, host in zip("ab", lab.hosts, strict=True)
        ]
        common = f"  User root\n  IdentityFile {lab.identity_file}\n  UserKnownHostsFile {lab.known_hosts}\n"
        (own / "home/.ssh/config").write_text("".join([*blocks, "Host *\n", common]))
        cluster = Cluster(own, lab)
        cluster.checks = True
        cluster.env["HOME"] = str(own / "home")
        try:
            yield cluster
        finally:
            cluster.close()


def _furnish(host: LabHost) -> None:
    """Give a host a venv with TensorFlow, in which data sets and drawing are those of `venv_data`."""
    place = host.home / "venv"
    venv.create(place, symlinks=True)
    library = next(place.glob("lib/python3*/site-packages"))
    has = Path(python_with(*WITH_SCIKIT_LEARN, "pandas", "pillow")).parents[1]
    for each in next(has.glob("lib/python3*/site-packages")).iterdir():
        (library / each.name).symlink_to(each.resolve())
    shutil.copy(HERE / "venv_data.py", library / "sitecustomize.py")
    shutil.copy(HERE / "small_data.py", library)
    for name in ("tqdm", "tensorflow_datasets"):
        lines = {
            "tqdm": "tqdm = lambda each, **_: each\n",
            "tensorflow_datasets": "import sys, small_data\nsys.modules[__name__] = small_data._tfds()\n",
        }
        (library / f"{name}.py").write_text(lines[name])
    for top in {name.partition(".")[0] for name in _NOTHING} - {"pandas"}:
        below = [name for name in _NOTHING if name.startswith(f"{top}.")]
        (library / f"{top}.py").write_text(
            "import sys, small_data\n"
            f"for name in {[top, *below]!r}:\n    sys.modules[name] = small_data._Nothing()\n"
        )
    files.write_home(host.home)
    _write_tables(host.home)


def _write_tables(home: Path) -> None:
    """Write what scripts read by address, and archives that `get_file` finds in its cache."""
    random = np.random.default_rng(8)
    data, cache = home / "public-data", home / ".keras/datasets"
    data.mkdir()
    stamps = np.datetime_as_string(np.datetime64("2014-04-01T00:00:00") + 300 * np.arange(4032))
    for name in ("art_daily_small_noise.csv", "art_daily_jumpsup.csv"):
        rows = (f"{stamp.replace('T', ' ')},{20 + random.normal():.4f}\n" for stamp in stamps)
        (data / name).write_text("timestamp,value\n" + "".join(rows))
    heart = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target"
    thal = ("fixed", "normal", "reversible")
    rows = (
        ",".join(map(str, [*random.integers(0, 4, 9), f"{random.random():.1f}", *random.integers(0, 3, 2)]))
        + f",{thal[random.integers(3)]},{random.integers(2)}\n"
        for _ in range(303)
    )
    (data / "heart.csv").write_text(heart + "\n" + "".join(rows))
    ratings = "userId,movieId,rating,timestamp\n" + "".join(
        f"{u},{m},{r / 2},0\n" for u, m, r in random.integers(1, (51, 101, 11), (3000, 3))
    )
    movies = "movieId,title,genres\n" + "".join(f"{m},Film {m},Drama\n" for m in range(1, 101))
    with zipfile.ZipFile(cache / "ml-latest-small.zip", "w") as archive:
        archive.writestr("ml-latest-small/ratings.csv", ratings)
        archive.writestr("ml-latest-small/movies.csv", movies)


def _first_hour(
    cluster: Cluster, script: dict[str, Any], source: Path, paths: list[str], more: list[str]
) -> dict[str, Any]:
    began, name = time.monotonic(), re.sub(r"[\W_]+", "-", Path(script["path"]).stem.lower())[:20].strip("-")
    work = cluster.directory / "work"
    for path in paths:
        target = work / Path(path).relative_to(Path(script["path"]).parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Keras 3 was developed under this name: its authors have published the same text with the later one.
        target.write_text((source / path).read_text().replace("keras_core", "keras"))
    row: dict[str, Any] = {"commit": commit(), "date": datetime.date.today().isoformat()}
    typed = _typed(
        cluster, work, "init", "gpu-a", "gpu-b", "--script", Path(script["path"]).name, "--name", name, *more
    )
    row["init"] = typed.stderr[-3000:]
    row["init_s"] = round(time.monotonic() - began)
    if typed.returncode != 0:
        return {**row, "outcome": "refused", "why": typed.stderr[-3000:]}
    started = _typed(cluster, work, "up", "cluster.yaml", "--detach")
    if started.returncode != 0:
        return {**row, "outcome": "refused", "why": started.stderr[-1500:]}
    killed: dict[str, Any] = {}
    back: list[float] = []

    def is_seen() -> bool:
        run = cluster.shown(name)
        if run is None:
            return False
        step = run["global_step"] or 0
        if not killed and run["phase"] == "RUNNING" and step >= KILL_AT:
            victim = next(
                task for task in run["tasks"] if task["task"] == f"worker:{script.get('worker', 1)}"
            )
            if victim["pid"]:
                os.kill(victim["pid"], signal.SIGKILL)
                killed.update(task=victim["task"], at=step)
        if killed and not back and run["generation"] > 1 and step > killed["at"]:
            back.append(time.monotonic())
        late = bool(back) and time.monotonic() - back[0] > SEEN_AFTER_S
        return late or run["phase"] in ("SUCCEEDED", "FAILED", "KILLED")

    comes(is_seen, LIMIT_S - (time.monotonic() - began), 0.3)
    run = cluster.shown(name) or {}
    resumed = [each for each in cluster.events(name) if each["kind"] in ("resumed", "from-start")]
    row |= {
        "killed": killed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "phase": run.get("phase"),
        "step": run.get("global_step"),
        "metrics": run.get("metrics"),
        "generations": run.get("generation"),
        "back_after_s": round(back[0] - began) if back else None,
        "resumed": [{"kind": each["kind"], **each["data"]} for each in resumed],
    }
    good = bool(killed) and (bool(back) or run.get("phase") == "SUCCEEDED") and run.get("phase") != "FAILED"
    if not good:
        row["why"] = _typed(cluster, work, "why", name).stdout[-2500:]
        row["log"] = _typed(cluster, work, "logs", name).stdout[-4000:]
    return {**row, "outcome": "trained" if good else "failed"}


def _typed(cluster: Cluster, work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator.cli.main", *words]
    return subprocess.run(
        command, env=cluster.env, cwd=work, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def _write_page(collection: dict[str, Any], known: dict[str, Any]) -> None:
    rows = [
        "| script | killed | went on from | steps seen | minutes | trial | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    trained = 0
    for script in collection["script"]:
        name = f"{script['of']}: {script['path']}"
        row = known.get(name)
        if row is None:
            continue
        commits = row["commit"]
        if row["outcome"] == "refused":
            said = [line for line in row["why"].splitlines() if line.startswith(("warning:", "error:"))]
            why = re.sub(r"cluster.yaml:\d+:\d+: run.script: |/tmp/\S*/", "", (said or [row["why"]])[-1])
            reason = " ".join(why.partition(": ")[2].split())
            rows.append(f"| {name} | refused before its start: {reason} |  |  |  |  | {commits} |")
            continue
        refusal = re.search(r"Unsupported: (.*)", row.get("log", ""))
        if refusal is not None:
            rows.append(f"| {name} | refused at its first step: {refusal[1]} |  |  |  |  | {commits} |")
            continue
        trained += row["outcome"] == "trained"
        last = row["resumed"][-1] if row["resumed"] else {}
        begun = last.get("global_step")
        proof = re.search(r"restores: (\w[^:,\n]*)", row["init"])
        killed = f"{row['killed']['task']} at step {row['killed']['at']}" if row["killed"] else "not killed"
        after = f"step {begun}, {last.get('steps_lost')} lost" if begun is not None else "step 0"
        ended = f"{row['step']}{', its end' if row['phase'] == 'SUCCEEDED' else ''}"
        outcome = "" if row["outcome"] == "trained" else f"**failed**: {row.get('phase')}; "
        rows.append(
            f"| {name} | {outcome}{killed} | {after} | {ended} | {row['minutes']} | {proof[1] if proof else ''} "
            f"| {commits} |"
        )
    dates = sorted({row["date"] for row in known.values()})
    of = ", ".join(
        f"[{each['repository']}](https://github.com/{each['repository']}) at {each['commit'][:10]}"
        for each in collection["collection"]
    )
    text = (
        f"{', '.join(dates)}: {trained} scripts trained on and came back.\n\n"
        + "\n".join(rows)
        + f"\n\nFrom {of}."
    )
    page = PAGE.read_text()
    PAGE.write_text(f"{page.partition(BEGIN)[0]}{BEGIN}\n\n{text}\n\n{END}{page.partition(END)[2]}")


if __name__ == "__main__":
    main()
