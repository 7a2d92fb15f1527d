"""Public Keras and TensorFlow scripts, plain and under `transparent: true`: `make public-scripts DIR=…`.

Each script is run as its author does, and by two workers of which one is killed with SIGKILL in the middle of `fit`,
after which a second generation goes on from its backup. `--runs 2,still,3,2x2,keras2` adds: both with the noise of
layers off, where there is some; three workers; two workers with two replicas each; and both with tf_keras in the place
of Keras 3, where the script can do with it. Weights are compared; where there is noise,
the loss; and the names of the files that are left. A refusal is recorded with its line. What is not equal is compared
with how far one process is from itself: with its first weights moved by a relative 1e-7, and with other noise. Scripts
by their authors come from GitHub; those of `scripts/` are written after public examples, since these need their data.
`--page` writes the results, which docs/public-scripts.json keeps, as docs/public-scripts.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shutil
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import tomllib

from tests.public_scripts import left
from tests.public_scripts.page import EQUAL, OWN, RESULTS, RUNS, commit, name_of, verdict, write_page

HERE = Path(__file__).parent
BUILD = Path("build").resolve()
"""Where copies of the scripts, small data and logs lie."""

_NOISE = re.compile(
    r"Dropout|Random[A-Z]\w+(?=\()|keras\.random\b|tf\.random\b|GaussianNoise|BatchNormalization|backend\.random\b"
    r"|mixed_b?float16"
)

_ENVIRONMENTS = {"still": {"ORCH_PUBLIC_STILL": "1"}, "keras2": {"ORCH_PUBLIC_KERAS": "tf_keras"}}
"""What is set for the runs that are compared with one process of their own."""

_ERROR = re.compile(r"[\w.]*(Error|Exception|Unsupported|NoNetwork)\b")
_STARVED = re.compile(r"heartbeat timeout|Unexpected heartbeat request|failed to connect to all addresses")
"""What TensorFlow says where a worker had no processor for ten seconds."""
GENERATIONS = 4

CONTROLS = 2
"""How often one process is compared with itself. Its greatest difference counts."""


def main() -> None:
    """Run what is asked for, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.public_scripts", description=__doc__)
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        help="has the collections as OWNER/NAME/PATH, or is filled with them",
    )
    parser.add_argument("--fetch", action="store_true", help="get the scripts that are missing from GitHub")
    parser.add_argument(
        "--only", default="", help="only scripts whose path contains one of these, with commas between"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", default="2", help=f"which of {', '.join(RUNS)}")
    parser.add_argument("--again", action="store_true", help="also run what the results have already")
    parser.add_argument(
        "--page", action="store_true", help="only write the results as docs/public-scripts.md"
    )
    args = parser.parse_args()
    collection = whole_collection()
    known = json.loads(args.results.read_text()) if args.results.exists() else {}
    if args.page:
        write_page(collection, known)
        return
    if args.directory is None and not all(each.startswith(OWN) for each in args.only.split(",")):
        parser.error("name the directory of the scripts")
    from tests.public_scripts.running import import_once

    import_once(_data())
    for script in collection["script"]:
        if any(part in name_of(script) for part in args.only.split(",")):
            _run(collection, script, args, known)


def whole_collection() -> dict[str, Any]:
    """Return the scripts that are fetched, and those that are here."""
    with open(HERE / "collection.toml", "rb") as file:
        collection = tomllib.load(file)
    collection["script"] += [
        {"of": OWN, "path": path.name} for path in sorted((HERE / "scripts").glob("*.py"))
    ]
    return collection


def _run(collection: dict[str, Any], script: dict[str, Any], args: argparse.Namespace, known: Any) -> None:
    name = name_of(script)
    before = {} if args.again else known.get(name, {})
    if before.get("outcome") == "not run":
        return
    # What is known of it came from a copy that may be gone by now, as after `make clean`.
    row = before if before and _home(script).exists() else {**before, **_begun(collection, script, args)}
    if before and row["outcome"] == "not run":
        print(f"{name}: {row['why']}", flush=True)
        return
    for run in args.runs.split(","):
        if row["outcome"] == "not run" or run in row or (run == "still" and not row["noise"]):
            continue
        if row.get("2", {}).get("outcome") == "refused":
            continue
        seen = _transparent(row, script, run)
        if run == "keras2" and seen["outcome"] == "not run":
            print(f"{name} is for Keras 3: {seen['why']}", flush=True)
            continue
        row[run] = {"commit": commit(), **seen}
        print(f"{name}, {run}: {verdict(row, run)} {row[run]}", flush=True)
    _compare_with_itself(row, script)
    known[name] = {"commit": commit(), **row}
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps(known, indent=1))


