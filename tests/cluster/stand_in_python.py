"""A Python of its own for one host: a virtual environment's directory with whatever is put into its site-packages."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def make(directory: Path, *, sitecustomize: str = "", versions: dict[str, str] | None = None) -> Path:
    """The path of its `python`. It sees the packages of the Python that runs the tests, behind its own.

    Args:
        directory: Where; made.
        sitecustomize: A module that runs first in each of its processes, in those with -S and -I too.
        versions: Packages that claim to be installed in another version than they are.
    """
    base = Path(sys.executable).resolve()
    site = directory / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (directory / "bin").mkdir()
    (directory / "bin" / "real").symlink_to(base)
    (directory / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name, version in (versions or {}).items():
        metadata = site / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = directory / "bin" / "python3"
    # What its processes start is to be started by it too.
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(python)!r}\n{sitecustomize}")
    # -S would leave out sitecustomize; nothing else depends on it.
    python.write_text(
        '#!/bin/bash\nkept=()\nfor word in "$@"; do [ "$word" = -S ] || kept+=("$word"); done\n'
        f'exec {directory}/bin/real "${{kept[@]}}"\n'
    )
    python.chmod(0o755)
    return python
