"""Whether a script trains together with its peers, by what its sources say before it runs."""

from __future__ import annotations

import ast
import os

from orchestrator.both.script import FRAMEWORKS, files_of, followed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_ONE_MACHINE = frozenset(
    {
        *("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy", "TPUStrategy"),
        *("get_strategy", "make_parallel", "multi_gpu_model"),
    }
)
"""What shares a training among the devices of one process; each worker would have one of its own."""
_PEERS = frozenset(
    {"ClusterSpec", "Server", "RunConfig", "TrainSpec", "train_and_evaluate", "replica_device_setter"}
)
"""Names of TensorFlow under which it reads TF_CONFIG itself, or is told who its peers are."""
_SHARES = frozenset(
    {
        *("set_distribution", "DataParallel", "ModelParallel"),
        *("initialize", "init_process_group", "create_distributed_mesh"),
    }
)
"""Keras's own way to train on several machines, and those of JAX, torch and DTensor to join them."""
_LIBRARIES = frozenset({"horovod", "mpi4py", "byteps", "ray", "grpc"})
_HIDES = frozenset({"exec", "eval", "__import__", "import_module", "run_path", "run_module"})
"""Functions that run code which these sources do not show."""
_FITS = frozenset({"fit", "fit_generator", "train_on_batch"})
_LOOPS = frozenset({"GradientTape", "apply_gradients", "minimize"})
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Distribution:
    """What the sources of a script say about its peers."""

    def __init__(self) -> None:
        self.strategies: set[str] = set()
        """The strategies that it makes, by their class."""
        self.has_peers = False
        """Whether it reads TF_CONFIG, or speaks with its peers in another way."""
        self.is_unclear = False
        """Whether a strategy may be made where these sources do not show it."""
        self.own_peers = ""
        """The `file:line` that in any case sets TF_CONFIG, and with it other peers than it is given."""
        self.fits = False
        self.loops = False
        """Whether it takes its steps itself."""
        self.uses_framework = False

    @property
    def is_plain(self) -> bool:
        """Return whether it surely trains, and surely by itself."""
        trains = self.uses_framework and (self.fits or self.loops)
        return trains and not self.has_peers and not self.is_unclear and self.strategies <= _OF_ONE_MACHINE

    @property
    def joins_otherwise(self) -> bool:
        """Return whether it joins its peers by no strategy of TensorFlow's, but as Keras, JAX or torch do."""
        return not self.strategies.isdisjoint(_SHARES)

    def copies(self, script: str, strategy: str, tf_class: str, workers: int, *, late: bool = False) -> str:
        """Return the sentence on a script that would not train together with its peers, and the way out.

        Args:
            script: how people name it.
            strategy: the run's.
            tf_class: TensorFlow's class of it; empty if it is none of TensorFlow's.
            workers: how many tasks would train.
            late: it has begun, and made none before its first step.
        """
        made = sorted(name for name in self.strategies if name.endswith("Strategy"))
        if not tf_class:
            what = f"does not use {strategy}"
        elif made and self.strategies <= _OF_ONE_MACHINE:
            what = f"makes a {made[0]}, which is of one machine"
        else:
            what = "made no strategy before its first step" if late else "makes no strategy"
        number = _NUMBERS[workers] if workers < len(_NUMBERS) else str(workers)
        return f"{script} {what}: {number} workers would train {number} copies"

    def way_out(self, tf_class: str, transparent: str) -> str:
        """Return what makes one training of the copies.

        Args:
            tf_class: see `copies`.
            transparent: what to write into the spec for a script that calls `fit`.
        """
        if self.fits:
            return f"{transparent} makes one training of it"
        how = f"make a {tf_class} in it, and" if tf_class else "let it share its gradients, or"
        return f"{how} take its steps with `strategy.run`"


def distribution(path: str, root: str = "") -> Distribution:
    """Read a script and the modules in its folder that it imports. Raises OSError."""
    found = Distribution()
    folder = os.path.realpath(root or os.path.dirname(os.path.realpath(path)))
    defined: set[str] = set()
    called: set[str] = set()
    for file, text, imports in followed(path, root):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            found.is_unclear = True
            continue
        for name, _, _ in imports:
            top = name.partition(".")[0]
            found.uses_framework |= top in FRAMEWORKS
            found.has_peers |= top in _LIBRARIES
            is_foreign = top not in (*FRAMEWORKS, "orchestrator") and not files_of(folder, name)
            # `from shared_library import strategy` may be made there for all workers.
            found.is_unclear |= is_foreign and any(word in name.lower() for word in ("strateg", "distribut"))
        _read(tree, found, defined, called)
        for line in _sets_peers(tree.body):
            found.own_peers = found.own_peers or f"{os.path.relpath(os.path.realpath(file), folder)}:{line}"
    elsewhere = {name for name in called - defined - _OF_ONE_MACHINE if "strategy" in name.lower()}
    found.is_unclear |= bool(elsewhere - {"has_strategy"})
    # `with made_elsewhere().scope():`
    found.is_unclear |= "scope" in called and not found.strategies
    return found


def _read(tree: ast.Module, found: Distribution, defined: set[str], called: set[str]) -> None:
    # What stands by itself does nothing
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            found.has_peers |= "TF_CONFIG" in node.value
        for name in _names(node):
            found.has_peers |= name in _PEERS or (name.endswith("ClusterResolver") and "TPU" not in name)
            found.loops |= name in _LOOPS
            # `cls = tf.distribute.MultiWorkerMirroredStrategy`: it may be made under another name.
            found.is_unclear |= name.endswith("Strategy") and name not in _OF_ONE_MACHINE
        if not isinstance(node, ast.Call):
            continue
        call = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if not call:
            continue
        called.add(call)
        found.fits |= call in _FITS and isinstance(node.func, ast.Attribute)
        found.is_unclear |= call in _HIDES
        if call in _OF_ONE_MACHINE or call in _SHARES or call.endswith("Strategy"):
            found.strategies.add(call)


def _sets_peers(body: list[ast.stmt]) -> Iterator[int]:
    """Yield the lines of the module that set TF_CONFIG, whatever it was before."""
    for statement in body:
        if isinstance(statement, (ast.With, ast.For)):
            yield from _sets_peers(statement.body)
        elif isinstance(statement, ast.Assign):
            if any(ast.unparse(target).endswith("environ['TF_CONFIG']") for target in statement.targets):
                yield statement.lineno
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if ast.unparse(call.func).endswith("environ.update") and "'TF_CONFIG'" in ast.unparse(call):
                yield statement.lineno


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.alias):
        yield node.name.rpartition(".")[2]
