"""A tree is reached by descriptors: whatever somebody else puts in the way, nothing outside of it is touched."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.both import within
from orchestrator.both.within import Tree
from orchestrator.protocol import pod

SECRET = "nobody else's business"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory outside, to which the links lead."""
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    (home / "keys").write_text(SECRET)
    (home / "deep" / "keys").write_text(SECRET)
    return home


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    (top / "gen" / "deep").mkdir(parents=True)
    (top / "gen" / "keys").write_text("ours")
    (top / "gen" / "deep" / "keys").write_text("ours")
    return top


def everything(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Return the mode, the time and the content of all below a directory."""
    return {
        str(path.relative_to(directory)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_text() if path.is_file() else "",
        )
        for path in [directory, *directory.rglob("*")]
    }


USES: dict[str, Callable[[Tree, str], object]] = {
    "read": lambda tree, path: tree.reading(path).read(),
    "write": lambda tree, path: tree.write(path, b"theirs"),
    "write in place": lambda tree, path: os.close(tree.opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)),
    "create": lambda tree, path: tree.create(f"{path}.new", b"theirs"),
    "remove": lambda tree, path: tree.remove(path),
    "rename away": lambda tree, path: tree.rename(path, "taken"),
    "rename to": lambda tree, path: tree.rename("mine", path),
    "copy": lambda tree, path: tree.copy(path, tree, "copy"),
    "copy to": lambda tree, path: tree.copy("mine", tree, path),
    "link": lambda tree, path: tree.link(path, tree, "second"),
    "touch": lambda tree, path: tree.touch(path, (0, 0)),
    "make": lambda tree, path: tree.make(f"{path}.d"),
    "symlink": lambda tree, path: tree.symlink("x", f"{path}.link"),
}
"""What a tree can do with a path."""


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("step", ["gen", "gen/deep"])
def test_a_link_on_the_way_is_not_followed(top: Path, home: Path, step: str, use: str) -> None:
    (top / "mine").write_text("ours")
    (top / step).rename(top / "away")
    (top / step).symlink_to(home if step == "gen" else home / "deep")
    before = everything(home)
    with Tree(str(top)) as tree, pytest.raises(OSError, match="a symbolic link is in its path") as raised:
        USES[use](tree, "gen/deep/keys")
    assert raised.value.errno == errno.ELOOP
    assert everything(home) == before


@pytest.mark.parametrize("use", USES)
def test_a_link_in_the_place_of_a_file_is_not_followed(top: Path, home: Path, use: str) -> None:
    (top / "mine").write_text("ours")
    (top / "gen" / "keys").unlink()
    (top / "gen" / "keys").symlink_to(home / "keys")
    before = everything(home)
    refused = use in ("read", "write in place", "copy", "link")
    outcome = pytest.raises(OSError, match="gen/keys") if refused else contextlib.nullcontext()
    with Tree(str(top)) as tree, outcome:
        USES[use](tree, "gen/keys")
    assert everything(home) == before
    for made in ("copy", "second"):
        assert not (top / made).exists()


def test_the_directory_of_a_tree_stays_the_same_when_its_name_leads_elsewhere(top: Path, home: Path) -> None:
    before = everything(home)
    with Tree(str(top)) as tree, tree.below("gen") as building:
        (top / "gen").rename(top / "away")
        (top / "gen").symlink_to(home)
        building.write(str(top / "gen" / "keys"), b"new")
        building.remove("deep")
    assert everything(home) == before
    assert (top / "away" / "keys").read_bytes() == b"new"
    assert not (top / "away" / "deep").exists()


@pytest.mark.parametrize(
    "path",
    ["..", "../home/keys", "gen/../../home", "gen//keys", "./gen", "/etc/passwd", "gen/", "a/" * 200 + "a"],
)
def test_a_path_that_leads_out_is_refused(top: Path, home: Path, path: str) -> None:
    with Tree(str(top)) as tree, pytest.raises(OSError, match="leads out of"):
        tree.opened(path, os.O_RDONLY)


def test_a_path_may_begin_with_that_of_the_tree(top: Path) -> None:
    with Tree(str(top)) as tree:
        assert tree.reading(str(top / "gen" / "keys")).read() == b"ours"
        assert sorted(tree.names(str(top))) == sorted(tree.names()) == ["gen"]
        with pytest.raises(OSError, match="leads out of"):
            tree.stat(f"{top}-beside/keys")


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT])
def test_a_pipe_makes_nobody_wait(top: Path, flags: int) -> None:
    os.mkfifo(top / "pipe")
    with Tree(str(top)) as tree, pytest.raises(OSError, match=r"no regular file|No such device"):
        tree.opened("pipe", flags)


def test_a_file_with_a_second_name_is_read_but_not_written(top: Path, home: Path) -> None:
    os.link(home / "keys", top / "keys")
    with Tree(str(top)) as tree:
        assert tree.reading("keys").read() == SECRET.encode()
        with pytest.raises(OSError, match="second name"):
            tree.opened("keys", os.O_WRONLY | os.O_TRUNC)
        tree.write("keys", b"new")  # this one replaces the name
    assert (home / "keys").read_text() == SECRET


def test_what_is_removed_is_the_link_and_not_what_it_leads_to(top: Path, home: Path) -> None:
    (top / "gen" / "deep" / "home").symlink_to(home)
    (top / "gen" / "home").symlink_to(home)
    with Tree(str(top)) as tree:
        tree.remove("gen/home")
        assert tree.has("gen/deep/home")
        tree.remove("gen")
        tree.remove("gen")
    assert (home / "keys").read_text() == SECRET
    assert list(top.iterdir()) == []


def test_what_cannot_be_removed_keeps_nothing_else(top: Path) -> None:
    deep = top / "a"
    for name in ("x" * 20 for _ in range(150)):
        deep = deep / name
    os.makedirs(deep)
    (top / "a" / "file").write_text("")
    with Tree(str(top)) as tree, pytest.raises(OSError, match="too deep"):
        tree.remove("a")
    assert not (top / "a" / "file").exists()


def test_walks_as_os_does_and_enters_no_link(top: Path, home: Path) -> None:
    (top / "gen" / "link").symlink_to(home)
    with Tree(str(top)) as tree:
        found = [(folder, folders, sorted(names)) for folder, folders, names in tree.walk()]
        assert found == [("", ["gen"], []), ("gen", ["deep"], ["keys", "link"]), ("gen/deep", [], ["keys"])]
        for folder, folders, _ in tree.walk(str(top)):
            assert folder.startswith(str(top))
            folders[:] = [name for name in folders if name != "deep"]
            assert folder != str(top / "gen" / "deep")


def test_a_copy_has_mode_and_times_but_runs_as_nobody_else(top: Path) -> None:
    program = top / "program"
    program.write_bytes(os.urandom(300_000))
    program.chmod(0o6755)
    os.utime(program, ns=(1, 2))
    with Tree(str(top)) as tree:
        tree.copy("program", tree, "new/copy")
    copy = (top / "new" / "copy").stat()
    assert (stat.S_IMODE(copy.st_mode), copy.st_mtime_ns) == (0o755, 2)
    assert (top / "new" / "copy").read_bytes() == program.read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(top: Path) -> None:
    with Tree(str(top)) as tree:
        tree.write_json("gen/a.json", {"a": 1})
        assert tree.read_object("gen/a.json") == {"a": 1}
        (top / "gen" / "a.json").unlink()
        (top / "gen" / "a.json").mkdir()
        with pytest.raises(OSError, match=r"a\.json"):
            tree.write_json("gen/a.json", {"a": 2})
        assert tree.read_object("gen/a.json") is None
    assert sorted(os.listdir(top / "gen")) == ["a.json", "deep", "keys"]


def test_syncs_and_tells_kinds(top: Path) -> None:
    os.mkfifo(top / "gen" / "pipe")
    (top / "gen" / "link").symlink_to("keys")
    with Tree(str(top)) as tree:
        tree.sync()
        assert [tree.kind(f"gen/{name}") for name in ("keys", "deep", "pipe", "link", "none", "keys/x")] == [
            *(stat.S_IFREG, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFLNK, None, None)
        ]
        assert tree.link_text("gen/link") == "keys"
        assert tree.names("none") == []


# -- who may write


def who(directory: Path, group: str | None = None) -> str | None:
    return within.who_else_writes(str(directory), group)


def test_nobody_else_writes_into_what_is_ours_alone(top: Path) -> None:
    for mode in (0o700, 0o755):
        top.chmod(mode)
        assert who(top) is None


def test_everybody_writes_whatever_the_group_and_the_sticky_bit(top: Path) -> None:
    top.chmod(0o1777)
    assert who(top) == "everybody"
    assert who(top, str(top.stat().st_gid)) == "everybody"


def test_the_group_of_the_owner_alone_is_no_other(top: Path) -> None:
    top.chmod(0o2775)
    assert who(top) is None  # the first group of whoever runs the tests has his name, here and on CI


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_a_group_writes_only_where_it_is_named(top: Path) -> None:
    os.chown(top, -1, 4711)
    top.chmod(0o2770)
    assert who(top) == "the group 4711"
    assert who(top, "4712") == "the group 4711"
    assert who(top, "no-such-group") == "the group 4711"
    assert who(top, "4711") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="joins a group")
@pytest.mark.parametrize(
    ("groups", "variables", "said"),
    [
        ([4711], [pod.POD_UID], None),
        ([4711], [pod.TYPE], None),
        ([], [pod.POD_UID], "4711"),
        ([4711], [], "4711"),
    ],
)
def test_the_group_of_a_pods_volume_is_its_manifests_word(
    top: Path, groups: list[int], variables: list[str], said: str | None
) -> None:
    os.chown(top, -1, 4711)
    top.chmod(0o2775)
    asked = (
        "import sys\nfrom orchestrator.both.within import who_else_writes\n"
        "print(who_else_writes(sys.argv[1]))"
    )
    env = {**os.environ, **dict.fromkeys(variables, "x"), "PYTHONPATH": str(Path(within.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", asked, str(top)], env=env, extra_groups=groups, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == ("None" if said is None else f"the group {said}")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_an_owner_writes_into_what_is_his(top: Path) -> None:
    os.chown(top, 4711, 4712)
    top.chmod(0o755)
    assert who(top) == "its owner 4711"
    assert who(top, "4712") is None
    assert os.listdir(top) == ["gen"]


def test_what_is_above_must_not_let_others_rename(tmp_path: Path) -> None:
    """As sshd asks of what lies above a user's keys; in a directory with the sticky bit only owners rename."""
    root = tmp_path / "scratch" / "ann" / "checkpoints"
    root.mkdir(parents=True)
    (tmp_path / "scratch").chmod(0o777)
    assert who(root) == f"everybody (by renaming what is in {tmp_path / 'scratch'})"
    (tmp_path / "scratch").chmod(0o1777)
    assert who(root) is None
    root.parent.chmod(0o757)
    assert who(root) == f"everybody (by renaming what is in {root.parent})"
    assert who(root / "none" / "below") == who(root), (
        "of what is missing, whoever could swap it once it is made"
    )
    root.parent.chmod(0o755)
    assert who(root / "none" / "below") is None
    assert not (root / "none").exists()


def test_each_link_on_the_way_is_asked_about_where_it_lies_and_where_it_leads(tmp_path: Path) -> None:
    root = tmp_path / "real" / "checkpoints"
    root.mkdir(parents=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "second").symlink_to(tmp_path / "real")
    (tmp_path / "first").symlink_to("open/second")
    named = tmp_path / "first" / "checkpoints"
    assert who(named) is None
    (tmp_path / "open").chmod(0o777)
    assert who(named) == f"everybody (by renaming what is in {tmp_path / 'open'})"
    assert who(root) is None
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "real").chmod(0o757)
    assert who(named) == f"everybody (by renaming what is in {tmp_path / 'real'})"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_an_owner_or_a_group_above_may_where_the_group_is_named(tmp_path: Path) -> None:
    """A laboratory's directory belongs to one of its members, in a home that is his too."""
    root = tmp_path / "prof" / "lab" / "checkpoints"
    root.mkdir(parents=True)
    for path in (root.parent, root):
        os.chown(path, 4711, 4712)
        path.chmod(0o2770)
    os.chown(tmp_path / "prof", 4711, 4711)
    assert who(root, "4712") is None
    assert who(root) == "the group 4712"
    os.chown(root, 0, 0)
    root.chmod(0o700)
    assert who(root) == f"the group 4712 (by renaming what is in {root.parent})"
    root.parent.chmod(0o755)
    assert who(root) == f"its owner 4711 (by renaming what is in {root.parent})"
    os.chown(root.parent, 0, 0)
    assert who(root) == f"its owner 4711 (by renaming what is in {tmp_path / 'prof'})"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_a_link_of_another_user_in_a_directory_with_the_sticky_bit_is_his(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o1777)
    (tmp_path / "real").mkdir()
    link = tmp_path / "scratch" / "link"
    link.symlink_to(tmp_path / "real")
    assert who(link) is None
    os.lchown(link, 4711, 4711)
    assert who(link) == f"the user 4711 (by renaming what is in {tmp_path / 'scratch'})"


