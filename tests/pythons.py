"""The Pythons of this machine, whatever HOME says: those of PATH, and those of the user's own pyenv."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

PYENV = Path(os.environ.get("PYENV_ROOT", f"{pwd.getpwuid(os.getuid()).pw_dir}/.pyenv"))


def pythons(*versions: str) -> list[str]:
    """Return those of these versions that start: `3.10`, or `3` for all of them."""
    found = [path for version in versions if (path := shutil.which(f"python{version}"))]
    for version in versions:
        found += map(str, sorted(PYENV.glob(f"versions/{version}.*/bin/python")))
    # What is on the PATH may be a program of pyenv's that starts none, as where another HOME chooses the version.
    return [path for path in found if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]


def python(version: str) -> str | None:
    """Return one of that version; None where there is none."""
    return next(iter(pythons(version)), None)
