"""What of the working directory reaches a host, and what is said of what does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.lab

LIST = """\
import os
for directory, _, files in sorted(os.walk(".")):
    for name in sorted(files):
        print("pushed:", os.path.relpath(os.path.join(directory, name)))
"""


def test_a_secret_in_the_working_directory_reaches_no_host(cluster: Cluster, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / ".aws").mkdir(parents=True)
    (code / "ls.py").write_text(LIST)
    (code / ".env").write_text("TOKEN=1\n")
    (code / ".aws/credentials").write_text("[default]\n")
    (code / "deploy").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    (code / "notes.log").write_text("")
    (code / ".gitignore").write_text("*.log\n")
    assert cluster.lab is not None

    def pushed(name: str) -> tuple[set[str], str]:
        spec = cluster.spec(
            name=name, tasks=1, checkpoint=False, workdir=str(code), script="ls.py", runtime="off"
        )
        done = cluster.orch("up", spec, "--wait")
        assert done.returncode == 0, done.stderr
        lines = cluster.ok("logs", name).splitlines()
        return {line.partition("pushed: ")[2] for line in lines if "pushed: " in line}, done.stderr

    names, said = pushed("one")
    assert names == {"ls.py", ".gitignore"}
    assert re.search(rf"^pushes 2 files \(\d+ B\) of {re.escape(str(code))}$", said, re.M)
    assert "left out 3 files that look like secrets: .aws/, .env, deploy; name them in .orchignore" in said
    assert "left out what .gitignore names: notes.log;" in said
    host = cluster.lab.hosts[0].host_dir
    assert not [path for path in host.rglob("*") if path.is_file() and b"TOKEN=1" in path.read_bytes()]

    (code / ".orchignore").write_text("!.env\n")
    assert pushed("two")[0] == {"ls.py", ".gitignore", ".orchignore", ".env"}
