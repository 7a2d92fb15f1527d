"""Starts an agent at the other end of a channel: the head's side, and the few fixed lines that hosts run.

The exchange after the host's shell has run COMMAND:

    head                                          host
    exit 97\\n                                     (for another shell than ours: it ends)
    with `activate` only:
    orch-activate\\n<_WATCHED>\\n<_ACTIVATE>\\n<sh>\\n<the line>\\n
                                                  orch-activates\\n (what the line prints) orch-activated\\n
    orch-python <python>\\n<bytes of _FIRST>\\n<_FIRST>
    <request as JSON>\\n
                                                  (whatever motd and rc files print) orch-shell\\n
                                                  (the same) <mark> {"ok": true}\\n   and frames from here on
    only after <mark> {"need": true, "magic": "<hex>"}\\n:
    <bytes>\\n<installer.py><sha256> <bytes> <kind>\\n<bundle>

The mark is a random number from the head, reversed, so that neither other output nor an echo of our own
input is mistaken for it. All of the user's text travels on stdin; COMMAND never changes.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from orchestrator.both.hostdir import limit_of
from orchestrator.core.errors import ConnectFailed, HostUnfit
from orchestrator.head.code import compiled, installer
from orchestrator.head.links import edge
from orchestrator.head.reach.alarm import ALARMS
from orchestrator.protocol.channel import Decoder, FrameError
from orchestrator.protocol.check import check_of, cleaned
from orchestrator.protocol.hello import BootAnswer, BootRequest, Command, Greeting

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.plan import HostPlan
    from orchestrator.head.code.bundle import Bundle
    from orchestrator.head.reach.transport import Channel

T = TypeVar("T")

_STAGE = (
    'case "$p" in "orch-python "*) p="${p#orch-python }";; '
    '*) echo orch-eaten; exit 127;; esac && case "$p" in "~/"*) p="$HOME/${p#??}";; esac && '
    'export ORCH_LOGIN="$(base64 </proc/$$/environ 2>/dev/null)"; [ ${#ORCH_LOGIN} -lt 100000 ] || unset ORCH_LOGIN; '
    'if command -v "$p" >/dev/null; then '
    'exec "$p" -I -S -X utf8 -c "import os,sys;f=os.fdopen(0,sys.argv[1]);exec(f.read(int(f.readline())))" rb; '
    'elif [ -L "$p" ] || [ -e "$p" ]; then echo orch-bad-python; exit 127; '
    "else echo orch-no-python; exit 127; fi"
)
COMMAND = (
    "exec /bin/sh -c 'echo orch-shell; IFS= read -r p; IFS= read -r p && "
    'case "$p" in orch-activate) IFS= read -r w; eval "$w";; esac; '
    f"{_STAGE}'"
)
"""For any login shell (sh, bash, zsh, fish, csh): one line, no quote within the single quotes, no backslash.

ORCH_LOGIN keeps the environment of the login for the tasks: a shim of Python sets variables by which its next processes
are given the same version, whatever their directory says.
"""

_END_ALL = (
    "kill -KILL $$; IFS= read -r x </proc/self/stat; m=${x%% *}; "
    "for t in 1 2 3; do for d in /proc/[0-9]*; do [ $d = /proc/$m ] || { IFS= read -r x <$d/stat && "
    'set -- ${x##*) } && [ "$4" = $$ ] && kill -KILL ${d#/proc/}; }; done; '
    'for d in $(grep -ls "ORCH_ACTIVATING=$k" /proc/[0-9]*/environ); do d=${d#/proc/}; kill -KILL ${d%/environ}; done; '
    "done"
)
"""Ends the shell of a channel and what it has started: all of its session, since `timeout` makes a group of its own,
and what has left that (`setsid`), by the mark in its environment.

Three times, since what is about to end can still start something.
"""

_WATCHED = (
    "IFS= read -r e; IFS= read -r s; IFS= read -r a; "
    'case "$SHELL" in */bash|*/zsh|*/ksh|*/dash|*/sh) l="$SHELL";; *) l=/bin/sh;; esac; exec 3<&0 </dev/null; '
    'IFS= read -r x </proc/$$/stat; set -- ${x##*) }; k="$$-${20}"; '
    f'w="$({{ IFS= read -r p || {{ {_END_ALL}; }}; }} <&3 3<&- >/dev/null 2>&1 & echo $!)"; '
    's="kill -KILL $w; while [ -e /proc/$w/fd/0 ]; do :; done; echo orch-activated; $s"; '
    'ORCH_ACTIVATING="$k" exec "$l" -l -c "$e" orch "$s" "$a"'
)
"""Starts the login shell for `activate` of the spec, and a process that ends it if the channel closes before its time.

