"""The catalogue of findings about hosts before a start: a row for each, with a stable id.

`orch doctor`, `orch up`, `orch validate --hosts`, `orch why` and `orch status` refer to a row by its id, and
docs/findings.md is generated from the rows. To add a finding, add a row here and the check that reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from orchestrator.core.causes import Cause
from orchestrator.core.state.run import Problem

Level = Literal["error", "warning", "fine"]
"""error: the training would not begin or not continue; warning: it may cause trouble later; fine: no problem."""

LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the catalogue."""

    id: str
    level: Level
    about: str
    """The finding, in general words."""
    why: str
    """Its consequence."""
    way_out: str
    codes: tuple[str, ...] = ()
    """The codes of problems of a start that mean the same."""


def _rows(table: str) -> Iterator[Row]:
    """Parse a table: each row has id, level and codes, and below them the finding, its consequence and the remedy."""
    for block in table.strip().split("\n\n"):
        head, *texts = block.replace("\n    ", " ").split("\n  ")
        name, level, *codes = head.split()
        about, why, way_out = texts
        yield Row(name, LEVELS[LEVELS.index(level)], about, why, way_out, tuple(codes))


CATALOGUE: tuple[Row, ...] = tuple(
    _rows("""
ssh.no-answer error unreachable connect link pod
  the host cannot be reached over SSH, or does not answer in time
  nothing can be started there
  check that `ssh` reaches it from the head node, with the same name, port and bastion

ssh.refused error auth
  the host refuses orch's SSH keys
  nothing can be started there
  put the public key into authorized_keys there, or name another as `identity_file`

ssh.host-key error host-key-unknown host-key-changed host-key-revoked revoked-keys-unreadable
  the key of the host is not known, is another one than it was, or is revoked
  the host may be another machine, so no authentication is tried
  compare the fingerprint with the owner of the host, then `orch trust FILE`

ssh.limits error no-session
  sshd of the host takes fewer sessions or logins at once than orch and you open
  connections are dropped at random, or no command starts
  raise `MaxStartups` (10:30:100 is usual) and `MaxSessions` in /etc/ssh/sshd_config there

ssh.rc-files error rc-files
  the start-up files of the login shell print, are slow, hang, or read from stdin
  they run before each command over SSH, which waits for them, or loses the input that they read
  let `.bashrc`, `.profile` and their like end at once for shells that are not interactive: `case $- in *i*) ;; *)
    return;; esac`

ssh.round-trip fine
  an order to the host and its answer take this long over SSH
  the training does not wait for it; commands such as `orch logs` do
  nothing needs to be done

ssh.agent warning
  the coordinator that runs has no SSH agent that answers, and your shell has one
  keys that your agent holds let you in, and not the coordinator, which starts the training
  `orch coordinator stop`, then `orch coordinator start` from this shell, while that agent lives; or name a key
    without a passphrase as `identity_file`

ssh.config warning
  ~/.ssh/config has settings for the host that orch does not support
  `ssh` may reach the host where orch does not, or by another way
  write the same into the cluster spec: `address`, `port`, `user`, `identity_file`, `proxy_jump`

ssh.proxy fine
  a host is reached by a ProxyCommand of ~/.ssh/config
  the coordinator runs that command for each connection, as you, with the environment that it was started with
  nothing needs to be done; `proxy_jump: none` in the cluster spec connects directly

net.reached fine
  the hosts reach each other by the addresses of TF_CONFIG, on ports of the run, in both directions
  TensorFlow connects them in the same way
  nothing needs to be done

net.name-unresolved error
  the name of a host cannot be resolved on another host
  TF_CONFIG names the hosts, and TensorFlow waits for ever for a peer that it cannot find
  write the address that its peers reach as `address` or `data_address` of the host

net.name-loopback error
  the name of a host means another machine on one of its peers, often the peer itself (127.0.1.1)
  the peer would connect to itself, and wait for ever
  correct /etc/hosts there, or write the address as `address` or `data_address` of the host

net.name-slow warning
  resolving the name of a host takes long on another host
  each connection waits for that; a name server that drops packets adds 10 s to each start
  write addresses instead of names, or remove the name server that does not answer

net.blocked error
  a host cannot connect to the ports of the run on another host
  TensorFlow would wait for ever for its peers, and no step would be made
  open the ports of `ports:` between the hosts in their firewalls, or name ports that are open; where they have a
    network of their own, write its addresses as `data_address`

net.large-packets error
  two hosts connect, and large packets between them are lost
  the first exchange of gradients would never end
  give their interfaces the MTU that the network carries: `ping -M do -s 1472` between them shows it

net.bandwidth fine
  how much the hosts send each other by the addresses of TF_CONFIG, measured by `orch doctor --bandwidth`
  each step of a mirrored training sends all gradients: a model of 400 MB waits 0.3 s for 10 Gbit/s
  nothing needs to be done

net.bandwidth-low warning
  a host sends another much less than is usual between the hosts, or than Gigabit Ethernet carries
  the whole gang waits for its slowest link, at each step
  see `ethtool` for a port that has agreed on a lower speed, and what else uses the link; of several networks, write
    the faster one's addresses as `data_address`

net.ports-busy error
  too few of the ports of `ports:` are free on a host
  a task would find no port to listen on
  name another range as `ports:`; `ss -tlnp` there shows who listens

net.ports-outgoing warning
  `ports:` lies in the range of outgoing connections of a host
  any program there may take a port of the run for a moment, and a start fails now and then
  name a range as `ports:` outside of `sysctl net.ipv4.ip_local_port_range`

net.proxy fine
  a proxy is set in the environment that tasks get
  gRPC would send the tasks' traffic to it, so orch lets the tasks bypass it (no_grpc_proxy)
  nothing, as long as the tasks train

host.twice error
  two hosts of the spec are one machine
  its GPUs, memory and ports would be given out twice
  remove one of them, and give the other all `gpus` and `slots`

host.machine fine
  the memory of the hosts, and how tasks are ended there
  without a control group of its own a task has no limit, and its children are found by descent and by their environment
  nothing needs to be done; of a user without root, `loginctl enable-linger` gives tasks control groups

host.clock warning
  the clock of a host is not that of the head node
  logs and events of the hosts do not fit together, and files of others look new or old
  let the host keep time: `timedatectl set-ntp true` there

host.open-files warning
  few files may be open at once on a host
  the input pipeline and the connections of a large training need more
  raise `nofile` in /etc/security/limits.conf there

host.processes warning
  few processes are allowed to the user on a host
  each thread counts, and TensorFlow begins hundreds for one task
  raise `nproc` in /etc/security/limits.conf there

host.ends-at-logout warning
  a host ends a user's processes when the user's last session closes
  a short break of the SSH connection would end the training
  `loginctl enable-linger` there, once, which `orch doctor --fix` does, or a setting of root's: the sentence of the
    finding says which

host.orphans warning
  a run that this head node does not know any more has left processes or a directory on a host
  its processes hold memory, ports and GPUs; its directory holds disk
  `orch gc --hosts FILE` lists and removes them, and so does `orch doctor --fix`, once you agree

host.stuck error host-stuck unkillable
  processes of an earlier run cannot be killed on a host
  they hold its GPUs and memory
  see what they wait for (a disk, a driver), or reboot the host

host.own-name error own-name
  a host's own name does not resolve to an address at which its peers reach it
  gloo listens at the address of the host's own name
  give the name the host's address in /etc/hosts there

host.unfit error host-unfit host agent not-writable no-space limit own-place
  the host answers, and cannot hold the run
  nothing can be started there
  see the sentence of the finding

gpu.missing error gpu-missing
  a host has fewer GPUs than the spec says, or none
  the training would fall back to the CPU, or not begin
  correct `gpus` of the host; `nvidia-smi -L` there lists them

gpu.unseen error
  TensorFlow sees fewer GPUs on a host than the spec names
  the training would continue on the CPU, a hundred times slower, with only one line of warning
  install `tensorflow[and-cuda]` there, and see that the driver (`nvidia-smi`) is no older than its CUDA

gpu.hidden warning
  the login shell of a host sets CUDA_VISIBLE_DEVICES to other GPUs than the spec names
  an administrator keeps the others for somebody else, and the tasks get those of the spec
  write the GPUs of that variable as `gpus` of the host

gpu.in-use error gpu-in-use gpu-leased
  a GPU of the run is used by somebody else, or held by another run
  its memory would not suffice
  `orch up --queue` waits for it; or ask them, or give the run other GPUs

gpu.differs warning
  the GPUs of the run are of different models
  each step of a mirrored training waits for the slowest
  give the run GPUs of one model, or live with the pace of the slowest

gpu.unwell warning
  a GPU has had memory errors or errors that its driver reported (Xid), or its hardware slows it down
  it may fail or compute wrong numbers, or the whole gang waits for it
  reset or replace it, see to its cooling and power; leave it out of `gpus` until then

setup.not-made error no-environment
  the environment that `setup:` names is not on the host
  there is no Python to start the tasks with; `orch up` makes it first
  `orch setup FILE` makes it

setup.no-python error no-python-version
  the host has neither the version of Python that `setup:` names, nor uv, which could download it
  the environment cannot be made
  install that Python there, or uv, or name another version

setup.no-ensurepip error no-ensurepip
  the Python of the host has no ensurepip, such as Debian's without python3-venv
  a virtual environment cannot be made with it
  install python3-venv there, or put uv into ~/.local/bin there

setup.failed error setup-failed
  uv or pip could not install the requirements on the host
  the environment is incomplete, and is not used
  correct the requirements, or set `offline: true` where the host does not reach a package index

setup.no-wheel error no-wheel
  the head could not collect the wheels that the host needs
  nothing was pushed
  build a wheel of the package that has none for this platform, and name its directory with --find-links

python.unusable error no-python python-too-old
  the Python of the run cannot be started on a host, or is too old
  nothing can be started there
  give the full path of the Python that has TensorFlow as `python`

python.activated fine
  `activate` of the spec has changed the environment on all hosts in the same way
  the checks, `setup` and the tasks get that environment; secrets are not shown
  nothing needs to be done

python.activate-fails error activate
  the line `activate` of the spec fails in the login shell of a host
  without its environment nothing is checked, installed or started there
  run `bash -lc 'LINE'` there; a module or an environment may be missing, or its command may be unknown to that shell

python.fits fine
  the Python of all hosts has what the script needs, in the same versions
  a gang computes one gradient, and its members agree
  nothing needs to be done

python.imports fine
  TensorFlow was imported once on each host, as a task does it
  each start and restart begins with it
  nothing needs to be done

python.import-fails error
  TensorFlow is installed on a host, and cannot be imported
  every task would end at its first line
  install it again there; of a missing library, name its directory as LD_LIBRARY_PATH in `env:`

python.import-slow warning
  the import of TensorFlow takes long on a host, or does not end
  each start and restart of the gang waits for it
  put the Python on a local disk (`setup:` makes one in the home), and see what else loads the host

python.no-tensorflow error no-tensorflow
  the Python of the run has no TensorFlow on a host
  the first import would fail
  install it there, or name the Python that has it as `python` of the host

python.keras error keras
  the strategy and the version of Keras do not go together
  the training would fail, or not be distributed
  see the sentence of the finding

python.differs error hosts-differ
  the hosts have different versions of Python, TensorFlow or Keras
  a gang computes one gradient, and its members must agree
  install the same versions on all hosts, or name another Python per host

python.syntax error syntax
  the Python of a host cannot compile the script
  every task would end at once
  correct the script, or name a newer Python

python.no-module error no-module
  the script imports a module that a host does not have
  the task would end at that import
  install the package in the Python of the run there

code.link error code-link
  a link of the working directory leads to what a host does not have
  the script would fail where it opens it
  make it there, or name the link in `.orchignore`

storage.checkpoint error checkpoint-dir
  the checkpoint directory cannot be written on a host
  nothing that the training learns would be saved
  it must exist, or be possible to make, and be writable by the SSH user on every host

storage.not-shared error not-shared
  the checkpoint directory is not one directory on all hosts
  what one host saves would not be found by the others after a restart
  mount the same file system there, or write `checkpoint: {shared: false}`

storage.share error share-missing
  a host does not see the checkpoint directory that the run shares
  its tasks would start without the checkpoint of their peers, and what they save would be lost
  mount the share there; the run waits for it, and goes on by itself

storage.space warning
  little space, or few files, are left on a disk that the run uses
  the training would fail when it saves or logs
  remove what is not needed, or name another directory; `orch gc` removes what ended runs have left

storage.read-only error
  a directory that the run needs lies on a file system that is read-only
  nothing can be written there
  mount it for writing, or set another directory

storage.missing warning
  the TMPDIR of `env:` does not exist on a host
  what the training unpacks or compiles goes to another disk, or fails
  make it there: `orch doctor --fix` does

storage.noexec warning
  a directory where Python puts compiled code lies on a file system without execution
  a library that has or unpacks its code there fails at its import
  set TMPDIR in `env:` to a directory elsewhere; of a home, mount it with exec, or set ORCH_HOST_DIR there

storage.owner error
  the checkpoint directory, or `.orch` in it, belongs to another user and is not open to this one
  another head or user has saved there before, and no checkpoint of this run could be kept
  ask the owner to open it to a group of yours (`chgrp -R`, `chmod -R g+rwX`, `g+s`), or name another directory

storage.others error checkpoint-shared
  others than the run's user may write into the checkpoint directory
  they could decide what the training resumes from, or remove all that it has learned
  `chmod go-w` it, `chown` it if not yours, `setfacl -k` a default list; or name its group: `checkpoint: {group: NAME}`

storage.writers fine
  who may write into the checkpoint directory
  they decide what the training resumes from
  nothing needs to be done

storage.users warning
  the hosts write into the shared checkpoint directory as different users
  what one host saves may be closed to the others, and is missed after a restart
  connect as one user with one number everywhere, or give the directory a common group with `g+s`

storage.speed fine
  how fast the checkpoint directory is written, with a sync, from each host
  a checkpoint of a gigabyte takes that long, and is not safe before
  nothing needs to be done

storage.slow warning
  the checkpoint directory is written slowly from a host
  a checkpoint of a gigabyte takes a minute, in which the training may wait, and is not safe before
  save less often (`every:` of `checkpoint:`), or name a directory on a faster disk

storage.nfs warning
  the NFS mount of the checkpoint directory has options that harm checkpoints
  a write fails, a lock does not hold, or what one host saved is seen late by the others
  mount it with `hard`, with locks, and with short `acregmax` and `acdirmax`
""")
)

