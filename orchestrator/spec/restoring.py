"""What a script saves and what it restores, by its sources: whether a fault costs what was trained."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, field

from orchestrator.both.script import followed
from orchestrator.spec.literals import assigned_once, name_of, path_argument

_SAVERS = {
    "ModelCheckpoint": (0, "filepath"),
    "CheckpointManager": (1, "directory"),
    "save": (0, "filepath"),
    "save_weights": (0, "filepath"),
    "save_model": (1, "filepath"),
}
"""Calls that save and restore nothing: the position and the keyword of the path."""
_LOADERS = {"load_model": (0, "filepath"), "load_weights": (0, "filepath")}
_RESTORERS = frozenset(
    {
        *("BackupAndRestore", "restore", "read", "latest_checkpoint", "restore_or_initialize"),
        *("set_weights", "RunConfig", "MonitoredTrainingSession", "Supervisor", "rescue"),
    }
)
_SAYS_SO = re.compile(r"(?i)resum|restor|recover|backup")
"""Of a call: in the script its lines are read too, and a library's callback may do what it is called."""
_OWN_FILES = frozenset({"open", "load", "loads", "read_text", "read_bytes"})
_HIDES = frozenset({"exec", "eval", "__import__", "import_module", "run_path", "run_module"})


@dataclass(slots=True)
class Restoring:
    """What was found."""

    savers: list[tuple[str, int, str, str | None]] = field(default_factory=list)
    """File, line, call, and the path where it is spelled out."""
    restores: bool = False
    """Whether it may come back from what it has saved, or from the checkpoint that it is given."""
    with_orch: bool = False
    """Whether that is `orchestrator.keras.Checkpoint()` or `runtime.rescue`, which can hand over their state."""
    fits: bool = False
    no_handover: str = ""
    """Why its steps could not be handed over, by what it gives to `compile`; empty where nothing says so."""
    by_batch: str = ""
    """The line that trains by `train_on_batch`."""

    @property
    def way_out(self) -> str:
        """Return what would let it come back."""
        if self.fits:
            return "add `orchestrator.keras.Checkpoint()` to the callbacks of its `fit`, or write `transparent: true`"
        return 'restore in it the newest checkpoint of os.environ["ORCH_CHECKPOINT_DIR"], and save there'

    @property
    def why_nothing_transparent(self) -> str:
        """Return why a fault costs everything under `transparent: true`; empty if not, as far as is known."""
        if self.fits or not self.by_batch:
            return ""
        loop = "train_on_batch, a loop of the script's own"
        return f"{self.by_batch} trains by {loop}: `transparent: true` keeps only fits"

    def why_nothing(self, script: str) -> str:
        """Return why a fault costs everything, and the way out; empty if the script may restore."""
        if self.restores:
            return ""
        if self.savers:
            file, line, call, _ = self.savers[0]
            return f"{os.path.basename(file)}:{line} saves by {call}, and nothing restores; {self.way_out}"
        return f"{script} saves nothing; {self.way_out}"


