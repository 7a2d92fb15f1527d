"""The user's code in a pod: the archive of the ConfigMap, or a directory of the image, as a tree that a shim takes."""

from __future__ import annotations

import os
from hashlib import sha256

from orchestrator.both import durable
from orchestrator.both.hostdir import HostFault
from orchestrator.both.tree_digest import digest_of
from orchestrator.host.pod.settings import Unfit
from orchestrator.host.system import codestore
from orchestrator.protocol import pod


def place(host_dir: str, run: str, in_image: str | None, archive: str = pod.CODE) -> str:
    """Put the code where a shim looks for it, and return the tree's name.

    Raises:
        Unfit: there is no such archive or directory, or a file of it would leave its place.
    """
    return _linked(host_dir, run, in_image) if in_image else _unpacked(host_dir, run, archive)


def _linked(host_dir: str, run: str, directory: str) -> str:
    if not os.path.isdir(directory):
        raise Unfit(f"the image has no directory {directory}: look at --code, and at the image")
    digest = sha256(directory.encode()).hexdigest()
    tree = codestore.tree_dir(host_dir, run, digest)
    os.makedirs(os.path.dirname(tree), exist_ok=True)
    if not os.path.islink(tree):
        os.symlink(directory, tree)
    return digest


def _unpacked(host_dir: str, run: str, archive: str) -> str:
    import zipfile

    try:
        with zipfile.ZipFile(archive) as found:
            entries = [(info, found.read(info)) for info in found.infolist()]
    except (OSError, zipfile.BadZipFile) as e:
        raise Unfit(f"{archive} cannot be read: {e}; create the ConfigMap again") from e
    try:
        files = codestore.check(
            [
                (info.filename, sha256(data).hexdigest(), info.external_attr >> 16, len(data))
                for info, data in entries
            ]
        )
    except HostFault as e:
        raise Unfit(f"{archive}: {e.message}") from e
    digest = digest_of(files)
    tree = codestore.tree_dir(host_dir, run, digest)
    if os.path.isdir(tree):
        return digest
    building = f"{tree}.tmp"
    for (path, _, mode, _), (_, data) in zip(files, entries, strict=True):
        os.makedirs(os.path.dirname(os.path.join(building, path)), exist_ok=True)
        durable.write(os.path.join(building, path), data, mode=mode, durable=False)
    durable.place(building, tree, durable=False)
    return digest
