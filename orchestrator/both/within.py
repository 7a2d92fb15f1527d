"""A directory that others may write into: all below it is reached by descriptors, and no link there is followed.

Each directory is opened in the one before it. So nobody can put a link in the way, neither before nor between a look
and an open, rename or removal. Only regular files are opened, and never one that waits for a writer. The path of the
directory itself may lead through links: who named it chose them. What it holds is trusted no further than those who
may write there; `who_else_writes` says who they are. Standard library only: hosts use it too.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import struct
from contextlib import contextmanager, suppress

from orchestrator.both.durable import json_of, put, sync

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import IO, Any

DEPTH_MAX = 100
"""How many directories may lie in one another. No training needs as many, and each costs a descriptor."""

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_COPY_BYTES = 1 << 26
_RIGHTS = 0o777
"""The bits of a mode that a copy keeps: a program that runs as its owner must not become one that runs as us."""


class Tree:
    """A directory, held open. The paths of its methods are relative to it, or begin with its own path.

    All methods raise OSError. ELOOP: a link is in the path. EXDEV: the path leads out of the directory.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def below(self, path: str) -> Tree:
        """Open a directory of this tree as a tree: it stays the same one, whatever takes its name."""
        tree = Tree.__new__(Tree)
        tree.path = os.path.normpath(os.path.join(self.path, path))
        tree.descriptor = self._down(self._parts(path), path)
        return tree

    # -- looking

    def stat(self, path: str = "") -> os.stat_result:
        """Return the state of what is there; of a link, its own."""
        *folders, name = self._parts(path) or ["."]
        with self._folder(folders, path) as folder:
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def kind(self, path: str) -> int | None:
        """Return the kind of what is there, such as `stat.S_IFREG`; None if nothing is."""
        try:
            return stat.S_IFMT(self.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def has(self, path: str) -> bool:
        """Return whether anything is there, if only a link."""
        return self.kind(path) is not None

    def names(self, path: str = "") -> list[str]:
        """Return the names in a directory; none if it is missing. No other error looks like an empty directory."""
        try:
            return [name for name, _ in self.listing(path)]
        except FileNotFoundError:
            return []

    def folders(self, path: str = "") -> list[str]:
        """Return the names of the directories in a directory; none if it is missing."""
        try:
            return [name for name, is_folder in self.listing(path) if is_folder]
        except FileNotFoundError:
            return []

    def listing(self, path: str = "") -> list[tuple[str, bool]]:
        """Return (name, whether it is a directory, and no link to one) of all in a directory."""
        with self._folder(self._parts(path), path) as folder:
            handle = os.open(".", _LIST, dir_fd=folder)
            try:
                with os.scandir(handle) as entries:
                    return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            finally:
                os.close(handle)

    def walk(
        self, path: str = "", onerror: Callable[[OSError], None] | None = None
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield (directory, directories in it, all else in it), from the top, as `os.walk` does.

        Links are among what else is in it. Directories that are taken out of the list are not entered.

        Args:
            path: where to begin.
            onerror: is given each error, and may raise it. None: all are raised.
        """
        waiting = [path]
        while waiting:
            folder = waiting.pop()
            try:
                listing = self.listing(folder)
            except OSError as e:
                if onerror is None:
                    raise
                onerror(e)
                continue
            folders = [name for name, is_folder in listing if is_folder]
            yield folder, folders, [name for name, is_folder in listing if not is_folder]
            waiting += [os.path.join(folder, name) for name in reversed(folders)]

    def link_text(self, path: str) -> str:
        """Return what a symbolic link says."""
        with self._above(path) as (folder, name):
            return os.readlink(name, dir_fd=folder)

    # -- files

    def opened(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open a regular file, and return its descriptor. To be written, it may not have a second name elsewhere."""
        with self._above(path) as (folder, name):
            handle = os.open(name, flags & ~os.O_TRUNC | _FILE, mode, dir_fd=folder)
            try:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "it is no regular file")
                if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
                    raise OSError(errno.EMLINK, "it has a second name, so it is not written")
                if flags & os.O_TRUNC:
                    os.ftruncate(handle, 0)
            except BaseException:
                os.close(handle)
                raise
            return handle

    def reading(self, path: str) -> IO[bytes]:
        """Open a regular file to be read."""
        return open(self.opened(path), "rb")

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        """Make a file that nobody reads yet. Raises FileExistsError where anything is there, if only a link."""
        handle = self.opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        put(handle, data, durable=durable)

    def write(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
        """Write a file atomically, in the place of any that is there. After an error, the old one is as it was."""
        fresh = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
        self.make(os.path.dirname(path))
        try:
            self.remove(fresh)
            self.create(fresh, data, mode=mode, durable=durable)
            self.rename(fresh, path, durable=durable)
        except OSError:
            with suppress(OSError):
                self.remove(fresh)
            raise

    def read_object(self, path: str) -> dict[str, Any] | None:
        """Return the JSON object in a file. None: it is missing or damaged, no regular file, or another value."""
        try:
            value = json_of(self.opened(path))
        except OSError:
            return None
        return value if isinstance(value, dict) else None

    def write_json(self, path: str, value: Any, *, mode: int = 0o600, durable: bool = True) -> None:
        """Write a JSON value atomically."""
        import json

        self.write(path, json.dumps(value).encode(), mode=mode, durable=durable)

    def copy(self, path: str, to: Tree, target: str) -> None:
        """Copy a file with its mode and times, in the place of any that is there."""
        to.make(os.path.dirname(target))
        to.remove(target)
        with self.reading(path) as source:
            status = os.fstat(source.fileno())
            handle = to.opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as copy:
                try:
                    while os.sendfile(handle, source.fileno(), None, _COPY_BYTES):
                        pass
                except OSError as e:
                    if e.errno not in (errno.EINVAL, errno.ENOSYS):
                        raise
                    import shutil  # a file system that cannot send

                    shutil.copyfileobj(source, copy)
                copy.flush()
                os.fchmod(handle, status.st_mode & _RIGHTS)
                os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))

    def link(self, path: str, to: Tree, target: str) -> None:
        """Give a regular file a second name, where there is none yet."""
        with self._above(path) as (folder, name), to._above(target, make=True) as (there, fresh):
            os.link(name, fresh, src_dir_fd=folder, dst_dir_fd=there, follow_symlinks=False)
            if not stat.S_ISREG(os.stat(fresh, dir_fd=there, follow_symlinks=False).st_mode):
                os.unlink(fresh, dir_fd=there)
                raise OSError(errno.EINVAL, "it is no regular file")

    def symlink(self, text: str, path: str) -> None:
        """Make a symbolic link, for a script of the user."""
        with self._above(path, make=True) as (folder, name):
            os.symlink(text, name, dir_fd=folder)

    # -- names

    def make(self, path: str) -> None:
        """Make a directory, and those above it, where they are missing."""
        os.close(self._down(self._parts(path), path, make=True))

    def private(self, path: str) -> Tree:
        """Make a directory into which nobody else can write, in the place of any that is there, and open it.

        Who cannot open by descriptors writes there by `as_path`, and what is whole is renamed from there.
        """
        self.remove(path)
        with self._above(path, make=True) as (folder, name):
            os.mkdir(name, 0o700, dir_fd=folder)
        made = self.below(path)
        status = made.stat()
        if status.st_mode & 0o022 or status.st_uid not in (os.geteuid(), _uid_there(made)):
            made.close()
            raise OSError(errno.EPERM, "others can write into what we make there", path)
        return made

    def rename(self, path: str, target: str, *, durable: bool = True) -> None:
        """Rename a synced file or directory into its place."""
        with self._above(path) as (folder, name), self._above(target) as (there, fresh):
            os.rename(name, fresh, src_dir_fd=folder, dst_dir_fd=there)
            if durable:
                _sync(there, ".", _LIST)

    def touch(self, path: str = "", ns: tuple[int, int] | None = None) -> None:
        """Set the times of what is there: to now by the clock of its file system, or to (access, change) in ns."""
        *folders, name = self._parts(path) or ["."]
        with self._folder(folders, path) as folder:
            if ns is None:
                os.utime(name, dir_fd=folder, follow_symlinks=False)
            else:
                os.utime(name, ns=ns, dir_fd=folder, follow_symlinks=False)

    def remove(self, path: str) -> None:
        """Remove a file, a link or a directory with all in it, but nothing on another file system. It may be missing.

        What can be removed is, before the first error is raised.
        """
        with suppress(FileNotFoundError), self._above(path) as (folder, name):
            _remove(folder, name, os.fstat(folder).st_dev, DEPTH_MAX)

    def remove_empty(self, path: str) -> None:
        """Remove a directory in which nothing is."""
        with self._above(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def sync(self) -> None:
        """Sync all files and directories of the tree."""
        for folder, _, files in self.walk():
            for name in files:
                with suppress(FileNotFoundError), self._above(os.path.join(folder, name)) as (there, _):
                    if stat.S_ISREG(os.stat(name, dir_fd=there, follow_symlinks=False).st_mode):
                        _sync(there, name, os.O_RDONLY | _FILE)
            with self._folder(self._parts(folder), folder) as there:
                _sync(there, ".", _LIST)

    # -- step by step

    def _parts(self, path: str) -> list[str]:
        inside = path
        if path.startswith("/"):
            top = self.path.rstrip("/")
            if path == self.path:
                return []
            if not path.startswith(f"{top}/"):
                raise OSError(errno.EXDEV, f"it leads out of {self.path}", path)
            inside = path[len(top) + 1 :]
        parts = inside.split("/") if inside else []
        if any(part in ("", ".", "..") or "\0" in part for part in parts) or len(parts) > DEPTH_MAX:
            raise OSError(errno.EXDEV, f"it leads out of {self.path}, or too deep into it", path)
        return parts

    @contextmanager
    def _above(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the directory in which something is, and its name there."""
        *folders, name = self._parts(path) or [""]
        if not name:
            raise OSError(errno.EINVAL, "it is the directory itself", path)
        with self._folder(folders, path, make=make) as folder:
            yield folder, name

    @contextmanager
    def _folder(self, parts: list[str], path: str, *, make: bool = False) -> Iterator[int]:
        """Yield a directory's descriptor. What is raised meanwhile names the whole path."""
        folder = self._down(parts, path, make=make)
        try:
            yield folder
        except OSError as e:
            raise self._named(e, path) from e
        finally:
            os.close(folder)

    def _down(self, parts: list[str], path: str, *, make: bool = False) -> int:
        there = os.dup(self.descriptor)
        try:
            for part in parts:
                below = _step(there, part, make=make)
                os.close(there)
                there = below
        except OSError as e:
            os.close(there)
            raise self._named(e, path) from e
        return there

    def _named(self, error: OSError, path: str) -> OSError:
        """Return an error with the whole path; where a link is in the way, it says so."""
        whole = os.path.join(self.path, path)
        if error.errno == errno.ELOOP:
            return OSError(errno.ELOOP, "a symbolic link is in its path, and is not followed", whole)
        return OSError(error.errno, error.strerror, whole)


def as_path(descriptor: int) -> str:
    """Return a path to what is open, whatever takes its name, for a library that opens by paths alone."""
    return f"/proc/self/fd/{descriptor}"


def _step(folder: int, name: str, *, make: bool) -> int:
    """Open a directory in another one. Raises ELOOP for a link, and ENOTDIR for what else is no directory."""
    try:
        return os.open(name, _STEP, dir_fd=folder)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, "a symbolic link") from None
        raise
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return _step(folder, name, make=False)


def _remove(folder: int, name: str, device: int, depth: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        pass
    else:
        return
    handle = os.open(name, _LIST, dir_fd=folder)
    first: OSError | None = None
    try:
        if os.fstat(handle).st_dev != device or not depth:
            raise OSError(errno.EXDEV, "it is another file system, or too deep", name)
        for entry in os.listdir(handle):
            try:
                _remove(handle, entry, device, depth - 1)
            except FileNotFoundError:
                continue  # somebody else removes it too
            except OSError as e:
                first = first or e
    finally:
        os.close(handle)
    if first is not None:
        raise first
    os.rmdir(name, dir_fd=folder)


def _sync(folder: int, name: str, flags: int) -> None:
    handle = os.open(name, flags, dir_fd=folder)
    try:
        sync(handle)
    finally:
        os.close(handle)


# -- who may write


_OF_A_POD = "ORCH_POD_"
"""How the variables begin that a pod's manifest sets (`protocol/pod.py`)."""


def who_else_writes(path: str, group: str | None = None) -> str | None:
    """Return who may write into the directory, or put another one in its place; None: nobody else.

    One that is missing is ours once it is made. Neither we and root do count, nor the members of `group`, nor a pod's
    group, as `fsGroup` names it. A group that is named as the owner, and has no other members, is the owner's alone. In
    a directory above with the sticky bit, only owners rename.
    """
    there = path = os.path.abspath(path)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    shared, ours = _number_of(group), {0, os.geteuid()}
    with Tree(there) as tree:
        status = tree.stat()
        if group is None and any(name.startswith(_OF_A_POD) for name in os.environ):
            shared = status.st_gid if status.st_gid in {os.getegid(), *os.getgroups()} else None
        if status.st_uid not in ours and status.st_gid != shared and not status.st_mode & stat.S_IWOTH:
            ours.add(_uid_there(tree))
        who = _writes(tree, ours, shared) if there == path else None
    ours |= _unknown_users()
    for folder, name in [] if who else _way_to(path):
        with suppress(FileNotFoundError), Tree(folder) as above:
            who = _writes(above, ours, shared, name)
        if who is not None:
            return f"{who} (by renaming what is in {os.path.realpath(folder)})"
    return who


_ACL_OWNER, _ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP, _ACL_MASK, _ACL_OTHER = 1, 2, 4, 8, 16, 32
_ACL_WRITE = 2


def _writes(tree: Tree, ours: set[int], shared: int | None, name: str | None = None) -> str | None:
    """Return who else may write into a directory, or may rename `name` there. Who owns one of the group is added.

    Of the directory itself, its default access list counts too: it is that of what is made there, whatever the umask.
    """
    status = tree.stat()
    if status.st_gid == shared:
        ours.add(status.st_uid)
    if name is not None and status.st_mode & stat.S_ISVTX:
        writing = [(_ACL_OWNER, 0)]
        if tree.kind(name) == stat.S_IFLNK:
            writing.append((_ACL_USER, tree.stat(name).st_uid))
    else:
        writing = _listed(tree, "access") or [
            (_ACL_OWNER, 0),
            *([(_ACL_GROUP_OBJ, 0)] if status.st_mode & stat.S_IWGRP else []),
            *([(_ACL_OTHER, 0)] if status.st_mode & stat.S_IWOTH else []),
        ]
    who = _stranger(writing, status.st_uid, status.st_gid, ours, shared)
    if who is None and name is None and status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
        group = status.st_gid if status.st_mode & stat.S_ISGID else os.getegid()
        who = _stranger(_listed(tree, "default"), os.geteuid(), group, ours, shared)
        who = who and f"{who} (by the default access list)"
    return who


def _listed(tree: Tree, kind: str) -> list[tuple[int, int]]:
    """Return (tag, number) of the owner, and of each entry of an access list that may write; none without a list."""
    try:
        acl = os.getxattr(as_path(tree.descriptor), f"system.posix_acl_{kind}")
    except OSError:
        return []
    entries = list(struct.iter_unpack("<HHI", acl[4:]))
    mask = next((rights for tag, rights, _ in entries if tag == _ACL_MASK), _ACL_WRITE)
    return [(_ACL_OWNER, 0)] + [
        (tag, number)
        for tag, rights, number in entries
        if tag != _ACL_MASK and rights & _ACL_WRITE & (_ACL_WRITE if tag == _ACL_OTHER else mask)
    ]


def _stranger(
    writing: list[tuple[int, int]], owner: int, group: int, ours: set[int], shared: int | None
) -> str | None:
    """Return the one of the most general entry that is neither ours nor the shared group; None: nobody."""
    for tag, number in sorted(writing, reverse=True):
        who = {_ACL_OWNER: owner, _ACL_GROUP_OBJ: group}.get(tag, number)
        if tag == _ACL_OTHER:
            return "everybody"
        if tag in (_ACL_GROUP, _ACL_GROUP_OBJ):
            if who != shared and not _is_private(who, owner):
                return f"the group {_group_name(who)}"
        elif who not in ours:
            return f"{'its owner' if who == owner else 'the user'} {_user_name(who)}"
    return None


def _way_to(path: str) -> Iterator[tuple[str, str]]:
    """Yield (directory, name in it) of all that a path leads through, from below, with the ways to where links lead."""
    waiting, links = [path], 0
    while waiting and links < DEPTH_MAX:
        whole = waiting.pop()
        while whole != (folder := os.path.dirname(whole)):
            yield folder, os.path.basename(whole)
            if os.path.islink(whole):
                waiting.append(os.path.normpath(os.path.join(os.path.realpath(folder), os.readlink(whole))))
                links += 1
            whole = folder


def _is_private(group: int, owner: int) -> bool:
    name = _user_name(owner)
    try:
        about = grp.getgrgid(group)
    except KeyError:
        return str(group) == name
    return about.gr_name == name and not set(about.gr_mem) - {name}


def _unknown_users() -> set[int]:
    """Return whose a directory above seems to be in a container that knows few users, if its owner is outside."""
    with open("/proc/self/uid_map", encoding="ascii") as mapped:
        return set() if mapped.read().split() == ["0", "0", "4294967295"] else {65534}


def _uid_there(tree: Tree) -> int:
    """Return whose our files are in that directory: a server may take root for somebody else, or all for one."""
    probe = f".orch-who-{os.uname().nodename}-{os.getpid()}"
    try:
        tree.create(probe, b"")
        try:
            return tree.stat(probe).st_uid
        finally:
            tree.remove(probe)
    except OSError:
        return os.geteuid()


def give_to(tree: Tree, group: str) -> None:
    """Open a directory of ours to a group, and to nobody else. What is made in it is the group's too."""
    number = _number_of(group)
    path = as_path(tree.descriptor)
    if number is not None:
        os.chown(path, -1, number)
        os.chmod(path, 0o2770)


def _number_of(group: str | None) -> int | None:
    """Return a group's number, of its name or its number as text; None where this host has no such group."""
    if group is None or group.isdecimal():
        return int(group) if group else None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def _group_name(number: int) -> str:
    with suppress(KeyError):
        return grp.getgrgid(number).gr_name
    return str(number)


def _user_name(number: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return str(number)