def restoring(path: str, root: str = "") -> Restoring:
    """Read a script and the modules beside it. Raises OSError."""
    found = Restoring()
    loads: list[tuple[tuple[str, int], int, str | None]] = []
    last_fit: dict[tuple[str, int], int] = {}
    own_files = uses_given = loops = False
    for file, text, imports in followed(path, root):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            found.restores = True  # the host's Python may parse it: nothing is known of it
            continue
        ours = any(name.startswith("orchestrator.keras") for name, _, _ in imports)
        names = assigned_once(tree)
        functions = [
            each for each in ast.walk(tree) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        own = {each.name for each in functions}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                uses_given |= node.value == "ORCH_CHECKPOINT_DIR"
            call = name_of(node.func) if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or call is None:
                continue
            uses_given |= call == "checkpoint_dir"
            own_files |= call in _OWN_FILES
            found.with_orch |= call == "rescue" or (ours and call == "Checkpoint")
            found.restores |= call in _RESTORERS or call in _HIDES
            # A function of the script's own is read itself
            found.restores |= _SAYS_SO.search(call) is not None and call not in own
            if call == "compile" and (why := _not_atomic(node)):
                found.no_handover = (
                    f"{os.path.basename(file)}:{node.lineno} has {why}, whose steps are not atomic"
                )
            if call == "train_on_batch":
                found.by_batch = f"{os.path.basename(file)}:{node.lineno}"
            loops |= call in ("GradientTape", "apply_gradients", "minimize")
            if call == "fit" and isinstance(node.func, ast.Attribute):
                found.fits = True
                within = file, _function_at(node.lineno, functions)
                last_fit[within] = max(last_fit.get(within, 0), node.lineno)
            for table in (_SAVERS, _LOADERS):
                if call not in table or (table is _SAVERS and not _is_of_a_model(node, call)):
                    continue
                place = path_argument(node, *table[call], names)
                if table is _SAVERS:
                    found.savers.append((file, node.lineno, call, place))
                else:
                    loads.append(((file, _function_at(node.lineno, functions)), node.lineno, place))
    places = [place for *_, place in found.savers if place is not None]
    unknown = len(places) < len(found.savers)
    for within, line, place in loads:
        # What is loaded after the last fit is evaluated; what was never saved here is a model to begin with. In another
        # function than the fit, it may be called before it.
        is_before = line < last_fit.get(within, line + 1)
        found.restores |= is_before and (place is None or unknown or any(_same(place, p) for p in places))
    found.restores |= found.with_orch or (uses_given and own_files and not found.savers)
    found.restores |= not (found.fits or loops)  # it trains where its sources do not show it
    return found


_OF_FIT = frozenset({"epochs", "validation_data", "steps_per_epoch", "callbacks", "batch_size", "verbose"})
"""Keywords of Keras's `fit`; that of scikit-learn's encoders and scalers has none of them."""
_CHECKPOINT = b"orchestrator.keras.Checkpoint()"


def with_checkpoint(source: bytes) -> bytes | None:
    """Return the source with `orchestrator.keras.Checkpoint()` in each `fit`; None where no `fit` is Keras's."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    lines = source.splitlines(keepends=True)
    begins = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    put: list[tuple[int, bytes]] = []
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fit"
        ):
            continue
        names = {each.arg for each in node.keywords}
        if _OF_FIT.isdisjoint(names) or None in names:  # `**more` may have callbacks
            continue
        given = next((each.value for each in node.keywords if each.arg == "callbacks"), None)
        if given is None:
            parts: list[ast.expr] = [*node.args, *(each.value for each in node.keywords)]
            last = max((each.end_lineno or 0, each.end_col_offset or 0) for each in parts)
            put.append((begins[last[0] - 1] + last[1], b", callbacks=[" + _CHECKPOINT + b"]"))
            continue
        begin = begins[given.lineno - 1] + given.col_offset
        if isinstance(given, ast.List):
            put.append((begin + 1, _CHECKPOINT + (b", " if given.elts else b"")))
            continue
        end = begins[(given.end_lineno or 0) - 1] + (given.end_col_offset or 0)
        put += [(begin, b"[" + _CHECKPOINT + b", *("), (end, b" or [])]")]
    if not put:
        return None
    leading = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    put.append((begins[leading[-1].end_lineno or 0] if leading else 0, b"import orchestrator.keras\n"))
    for at, text in sorted(put, reverse=True):
        source = source[:at] + text + source[at:]
    return source


def _not_atomic(node: ast.Call) -> str:
    """Return what a call of `compile` has that keeps its steps from being atomic; empty if nothing has."""
    given = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
    if given.get("jit_compile") is True:
        return "jit_compile=True"
    steps = given.get("steps_per_execution")
    return f"steps_per_execution={steps}" if isinstance(steps, int) and steps > 1 else ""


def _function_at(line: int, functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> int:
    """Return the line at which the innermost function begins that has this line; 0 for the module."""
    return max((f.lineno for f in functions if f.lineno <= line <= (f.end_lineno or line)), default=0)


def _is_of_a_model(node: ast.Call, call: str) -> bool:
    """Return whether `save` may be that of a model: that of NumPy or of a picture is not."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return call != "save" or name_of(owner) not in (None, "np", "numpy", "plt", "image", "img", "torch")


def _same(place: str, other: str) -> bool:
    """Return whether two paths may be the same, with what is computed in them left open."""
    begins = [text.partition("{")[0].removeprefix("./") for text in (place, other)]
    return begins[0].startswith(begins[1]) or begins[1].startswith(begins[0])