A closed channel ends no process by itself. Until the line has ended the head sends nothing more, so the process that
watches reads only the end. It must have let go of the input before another process reads there.
"""

_ACTIVATE = (
    'echo orch-activates; ORCH_BEFORE="$(env -0 | base64)"; export ORCH_BEFORE; exec 9>&1; eval "$2" || exit; '
    "unset ORCH_ACTIVATING; "
    'exec /bin/sh -c "$1" <&3 3<&- >&9 9>&-'
)
"""What the login shell runs for `activate` of the spec: the person's line is an argument, and is in no other text.

The line may send the shell's output elsewhere (`exec >/dev/null`); ours goes on where it did.
"""

_FOREIGN = 97
"""The exit code of a shell that reads our input as commands: the first line has it end before it runs any."""

_FIRST = r"""
import fcntl, json, os, sys, time
q = json.loads(f.readline().decode("ascii"))
def say(m):
    b = ("\n" + q["nonce"][::-1] + " " + json.dumps(m) + "\n").encode("ascii")
    while b:
        b = b[os.write(1, b):]
def place():
    b = own(q["host_dir"] or os.environ.get("ORCH_HOST_DIR") or os.path.expanduser("~/.local/state/orch-host"))
    me = machine()
    for _ in range(9):
        near, others = [b, os.path.join(b, "hosts", me["name"])], os.path.join(b, "hosts")
        for d in near + [os.path.join(others, n) for n in sorted(names(others))]:
            n, o = owner(d, b)
            if o.get("boot") == me["boot"] and hold(d, n):
                return own(d)
        mine = [os.path.join(others, n) for n in sorted(names(others)) if n.startswith(me["name"] + "-")]
        far = [b] * (not names(others)) + [near[1] + "-" + os.urandom(4).hex()]
        for d in near + mine + far:
            n, o = owner(d, b)
            k = (o.get("name"), o.get("machine"))
            fits = k[0] in (None, me["name"]) and k[1] in (None, me["machine"])
            if (fits or (d in far and k[1] == me["machine"] != "")) and not lives(d, n, o, me):
                if take(own(d), n, me):
                    return d
    raise OSError(16, "other machines take it again and again", b)
def machine():
    k = read("/proc/sys/kernel/random/boot_id")
    try:
        p = os.readlink("/proc/self/ns/pid")
    except OSError:
        p = ""
    boot = (os.environ.get("ORCH_BOOT_ID") or k) + " " + p
    return {"boot": boot, "kernel": k, "name": os.uname().nodename, "machine": read("/etc/machine-id")}
def read(p):
    try:
        with open(p) as i:
            return i.read().strip()
    except (OSError, ValueError):
        return ""
def names(d):
    try:
        return os.listdir(d)
    except OSError:
        return []
def owner(d, b):
    n = max([0] + [int(f[8:]) for f in names(d) if f.startswith("machine.") and f[8:].isdigit()])
    if n == 0:
        k = read(os.path.join(d, "host")).split(" ")
        if d != b:
            return 0, {"name": os.path.basename(d)} if os.path.isdir(d) else {}
        return 0, {"name": k[0], "machine": "".join(k[1:])} if k[0] else {}
    try:
        return n, dict(json.loads(read(sign(d, n))))
    except (TypeError, ValueError):
        return n, {}
def sign(d, n):
    return os.path.join(d, "machine.%d" % n)
def seen(p):
    with open(p) as i:
        return os.fstat(i.fileno()).st_mtime
