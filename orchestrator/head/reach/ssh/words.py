"""Makes the command line of the ssh program for the way that orch itself uses to a host."""

from __future__ import annotations

import shlex
from pathlib import Path

from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.config import Hop
from orchestrator.head.reach.ssh.transport import SshTransport


def ssh_words(host: HostPlan, own_known_hosts: Path) -> list[str]:
    """Return `ssh …` with the route, user, keys and known_hosts files of the spec and of ~/.ssh/config.

    Raises HostUnfit where orch does not support the way.
    """
    route = SshTransport(own_known_hosts).route(host)
    way = "-oProxyJump=none"
    if route.hops[0].proxy_command is not None:
        way = f"-oProxyCommand={route.hops[0].proxy_command.replace('%', '%%')}"
    for bastion in route.bastions:
        # With ProxyJump, ssh would use neither our keys nor our known_hosts for the bastion.
        proxy = shlex.join([*_hop(bastion, own_known_hosts), way]).replace("%", "%%")
        way = f"-oProxyCommand={proxy} -W [%h]:%p {shlex.quote(bastion.address)}"
    # Its name as it was written, so that the other settings of ssh_config for it hold.
    return [*_hop(route.target, own_known_hosts), way, host.address or host.name]


def _hop(hop: Hop, own_known_hosts: Path) -> list[str]:
    # A path as a value of ssh_config: quoted, and with its percent signs escaped
    files = " ".join(
        ('"' + str(path).replace("%", "%%") + '"') for path in (*hop.known_hosts, own_known_hosts)
    )
    options = ["StrictHostKeyChecking=yes", f"UserKnownHostsFile={files}"]
    if hop.alias is not None:
        options.append(f"HostKeyAlias={hop.alias}")
    keys = [f"-i{path}" for path in hop.identity_files] if hop.identity_explicit else []
    return ["ssh", *(f"-o{option}" for option in options), *keys, f"-p{hop.port}", f"-l{hop.user}"]
