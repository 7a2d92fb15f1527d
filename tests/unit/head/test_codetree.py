"""Pushed code: what the head names, and how a host puts it in place."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.hostdir import HostFault
from orchestrator.both.tree_digest import digest_of
from orchestrator.core.errors import SpecError
from orchestrator.core.plan import PUSH_BYTES_MAX
from orchestrator.head.code import codetree
from orchestrator.head.transfer import outputs
from orchestrator.host.system import codestore
from orchestrator.page import report


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(root: Path, *files: str) -> None:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def paths(root: Path) -> list[str]:
    return [file.path for file in codetree.manifest(str(root))]


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


def test_symlinks_within_are_followed(tmp_path: Path) -> None:
    write(tmp_path, "real/a.py")
    (tmp_path / "again").symlink_to("real")
    (tmp_path / "b.py").symlink_to(tmp_path / "real" / "a.py")
    assert [(file.path, file.sha256) for file in codetree.manifest(str(tmp_path))] == [
        (path, sha(b"real/a.py")) for path in ("again/a.py", "b.py", "real/a.py")
    ]


@pytest.mark.fault(53)
def test_all_that_cannot_be_pushed_is_named_at_once(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(tree, "a.py", "sub/b.py")
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "near").symlink_to("../tree-b")
    (tmp_path / "tree-b").mkdir()
    (tree / "nothing").symlink_to("nowhere")
    (tree / "sub" / "loop").symlink_to("..")
    os.mkfifo(tree / "pipe")
    with pytest.raises(SpecError) as caught:
        codetree.manifest(str(tree))
    assert str(caught.value).splitlines() == [
        "workdir: the symlink near leaves the tree: it points to ../tree-b",
        "workdir: nothing is a symlink to nothing",
        "workdir: the symlink out leaves the tree: it points to /etc/passwd",
        "workdir: pipe is no ordinary file: a socket, pipe or device",
        "workdir: the symlink sub/loop leads back to a directory above it",
    ]
    (tree / ".orchignore").write_text("near\nnothing\nout\npipe\nloop\n")
    assert paths(tree) == [".orchignore", "a.py", "sub/b.py"]


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
        assert codetree.survey(str(tmp_path)).left_out == (("harmless.txt", "secret"),)
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

    def test_a_script_that_would_not_be_there_is_said_before_anything_starts(self, tmp_path: Path) -> None:
        write(tmp_path, "build/train.py", "a.py")
        (tmp_path / ".gitignore").write_text("build/\n")
        with pytest.raises(
            SpecError, match=r"build/train.py is not pushed .* \.gitignore names build/"
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
    (tree / "train.py").write_bytes(b"")
    (tree / "lib" / "a.py").write_bytes(b"")
    (tree / "log").write_bytes(b"0 1 2")
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
    assert seen.left_out == (("mnist-20261126-1.html", "orch"), ("mnist-outputs/", "orch"))
    assert len(seen.sentences()) == 1
    (tmp_path / ".orchignore").write_text("!mnist-20261126-1.html\n")
    assert "mnist-20261126-1.html" in [file.path for file in codetree.survey(str(tmp_path)).files]
