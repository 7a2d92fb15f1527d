"""A `python` that is a shim: what was checked is what runs, and what the script starts as `python`."""

from __future__ import annotations

import json
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.pythons import PYENV

SAY = """\
import os, subprocess, sys
child = subprocess.run(["python", "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
say = f"{sys.prefix} child: {child.stdout.strip()} library: {os.environ.get('LIBRARY')}"
open(sys.argv[1], "w").write(say)
"""

SHIM = """\
#!/bin/sh
name=${CHOSEN:-}
[ -n "$name" ] || { [ -f .python-version ] && read -r name < .python-version; } || name=one
exec "%s/$name/bin/python" "$@"
"""


def environments(directory: Path) -> None:
    """Make two virtual environments, each with packages that claim another version."""
    for name, version in (("one", "3.1.0"), ("two", "3.2.0")):
        venv.create(directory / name, with_pip=False, symlinks=True)
        (site,) = (directory / name / "lib").glob("python*/site-packages")
        (site / f"keras-{version}.dist-info").mkdir()


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def said(cluster: Cluster, code: Path, **run: Any) -> tuple[str, str]:
    """Return what `orch doctor` says of the Python, and what the task says of itself."""
    told = code.parent / "told"
    spec = cluster.spec(
        str(told), tasks=1, checkpoint=False, workdir=str(code), script="say.py", strategy="processes", **run
    )
    looked = json.loads(cluster.orch("doctor", spec, "--json").stdout)
    (fits,) = [found["message"] for found in looked["findings"] if found["id"] == "python.fits"]
    done = cluster.orch("up", spec, "--wait")
    assert done.returncode == 0, done.stderr
    return fits, told.read_text()


@pytest.mark.fault(115)
def test_row_115_the_python_that_a_shim_chose_for_the_check_is_the_one_that_trains(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    environments(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "say.py").write_text(SAY)
    shim = program(tmp_path / "python", SHIM % tmp_path)
    for chosen, version in (("one", "3.1.0"), ("two", "3.2.0")):
        fits, told = said(local_cluster, code, python=shim, env={"CHOSEN": chosen})
        assert f"keras {version}" in fits
        assert told == f"{tmp_path}/{chosen} child: {tmp_path}/{chosen} library: None"
    (code / ".python-version").write_text("two\n")
    fits, told = said(local_cluster, code, python=shim)
    assert "keras 3.2.0" in fits
    assert told == f"{tmp_path}/two child: {tmp_path}/two library: None"


def test_a_script_that_does_more_than_choose_is_started_each_time(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    environments(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "say.py").write_text(SAY)
    sets = f'#!/bin/sh\nexport LIBRARY=/opt/cuda\nexec {tmp_path}/two/bin/python "$@"\n'
    fits, told = said(local_cluster, code, python=program(tmp_path / "python", sets))
    assert "keras 3.2.0" in fits
    assert told == f"{tmp_path}/two child: {tmp_path}/two library: /opt/cuda"
    bound = f'#!/bin/sh\nulimit -n 200\nexec {tmp_path}/two/bin/python "$@"\n'
    (code / "say.py").write_text(
        "import resource, sys\n"
        "open(sys.argv[1], 'w').write(str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))\n"
    )
    assert said(local_cluster, code, python=program(tmp_path / "python", bound))[1] == "200"


def test_a_line_that_a_person_writes_makes_the_environment_of_checks_and_tasks(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    environments(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "say.py").write_text(SAY)
    (tmp_path / "more").write_text("export LIBRARY=/opt/cuda API_TOKEN=hush-hush\n")
    line = f"source {tmp_path}/two/bin/activate && . {tmp_path}/more"
    local_cluster.env["SHELL"] = "/bin/bash"
    fits, told = said(local_cluster, code, python="python", activate=line)
    assert "keras 3.2.0" in fits
    assert told == f"{tmp_path}/two child: {tmp_path}/two library: /opt/cuda"
    spec = str(sorted(local_cluster.directory.glob("cluster*.yaml"))[-1])
    assert f"first, on each host: {line}" in local_cluster.ok("plan", spec)
    looked = local_cluster.orch("doctor", spec).stdout
    assert "LIBRARY=/opt/cuda" in looked
    assert "API_TOKEN=***" in looked
    assert "hush-hush" not in looked
    refused = local_cluster.orch("up", local_cluster.spec(tasks=1, activate="module load nothing-like-it"))
    assert refused.returncode != 0
    assert "here: `activate` failed there with exit code 127: module load nothing-like-it" in refused.stderr


def pyenv() -> tuple[Path, list[str]] | None:
    """Return the shims of a real pyenv, and the versions that it has and that hosts can run; None without two."""
    have = sorted(path.name for path in PYENV.glob("versions/3.1*") if (path / "bin" / "python").exists())
    return (PYENV / "shims" / "python3", have) if len(have) > 1 else None


def test_what_pyenv_chooses_by_the_working_directory_is_checked_and_runs(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    found = pyenv()
    if found is None:
        pytest.skip("no pyenv with two versions on this machine")
    shim, versions = found
    code = tmp_path / "code"
    code.mkdir()
    (code / "say.py").write_text("import sys\nopen(sys.argv[1], 'w').write(sys.version.split()[0])\n")
    for version in (versions[0], versions[-1]):
        (code / ".python-version").write_text(f"{version}\n")
        fits, told = said(local_cluster, code, python=str(shim))
        assert f"Python {version}" in fits
        assert told == version
