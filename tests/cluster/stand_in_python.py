"""A separate Python for a host: a virtual environment with the given content in its site-packages."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def make(
    directory: Path,
    *,
    sitecustomize: str = "",
    versions: dict[str, str] | None = None,
    base: Path | None = None,
) -> Path:
    """Make the environment, and return the path of its `python`. It also sees the packages of the tests' Python.

    Args:
        directory: where to make it.
        sitecustomize: a module that runs first in each of its processes, even with -S and -I.
        versions: packages that claim another version than the installed one.
        base: another Python of the same version.
    """
    base = base or Path(sys.executable).resolve()
    site = directory / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (directory / "bin").mkdir()
    (directory / "bin" / "real").symlink_to(base)
    (directory / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (site / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name, version in (versions or {}).items():
        metadata = site / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = directory / "bin" / "python3"
    # Its processes must start others with this Python too.
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(python)!r}\n{sitecustomize}")
    # -S would leave out sitecustomize; nothing else depends on it.
    python.write_text(
        '#!/bin/bash\nkept=()\nfor word in "$@"; do [ "$word" = -S ] || kept+=("$word"); done\n'
        f'exec {directory}/bin/real "${{kept[@]}}"\n'
    )
    python.chmod(0o755)
    return python