def lives(d, n, o, me):
    p = sign(d, n)
    try:
        if o.get("kernel") == me["kernel"]:
            with open(p) as i:
                for _ in range(5):
                    try:
                        fcntl.flock(i, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        return False
                    except BlockingIOError:
                        time.sleep(0.05)
            return True
    except OSError:
        pass
    try:
        t, at = "%s.%d.now" % (p, os.getpid()), seen(p)
        try:
            open(t, "w").close()
            now = seen(t)
            os.unlink(t)
        except OSError:
            now = time.time()
        if now - at > 30:
            return False
        end = time.monotonic() + 11
        while time.monotonic() < end:
            time.sleep(0.5)
            if seen(p) != at:
                return True
    except OSError:
        pass
    return False
def take(d, n, me):
    p = sign(d, n + 1)
    t = "%s.%s.%d" % (os.path.join(d, "taking"), me["name"], os.getpid())
    try:
        try:
            with open(t, "w") as o:
                json.dump(me, o)
            os.link(t, p)
        finally:
            if os.path.exists(t):
                os.unlink(t)
    except FileExistsError:
        return False
    except OSError:
        if not os.path.isdir(os.path.join(d, "runs")):
            raise
        return True
    held = hold(d, n + 1)
    if held and n:
        os.unlink(sign(d, n))
    return held
def hold(d, n):
    global held
    try:
        held = open(sign(d, n))
        fcntl.flock(held, fcntl.LOCK_SH)
    except OSError:
        pass
    return os.path.exists(sign(d, n))
def own(d):
    os.makedirs(os.path.join(d, "bundle"), 0o700, exist_ok=True)
    d = os.path.realpath(d)
    s = os.stat(d)
    if s.st_uid != os.geteuid():
        raise OSError(1, "it belongs to another user", d)
    if s.st_mode & 0o077:
        os.chmod(d, 0o700)
    return d
def start(d):
    p = os.path.join(d, "bundle", q["digest"] + "." + sys.implementation.cache_tag + ".pyz")
    for new in (False, True):
        if new or not os.path.exists(p):
            from importlib.util import MAGIC_NUMBER
            say({"need": True, "magic": MAGIC_NUMBER.hex()})
            g = {"__name__": "orch_install"}
            exec(f.read(int(f.readline())), g)
            g["install"](f, p)
            new = True
        sys.path.insert(0, p)
        try:
            if q.get("command"):
                from orchestrator.host.command import main
            else:
                from orchestrator.host.agent.main import main
            return main, p
        except Exception:
            if new:
                raise
            sys.path.remove(p)
            sys.path_importer_cache.clear()
            for m in [m for m in sys.modules if m.split(".")[0] == "orchestrator"]:
                del sys.modules[m]
main = None
if sys.version_info < (3, 10):
    say({"error": "python-too-old", "version": "%d.%d.%d" % sys.version_info[:3]})
else:
    try:
        d = place()
        main, p = start(d)
        say({"ok": True})
    except OSError as e:
        held = None
        say({"error": "os", "errno": e.errno, "why": e.strerror or str(e), "path": str(e.filename or "")})
    except Exception as e:
        held = None
        say({"error": "internal", "why": "%s: %s" % (type(e).__name__, e)})
if main:
    main(d, p, q)
"""
"""Any Python since 2.7 can parse this, so that one that is too old can report that. `f` is its stdin.

A home directory may be shared by many machines (NFS), and each needs a directory of its own: it would mistake the
shims of another for its own. `machine.<n>` in a directory says whose it is. A machine is a boot and a name space of
processes, so a new name changes nothing while it runs. After a reboot it finds its directory by its name and machine-id
again, or in a home of its own by machine-id alone. Copies of one image have both in common, so a directory is taken
over only from a machine that is silent: agents and shims touch the file every 5 seconds (`host/system/presence.py`),
and under one kernel they hold its lock. The next number is made by a link, which only one machine can make. Rejected:
locks alone, which not every file system has between machines; and the name as the key, since hosts are renamed.
"""

SHELL_HANGS = "its login shell did not get to our command in time"
"""Or what it waits for: a disk, as a rule. So the connection is tried again, as one that broke."""

SLOW_SHELL_S = 1.0
"""If a login shell takes longer, its rc files are reported as slow: they run for every connection."""

_JUNK_BYTES_MAX = 1 << 20
_PRINTED_CHARS_MAX = 100
_READ_BYTES = 1 << 14
"""Small, because all before the frames is short, and a thousand hosts are read at once."""


@dataclass(slots=True)
class Started:
    """An agent that has sent its hello, the frames that came right after it, and the decoder of further frames."""

    hello: Greeting
    frames: list[tuple[dict[str, Any], bytes]]
    decoder: Decoder
    pushed_bytes: int = 0
    """0 where the bundle was there already."""


def start_agent(
    channel: Channel,
    host: HostPlan,
    bundle: Bundle,
    *,
    heartbeat_s: float = 2.0,
    host_dir: str | None = None,
    timeout_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Started:
    """Start the agent on a channel that runs COMMAND, with the bundle pushed where it is missing.

    Blocks for at most `timeout_s`. Raises HostUnfit (with the cause and the way out), ConnectFailed if the channel
    broke or the host did not answer in time, WireError for a malformed hello. Then the channel is closed.
    """
    talk = _Talk(channel, host, bundle, clock)
    return _start(talk, _request(bundle, heartbeat_s, host_dir), timeout_s, talk.hello)


def start_command(
    channel: Channel, host: HostPlan, bundle: Bundle, command: Command, *, timeout_s: float = 60.0
) -> tuple[Decoder, bytes]:
    """Start a person's command instead of an agent. Return a decoder of its frames, and the bytes that came already.

    Raises as `start_agent` does.
    """
    talk = _Talk(channel, host, bundle, time.monotonic)
    request: BootRequest = {**_request(bundle, 0.0, None), "command": command}
    return _start(talk, request, timeout_s, lambda _: (Decoder(), bytes(talk.heard)))


def _request(bundle: Bundle, heartbeat_s: float, host_dir: str | None) -> BootRequest:
    return {
        "nonce": f"orch-{secrets.token_hex(12)}",
        "digest": bundle.code.digest,
        "host_dir": host_dir,
        "heartbeat_s": heartbeat_s,
        "psutil": bundle.psutil,
        "psutil_platform": bundle.platform,
    }


def _start(talk: _Talk, request: BootRequest, timeout_s: float, last: Callable[[int], T]) -> T:
    """Start the requested program. `last` is called with the number of bytes pushed; its result is returned."""
    with ALARMS.after(timeout_s, talk.give_up):
        try:
            started = last(talk.bring_up(request))
            talk.done = True
            return started
        except OSError as e:
            talk.listen_out()
            raise talk.broken() from e
        except FrameError as e:
            raise HostUnfit(
                talk.host.name,
                f"another program than the agent writes to its output: {e}",
                hint="look for programs that the login shell's rc files leave running in the background",
            ) from e
        finally:
            if not talk.done:
                talk.channel.close()


@dataclass(slots=True)
class _Talk:
    """One conversation, from the first byte to the hello."""

    channel: Channel
    host: HostPlan
    bundle: Bundle
    clock: Callable[[], float]
    heard: bytearray = field(default_factory=bytearray)
    shell_s: float | None = None
    printed: str = ""
    activated: bool = False
    timed_out: bool = False
    done: bool = False

    def give_up(self) -> None:
        """Close the channel, from the alarm's thread, which wakes a blocked read."""
        self.timed_out = True
        self.channel.close()

    def bring_up(self, request: BootRequest) -> int:
        """Start our program on the host, and return how many bytes were pushed for it."""
        began_at = self.clock()
        first = _FIRST.encode("ascii")
        path = self.host.python.encode("utf-8", "surrogateescape")
        if not path or b"\n" in path or b"\0" in path or path.startswith(b"-"):
            raise HostUnfit(
                self.host.name,
                f"{self.host.python!r} cannot be the path of a Python",
                hint=PYTHON_HINT,
                code="no-python",
            )
        begin = b"exit %d\n" % _FOREIGN
        if self.host.activate is not None:
            stage = f"IFS= read -r p; {_STAGE}"
            lines = ["orch-activate", _WATCHED, _ACTIVATE, stage, self.host.activate, ""]
            self.channel.write(begin + "\n".join(lines).encode())
            begin = b""
            while b"orch-activated\n" not in self.heard:
                self._read(began_at)
            self.activated = True
        self.channel.write(
            begin
            + b"orch-python %s\n%d\n%s%s\n" % (path, len(first), first, json.dumps(request).encode("ascii"))
        )
        mark = f"\n{request['nonce'][::-1]} ".encode()
        answer = self._answer(mark, began_at)
        pushed_bytes = 0
        if answer.get("need"):
            magic = answer.get("magic", "")
            source = Path(installer.__file__).read_bytes()
            ready = compiled.compiled_for(magic, self.bundle)
            code, kind = (ready, b"compiled") if ready else (compiled.sources(self.bundle.code), b"source")
            sha256, pushed_bytes = code.digest.encode("ascii"), len(code.data)
            self.channel.write(
                b"%d\n%s%s %d %s\n%s" % (len(source), source, sha256, pushed_bytes, kind, code.data)
            )
            answer = self._answer(mark, began_at)
        if not answer.get("ok"):
            raise unfit(self.host, answer)
        return pushed_bytes

    def _answer(self, mark: bytes, began_at: float) -> BootAnswer:
        """Read up to the next line with the mark. Output before it is not ours."""
        while True:
            at = self.heard.find(mark)
            end = self.heard.find(b"\n", at + len(mark)) if at >= 0 else -1
            if end >= 0:
                line = bytes(self.heard[at + len(mark) : end])
                del self.heard[: end + 1]
                try:
                    return cast("BootAnswer", check_of(BootAnswer)(json.loads(line)))
                except (ValueError, RecursionError) as e:
                    raise FrameError(f"an answer that cannot be read: {e}") from e
            self._read(began_at)

    def _read(self, began_at: float) -> None:
        """Read some of what comes before the hello."""
        if len(self.heard) > _JUNK_BYTES_MAX:
            by_line = b"orch-activates\n" in self.heard
            raise HostUnfit(
                self.host.name,
                f"`activate` prints without end there: {self.host.activate}"
                if by_line
                else "its login shell prints without end before our command runs",
                hint="let .bashrc and its like print nothing for shells that are not interactive",
                code="activate" if by_line else "rc-files",
            )
        data = self.channel.read(_READ_BYTES)
        if not data:
            raise self.broken()
        self.heard += data
        if self.shell_s is None and b"orch-shell\n" in self.heard:
            self.shell_s = self.clock() - began_at
            noise = bytes(self.heard).partition(b"orch-shell\n")[0].decode("utf-8", "replace")
            self.printed = cleaned(noise.strip()).partition("\n")[0][:_PRINTED_CHARS_MAX]

    def listen_out(self) -> None:
        """Read the rest of the output: a shell that did not run our command may have said why."""
        while len(self.heard) < _JUNK_BYTES_MAX:
            data = self.channel.read(_READ_BYTES)
            if not data:
                return
            self.heard += data

    def hello(self, pushed_bytes: int) -> Started:
        """Read the hello of an agent."""
        decoder = Decoder()
        frames = decoder.feed(bytes(self.heard))
        self.heard.clear()
        while not frames:
            data = self.channel.read(_READ_BYTES)
            if not data:
                raise self.broken()
            frames = decoder.feed(data)
        (message, _), *rest = frames
        greeting = edge.hello(self.host.name, message)
        if self.shell_s is not None and self.shell_s > SLOW_SHELL_S:
            greeting["slow"] = {"shell_s": round(self.shell_s, 2)}
        if self.printed:
            greeting["printed"] = self.printed
        return Started(greeting, rest, decoder, pushed_bytes)

    def broken(self) -> HostUnfit | ConnectFailed:
        """Return why nothing more comes, judged by the last step that succeeded and by the output."""
        name = self.host.name
        printed = (bytes(self.heard[-2000:]).decode("utf-8", "replace") + self.channel.stderr_tail()).strip()
        shell = self.shell_s is not None or b"orch-shell\n" in self.heard
        if self.timed_out and not shell:
            return ConnectFailed(
                name, SHELL_HANGS, hint=f"see what the rc files of that account wait for: ssh {name} true"
            )
        activating = self.host.activate is not None and not self.activated
        if self.timed_out and activating:
            return ConnectFailed(
                name,
                f"`activate` did not end in time there: {self.host.activate}",
                hint="run the line there in a login shell: it must ask nothing, and end within seconds",
            )
        if self.timed_out:
            return ConnectFailed(
                name,
                f"its Python ({self.host.python}) did not answer in time",
                hint="a hanging file system may be under it or under the home directory",
            )
        if b"orch-eaten\n" in self.heard:
            return HostUnfit(
                name,
                "a file of its login shell reads from stdin, and took what our command was to read",
                hint="see `.bashrc`, `.profile` and their like for `read`, `cat` or a question; shells that are not "
                "interactive must not ask",
                code="rc-files",
            )
        last = edge.last_line(re.sub("orch-(shell|activates|activated)", "", printed))
        if (
            activating
            and b"orch-activates\n" in self.heard
            and (code := self.channel.exit_status()) is not None
        ):
            how = (
                f"failed there with exit code {code}"
                if code
                else "ended its shell there, as `exit` and `exec` do"
            )
            return HostUnfit(
                name,
                f"`activate` {how}: {self.host.activate}" + (f"; it said: {last}" if last else ""),
                hint="it is run by the login shell (`sh` where that is fish or csh): `bash -lc 'LINE'` there "
                "must work; conda needs `source DIR/bin/activate NAME`",
                code="activate",
            )
        if b"orch-bad-python\n" in self.heard:
            return HostUnfit(
                name,
                f"{self.host.python} is there, and cannot be run: it is not executable for this user, or a link to "
                "what is missing or cannot be read",
                hint=f"`ls -lL {self.host.python}` on it as the user of `ssh:`; a virtual environment needs the Python "
                "that it was made with: make it again with one that this user can read",
                code="no-python",
            )
        if b"orch-no-python\n" in self.heard:
            return no_python(self.host)
        if self.channel.exit_status() is None:
            # Only a program that ended has an exit code: without one the connection broke, which is not Python's fault.
            return ConnectFailed(
                name,
                "the connection broke while its agent was being started"
                + (f"; it said: {last}" if last else ""),
                hint=f"see whether its Python ({self.host.python}) dies of a signal there",
            )
        if not shell and self.channel.exit_status() == _FOREIGN:
            return HostUnfit(
                name,
                "a file of its login shell starts another shell in its place, which reads what our command was to read",
                hint="look for `exec zsh` and its like in `.bashrc` and `.profile` there: only interactive shells may, "
                "`case $- in *i*) exec zsh;; esac`; or make it the login shell by `chsh`",
                code="rc-files",
            )
        if not shell:
            return HostUnfit(
                name,
                "its login shell did not run our command" + (f"; it said: {last}" if last else ""),
                hint="the account needs a login shell, and no forced command: ssh HOST true must work",
            )
        if "Unknown option: -I" in printed:
            return too_old(self.host, "")
        return HostUnfit(
            name,
            f"{self.host.python} did not start as a Python" + (f"; it said: {last}" if last else ""),
            hint=PYTHON_HINT,
            code="no-python",
        )


PYTHON_HINT = "give the full path of the training's Python as `python` in the cluster spec"


def no_python(host: HostPlan) -> HostUnfit:
    """Return the error for a missing Python: the spec's, or that of an environment that was not made."""
    if host.is_set_up:
        text = f"the environment of `setup:` does not exist there: {host.python} is missing"
        return HostUnfit(
            host.name, text, hint=f"`orch setup {host.spec or 'FILE'}` makes it", code="no-environment"
        )
    return HostUnfit(host.name, f"there is no Python at {host.python}", hint=PYTHON_HINT, code="no-python")


def too_old(host: HostPlan, version: str) -> HostUnfit:
    """Return the error of a Python that is too old for the agent."""
    return HostUnfit(
        host.name,
        f"{host.python} is Python {version or 'of before 3.4'}; at least 3.10 is needed",
        hint="give the path of a newer one as `python` in the cluster spec",
        code="python-too-old",
    )


def unfit(host: HostPlan, answer: BootAnswer) -> HostUnfit:
    """Return the error that the host reported, as a sentence with its way out."""
    kind, why, path = answer.get("error"), answer.get("why", ""), answer.get("path", "")
    if kind == "python-too-old":
        return too_old(host, answer.get("version", ""))
    if kind != "os":
        return HostUnfit(
            host.name,
            f"its agent could not be loaded: {why}",
            hint="connect again; if it stays so, this is a bug in orch: report it",
            code="agent",
        )
    number = answer.get("errno")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return HostUnfit(
            host.name,
            f"no space left for its orch directory ({path or why})",
            hint="free some space there, or set ORCH_HOST_DIR on the host to a directory with room",
            code="no-space",
        )
    if (limit := limit_of(number)) is not None:
        return HostUnfit(
            host.name,
            f"a limit of the user there keeps its agent from starting: {why}",
            hint=f"raise {limit} on the host: its rc files or /etc/security/limits.conf set it",
            code="limit",
        )
    return HostUnfit(
        host.name,
        f"cannot write its orch directory: {path}: {why}",
        hint="make it writable for the user of the SSH connection, or set ORCH_HOST_DIR on the host to a "
        "directory that is",
        code="not-writable",
    )