def _compare_with_itself(row: dict[str, Any], script: dict[str, Any]) -> None:
    """Measure how far one process ends from itself, where that may be why a run is not equal."""
    runs = [run for run in RUNS if row.get(run, {}).get("outcome") == "ran"]
    apart = {run for run in runs if not (row[run]["weights_apart"] or 0) <= EQUAL}
    wanted = {
        "moved": bool(apart) and not row["noise"],
        "moved still": "still" in apart,
        "redrawn": bool(apart) and any(each != "BatchNormalization" for each in row["noise"]),
    }
    for control, needed in wanted.items():
        itself = row.setdefault("itself", {})
        if needed and control not in itself:
            itself[control] = _from_itself(script, control)
            print(f"{name_of(script)}, {control}: {itself[control]}", flush=True)


def _from_itself(script: dict[str, Any], control: str) -> dict[str, Any]:
    from tests.public_scripts.running import stored

    home, (kind, _, still) = _home(script), control.partition(" ")
    env = {"ORCH_PUBLIC_STILL": "1"} if still else {}
    expected = stored(home / ("plain-still" if still else "plain"))
    if expected is None:
        return {"outcome": "not run", "why": "the plain run has left nothing"}
    found = []
    for number in range(1, CONTROLS + 1):
        told = {**env, "ORCH_PUBLIC_CONTROL": f"{kind}:{number}"}
        other = _plain(home / f"{home.name}.py", home, told, f"plain-{control.replace(' ', '-')}")
        if "why" in other:
            return {"outcome": "not run", **other}
        found.append(_compared(expected, other))
    most = {key: max(each[key] or 0.0 for each in found) for key in ("weights_apart", "loss_apart")}
    return {"outcome": "ran", "commit": commit(), **most}


def _home(script: dict[str, Any]) -> Path:
    return BUILD / "public-scripts" / str(script["of"]) / Path(script["path"]).stem


