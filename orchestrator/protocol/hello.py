"""Types of the first messages between head and agent: how an agent is started, and its hello."""

from typing import Annotated, Literal, NotRequired, TypedDict, final

from orchestrator.protocol.bounds import Name, Path, Range, Seconds, Text


class Command(TypedDict):
    """A person's command on a host (`orch exec`), run instead of an agent. It ends at the first byte on stdin, or at
    the end of that."""

    argv: list[str]
    run: str
    """The run of `task`."""
    task: str | None
    """The task whose environment and working directory it gets; None: those of the login."""
    generation: int
    """The generation of `task`."""
    env: dict[str, str]
    """Variables that `task` got with its release."""


class CommandFrame(TypedDict, total=False):
    """Output of a person's command, as the blob; or, in the last frame, how it ended."""

    stream: Annotated[int, Range(1, 2)]
    """1: stdout, 2: stderr."""
    exit: Annotated[int, Range(0, 255)]
    """Its exit code, or 128 plus the number of the signal that ended it."""
    error: Text
    """Why it could not be started."""
    left: list[Annotated[int, Range(1, 1 << 31)]]
    """Its processes that survived SIGKILL."""


class BootRequest(TypedDict):
    """The head's request to the few lines of Python that start an agent: one line of JSON."""

    nonce: str
    """Answers are marked with its reverse, so that an echo is not mistaken for an answer."""
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
    """The magic number of the host's byte code, in hex. The head may have byte code for it."""
    ok: bool
    error: Literal["python-too-old", "os", "internal"]
    version: Name
    errno: Annotated[int, Range(0, 1 << 16)] | None
    why: Text
    path: Path


class Hello(TypedDict):
    """An agent's first message."""

    digest: Name
    """The digest of its code bundle."""
    python: Name
    platform: Name
    """System, machine and C library, which decide which compiled modules can be loaded."""
    hostname: Name
    user: Name
    boot_id: Name
    """It changes at a reboot, after which recorded pids are invalid."""
    host_dir: Path
    host_dir_device: Annotated[int, Range(0, 2**64)]
    """`st_dev` of `host_dir`."""
    psutil: Literal["bundle", "none"]
    """`bundle`: orch pushed psutil earlier."""
    psutil_wanted: bool
    cgroup: bool
    """Whether tasks get control groups."""
    warning: Text | None
    """Settings that may end tasks on this host, such as logind's at logout."""


class Slow(TypedDict, total=False):
    """What was slow when the head connected."""

    shell_s: Seconds
    """Time of the login shell's rc files, if above 1 s."""
    connect_s: Seconds
    """Time until sshd accepted the connection, if above 5 s."""


class Greeting(Hello):
    """A hello, with fields that the head adds."""

    slow: NotRequired[Slow]
    printed: NotRequired[Text]
    """What the rc files of the login shell printed first, if anything."""
    before: NotRequired[Text]
    """What Slurm or Kubernetes says about the end of the host's predecessor, if anything."""


@final
class HelloFrame(TypedDict):
    """Agent to coordinator, once, first."""

    hello: Hello
