"""Checkpoint directories that no hosts share: a real one on each host, with real files and the real functions on them.

What the script saves are `.npz` files, whose bytes follow from the run, the generation and the step. So it can be told
of every file, on whatever host and after whatever transfers, whether it is whole.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from orchestrator import checkpoints
from orchestrator.both.hostdir import HostFault
from orchestrator.checkpoints import places, safe, seed
from orchestrator.checkpoints.places import SeedError
from tests.arrivals import Arrivals
from tests.sim.heap import Violation

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.process import Process

Answered = tuple[dict[str, Any], bytes]

CHUNK_BYTES = 2048
PULL_BYTES = 700
"""So small that a checkpoint takes a dozen messages, and a cut comes in the middle of one."""

KEPT_BY_SCRIPT = 3
SAVED_AFTER = 1_700_000_000
"""The Unix time at which the simulation begins, for the times of files."""


class Apart:
    """The directories of a run, by host. `world` is where the files of all simulated hosts lie."""

    def __init__(self, name: str, dir: str, files: str, now: Callable[[], float]) -> None:
        self.name = name
        self.dir = dir
        self._files = files
        self._now = now
        self.ever_saved = False
        """Of no use here: what was saved on a host and not pulled may be lost with it."""
        self._given: dict[int, list[int | None]] = {}
        self.torn: set[str] = set()
        """The files that a fault has torn after they were whole."""

    # -- the orders ----------------------------------------------------------------------------------------

    def answer(self, machine: Machine, order: Mapping[str, Any], blob: bytes, arrivals: Arrivals) -> Answered:
        """Do an order on a host, as the agent and its jobs do. Raises HostFault."""
        try:
            if machine.disk_full and order["order"] in ("seed", "snapshot", "receive", "blob"):
                raise OSError(errno.ENOSPC, "No space left on device", order.get("dir", "blobs"))
            return self._do(machine, order, blob, arrivals)
        except SeedError as e:
            raise HostFault(e.code, str(e), e.hint) from e
        except OSError as e:
            if places.is_full(e):
                raise HostFault("no-space", str(places.no_space(e, self.dir)), None) from e
            raise HostFault("os", f"{e.strerror}: {e.filename}") from e

    def _do(self, machine: Machine, order: Mapping[str, Any], blob: bytes, arrivals: Arrivals) -> Answered:
        root, verb = self.root(machine), order["order"]
        directory = os.path.join(root, f"gen-{order.get('generation', 0):06d}")
        told: Mapping[str, Any] = {}
        data = b""
        if verb == "highest":
            told = {"generation": places.highest(root)}
        elif verb == "seed":
            only = safe.directory_of(root, order["only"]) if order.get("only") else None
            told = seed.seed(root, order["generation"], keep=order["keep"], by=order["by"], only=only)
            self._given.setdefault(order["generation"], []).append(told["global_step"])
        elif verb == "verify":
            told = checkpoints.verify(directory, lambda _: None)
        elif verb == "snapshot":
            path = self._here(machine, order["path"]) if order["path"] else None
            told = safe.snapshot(root, directory, path)
        elif verb == "chunk":
            where = order["digest"], order["name"], order["offset"], order["bytes_max"]
            room = memoryview(bytearray(order["bytes_max"]))
            reader = safe.ChunkReader()
            data = bytes(room[: reader(room, root, *where)])
            reader.close()
        elif verb == "receive":
            told = arrivals.receive(root, order["manifest"])
        else:
            told = arrivals.receive_part(order, blob)
        return json.loads(json.dumps(told).replace(self._host(machine), "")), data

    def copy_is_whole(self, machine: Machine, path: str) -> bool:
        """Return whether the copy is on that host from which a task is to start, and whole."""
        here = self._here(machine, path)
        return os.path.exists(os.path.join(here, places.MARKER)) and all(
            self._is_whole(p) for p in _saved_in(here)
        )

    # -- for the rules -------------------------------------------------------------------------------------

    def still_there(self, verified: dict[str, int]) -> tuple[dict[str, int], int | None]:
        """Return all of them, and the newest step: the head has pulled what was verified, and must not lose it."""
        return verified, max(verified.values(), default=None)

    def was_given(self, generation: int, step: int | None) -> bool:
        """Return whether a generation was seeded with that step."""
        return step in self._given.get(generation, [])

    # -- the script ----------------------------------------------------------------------------------------

    def begins(self, chief: Process) -> tuple[int | None, bool]:
        """Return the step of the newest file that the chief finds, and whether all that it was given is whole."""
        here = _saved_in(self._of(chief))
        torn = [path for path in here if not self._is_whole(path)]
        if any(path not in self.torn for path in torn):
            raise Violation("torn-seed", f"{chief!r} is given {torn[0]}, which is torn")
        steps = [_step(path) for path in here if path not in torn]
        return max(steps, default=None), not torn

    def save(self, chief: Process, step: int) -> Callable[[bool], None]:
        """Begin to save a file, and return what ends that: whole, or torn."""
        directory = self._of(chief)
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, f"ckpt-{step}.npz")
        data = self._content(chief.generation, step)
        self._write(path, data[: len(data) // 2])

        def end(whole: bool) -> None:
            if whole and os.path.isdir(directory) and not chief.machine.disk_full:
                self._write(path, data)
            for old in sorted(_saved_in(directory), key=_step)[:-KEPT_BY_SCRIPT]:
                os.unlink(old)

        return end

    def tear(self, chance: Random) -> None:
        """Tear one of the newest files, on any host."""
        found = sorted(
            path
            for host in _names_in(self._files)
            for directory in _names_in(os.path.join(self._files, host) + self.dir)
            if directory.startswith(places.PREFIX) and directory[len(places.PREFIX) :].isdecimal()
            for path in _saved_in(f"{os.path.join(self._files, host)}{self.dir}/{directory}")
        )
        if found:
            path = chance.choice(found[-3:])
            os.truncate(path, os.path.getsize(path) // 3)
            self.torn.add(path)

    def lose(self, machine: Machine) -> None:
        """Lose everything that a host has: it was installed anew."""
        shutil.rmtree(self.root(machine), ignore_errors=True)

    # -- places --------------------------------------------------------------------------------------------

    def _host(self, machine: Machine) -> str:
        return os.path.join(self._files, machine.name)

    def root(self, machine: Machine) -> str:
        """Return the run's directory on a host."""
        return self._host(machine) + self.dir

    def _here(self, machine: Machine, path: str) -> str:
        return self._host(machine) + path

    def _of(self, chief: Process) -> str:
        return os.path.join(self.root(chief.machine), f"gen-{chief.generation:06d}")

    # -- bytes ---------------------------------------------------------------------------------------------

    def _write(self, path: str, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)
        os.utime(path, (0, SAVED_AFTER + self._now()))

    def _content(self, generation: int, step: int) -> bytes:
        data = Random(f"{self.name} {generation} {step}").randbytes(3000)
        array = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({len(data)},), }}".encode()
        array += b" " * (-(len(array) + 11) % 64) + b"\n"
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            entry = zipfile.ZipInfo(f"by-{generation}-{step}.npy")
            header = b"\x93NUMPY\x01\x00" + len(array).to_bytes(2, "little")
            archive.writestr(entry, header + array + data)
        return made.getvalue()

    def _is_whole(self, path: str) -> bool:
        """Return whether a file is byte for byte what some generation saved as that step."""
        try:
            with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
                (name,) = archive.namelist()
                _, generation, step = name.removesuffix(".npy").split("-")
                file.seek(0)
                return file.read() == self._content(int(generation), int(step)) and _step(path) == int(step)
        except (zipfile.BadZipFile, ValueError):
            return False


def _names_in(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _saved_in(directory: str) -> list[str]:
    return [os.path.join(directory, name) for name in _names_in(directory) if name.endswith(".npz")]


def _step(path: str) -> int:
    return int(os.path.basename(path).removeprefix("ckpt-").removesuffix(".npz"))