def entry(tag: int, rights: int, number: int = 0xFFFFFFFF) -> bytes:
    return struct.pack("<HHI", tag, rights, number)


def allow(path: Path, kind: str, *more: bytes, mask: int = 7, other: int = 5) -> None:
    """Set an access list."""
    acl = b"\2\0\0\0" + entry(1, 7) + b"".join(more) + entry(0x10, mask) + entry(0x20, other)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", acl)
    except OSError:
        pytest.skip("this file system has no access lists")


def test_an_access_list_is_read(top: Path) -> None:
    allow(top, "access", entry(2, 7, 4711), entry(4, 5))
    assert who(top) == "the user 4711"
    allow(top, "access", entry(4, 5), entry(8, 7, 4712))
    assert who(top) == "the group 4712"
    assert who(top, "4712") is None
    allow(top, "access", entry(2, 5, 4711), entry(4, 5))
    assert who(top) is None
    allow(top, "access", entry(2, 7, 4711), entry(4, 5), mask=5)
    assert who(top) is None


@pytest.mark.parametrize(
    ("entries", "mask", "other", "said"),
    [
        ([entry(2, 7, 4711), entry(4, 5)], 7, 5, "the user 4711"),
        ([entry(4, 5), entry(8, 7, 4712)], 7, 5, "the group 4712"),
        ([entry(4, 5)], 5, 7, "everybody"),
        ([entry(2, 7, 4711), entry(4, 7), entry(8, 7, 4712)], 5, 5, None),
        ([entry(2, 5, 4711), entry(4, 7)], 7, 5, None),  # the group is of whoever runs the tests alone
    ],
)
def test_a_default_access_list_is_that_of_what_is_made_there(
    top: Path, entries: list[bytes], mask: int, other: int, said: str | None
) -> None:
    top.chmod(0o755)
    allow(top, "default", *entries, mask=mask, other=other)
    assert who(top) == (said and f"{said} (by the default access list)")
    (top / "made").mkdir()
    os.removexattr(top, "system.posix_acl_default")
    assert who(top) is None
    assert who(top / "made") == said, "as the kernel has it"


def test_a_default_access_list_counts_for_nothing_where_nobody_else_may_enter_or_the_group_is_named(
    top: Path,
) -> None:
    allow(top, "default", entry(4, 5), entry(8, 7, 4712))
    top.chmod(0o700)
    assert who(top) is None
    top.chmod(0o711)
    assert who(top) == "the group 4712 (by the default access list)"
    assert who(top, "4712") is None
    assert who(top / "gen") is None, "of one above, what else is made there counts for nothing"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_the_owning_group_of_a_default_access_list_is_that_of_the_directory_if_it_hands_it_on(
    top: Path,
) -> None:
    os.chown(top, -1, 4711)
    allow(top, "default", entry(4, 7))
    top.chmod(0o755)
    assert who(top) is None
    top.chmod(0o2755)
    assert who(top) == "the group 4711 (by the default access list)"
