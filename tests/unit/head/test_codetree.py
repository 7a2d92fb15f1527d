"""Pushed code: what the head names, and how a host puts it in place."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.hostdir import HostFault
from orchestrator.both.tree_digest import digest_of
from orchestrator.core.errors import SpecError
from orchestrator.core.plan import PUSH_BYTES_MAX
from orchestrator.head.code import codetree
from orchestrator.head.code.push_rules import LeftOut
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.transfer import outputs
from orchestrator.host.system import codestore, workdir
from orchestrator.page import report
from tests.unit.core.transcript import make_plan


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(root: Path, *files: str) -> None:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def paths(root: Path) -> list[str]:
    """Return the files that are pushed, without links and directories."""
    return [file.path for file in codetree.manifest(str(root)) if file.mode in (0o644, 0o755)]


def others(root: Path) -> dict[str, str]:
    """Return the links that are pushed with their targets, and the directories of which nothing else is."""
    seen = codetree.survey(str(root))
    return {**dict(seen.links), **dict.fromkeys(seen.directories, "")}


def git(root: Path, *words: str) -> None:
    identity = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(root)}
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always", *words]
    subprocess.run(command, cwd=root, env={**os.environ, **identity}, check=True, capture_output=True)


def set_trap(root: Path) -> Path:
    """Make a repository that lacks a tree, whose remote's program would leave a file; return that file."""
    marker = root / ".git/marker"
    write(root, "gone/a", "kept/b")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "all")
    git(root, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(root, "sparse-checkout", "set", "kept")
    git(root, "config", "core.repositoryformatversion", "1")
    git(root, "config", "extensions.partialClone", "x")
    git(root, "config", "remote.x.promisor", "true")
    git(root, "config", "remote.x.url", str(root))
    git(root, "config", "remote.x.uploadpack", f"touch {marker}; false")
    for kind in (root / ".git/objects").glob("??/*"):
        kind.unlink()
    return marker


def give(*given: Path) -> None:
    """Give files to another user."""
    for path in given:
        os.chown(path, 4711, 4711)


def said(root: Path) -> str:
    return "\n".join(codetree.survey(str(root)).sentences())


# ---------------------------------------------------------------- the head


def test_manifest_names_content_mode_and_size(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "lib/model.py")
    (tmp_path / "train.py").chmod(0o750)
    assert codetree.manifest(str(tmp_path)) == [
        ("lib/model.py", sha(b"lib/model.py"), 0o644, 12),
        ("train.py", sha(b"train.py"), 0o755, 8),
    ]


@pytest.mark.parametrize(
    ("ignore", "kept"),
    [
        ("", ["a.log", "data/a.csv", "data/deep/a.csv", "keep.log", "sub/a.log", "sub/build/x"]),
        ("*.log", ["data/a.csv", "data/deep/a.csv", "sub/build/x"]),
        ("*.log\n!keep.log\n", ["data/a.csv", "data/deep/a.csv", "keep.log", "sub/build/x"]),
        ("data/*.csv", ["a.log", "data/deep/a.csv", "keep.log", "sub/a.log", "sub/build/x"]),
        ("/a.log", ["data/a.csv", "data/deep/a.csv", "keep.log", "sub/a.log", "sub/build/x"]),
        ("build/", ["a.log", "data/a.csv", "data/deep/a.csv", "keep.log", "sub/a.log"]),
        ("a.log/", ["a.log", "data/a.csv", "data/deep/a.csv", "keep.log", "sub/a.log", "sub/build/x"]),
        ("# x\n\ndata/**/a.csv", ["a.log", "keep.log", "sub/a.log", "sub/build/x"]),
        ("data\nsub", ["a.log", "keep.log"]),
    ],
)
def test_orchignore(tmp_path: Path, ignore: str, kept: list[str]) -> None:
    write(tmp_path, "a.log", "data/a.csv", "data/deep/a.csv", "keep.log", "sub/a.log", "sub/build/x")
    write(tmp_path, ".git/config", "sub/__pycache__/x.pyc")
    (tmp_path / ".orchignore").write_text(ignore)
    assert paths(tmp_path) == [".orchignore", *kept]


def test_links_within_stay_links_and_one_to_what_is_left_out_is_its_content(tmp_path: Path) -> None:
    write(tmp_path, "src/train.py", "src/helper.py", "data/a.csv", "data/deep/b.csv")
    (tmp_path / ".gitignore").write_text("/data/\n")
    (tmp_path / "train.py").symlink_to("src/train.py")
    (tmp_path / "code").symlink_to(tmp_path / "src")
    (tmp_path / "src/up").symlink_to("..")
    (tmp_path / "src/few.csv").symlink_to("../data/a.csv")
    (tmp_path / "src/all").symlink_to("../data")
    (tmp_path / "data/again").symlink_to("deep")
    assert others(tmp_path) == {
        "train.py": "src/train.py",
        "code": "src",
        "src/up": "..",
    }
    files = {str(file.path): file.sha256 for file in codetree.manifest(str(tmp_path)) if file.mode == 0o644}
    assert files["src/few.csv"] == files["src/all/a.csv"] == sha(b"data/a.csv")
    assert files["src/all/deep/b.csv"] == files["src/all/again/b.csv"] == sha(b"data/deep/b.csv")
    assert sorted(files) == [
        *(".gitignore", "src/all/a.csv", "src/all/again/b.csv", "src/all/deep/b.csv", "src/few.csv"),
        *("src/helper.py", "src/train.py"),
    ]


def test_a_link_to_an_absolute_path_is_kept_whether_this_machine_has_it_or_not(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(tree, "a.py")
    (tree / "data").symlink_to("/data/of/the/hosts")
    (tree / "etc").symlink_to("/etc")
    (tree / "by-it").symlink_to("etc")
    assert others(tree) == {"data": "/data/of/the/hosts", "etc": "/etc", "by-it": "/etc"}
    assert paths(tree) == ["a.py"]


def test_directories_of_which_nothing_is_pushed_are_there_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "logs/old.log", "data/x", "deep/er/b.py")
    (tmp_path / "out/run").mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("*.log\n/data/\n")
    assert others(tmp_path) == {"logs": "", "out/run": ""}


@pytest.mark.fault(53)
def test_all_that_cannot_be_pushed_is_named_at_once(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(tree, "a.py", "sub/b.py")
    (tree / "near").symlink_to("../tree-b")
    (tmp_path / "tree-b").mkdir()
    (tree / "nothing").symlink_to("nowhere")
    (tree / ".#a.py").symlink_to("ana@lab.4711:1800000000")
    os.mkfifo(tree / "pipe")
    with pytest.raises(SpecError) as caught:
        codetree.manifest(str(tree))
    assert str(caught.value).splitlines() == [
        "workdir: the symlink near leaves the tree: it points to ../tree-b",
        "workdir: pipe is no ordinary file: a socket, pipe or device",
    ]
    (tree / "near").unlink()
    (tree / "pipe").unlink()
    assert paths(tree) == ["a.py", "sub/b.py"]
    assert "left out links to nothing: .#a.py, nothing" in codetree.survey(str(tree)).sentences()


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        with pytest.raises(SpecError, match="s is no ordinary file"):
            codetree.manifest(str(tmp_path))


def test_a_tree_that_is_too_large_names_its_largest(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(PUSH_BYTES_MAX)  # a hole: takes no room
    with pytest.raises(SpecError, match=r"largest: data\.bin \(200 MiB\), a\.py") as caught:
        codetree.manifest(str(tmp_path))
    assert ".orchignore" in (caught.value.hint or "")
    assert "push_limit" in (caught.value.hint or "")
    assert len(codetree.manifest(str(tmp_path), limit_bytes=PUSH_BYTES_MAX + 4)) == 2


def test_a_directory_of_many_files_counts_as_a_whole(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path, f"data/part-{number}.csv")
    write(tmp_path, "train.py")
    with pytest.raises(SpecError, match=r"in 31 files, .* the largest: data/ \(470 B\), train\.py"):
        codetree.manifest(str(tmp_path), limit_bytes=100)


class TestLeftOut:
    """What looks like a secret, what this machine alone has a use for, and what git does not keep."""

    @pytest.mark.parametrize(
        "name",
        [
            ".env",
            ".env.local",
            "sub/.ENV",
            ".aws/config",
            ".ssh/config",
            ".netrc",
            "credentials",
            "credentials.json",
            "id_rsa",
            "deploy/id_ed25519",
            "server.key",
            ".git-credentials",
            ".pypirc",
        ],
    )
    def test_a_secret_by_its_name_is_not_pushed_and_is_said(self, tmp_path: Path, name: str) -> None:
        write(tmp_path, "train.py", name)
        assert paths(tmp_path) == ["train.py"]
        top = name.partition("/")[0] + "/" if name.startswith((".aws", ".ssh")) else name
        assert codetree.survey(str(tmp_path)).sentences()[1:] == [
            f"left out 1 file that looks like a secret: {top}; name them in .orchignore with ! to push them"
        ]
        write(tmp_path, ".orchignore")
        (tmp_path / ".orchignore").write_text(f"!{top}\n")
        assert paths(tmp_path) == sorted([".orchignore", name, "train.py"]), "somebody asked for it"

    @pytest.mark.parametrize(
        "line",
        [
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            "\n-----BEGIN RSA PRIVATE KEY-----\r",
            "-----BEGIN PRIVATE KEY-----",
            "-----BEGIN PGP PRIVATE KEY BLOCK-----",
            "PuTTY-User-Key-File-3: ssh-ed25519",
            "AGE-SECRET-KEY-1QQQ",
        ],
    )
    def test_a_private_key_is_known_by_its_first_line(self, tmp_path: Path, line: str) -> None:
        write(tmp_path, "train.py", "id.pub")
        (tmp_path / "harmless.txt").write_text(line + "\nAAAA\n")
        assert paths(tmp_path) == ["id.pub", "train.py"]
        assert codetree.survey(str(tmp_path)).left_out == (LeftOut("harmless.txt", "secret"),)
        (tmp_path / ".orchignore").write_text("!harmless.txt\n")
        assert "harmless.txt" in paths(tmp_path)

    def test_what_only_looks_similar_is_pushed(self, tmp_path: Path) -> None:
        names = [".env.example", "environment.py", "id_rsa.pub", "keys.py", "my_credentials.md", "public.pem"]
        write(tmp_path, *names)
        (tmp_path / "public.pem").write_text("-----BEGIN CERTIFICATE-----\n")
        assert paths(tmp_path) == sorted(names)

    def test_a_link_to_a_secret_is_one(self, tmp_path: Path) -> None:
        write(tmp_path, "a.py", ".env", ".aws/config")
        (tmp_path / "settings").symlink_to(".env")
        (tmp_path / "cloud").symlink_to(".aws")
        assert paths(tmp_path) == ["a.py"]

    def test_caches_and_environments_of_this_machine_are_not_pushed(self, tmp_path: Path) -> None:
        write(
            tmp_path, "a.py", ".git/config", "b/__pycache__/a.pyc", ".mypy_cache/x", "node_modules/x/index.js"
        )
        write(tmp_path, "state/coordinator.lock", "state/secrets/run")
        write(tmp_path, "host/machine.1", "host/bundle/x.pyz", "host/runs/t-1/log")
        write(tmp_path, "env/pyvenv.cfg", "env/lib/x.py", "conda/conda-meta/history", "conda/lib/y.py")
        assert paths(tmp_path) == ["a.py"]
        assert len(codetree.survey(str(tmp_path)).sentences()) == 1, "nobody misses these"
        (tmp_path / ".orchignore").write_text("!env/\n")
        assert paths(tmp_path) == [".orchignore", "a.py", "env/lib/x.py", "env/pyvenv.cfg"]

    def test_gitignore_counts_where_it_lies_and_orchignore_has_the_last_word(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            "train.py",
            "out/model.h5",
            "sub/a.log",
            "sub/keep.log",
            "sub/deep/a.log",
            "b.log",
            "x.csv",
        )
        (tmp_path / ".gitignore").write_text("/out/\n*.log\nx.csv\n")
        (tmp_path / "sub/.gitignore").write_text("!keep.log\n/deep\n")
        (tmp_path / ".orchignore").write_text("!b.log\ntrain.py\n")
        assert paths(tmp_path) == [".gitignore", ".orchignore", "b.log", "sub/.gitignore", "sub/keep.log"]
        assert codetree.survey(str(tmp_path)).sentences()[1] == (
            "left out what .gitignore names: out/, sub/a.log, sub/deep/, x.csv; "
            "name it in .orchignore with ! to push it"
        )

    def test_gitignore_cannot_ask_for_a_secret(self, tmp_path: Path) -> None:
        write(tmp_path, "a.py", ".env")
        (tmp_path / ".gitignore").write_text("!.env\n")
        assert paths(tmp_path) == [".gitignore", "a.py"]

    def test_gitignore_above_counts_within_a_repository(self, tmp_path: Path) -> None:
        write(tmp_path, "repo/train/a.py", "repo/train/data/x", "repo/train/b.log")
        (tmp_path / "repo/.gitignore").write_text("/train/data/\n*.log\n")
        (tmp_path / ".gitignore").write_text("*.py\n")
        assert paths(tmp_path / "repo/train") == ["a.py", "b.log", "data/x"], "it is no repository"
        (tmp_path / "repo/.git").mkdir()
        assert paths(tmp_path / "repo/train") == ["a.py"]

    def test_what_git_tracks_is_pushed_although_a_rule_names_it(self, tmp_path: Path) -> None:
        write(tmp_path, "a.py", "data/small.csv", "data/large.csv", "data/deep/x", "b.bin", "c.bin", ".env")
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "-f", "a.py", "data/small.csv", "b.bin", ".env")
        (tmp_path / ".gitignore").write_text("# what is large\n\ndata/\n*.bin\n")
        assert paths(tmp_path) == [".gitignore", "a.py", "b.bin", "data/small.csv"]
        assert codetree.survey(str(tmp_path)).left_out == (
            LeftOut(".env", "secret"),
            LeftOut(".git/", "cache"),
            LeftOut("c.bin", ".gitignore", ".gitignore:4"),
            LeftOut("data/deep/", ".gitignore", ".gitignore:3"),
            LeftOut("data/large.csv", ".gitignore", ".gitignore:3"),
        )
        below = tmp_path / "data"
        assert paths(below) == ["small.csv"], "the repository is above"
        rule = codetree.survey(str(below)).left_out[0].rule
        assert rule == f"{tmp_path}/.gitignore:3"

    def test_a_submodule_has_its_own_rules_only(self, tmp_path: Path) -> None:
        library, tree = tmp_path / "library", tmp_path / "tree"
        write(library, "lib.py", "table.bin", "own.tmp", "tracked.tmp")
        (library / ".gitignore").write_text("*.tmp\n")
        git(library, "init", "-q")
        git(library, "add", "-f", "lib.py", "table.bin", "tracked.tmp", ".gitignore")
        git(library, "commit", "-qm", "all")
        write(tree, "a.py")
        git(tree, "init", "-q")
        git(tree, "submodule", "add", "-q", str(library), "vendor/library")
        write(tree, "vendor/library/more.bin", "vendor/library/more.tmp", "vendor/x.bin")
        (tree / ".gitignore").write_text("*.bin\nvendor/\n")
        assert paths(tree) == [
            *(".gitignore", ".gitmodules", "a.py", "vendor/library/.gitignore", "vendor/library/lib.py"),
            *("vendor/library/more.bin", "vendor/library/table.bin", "vendor/library/tracked.tmp"),
        ]

    @pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
    def test_the_repository_of_another_user_above_counts_for_nothing(self, tmp_path: Path) -> None:
        marker = set_trap(tmp_path)
        (tmp_path / ".gitignore").write_text("*\n")
        give(tmp_path / ".git", tmp_path / ".gitignore")
        tmp_path.chmod(0o1777)
        tree = tmp_path / "ann/project"
        write(tree, "train.py")
        assert paths(tree) == ["train.py"]
        assert not marker.exists()
        assert f"repositories of other users: {tmp_path}: git was not asked" in said(tree)

    @pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
    def test_the_tree_of_another_user_is_pushed_by_its_rules_but_git_is_not_asked(
        self, tmp_path: Path
    ) -> None:
        tree = tmp_path / "repo/project"
        write(tree, "train.py", "data/small.csv", "vendor/lib.py", "vendor/table.bin")
        git(tmp_path / "repo", "init", "-q")
        git(tmp_path / "repo", "add", ".")
        (tree / "vendor/.git").mkdir()
        (tmp_path / "repo/.gitignore").write_text("data/\n*.bin\n")
        give(tmp_path / "repo", *(tmp_path / "repo").rglob("*"))
        assert paths(tree) == ["train.py", "vendor/lib.py", "vendor/table.bin"]
        assert f"repositories of other users: {tmp_path}/repo: git was not asked" in said(tree)
        os.chown(tree, 0, 0)
        assert paths(tree) == ["data/small.csv", "train.py", "vendor/lib.py", "vendor/table.bin"]
        (tree / ".gitignore").write_text("*.bin\n")
        assert paths(tree) == [".gitignore", "data/small.csv", "train.py", "vendor/lib.py"], "no submodule"
        assert f"repositories of other users: {tmp_path}/repo, {tree}/vendor: git was" in said(tree)

    def test_git_fetches_nothing_of_what_a_clone_lacks(self, tmp_path: Path) -> None:
        marker = set_trap(tmp_path)
        (tmp_path / ".gitignore").write_text("*.log\n")
        write(tmp_path, "train.py", "x.log")
        assert "train.py" in paths(tmp_path)
        assert not marker.exists()

    def test_a_script_that_would_not_be_there_is_said_before_anything_starts(self, tmp_path: Path) -> None:
        write(tmp_path, "build/train.py", "a.py")
        (tmp_path / ".gitignore").write_text("build/\n")
        with pytest.raises(
            SpecError, match=r"build/train.py is not pushed .*: build/: the rule \.gitignore:1 leaves it out"
        ) as caught:
            codetree.manifest(str(tmp_path), "build/train.py")
        assert "!build/" in (caught.value.hint or "")
        codetree.manifest(str(tmp_path), "a.py")

    @pytest.mark.parametrize(("file", "text"), [(".orchignore", b"\xff"), (".gitignore", b"!\n")])
    def test_a_file_that_is_none_is_named(self, tmp_path: Path, file: str, text: bytes) -> None:
        write(tmp_path, "a.py")
        (tmp_path / file).write_bytes(text)
        with pytest.raises(SpecError, match=f"cannot read {file}"):
            codetree.manifest(str(tmp_path))

    def test_many_are_counted(self, tmp_path: Path) -> None:
        write(tmp_path, *(f"{number}.key" for number in range(8)))
        said = codetree.survey(str(tmp_path)).sentences()
        assert said[0] == f"pushes 0 files (0 B) of {tmp_path}"
        assert said[1].startswith(
            "left out 8 files that look like secrets: 0.key, 1.key, 2.key, 3.key, 4.key, 5.key, and 2 more"
        )


def test_a_changed_file_is_hashed_anew(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    before = codetree.manifest(str(tmp_path))
    (tmp_path / "a.py").write_text("b.py")
    os.utime(tmp_path / "a.py", ns=(1, 1))
    after = codetree.manifest(str(tmp_path))
    assert (before[0].sha256, after[0].sha256) == (sha(b"a.py"), sha(b"b.py"))


# ---------------------------------------------------------------- the host


def push(host_dir: Path, run: str, content: dict[str, bytes]) -> str:
    files: list[Any] = [[path, sha(data), 0o644, len(data)] for path, data in content.items()]
    checked = codestore.check(files)
    receiver = codestore.Receiver(str(host_dir / "blobs"))
    by_hash = {sha(data): data for data in content.values()}
    for digest in codestore.missing(str(host_dir), checked):
        assert receiver.receive(digest, 0, by_hash[digest], True)
    codestore.build(str(host_dir), run, checked)
    return codestore.tree_dir(str(host_dir), run, digest_of(checked))


def test_a_pushed_tree_is_the_heads(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(tree, "train.py", "lib/a.py")
    (tree / "train.py").chmod(0o755)
    files = codetree.manifest(str(tree))
    there = Path(push(tmp_path / "host", "r", {file.path: (tree / file.path).read_bytes() for file in files}))
    assert (there / "lib" / "a.py").read_text() == "lib/a.py"
    assert digest_of(files) != there.name  # push() above gives all of them one mode
    (tree / "train.py").chmod(0o644)
    assert digest_of(codetree.manifest(str(tree))) == there.name


def test_links_and_empty_directories_reach_the_working_directory_of_a_task(tmp_path: Path) -> None:
    tree, host = tmp_path / "tree", tmp_path / "host"
    write(tree, "src/train.py", "src/helper.py")
    (tree / "logs/old").mkdir(parents=True)
    (tree / "train.py").symlink_to("src/train.py")
    (tree / "code").symlink_to("src")
    (tree / "data").symlink_to(tmp_path / "shared")
    plan = replace(make_plan(["a"], checkpoint=False), workdir=str(tree), script="train.py")
    taken = Snapshots(str(tmp_path / "state")).take(plan)
    files = codestore.check([list(file) for file in taken.files])
    assert digest_of(files) == taken.digest
    receiver = codestore.Receiver(str(host / "blobs"))
    by_digest = {file.sha256: file for file in taken.files}
    for digest in codestore.missing(str(host), files):
        assert receiver.receive(digest, 0, taken.content(by_digest[digest]), True)
    assert codestore.build(str(host), "r", files) == []
    there = codestore.tree_dir(str(host), "r", taken.digest)
    assert codestore.dangling(there, files) == ["data"]
    (tmp_path / "shared").mkdir()
    assert codestore.dangling(there, files) == []

    work = Path(workdir.prepare(str(host), "r", "worker:0", there))
    assert {name: os.readlink(work / name) for name in ("train.py", "code", "data")} == {
        "train.py": "src/train.py",
        "code": "src",
        "data": str(tmp_path / "shared"),
    }
    assert (work / "logs/old").is_dir()
    assert list(workdir.left(str(host), "r", "worker:0")) == []
    (work / "logs/old/new.log").write_text("1")
    assert [path for path, _ in workdir.left(str(host), "r", "worker:0")] == ["logs/old/new.log"]


def test_a_tree_is_copied_where_no_link_can_be_made(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert os.stat(elsewhere).st_dev != os.stat(tmp_path).st_dev, "links do not reach another file system"
        (tmp_path / "blobs").symlink_to(elsewhere)
        there = Path(push(tmp_path, "r", {"a.py": b"1"}))
        assert ((there / "a.py").read_bytes(), (there / "a.py").stat().st_nlink) == (b"1", 1)
    linked = Path(push(tmp_path / "near", "r", {"a.py": b"1"}))
    assert (linked / "a.py").stat().st_nlink == 2


def test_only_what_changed_is_missing(tmp_path: Path) -> None:
    push(tmp_path, "r", {"a.py": b"1", "b.py": b"2"})
    files: list[Any] = [["a.py", sha(b"1"), 0o644, 1], ["b.py", sha(b"3"), 0o644, 1]]
    assert codestore.missing(str(tmp_path), codestore.check(files)) == [sha(b"3")]


@pytest.mark.parametrize(
    "names", [["../x"], ["/etc/x"], ["a/../../x"], ["a//b"], ["."], [""], ["a\0b"], ["a", "a"], ["a", "a/b"]]
)
@pytest.mark.fault(53)
def test_paths_that_leave_or_contradict_are_refused(names: list[str]) -> None:
    with pytest.raises(HostFault) as caught:
        codestore.check([[name, sha(b""), 0o644, 0] for name in names])
    assert caught.value.code == "bad-path"


def test_a_hash_that_is_none_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(HostFault, match="not a SHA-256"):
        codestore.check([["a", "../" * 21 + "x", 0o644, 0]])
    with pytest.raises(HostFault, match="not a SHA-256"):
        codestore.Receiver(str(tmp_path / "blobs")).receive("../x", 0, b"", True)


def test_a_blob_in_pieces(tmp_path: Path) -> None:
    receiver = codestore.Receiver(str(tmp_path / "blobs"))
    assert receiver.receive(sha(b"abcd"), 0, b"ab", False)
    with pytest.raises(HostFault, match="does not follow"):
        receiver.receive(sha(b"abcd"), 3, b"d", True)
    assert receiver.receive(sha(b"abcd"), 2, b"cd", True)
    assert (tmp_path / "blobs" / sha(b"abcd")).read_bytes() == b"abcd"


@pytest.mark.parametrize("parts", [[b"ab", b"cd", b"ef"], [b"a", b"bcd", b"e", b"f"]])
def test_two_runs_push_the_same_content_at_once(tmp_path: Path, parts: list[bytes]) -> None:
    """In each order in which the chunks of both may come."""
    content, number = b"abcdef", 3 + len(parts)
    for of_first in itertools.combinations(range(number), 3):
        blobs = tmp_path / "".join(map(str, of_first))
        receiver = codestore.Receiver(str(blobs))
        senders = {True: chunks([b"ab", b"cd", b"ef"]), False: chunks(parts)}
        for at in range(number):
            offset, data, last = next(senders[at in of_first])
            assert receiver.receive(sha(content), offset, data, last)
        assert [path.name for path in blobs.iterdir()] == [sha(content)]
        assert (blobs / sha(content)).read_bytes() == content


def chunks(parts: list[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield each part with its offset, and whether it is the last."""
    offset = 0
    for part in parts:
        yield offset, part, part is parts[-1]
        offset += len(part)


def test_a_part_that_was_left_for_long_is_begun_again(tmp_path: Path) -> None:
    receiver = codestore.Receiver(str(tmp_path / "blobs"))
    receiver.receive(sha(b"abcd"), 0, b"ab", False)
    (part,) = (tmp_path / "blobs").iterdir()
    os.utime(part, (1, 1))
    codestore.remove_unused_blobs(str(tmp_path))  # another run ends
    for offset, data, last in chunks([b"ab", b"cd"]):
        assert receiver.receive(sha(b"abcd"), offset, data, last)
    assert (tmp_path / "blobs" / sha(b"abcd")).read_bytes() == b"abcd"


def test_a_blob_that_is_not_its_hash_is_not_kept(tmp_path: Path) -> None:
    receiver = codestore.Receiver(str(tmp_path / "blobs"))
    assert not receiver.receive(sha(b"abcd"), 0, b"abce", True)
    assert os.listdir(tmp_path / "blobs") == []


def test_a_tree_is_never_seen_half(tmp_path: Path) -> None:
    checked = codestore.check([["a.py", sha(b"1"), 0o644, 1], ["b.py", sha(b"2"), 0o644, 1]])
    codestore.Receiver(str(tmp_path / "blobs")).receive(sha(b"1"), 0, b"1", True)
    assert codestore.build(str(tmp_path), "r", checked) == [sha(b"2")]  # b.py has not come
    assert os.listdir(tmp_path / "runs" / "r" / "code") == []


def test_forgetting_takes_the_blobs_that_nobody_else_has(tmp_path: Path) -> None:
    push(tmp_path, "mnist-20260101-1", {"a.py": b"1", "b.py": b"2"})
    push(tmp_path, "mnist-20260101-2", {"a.py": b"1"})
    for blob in (tmp_path / "blobs").iterdir():
        os.utime(blob, (1, 1))  # long ago: no push that is under way
    codestore.forget(str(tmp_path), "mnist-20260101-1")
    codestore.remove_unused_blobs(str(tmp_path))
    assert os.listdir(tmp_path / "blobs") == [sha(b"1")]
    assert os.listdir(tmp_path / "runs") == ["mnist-20260101-2"]
    codestore.forget(str(tmp_path), "mnist-20260101-1")


def test_a_blob_that_is_pushed_again_is_not_removed_before_its_tree_is_built(tmp_path: Path) -> None:
    receiver = codestore.Receiver(str(tmp_path / "blobs"))
    assert receiver.receive(sha(b"1"), 0, b"1", True)
    os.utime(tmp_path / "blobs" / sha(b"1"), (1, 1))  # by a run that was forgotten long ago
    assert receiver.receive(sha(b"1"), 0, b"1", True)
    codestore.remove_unused_blobs(str(tmp_path))  # another run ends meanwhile
    assert os.listdir(tmp_path / "blobs") == [sha(b"1")]


def test_oldest_runs_are_those_of_the_same_name(tmp_path: Path) -> None:
    for n in range(4):
        push(tmp_path, f"mnist-20260101-{n}", {"a.py": b"1"})
        os.utime(tmp_path / "runs" / f"mnist-20260101-{n}", (n, n))
    push(tmp_path, "other-20260101-1", {"a.py": b"1"})
    old = codestore.oldest_runs(str(tmp_path), "mnist-20260101-3", max=2)
    assert old == ["mnist-20260101-0"]


def test_keep_only_drops_other_trees(tmp_path: Path) -> None:
    old = push(tmp_path, "r", {"a.py": b"1"})
    new = push(tmp_path, "r", {"a.py": b"2"})
    codestore.keep_only(str(tmp_path), "r", [os.path.basename(new)])
    assert (os.path.exists(old), os.path.exists(old + ".json")) == (False, False)
    assert os.path.exists(new + "/a.py")


def test_a_tree_that_is_removed_meanwhile_keeps_no_blob_and_breaks_no_push(tmp_path: Path) -> None:
    code = tmp_path / "runs" / ".t-1.7.forgotten" / "code"
    code.mkdir(parents=True)
    (code / "0.json").symlink_to(tmp_path / "gone")  # listed, and gone when it is opened
    blob = tmp_path / "blobs" / ("0" * 64)
    blob.parent.mkdir()
    blob.write_bytes(b"of that tree")
    os.utime(blob, (0, 0))
    codestore.remove_unused_blobs(str(tmp_path))
    assert not blob.exists()


def test_a_manifest_that_cannot_be_read_now_keeps_its_blobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = push(tmp_path, "r", {"a.py": b"1"})
    blob = tmp_path / "blobs" / sha(b"1")
    os.utime(blob, (0, 0))
    whole = os.open

    def opens(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path) == f"{tree}.json":
            raise OSError(errno.EIO, "Input/output error")
        return whole(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("os.open", opens)
        with pytest.raises(OSError, match="Input/output error"):
            codestore.remove_unused_blobs(str(tmp_path))
    assert blob.exists()


@pytest.mark.fault(68)
@pytest.mark.parametrize("left", [b"", b"\0\0", b"x"])
def test_a_blob_that_a_power_cut_damaged_is_asked_for_again(tmp_path: Path, left: bytes) -> None:
    checked = codestore.check([["a.py", sha(b"1"), 0o644, 1], ["b.py", sha(b"22"), 0o644, 2]])
    receiver = codestore.Receiver(str(tmp_path / "blobs"))
    receiver.receive(sha(b"1"), 0, b"1", True)
    receiver.receive(sha(b"22"), 0, b"22", True)
    (tmp_path / "blobs" / sha(b"22")).write_bytes(left)
    assert codestore.missing(str(tmp_path), checked) == []  # it has the right name
    assert codestore.build(str(tmp_path), "r", checked) == [sha(b"22")]
    assert codestore.missing(str(tmp_path), checked) == [sha(b"22")]
    receiver.receive(sha(b"22"), 0, b"22", True)
    assert codestore.build(str(tmp_path), "r", checked) == []
    assert Path(codestore.tree_dir(str(tmp_path), "r", digest_of(checked)), "b.py").read_bytes() == b"22"


@pytest.mark.fault(68)
def test_files_that_a_power_cut_left_empty_are_filled_and_what_a_script_did_stays(tmp_path: Path) -> None:
    content = {"train.py": b"print(1)", "lib/a.py": b"a = 1", "__init__.py": b"", "log": b"0", "old": b"o"}
    tree = Path(push(tmp_path, "r", content))
    for name, left in (("train.py", b""), ("lib/a.py", b""), ("log", b"0 1 2")):
        (tree / name).unlink()  # as where it was copied
        (tree / name).write_bytes(left)
    (tree / "old").unlink()
    (tmp_path / "blobs" / sha(b"a = 1")).write_bytes(b"\0" * 5)
    assert codestore.repair(str(tmp_path), str(tree)) == [sha(b"a = 1")]
    assert (tree / "train.py").read_bytes() == b"print(1)"
    codestore.Receiver(str(tmp_path / "blobs")).receive(sha(b"a = 1"), 0, b"a = 1", True)
    assert codestore.repair(str(tmp_path), str(tree)) == []
    assert (tree / "lib" / "a.py").read_bytes() == b"a = 1"
    assert (tree / "log").read_bytes() == b"0 1 2"
    assert not (tree / "old").exists()
    assert sorted(path.name for path in tree.iterdir()) == ["__init__.py", "lib", "log", "train.py"]


def test_a_tree_takes_no_room_beside_its_blobs(tmp_path: Path) -> None:
    tree = Path(push(tmp_path, "r", {"a.bin": b"data" * 1000, "lib/again.bin": b"data" * 1000}))
    blob = tmp_path / "blobs" / sha(b"data" * 1000)
    assert {path.stat().st_ino for path in tree.rglob("*.bin")} == {blob.stat().st_ino}
    work = Path(workdir.prepare(str(tmp_path), "r", "worker:0", str(tree)))
    (work / "a.bin").write_bytes(b"changed by the script")
    assert blob.read_bytes() == b"data" * 1000, "a script changes a copy of its own"
    second = codestore.check([["run.sh", sha(b"data" * 1000), 0o755, 4000]])
    assert codestore.build(str(tmp_path), "r", second) == []
    other = Path(codestore.tree_dir(str(tmp_path), "r", digest_of(second)), "run.sh")
    assert (other.stat().st_mode & 0o111, blob.stat().st_mode & 0o111) == (0o111, 0), (
        "permissions are of each tree"
    )
    codestore.forget(str(tmp_path), "r")
    assert blob.exists()


@pytest.mark.fault(68)
def test_a_manifest_that_a_power_cut_damaged_is_named_and_keeps_no_blob(tmp_path: Path) -> None:
    tree = push(tmp_path, "r", {"a.py": b"1"})
    Path(tree + ".json").write_bytes(b"\0" * 40)
    with pytest.raises(HostFault, match="is damaged on this host"):
        codestore.repair(str(tmp_path), tree)
    codestore.remove_unused_blobs(str(tmp_path))
    files = codestore.check([["a.py", sha(b"1"), 0o644, 1]])
    assert codestore.repair(str(tmp_path), tree, files) == []  # the coordinator brings the manifest along


def test_a_tree_that_an_older_agent_built_is_taken_as_it_is(tmp_path: Path) -> None:
    tree = push(tmp_path, "r", {"a.py": b"1"})
    Path(tree + ".json").write_text(json.dumps({"blobs": [sha(b"1")]}))
    assert codestore.repair(str(tmp_path), tree) == []
    Path(tree + ".json").unlink()
    assert codestore.repair(str(tmp_path), tree) == []


def test_what_orch_itself_wrote_there_is_not_pushed_and_not_worth_a_word(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1")
    (tmp_path / "plot.html").write_text("<!doctype html>")
    (tmp_path / "mnist-20261126-1.html").write_text(report._page("{}"))
    outputs.own_directory(str(tmp_path / "mnist-outputs"))
    (tmp_path / "mnist-outputs/run-1").mkdir()
    (tmp_path / "mnist-outputs/run-1/model.keras").write_bytes(b"weights")
    seen = codetree.survey(str(tmp_path))
    assert [file.path for file in seen.files] == ["plot.html", "train.py"]
    assert seen.left_out == (
        LeftOut("mnist-20261126-1.html", "orch"),
        LeftOut("mnist-outputs/", "orch"),
    )
    assert len(seen.sentences()) == 1
    (tmp_path / ".orchignore").write_text("!mnist-20261126-1.html\n")
    assert "mnist-20261126-1.html" in [file.path for file in codetree.survey(str(tmp_path)).files]
