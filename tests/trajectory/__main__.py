"""Kills scripts at chosen moments, and compares what they end with to a run that nothing disturbed.

    make trajectory [SCRIPTS=arrays,gan] [MOMENTS=save,step] [REPLICAS=2]

All scripts of a pass train in one process after the other, and each pass has one kill in each of them: the generation
after a kill goes on with the rest. So a kill costs one start.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, seeded

SCRIPT = Path(__file__).parent / "scripts/as_people_write_them.py"
TABLE = Path(__file__).parents[2] / "docs/trajectory.jsonl"
PAGE = Path(__file__).parents[2] / "docs/trajectory.md"
MOMENTS = (
    *("compile", "first step", "step", "save", "validation", "epoch end", "last step"),
    *("frozen", "unwritable"),
)
"""The last two are of a step: a worker is stopped and does not die; what is handed over cannot be written."""
EVERY_STEPS = 5
LAST_STEP = {"repeated": 8, "normalized": 8, "several_steps": 5}
"""Of the scripts that make other than 12 steps, or calls."""
VALIDATED = ("arrays", "normalized", "plateau", "of_chief")
END_S = 600.0


def scripts() -> dict[str, str]:
    """Return what each script does, in the order in which they are trained. To import the file takes TensorFlow."""
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    said = {
        each.name: ast.get_docstring(each) or "" for each in tree.body if isinstance(each, ast.FunctionDef)
    }
    [listed] = [each for each in tree.body if isinstance(each, ast.Assign) and "SCRIPTS" in ast.unparse(each)]
    return {each.id: said[each.id] for each in ast.walk(listed.value) if isinstance(each, ast.Name)}


class Trial:
    """One generation after the other, over one directory."""

    def __init__(self, root: Path, options: argparse.Namespace, names: list[str]) -> None:
        self.root, self.names, self._options = root, names, options
        self.generation = 0
        self.said = dict[str, str]()
        """By script: what came of its kill."""

    def train(self, kill: dict[str, Any] | None = None) -> None:
        """Train to the end, or to this kill and what the survivor does then."""
        self.generation += 1
        directories = seeded(self.root, self.generation, 2)[1]
        options = {"strategy": "multi_worker_mirrored", "transparent": True, "rescue": True}
        options |= {"save_every_steps": EVERY_STEPS, "replicas_on_cpu": self._options.replicas}
        survivor = 1 - kill["rank"] if kill else 0
        env = {"ORCH_RUNTIME": json.dumps(with_row(options)), "ORCH_TASK": f"worker:{survivor}"}
        env["ORCH_RESCUE_DIR"] = str(self.root / "shared" / f"gen-{self.generation:06d}")
        if kill and kill["is_unwritable"]:
            env["ORCH_RESCUE_DIR"] = _unwritable(self.root)
        if kill:
            env["DIES"] = json.dumps(kill)
        run = Gang(SCRIPT, str(self.root), *self.names, directories=directories, env=env)
        try:
            if kill is None:
                codes = run.ended(END_S)
                assert codes == [0, 0], "\n".join(task.err[-3000:] for task in run.tasks)
                return
            victim = run.tasks[kill["rank"]].process
            if not _has_come(victim, kill["signal"]):
                print(f"{kill} did not come: {run.tasks[kill['rank']].err[-3000:]}", flush=True)
                return
            run.tasks[survivor].order(stop={"grace_s": 60.0, "rescue": True})
            code = run.tasks[survivor].ended(END_S)
            victim.kill()
            run.ended(END_S)
            told = [line["rescued"] for line in run.heard[survivor] if "rescued" in line]
            said = told[-1] if told else {"why": f"exit {code}"}
            self.said[kill["script"]] = (
                f"rescued at {said['step']}"
                if "step" in said
                else f"not rescued: {said['why']}".replace(str(self.root), "…")
            )
            said_at = f"{kill['moment']}, worker:{kill['rank']}"
            print(f"  {kill['script']}: {said_at}: {self.said[kill['script']]}", flush=True)
        finally:
            run.close()

    def end(self, rank: int, name: str) -> dict[str, Any]:
        """Return what a script ended with on this worker."""
        found: dict[str, Any] = json.loads(
            (self.root / str(rank) / f"{name}.json").read_text(encoding="utf-8")
        )
        return found


def _has_come(victim: subprocess.Popen[str], number: int) -> bool:
    """Wait until the worker is dead or stopped; return whether that is by this signal."""
    until = time.monotonic() + END_S
    while victim.poll() is None and time.monotonic() < until:
        state = Path(f"/proc/{victim.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        if state == "T":
            return number == signal.SIGSTOP
        time.sleep(0.02)
    return victim.returncode == -number


def _unwritable(directory: Path) -> str:
    """Return where no directory can be made: as on a disk that is full or gone."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "a-file").write_text("x", encoding="utf-8")
    return str(directory / "a-file" / "gen-000001")


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Return where two ends differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(one.keys() | other.keys())
        return [
            each for name in names for each in differences(one.get(name), other.get(name), f"{at}.{name}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [each for place, pair in pairs for each in differences(*pair, f"{at}.{place}")]
    if isinstance(one, float) and isinstance(other, float) and one != other:
        return [f"{at.lstrip('.')} by {abs(one - other) / max(abs(one), abs(other)):.0e}"]
    return [] if one == other else [at.lstrip(".")]


def kill_of(name: str, moment: str, dice: random.Random) -> dict[str, Any]:
    """Return when and which worker dies."""
    kill = {"script": name, "moment": moment, "rank": dice.randrange(2), "step": 0, "s": 0.0}
    kill |= {"signal": int(signal.SIGKILL), "is_unwritable": moment == "unwritable"}
    last = LAST_STEP.get(name, 11)
    if moment in ("frozen", "unwritable"):
        kill |= {"moment": "step", "step": dice.randint(2, last - 1)}
        kill["signal"] = int(signal.SIGSTOP if moment == "frozen" else signal.SIGKILL)
    if moment == "compile":
        kill["s"] = dice.uniform(0.05, 0.4)
    elif moment == "step":
        kill |= {"step": dice.randint(2, last - 1), "s": dice.uniform(0.0, 0.02)}
    elif moment == "save":  # the chief writes beside the step that follows
        kill |= {"moment": "step", "step": EVERY_STEPS, "rank": 0, "s": dice.uniform(0.0, 0.01)}
    elif moment in ("first step", "last step"):
        kill |= {"moment": "step", "step": 0 if moment == "first step" else last}
    return kill


def main() -> int:
    """Run the passes that are asked for, print each row, and write the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", default=",".join(scripts()))
    parser.add_argument("--moments", default=",".join(MOMENTS))
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--table", type=Path, default=TABLE, help="where the rows are kept: a file of JSON lines"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page from the table, and train nothing"
    )
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(options.table), encoding="utf-8")
        return 0
    names, dice = options.scripts.split(","), random.Random(options.seed)
    wrong, known = 0, scripts()
    names.sort(key=list(known).index)
    with tempfile.TemporaryDirectory(prefix="orch-trajectory-") as directory:
        began_at = time.monotonic()
        whole = Trial(Path(directory, "whole"), options, names)
        whole.train()
        refused = {name: end["refused"] for name in names if "refused" in (end := whole.end(0, name))}
        took_s = time.monotonic() - began_at
        print(f"the run that nothing disturbs: {took_s:.0f} s; refused: {list(refused)}", flush=True)
        for name, why in refused.items():
            _keep(_row(name, "none", "refused before", why, options), options)
        for place, moment in enumerate(options.moments.split(",")):
            trial = Trial(Path(directory, f"killed-{place}"), options, names)
            killed: list[str] = []
            tried = [
                each
                for each in names
                if each not in refused and (moment != "validation" or each in VALIDATED)
            ]
            for name in [*tried, None]:
                trial.train(kill_of(name, moment, dice) if name else None)
                for before in killed:  # it has been trained to its end meanwhile
                    pairs = ((trial.end(rank, before), whole.end(rank, before)) for rank in (0, 1))
                    differing = sorted({each for pair in pairs for each in differences(*pair)})
                    wrong += bool(differing)
                    said, found = trial.said[before], "differs" if differing else "equal"
                    print(f"{before}, {moment}: {said}: {found} {differing or ''}", flush=True)
                    _keep(_row(before, moment, found, said, options, differing), options)
                killed = [name] if name in trial.said else []
    return wrong > 0


def _keep(row: dict[str, Any], options: argparse.Namespace) -> None:
    with options.table.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def page(table: Path) -> str:
    """Return the page: the newest row of each script, moment, number of replicas and seed."""
    read = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]
    newest = {(row["script"], row["moment"], row["replicas"], row["seed"]): row for row in read}
    whats, lines = scripts(), []
    order = list(whats)
    for key in sorted(newest, key=lambda key: (order.index(key[0]), key[2], key[1], key[3])):
        (name, moment, replicas, seed), row = key, newest[key]
        end = _end(row)
        end = f"{end}: {', '.join(row['differing'])}" if row["differing"] else end
        said = row["said"].replace("|", "/")
        cells = [
            f"`{name}`",
            whats[name].rstrip("."),
            moment if seed == 1 else f"{moment}, drawn by seed {seed}",
            str(replicas),
            said,
            end,
            row["commit"],
            row["date"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    ends = [_end(row) for row in newest.values()]
    count = ", ".join(f"{ends.count(end)} {end}" for end in ("equal", FIGURES, "differs", "refused before"))
    return f"{HEAD}\n{count}.\n\n{COLUMNS}\n" + "\n".join(lines) + "\n"


FIGURES = "equal but for figures"


def _end(row: dict[str, Any]) -> str:
    """Return what came of a row; figures alone are those of the epoch that was interrupted, also in a table."""
    of_figures = all(each.startswith(("history.", "table.")) for each in row["differing"])
    return FIGURES if row["end"] == "differs" and of_figures else str(row["end"])


HEAD = """# The same training: what was tried

`make trajectory` writes this page. Each script trains on two workers under `transparent: true`. One of them is killed
once, at the moment that the row says; the survivor hands over or not, and the next generation trains to the end. Then
all is compared with a run that nothing disturbed, on both workers: how often each example was trained, CRC-32 of each
weight and of each variable of the optimizer, the learning rate, History, what callbacks have counted, and rows of
tables. *equal* is to the last bit. Where it is not, what differs is named, and by how much: `history.loss.0`, say, is
the figure of the epoch that was interrupted, and `table.2` its row in a CSVLogger's file. In a `train_step` of the
script's own (`own_step`), a worker that dies between two steps takes its share of that figure's last step along, which
is taken to be the survivor's ([why](rescue.md#for-whom-and-for-whom-not)). Before commit e5844c86 that was so in
Keras's own step, too, and moving averages (`weights.5`, `weights.6`) were the survivor's. All other weights, the
optimizers, learning rates, callbacks, and how often each example was trained, were equal in all rows.
What is promised, and for what, is in [rescue](rescue.md).
"""

COLUMNS = """| script | what | killed | replicas a worker | the survivor | at the end | commit | date |
|---|---|---|---|---|---|---|---|"""


def _row(
    name: str,
    moment: str,
    end: str,
    said: str,
    options: argparse.Namespace,
    differing: list[str] | None = None,
) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return {
        "script": name,
        "moment": moment,
        "end": end,
        "said": said,
        "differing": differing or [],
        "replicas": options.replicas,
        "seed": options.seed,
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    sys.exit(main())
