"""A Python like that of a host on which TensorFlow was installed, and nothing else.

Keras imports pandas, scikit-learn with SciPy, and JAX wherever it finds them. The tests have all of these, and
a start of TensorFlow then takes 8 seconds of CPU instead of 4.5. Hundreds of processes of the tests start it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TENSORFLOW = ("tensorflow-cpu", "tensorflow", "tf_keras", "tensorboard")
"""Whichever of them are there."""
WITH_SCIKIT_LEARN = (*TENSORFLOW, "scikit-learn")
"""For the digits that scikit-learn brings along."""
JAX = ("jax", "keras", "scikit-learn", "h5py")
"""Keras's `set_random_seed` imports TensorFlow wherever it finds it: half of such a start."""
OTHERS = re.compile(r"\b(torch|horovod|orbax|pandas|scipy)\b")
"""A script that names one of these runs with all that the tests have."""


def python_for(script: Path) -> str:
    """Return the interpreter for a script by what it names; our own where that is not TensorFlow, or more than it."""
    text = script.read_text(encoding="utf-8") if script.is_file() else ""
    if OTHERS.search(text) or not re.search(r"\b(tensorflow|keras|tf_keras)\b", text):
        return sys.executable
    if re.search(r"^import jax\b", text, re.MULTILINE):
        return python_with(*JAX)
    return python_with(*(WITH_SCIKIT_LEARN if "sklearn" in text else TENSORFLOW))


@functools.cache
def python_with(*distributions: str) -> str:
    """Return an interpreter that has these distributions and what they require, as links to our own."""
    names = sorted(_with_requirements(distributions))
    ours = Path(sysconfig.get_path("purelib"))
    about = [sys.executable, str(ours), *(f"{name} {metadata.version(name)}" for name in names)]
    digest = hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
    directory = ROOT / "build" / "pythons" / digest
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        packages = made / ours.relative_to(sys.prefix)
        packages.mkdir(parents=True)
        for entry in {entry for name in names for entry in _entries(name)}:
            (packages / entry).symlink_to(ours / entry)
        made.chmod(0o755)  # the hosts of the tests have other users too
        (made / "bin").mkdir()
        for name in ("python", "python3"):
            (made / "bin" / name).symlink_to(os.path.realpath(sys.executable))
        base = Path(sys.base_prefix, "bin")
        (made / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
        try:
            made.rename(directory)
        except OSError:  # another process of the tests was first
            shutil.rmtree(made)
    return str(directory / "bin" / "python")


def _with_requirements(names: tuple[str, ...]) -> set[str]:
    """Return the names of those that are installed, and of all that they require without an extra."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = canonicalize_name(left.pop())
        if name in found:
            continue
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        left += [
            each.name
            for each in map(Requirement, required)
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


def _entries(name: str) -> set[str]:
    """Return what a distribution has put into site-packages, without what went elsewhere."""
    files = metadata.files(name) or []
    return {file.parts[0] for file in files} - {"..", "__pycache__"}
