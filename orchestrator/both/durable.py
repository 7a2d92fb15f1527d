"""Files that are there whole or not at all, and still there after a power cut. Standard library only: hosts use it too.

A file is written beside its place, synced, renamed, and then its directory is synced: without that, a rename may be on
the disk before the content is, and the file is empty or full of NUL bytes afterwards. `durable=False` leaves the syncs
out, for what can be lost without harm; whoever says so says why.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


JSON_BYTES_MAX = 256 << 20
_FICLONE = 0x40049409


def write(path: str, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write a file atomically. Raises OSError if the disk refuses; then the old file is as it was."""
    fresh = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
    try:
        fill(fresh, data, mode=mode, durable=durable)
        place(fresh, path, durable=durable)
    except OSError:
        remove(fresh)
        raise


def write_json(path: str, value: Any, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write a JSON value atomically. Raises OSError if the disk refuses; then the old file is as it was."""
    import json

    write(path, json.dumps(value).encode(), mode=mode, durable=durable)


def text_of(path: str) -> str:
    """Return the text of a small file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_json(*path: str) -> Any:
    """Return the JSON value in a file. None: it is missing or damaged, no regular file, or above `JSON_BYTES_MAX`."""
    try:
        return json_of(_opened(*path))
    except (OSError, ValueError):
        return None


def _opened(*path: str) -> int:
    # It may be a named pipe, which would wait for its writer for ever.
    return os.open(os.path.join(*path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def json_of(handle: int) -> Any:
    """Return the JSON value in an open file, and close it. None: as for `read_json`."""
    try:
        return _loaded(handle)
    except OSError:
        return None


def _loaded(handle: int) -> Any:
    """As `json_of`, but raises OSError if the disk refuses."""
    import json

    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > JSON_BYTES_MAX:
            return None
        try:
            return json.loads(file.read().decode())
        except (ValueError, RecursionError):
            return None


def read_object(*path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file. None: the file is missing, damaged, or holds another value."""
    value = read_json(*path)
    return value if isinstance(value, dict) else None


def known_object(*path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file of ours. None: it is missing, damaged, or holds another value.

    Raises OSError where it cannot be read now: else it would count as missing, and what it names would be removed.
    """
    try:
        value = _loaded(_opened(*path))
    except FileNotFoundError:
        return None
    return value if isinstance(value, dict) else None


def fill(path: str, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write a file that nobody reads yet, so not atomically. Raises OSError if the disk refuses."""
    put(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), data, durable=durable)


def put(handle: int, data: bytes, *, durable: bool = True) -> None:
    """Write into an open file, and close it. Raises OSError if the disk refuses."""
    with open(handle, "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(handle)


def place(source: str, target: str, *, durable: bool = True) -> None:
    """Rename a synced file or tree into its place. Raises OSError if the disk refuses."""
    os.rename(source, target)
    if durable:
        sync_directory(os.path.dirname(target))


def remove(path: str) -> None:
    """Remove a file, which may be missing. Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def names(directory: str) -> list[str]:
    """Return the names in a directory; none if it is missing. No other error looks like an empty directory."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def clone(source: int, target: int) -> bool:
    """Let an open file share the content of another one until either is written, as Btrfs and XFS can. Else False."""
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def sync_directory(path: str) -> None:
    """Sync a directory, which makes the renames in it durable. Raises OSError if the disk refuses."""
    _sync(path or ".", os.O_DIRECTORY)


def sync_tree(directory: str) -> None:
    """Sync all files and directories below a directory, and itself. Raises OSError if the disk refuses."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                _sync(path, 0)
        sync_directory(folder)


def _sync(path: str, flags: int) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        sync(handle)
    finally:
        os.close(handle)


def sync(handle: int) -> None:
    """Sync an open file or directory. Raises OSError if the disk refuses."""
    try:
        os.fsync(handle)
    except OSError as e:
        import errno

        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise  # some network file systems cannot sync a directory
