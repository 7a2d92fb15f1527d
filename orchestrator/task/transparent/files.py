"""Redirects the files of each worker, so that each can read at the same path what Keras has saved.

- Below the task's working directory, which each task has to itself, and in a temporary directory that the script has
  made, Keras saves on every worker.
- Any other path may be shared, so the chief alone saves there. The others save into a scratch, and Keras and
  TensorFlow read it from there.
- A restart passes over a fit that had finished. What the fit has saved into a temporary directory is kept beside the
  working directory, and put into the one that the script makes then.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import sys
import tempfile

from orchestrator.task import this_task
from orchestrator.task.transparent.strategy import out_of_scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter


def install(library: str, strategy: Any, chief: bool, report: Reporter) -> Files:
    """Patch what saves and loads models, weights and tables."""
    import tensorflow as tf

    saving: Any = sys.modules.get("keras.src.saving.saving_lib")
    if library == "keras" and saving is not None:
        saving.get_attr_skipset = _of_one(saving.get_attr_skipset)
    own = own_directory()
    files = Files(own, None if chief else Scratch(this_task.scratch()))
    tempfile.mkdtemp = files.remembering(tempfile.mkdtemp)  # type: ignore[assignment]
    root = sys.modules[library]
    for name in ("save", "save_weights", "export"):
        if hasattr(root.Model, name):
            setattr(root.Model, name, files.keeping(_with_path(getattr(root.Model, name), 1, files.to_write)))
    replace_everywhere(tf.saved_model.load, _outside(_with_path(tf.saved_model.load, 0, files.to_read)))
    if chief:
        return files
    # Else KerasTuner, and callbacks of tf_keras, remove what a worker saves. All of it is in a place of its own.
    type(strategy.extended).should_checkpoint = property(lambda _extended: True)
    for owner, name, change in (
        (root.Model, "load_weights", files.to_read),
        (root.callbacks.CSVLogger, "__init__", files.to_write),
    ):
        setattr(owner, name, _with_path(getattr(owner, name), 1, change))
    for function, place, change in (
        (root.models.save_model, 1, files.to_write),
        (root.models.load_model, 0, files.to_read),
        (tf.saved_model.save, 1, files.to_write),
        (tf.train.latest_checkpoint, 0, files.to_read),
    ):
        replace_everywhere(function, _with_path(function, place, change))
    report(
        "save",
        "not the chief: what Keras saves beside the script is saved here too; elsewhere the chief alone saves, and "
        "Keras reads here what it would have saved. Files that the script opens itself are as they are",
    )
    return files


def own_directory() -> str | None:
    """Return the working directory where no other task writes into it; None if unknown."""
    task = this_task.directory()
    work = os.path.realpath(f"{task}/work")
    return work if task is not None and work == os.getcwd() else None


class Files:
    """Maps the script's paths to those that Keras gets."""

    def __init__(self, own: str | None, scratch: Scratch | None) -> None:
        self._own = own
        self._scratch = scratch
        self._temporary: list[str] = []
        self._doubles: set[str] = set()
        self.fit: int | None = None
        """The number of the fit that is under way."""

    def to_write(self, path: Any) -> Any:
        """Return the path to write to. Its directory exists."""
        if self._scratch is None:
            return path
        full = _full(path)
        if full is None or not self._is_private(full):
            return self._scratch.to_write(path)
        if self._own is not None and _within(full, self._own) and full not in self._doubles:
            # The chief has the same file: it need not be fetched from here (see `host/system/workdir.py`).
            self._doubles.add(full)
            with open(f"{self._own}.doubles", "a", encoding="utf-8", errors="surrogateescape") as doubles:
                doubles.write(os.path.relpath(full, self._own) + "\n")
        return path

    def to_read(self, path: Any) -> Any:
        """Return the path to read from."""
        full = _full(path)
        if self._scratch is None or (full is not None and self._is_private(full)):
            return path
        return self._scratch.to_read(path)

    def _is_private(self, full: str) -> bool:
        return any(_within(full, each) for each in (self._own, *self._temporary) if each is not None)

    def remembering(self, mkdtemp: Callable[..., str]) -> Callable[..., str]:
        """Return `mkdtemp`, which remembers the directories: their names differ by worker and generation."""

        @functools.wraps(mkdtemp)
        def remembered(*args: Any, **kwargs: Any) -> str:
            made = mkdtemp(*args, **kwargs)
            self._temporary.append(os.path.realpath(os.fsdecode(made)))
            return made

        return remembered

    def keeping(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that saves, and keeps for the next generation what a fit saves into a temporary directory."""

        @functools.wraps(save)
        def saved(*args: Any, **kwargs: Any) -> Any:
            result = save(*args, **kwargs)
            path = (
                args[1] if len(args) > 1 else next((kwargs[name] for name in _NAMES if name in kwargs), None)
            )
            full, kept = _full(path), self._kept()
            top = next((each for each in self._temporary if full is not None and _within(full, each)), None)
            if kept is not None and top is not None and full is not None:
                for each in filter(os.path.isfile, glob.glob(glob.escape(full) + "*")):
                    place = os.path.join(kept, os.path.relpath(each, top))
                    os.makedirs(os.path.dirname(place), exist_ok=True)
                    shutil.copyfile(each, place + ".part")
                    os.replace(place + ".part", place)
            return result

        return saved

    def put_back(self, callbacks: list[Any]) -> None:
        """Copy what this fit saved in an earlier generation into the present temporary directories."""
        kept = self._kept()
        for path in filter(None, (_full(getattr(callback, "filepath", None)) for callback in callbacks)):
            top = next((each for each in self._temporary if _within(path, each)), None)
            if top is None or kept is None:
                continue
            for each in glob.glob(os.path.join(glob.escape(kept), "**"), recursive=True):
                place = os.path.join(top, os.path.relpath(each, kept))
                if os.path.isfile(each) and not each.endswith(".part") and not os.path.exists(place):
                    os.makedirs(os.path.dirname(place), exist_ok=True)
                    shutil.copyfile(each, place)

    def _kept(self) -> str | None:
        """Return where the files of this fit are kept: beside the working directory, if nothing is fetched from."""
        if self._own is None or self.fit is None:
            return None
        return os.path.join(os.path.dirname(self._own), "kept", f"fit-{self.fit:03d}")


def _full(path: Any) -> str | None:
    """Return an absolute path without links; None for what is no path of this host."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    return os.path.realpath(text) if isinstance(text, str) and "://" not in text else None


def _within(path: str, top: str) -> bool:
    return os.path.commonpath([path, top]) == top


def _of_one(inspect: Callable[..., Any]) -> Callable[..., Any]:
    """Have Keras inspect a class, as it does when it saves, without the others: the chief alone may save.

    It makes an optimizer to look at it, and a strategy's variable is made by all workers together.
    """

    @functools.wraps(inspect)
    def inspect_alone(*args: Any) -> Any:
        with out_of_scope():
            return inspect(*args)

    return inspect_alone


def _outside(load: Callable[..., Any]) -> Callable[..., Any]:
    """Load a model outside of the strategy's scope: its functions could be called within `strategy.run` only.

    That of TensorFlow Hub is loaded within: its layers may be trained.
    """

    @functools.wraps(load)
    def load_outside(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("tensorflow_hub"):
            return load(*args, **kwargs)
        with out_of_scope():
            return load(*args, **kwargs)

    return load_outside


def collect_summaries(library: str, report: Reporter) -> None:
    """Have Keras's TensorBoard write into ORCH_LOG_DIR, which every task has and from which it is fetched."""
    top = os.environ.get("ORCH_LOG_DIR")
    if not top:
        return

    def into(path: Any) -> Any:
        changed = summary_dir(path, top)
        if changed != path:
            report("tensorboard", "TensorBoard writes into $ORCH_LOG_DIR: `orch tensorboard` shows all tasks")
        return changed

    callback = sys.modules[library].callbacks.TensorBoard
    callback.__init__ = _with_path(callback.__init__, 1, into)


def summary_dir(path: Any, top: str) -> Any:
    """Return where TensorBoard is to write instead of `path`: below `top`, by the name that the script gave it.

    A path in an object store stays: what lies there can be read by all.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or "://" in text:
        return path
    full = os.path.abspath(text)
    if os.path.commonpath([top, full]) == os.path.normpath(top):
        return path
    below = os.path.relpath(full)
    return os.path.join(top, full.lstrip("/") if below.startswith("..") else below)


NOT_CHIEF = "not-chief_temp"
"""In a scratch, the directory of what this module and `recording` have others than the chief write."""


def _of_generations_before(scratch: str) -> list[str]:
    """Return where this task's older generations wrote, the newest first: scratches are `gen-000012/scratch`."""
    generation, name = os.path.split(scratch)
    task, own = os.path.split(generation)
    if not own.startswith("gen-") or not os.path.isdir(task):
        return []
    older = sorted(
        (each for each in os.listdir(task) if each.startswith("gen-") and each < own), reverse=True
    )
    return [os.path.join(task, each, name, NOT_CHIEF) for each in older]


def _newest(paths: list[str]) -> float:
    """Return when the newest of these files was written; 0 if there is none."""
    return max((os.path.getmtime(each) for each in paths if os.path.exists(each)), default=0.0)


class Scratch:
    """A directory in which every path has a substitute: in the scratch of this task's generation."""

    def __init__(self, within: str) -> None:
        self._own = os.path.abspath(within)
        self._root = os.path.join(self._own, NOT_CHIEF)
        self._roots = [self._root, *_of_generations_before(self._own)]

    def to_write(self, path: Any) -> Any:
        """Return the path to write to instead. Its directory exists."""
        double = self._double(path)
        if double is None:
            return path
        os.makedirs(os.path.dirname(double), exist_ok=True)
        return double

    def to_read(self, path: Any) -> Any:
        """Return the substitute if this process has written it, or the newest generation before; else the path itself.

        A restart passes over what was trained, and so over what callbacks saved meanwhile, such as the best weights.
        """
        double = self._double(path)
        if double is None:
            return path
        for root in self._roots:
            there = os.path.join(root, os.path.relpath(double, self._root))
            files = glob.glob(glob.escape(there) + "*")
            # A substitute older than the file itself is from before this task was on another host.
            if files and (root == self._root or _newest(files) >= _newest([os.fspath(path)])):
                return there
        return path

    def _double(self, path: Any) -> str | None:
        if not isinstance(path, (str, os.PathLike)):
            return None
        text = os.fspath(path)
        if not isinstance(text, str):
            return None
        full = text.replace("://", "/") if "://" in text else os.path.abspath(text)
        if os.path.commonpath([self._own, os.path.abspath(full)]) == self._own:
            return None
        return os.path.join(self._root, full.lstrip("/"))


_NAMES = ("filepath", "filename", "log_dir", "export_dir", "checkpoint_dir")


def _with_path(function: Callable[..., Any], place: int, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wrap a function to change its path, given at `place` or by name. TensorBoard's default is `logs`."""

    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            return function(*args[:place], change(args[place]), *args[place + 1 :], **kwargs)
        for name in _NAMES:
            if name in kwargs:
                return function(*args, **{**kwargs, name: change(kwargs[name])})
        if function.__qualname__.startswith("TensorBoard"):
            kwargs["log_dir"] = change("logs")
        return function(*args, **kwargs)

    return changed


def replace_everywhere(old: Any, new: Any) -> None:
    """Replace a function in every module of its library that holds it, since the API exports it in several."""
    library = old.__module__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == library and module is not None:
            for attribute, value in list(vars(module).items()):
                if value is old:
                    setattr(module, attribute, new)
