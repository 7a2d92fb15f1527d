"""The types of what head and agent say first: how an agent is started, and its hello."""

from typing import Annotated, Literal, NotRequired, TypedDict, final

from orchestrator.protocol.bounds import Name, Path, Range, Seconds, Text


class Command(TypedDict):
    """A person's command on a host (`orch exec`), run instead of an agent. It ends at the first byte on stdin, or at
    the end of that."""

    argv: list[str]
    run: str
    """Of the task below."""
    task: str | None
    """Whose environment and working directory it gets; None: those of the login."""
    generation: int
    """Of that task."""
    env: dict[str, str]
    """What that task was given with its release."""


class CommandFrame(TypedDict, total=False):
    """What a person's command has written, as the blob; or, last, how it ended."""

    stream: Annotated[int, Range(1, 2)]
    """1: stdout, 2: stderr."""
    exit: Annotated[int, Range(0, 255)]
    """Its exit code, or 128 and the number of the signal that ended it."""
    error: Text
    """Why it was not started."""
    left: list[Annotated[int, Range(1, 1 << 31)]]
    """Processes that it started, and that SIGKILL did not end."""


class BootRequest(TypedDict):
    """The head's request to the few lines of Python that start an agent: one line of JSON."""

    nonce: str
    """The answers are marked with its reverse, so that an echo is not taken for an answer."""
    digest: str
    host_dir: str | None
    heartbeat_s: float
    psutil: str | None
    """The digest of the archive that the head can push."""
    psutil_platform: str
    command: NotRequired[Command]


class BootAnswer(TypedDict, total=False):
    """The answer: the bundle is needed, or the agent starts, or why it cannot."""

    need: bool
    magic: Name
    """Of the host's byte code, in hex: the head may have compiled for it."""
    ok: bool
    error: Literal["python-too-old", "os", "internal"]
    version: Name
    errno: Annotated[int, Range(0, 1 << 16)] | None
    why: Text
    path: Path


class Hello(TypedDict):
    """What an agent says first."""

    digest: Name
    """The digest of its bundle."""
    python: Name
    platform: Name
    """System, machine and C library, which decide which compiled modules can be loaded."""
    hostname: Name
    user: Name
    boot_id: Name
    """Changes with a reboot, after which older pids mean nothing."""
    host_dir: Path
    host_dir_device: Annotated[int, Range(0, 2**64)]
    """`st_dev` of `host_dir`."""
    psutil: Literal["bundle", "none"]
    """`bundle`: psutil was pushed before."""
    psutil_wanted: bool
    cgroup: bool
    """Whether tasks get control groups."""
    warning: Text | None
    """What may end tasks on this host without a failure, such as logind at logout."""


class Slow(TypedDict, total=False):
    """What was slow when the head connected."""

    shell_s: Seconds
    """Time of the login shell's rc files, if above 1 s."""
    connect_s: Seconds
    """Time until sshd accepted the connection, if above 5 s."""


class Greeting(Hello):
    """A hello, with what the head adds to it."""

    slow: NotRequired[Slow]
    printed: NotRequired[Text]
    """What the rc files of the login shell have printed first, if they print anything."""
    before: NotRequired[Text]
    """What the host's engine says of the end of what ran under its name before, if it says anything."""


@final
class HelloFrame(TypedDict):
    """Agent to coordinator, once, first."""

    hello: Hello
