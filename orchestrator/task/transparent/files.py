"""Redirects the files that a process other than the chief saves to a scratch directory, and loads them from there."""

from __future__ import annotations

import functools
import glob
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.task.transparent.said import Said


def redirect(library: str, said: Said) -> None:
    """Redirect the saving of models, weights and tables. Call it in processes that are not the chief."""
    scratch = Scratch(os.environ.get("ORCH_CHECKPOINT_DIR") or None)
    root = sys.modules[library]
    model = root.Model
    for name, what in (
        ("save", scratch.to_write),
        ("save_weights", scratch.to_write),
        ("export", scratch.to_write),
    ):
        if hasattr(model, name):
            setattr(model, name, _with_path(getattr(model, name), 1, what))
    model.load_weights = _with_path(model.load_weights, 1, scratch.to_read)
    _replace_everywhere(
        library, root.models.save_model, _with_path(root.models.save_model, 1, scratch.to_write)
    )
    _replace_everywhere(
        library, root.models.load_model, _with_path(root.models.load_model, 0, scratch.to_read)
    )
    logger = root.callbacks.CSVLogger
    logger.__init__ = _with_path(logger.__init__, 1, scratch.to_write)
    said(
        "save",
        "not the chief: what Keras saves or logs here goes to a scratch; files that the script opens do not",
    )


def collect_summaries(library: str, said: Said) -> None:
    """Have Keras's TensorBoard write into ORCH_LOG_DIR, which every task has and from which it is fetched."""
    top = os.environ.get("ORCH_LOG_DIR")
    if not top:
        return

    def into(path: Any) -> Any:
        changed = summary_dir(path, top)
        if changed != path:
            said("tensorboard", "TensorBoard writes into $ORCH_LOG_DIR: `orch tensorboard` shows all tasks")
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


_NOT_CHIEF = "not-chief_temp"


def _of_generations_before(scratch: str) -> list[str]:
    """Return where this task's older generations wrote, the newest first: scratches are `gen-000012/scratch`."""
    generation, name = os.path.split(scratch)
    task, own = os.path.split(generation)
    if not own.startswith("gen-") or not os.path.isdir(task):
        return []
    older = sorted(
        (each for each in os.listdir(task) if each.startswith("gen-") and each < own), reverse=True
    )
    return [os.path.join(task, each, name, _NOT_CHIEF) for each in older]


def _newest(paths: list[str]) -> float:
    """Return when the newest of these files was written; 0 where there is none."""
    return max((os.path.getmtime(each) for each in paths if os.path.exists(each)), default=0.0)


class Scratch:
    """A directory in which every path has a substitute."""

    def __init__(self, within: str | None) -> None:
        if within is None:
            import tempfile

            self._root = tempfile.mkdtemp(prefix="orch-not-chief-")
            self._own = self._root
        else:
            # This task's checkpoint directory is itself a host-local scratch that is thrown away.
            self._root = os.path.join(os.path.abspath(within), _NOT_CHIEF)
            self._own = os.path.abspath(within)
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
            found = glob.glob(glob.escape(there) + "*")
            # A substitute older than the file itself is from before this task was on another host.
            if found and (root == self._root or _newest(found) >= _newest([os.fspath(path)])):
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


_NAMES = ("filepath", "filename", "log_dir")


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


def _replace_everywhere(library: str, old: Any, new: Any) -> None:
    """Replace a function in every module of the library that holds it, since the API exports it in several."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == library and module is not None:
            for attribute, value in list(vars(module).items()):
                if value is old:
                    setattr(module, attribute, new)