BY_ID = {row.id: row for row in CATALOGUE}
_BY_CODE = {code: row for row in CATALOGUE for code in row.codes}
_BY_CAUSE = {cause.row.name: BY_ID[cause.row.finding] for cause in Cause if cause.row.finding}


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: its row, its place, and the observation."""

    id: str
    message: str
    """A sentence that names the host."""
    host: str | None = None
    peer: str | None = None
    """The other host of a pair."""
    level: Level = "error"
    hint: str = ""
    own_why: str = ""
    """Why it matters, where that is not what its row says."""
    problem: Problem | None = None
    """The problem for which a start would be refused, if there is one."""

    @property
    def row(self) -> Row:
        """Return the row of the catalogue."""
        return BY_ID[self.id]

    @property
    def why(self) -> str:
        """Return why it matters."""
        return self.own_why or self.row.why

    def document(self) -> dict[str, str | None]:
        """Return the JSON document."""
        keys = ("id", "level", "host", "peer", "message", "why", "hint")
        return {key: getattr(self, key) for key in keys}


def finding(
    id: str,
    message: str,
    host: str | None = None,
    peer: str | None = None,
    *,
    level: Level | None = None,
    hint: str = "",
) -> Finding:
    """Return a finding, by default with the level and the remedy of its row."""
    row = BY_ID[id]
    return Finding(id, message, host, peer, level or row.level, hint or row.way_out)


def problem_finding(problem: Problem, host: str | None) -> Finding:
    """Return the problem for which a start would be refused, as a finding."""
    row = _BY_CODE.get(problem.code, BY_ID["host.unfit"])
    return Finding(
        row.id, problem.message, host, None, row.level, problem.hint or row.way_out, problem=problem
    )


def id_of(code: str) -> str | None:
    """Return the id of the finding for the code of a problem or of a first cause; None if there is none.

    >>> id_of("not-shared"), id_of("network"), id_of("head-disk")
    ('storage.not-shared', 'net.blocked', None)
    """
    row = _BY_CODE.get(code) or _BY_CAUSE.get(code)
    return row.id if row is not None else None


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return errors first, then warnings, then what is fine; each in the order of the catalogue."""
    order = {row.id: number for number, row in enumerate(CATALOGUE)}
    return sorted(findings, key=lambda item: (LEVELS.index(item.level), order[item.id]))