def _begun(collection: dict[str, Any], script: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Put the shortened copy in its place, and find its noise."""
    from tests.public_scripts.running import as_script, shortened

    if script["of"] == OWN:
        source = HERE / "scripts" / script["path"]
        text = source.read_text()
    else:
        of = next(each for each in collection["collection"] if each["name"] == script["of"])
        source = args.directory / of["repository"] / script["path"]
        if not source.exists() and args.fetch:
            _fetch(of, script["path"], source)
        if not source.exists():
            return {"outcome": "not run", "why": "it is not here"}
        if hashlib.sha256(source.read_bytes()).hexdigest() != script["sha256"]:
            return {"outcome": "not run", "why": "its text is another one than that of the commit"}
        text = shortened(as_script(source), script.get("change", []))
    home = _home(script)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    copy = home / f"{source.stem}.py"
    copy.write_text(text)
    noise = sorted(set(_NOISE.findall(copy.read_text())))
    found = _plain(copy, home, {})
    if "why" in found:
        print(f"{name_of(script)}: {found['why']}", flush=True)
        return {"outcome": "not run", **found}
    return {"outcome": "ran", "noise": noise, "fits": len(found["fits"]), "steps": found["steps"]}


def _fetch(of: dict[str, Any], path: str, target: Path) -> None:
    address = f"https://raw.githubusercontent.com/{of['repository']}/{of['commit']}/{path}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(answer.read())


def _data() -> Path:
    from tests.public_scripts import files

    data = BUILD / "public-scripts" / "data"
    if not data.exists():
        building = data.with_suffix(".part")
        shutil.rmtree(building, ignore_errors=True)
        files.write_home(building / "home")
        files.write_beside(building / "beside")
        building.rename(data)
    return data


def _resumed(copy: Path, home: Path, env: dict[str, str], kind: str, kill_at: int) -> dict[str, Any]:
    """Return what one process ends with that is killed, too, and started again: it goes on by what it has saved."""
    _plain(copy, home, {**env, "ORCH_PUBLIC_KILL_AT": str(kill_at)}, kind)
    return _plain(copy, home, env, kind, anew=False)


def _plain(
    copy: Path, home: Path, env: dict[str, str], kind: str = "plain", *, anew: bool = True
) -> dict[str, Any]:
    """Return the figures and weights of one process, or why there are none."""
    from tests.public_scripts.running import plain, until

    place = home / kind
    if anew:
        shutil.rmtree(place, ignore_errors=True)
    alone = plain(copy, place, _data(), env)
    if not until(lambda: alone.poll() is not None):
        alone.kill()
        return {"why": "it takes too long alone"}
    result = alone.result()
    return {"why": f"it fails alone: {_last(alone.log)}"} if alone.code != 0 or result is None else result


def _transparent(row: dict[str, Any], script: dict[str, Any], run: str) -> dict[str, Any]:
    from tests.public_scripts.running import of_tf_keras, of_worker, stored

    home, env = _home(script), _ENVIRONMENTS.get(run, {})
    copy, kind = home / f"{home.name}.py", f"plain-{run}" if env else "plain"
    if run == "keras2":
        text, copy = copy.read_text(), home / run / copy.name
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(of_tf_keras(text))
    expected = _plain(copy, home, env, kind) if env else stored(home / kind)
    if expected is None or "why" in expected:
        return {"outcome": "not run", **(expected or {"why": "the plain run has left nothing"})}
    # Some kill the chief, some another worker; one that is too short is not killed.
    kill = (
        (zlib.crc32(script["path"].encode()) % 2, max(3, row["steps"] // 2 + 1))
        if run in ("2", "keras2")
        else None
    )
    if kill is not None and kill[1] >= row["steps"]:
        kill = None
    place, replicas = home / f"run-{run}", 2 if run == "2x2" else 1
    seen = _gangs(copy, place, (3 if run == "3" else 2, replicas), kill, env)
    result = seen.pop("result", None)
    if result is None:
        return seen
    compared = _compared(expected, result)
    if compared["weights_apart"] is None and kill is not None:
        kind = f"{kind}-resumed"
        alone_again = _resumed(copy, home, env, kind, kill[1])
        compared = {**_compared(alone_again, result), "resumed": True} if "fits" in alone_again else compared
    alone, chief = home / kind / "work", of_worker(place, 0) / "work"
    count, differing = left.compared(alone, chief)
    return {
        **seen,
        **compared,
        "files": left.names(chief),
        "files_apart": sorted({*left.names(alone)} ^ {*left.names(chief)}),
        "files_compared": count,
        "files_differing": differing,
    }


def _gangs(
    copy: Path,
    home: Path,
    size: tuple[int, int],
    kill: tuple[int, int] | None,
    env: dict[str, str],
) -> dict[str, Any]:
    """Run one generation of workers and replicas, and as orch a next one after the kill, or where a worker starved."""
    from tests.public_scripts.running import Gang, saved_step, seeded, until

    shutil.rmtree(home, ignore_errors=True)
    killed = failed = None
    for generation in range(1, GENERATIONS + 1):
        directories = seeded(home, generation, size[0])
        gang = Gang(copy, home, _data(), directories, env, None if killed else kill, size[1])
        if not until(gang.ended):
            gang.kill()
            return {"outcome": "hung", "why": "it did not end", "killed": killed}
        if kill is not None and killed is None and gang.workers[kill[0]].killed_itself:
            killed = {"worker": f"worker:{kill[0]}", "at": kill[1], "from": saved_step(directories[0])}
            continue
        failed = next((worker for worker in gang.workers if worker.code not in (0, -9)), None)
        if failed is None or not _STARVED.search(failed.log_of_generation):
            break
    if failed is not None:
        outcome = "refused" if "Unsupported" in failed.log_of_generation else "failed"
        return {"outcome": outcome, "why": _last(failed.log_of_generation), "killed": killed}
    result = gang.workers[0].result()
    if result is None:
        return {"outcome": "failed", "why": "it left no result", "killed": killed}
    proof = _proof(gang.workers[0].log)
    return {"outcome": "ran", "killed": killed, "generations": generation, "proof": proof, "result": result}


def _proof(log: str) -> str:
    """Return the largest difference of the gradients that were proved equal, or why none was."""
    apart = [float(each) for each in re.findall(r"proved equal at step 1: .* by at most (\S+) of", log)]
    why = re.search(r"is not proved.*?(?:; not compared: (.*))?$", log, re.MULTILINE)
    return f"equal ({max(apart):.0e})" if apart else f"no: {why[1] or 'not finite'}" if why else ""


def _compared(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the largest difference of a weight, and of the last losses."""
    pairs = list(zip(expected["weights"], found["weights"], strict=False))
    same = len(expected["weights"]) == len(found["weights"]) and all(a.shape == b.shape for a, b in pairs)
    apart = (
        max((float(np.abs(a - b).max() / (np.abs(a).max() + 1e-8)) for a, b in pairs), default=0.0)
        if same
        else None
    )
    losses = []
    for one, other in zip(expected["fits"], found["fits"], strict=False):
        shown = [key for key in one if "loss" in key and one[key][-1]] or list(one)
        for name in ["loss"] if "loss" in shown else shown:
            a, b = one[name][-1], other.get(name, [math.inf])[-1]
            losses.append(abs(a - b) / max(abs(a), 1e-8))
    return {"weights": len(pairs), "weights_apart": apart, "loss_apart": max(losses, default=None)}


def _last(log: str) -> str:
    """Return the last error of a log; where its line says nothing yet, with the next one."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not re.match(r"Detected at node|File |<stack traces", line)]
    said = [place for place, line in enumerate(lines) if _ERROR.match(line)]
    if not said:
        return (lines or ["nothing"])[-1][:500]
    more = lines[said[-1] + 1 : said[-1] + 2] if re.search(r"(:|call\(\)\.)$", lines[said[-1]]) else []
    return " ".join([lines[said[-1]], *more])[:500]


if __name__ == "__main__":
    main()
