"""The way to a host: the spec first, then ssh_config, and nothing that we cannot judge."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.core.errors import HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.config import Route, read_config, route
from orchestrator.head.reach.ssh.transport import SshTransport
from orchestrator.spec.plan import load_plan


def lookup_of(**names: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    return dict(names)


def route_to(home: Path, host: HostPlan, names: Mapping[str, Mapping[str, object]]) -> Route:
    return route(host, lambda name: names.get(name, {"hostname": name}), home)


class TestRead:
    def test_includes_stand_in_their_place_and_the_block_goes_on(self, tmp_path: Path) -> None:
        ssh = tmp_path / ".ssh"
        ssh.mkdir()
        (ssh / "config").write_text("Host gpu-*\n  Include sub/*\n  User ml\nHost b\n  Port 1\n")
        (ssh / "sub").mkdir()
        (ssh / "sub/1").write_text("Host gpu-a\n  Port 2222\n")
        (ssh / "sub/2").write_text("# nothing\n\nPort=2223\n")
        read = read_config([ssh / "config", tmp_path / "absent"], tmp_path)
        assert read.text.splitlines() == [
            "Host *",
            "Host gpu-*",
            "Host gpu-a",
            "Port 2222",
            "Port=2223",
            "Host gpu-*",
            "User ml",
            "Host b",
            "Port 1",
            "Host *",
        ]
        assert read.warnings == ()
        assert ssh / "sub" in read.sources
        assert tmp_path / "absent" in read.sources

    def test_a_file_that_includes_itself_ends(self, tmp_path: Path) -> None:
        config = tmp_path / "config"
        config.write_text(f"Include {config}\n")
        read = read_config([config], tmp_path)
        assert "Includes deep" in read.warnings[0]

    def test_sixteen_files_deep_are_read_as_by_ssh(self, tmp_path: Path) -> None:
        for depth in range(20):
            text = f"Host depth-{depth}\nInclude {tmp_path}/{depth + 1}\n"
            (tmp_path / str(depth)).write_text(text)
        read = read_config([tmp_path / "0"], tmp_path)
        assert [depth for depth in range(20) if f"Host depth-{depth}\n" in read.text] == list(range(17))

    @pytest.mark.parametrize(
        "line", ['Match exec "touch x"', "Match host a exec true", "Match tagged x", "Match host", 'Host "a']
    )
    def test_a_block_that_cannot_be_judged_is_for_nobody(self, tmp_path: Path, line: str) -> None:
        config = tmp_path / "config"
        config.write_text(f"{line}\n  Port 1\nMatch host a user b\n  Port 2\n")
        read = read_config([config], tmp_path)
        assert line not in read.text.splitlines()
        assert "Match host a user b\nPort 2" in read.text
        assert [warning.split(": ")[0] for warning in read.warnings] == [f"{config}:1"]

    def test_a_comment_behind_a_value_is_none_of_it(self, tmp_path: Path) -> None:
        """With `Port 2222 # NAT`, port 22 was taken."""
        config = tmp_path / "config"
        config.write_text('Host a # the first\n  Port 2222 # NAT\n  User "m #l"\n  HostName a#b\n#\n')
        read = read_config([config], tmp_path)
        assert read.text.splitlines() == ["Host *", "Host a", "Port 2222", 'User "m #l"', "HostName a#b"]
        assert read.warnings == ()

    def test_a_line_that_is_none_and_a_directory(self, tmp_path: Path) -> None:
        config = tmp_path / "config"
        config.write_text(
            "Port\nUser ml\nHost a\nCertificateFile 1\nHost b\nCertificateFile 2\nCertificateFile 3\n"
        )
        read = read_config([config, tmp_path], tmp_path)
        assert "User ml" in read.text
        assert len(read.warnings) == 3
        assert read.warnings[1].endswith("config:7: skipped: orch takes one CertificateFile of a block")


class TestRoute:
    def test_a_bare_name(self, tmp_path: Path) -> None:
        found = route_to(tmp_path, HostPlan("gpu-a"), {})
        assert found.bastions == ()
        hop = found.target
        assert (hop.address, hop.port, hop.user) == ("gpu-a", 22, getpass.getuser())
        assert hop.known_hosts[0] == tmp_path / ".ssh/known_hosts"
        assert tmp_path / ".ssh/id_ed25519" in hop.identity_files
        assert not hop.identity_explicit

    def test_ssh_config_is_honoured(self, tmp_path: Path) -> None:
        names = lookup_of(
            a={
                "hostname": "10.0.0.1",
                "port": "2222",
                "user": "ml",
                "identityfile": ["~/.ssh/x", "/y"],
                "identitiesonly": "yes",
                "userknownhostsfile": "~/k none",
                "hostkeyalias": "Alias",
            }
        )
        hop = route_to(tmp_path, HostPlan("gpu-a", address="a"), names).target
        assert (hop.address, hop.port, hop.user, hop.key_name) == ("10.0.0.1", 2222, "ml", "alias")
        assert hop.identity_files == (tmp_path / ".ssh/x", Path("/y"))
        assert hop.identities_only
        assert hop.known_hosts == (tmp_path / "k",)

    def test_what_it_says_of_trust_and_algorithms_is_honoured(self, tmp_path: Path) -> None:
        names = lookup_of(
            a={
                "hostname": "10.0.0.1",
                "globalknownhostsfile": "/k1 ~/k2",
                "revokedhostkeys": "~/revoked /etc/revoked",
                "ciphers": "aes256-ctr",
                "pubkeyacceptedkeytypes": "ssh-ed25519",
            },
            b={"pubkeyacceptedkeytypes": "ssh-rsa", "pubkeyacceptedalgorithms": "ssh-ed25519"},
        )
        hop = route_to(tmp_path, HostPlan("gpu-a", address="a", known_hosts="/spec"), names).target
        assert hop.known_hosts == (Path("/spec"),)
        assert hop.system_known_hosts == (Path("/k1"), tmp_path / "k2")
        assert hop.revoked_keys == (tmp_path / "revoked", Path("/etc/revoked"))
        assert hop.algorithms == {"ciphers": "aes256-ctr", "pubkeyacceptedalgorithms": "ssh-ed25519"}
        assert route_to(tmp_path, HostPlan("b"), names).target.algorithms == {
            "pubkeyacceptedalgorithms": "ssh-ed25519"
        }
        plain = route_to(tmp_path, HostPlan("c"), names).target
        assert plain.system_known_hosts[0] == Path("/etc/ssh/ssh_known_hosts")
        assert plain.revoked_keys == ()

    def test_the_spec_wins(self, tmp_path: Path) -> None:
        names = lookup_of(a={"hostname": "10.0.0.1", "port": "2222", "user": "no", "identityfile": ["/no"]})
        host = HostPlan(
            "gpu-a",
            address="a",
            user="ml",
            port=23,
            identity_file="~/key",
            known_hosts="~/known",
            proxy_jump="none",
        )
        hop = route_to(tmp_path, host, names).target
        assert (hop.address, hop.port, hop.user, hop.key_name) == ("10.0.0.1", 23, "ml", "[10.0.0.1]:23")
        assert hop.identity_files == (tmp_path / "key",)
        assert hop.known_hosts == (tmp_path / "known",)

    @pytest.mark.parametrize(
        ("jump", "expected"),
        [
            ("gate", ("192.0.2.9", 2200, "jumper")),
            ("me@gate:23", ("192.0.2.9", 23, "me")),
            ("192.0.2.8", ("192.0.2.8", 22, "ml")),
            ("me@[::1]:23", ("::1", 23, "me")),
            ("ssh://me@b:23", ("b", 23, "me")),
        ],
    )
    def test_the_bastion(self, tmp_path: Path, jump: str, expected: tuple[str, int, str]) -> None:
        names = lookup_of(gate={"hostname": "192.0.2.9", "port": "2200", "user": "jumper"})
        found = route_to(tmp_path, HostPlan("gpu-a", user="ml", proxy_jump=jump), names)
        (bastion,) = found.bastions
        assert (bastion.address, bastion.port, bastion.user) == expected
        assert [hop.bastion for hop in found.hops] == [True, False]

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({}, None),
            ({"setenv": ["A=1"]}, "write it under `env`"),
            ({"stricthostkeychecking": "accept-new"}, "orch trust"),
            ({"stricthostkeychecking": "ask", "addressfamily": "any"}, None),
            ({"identityfile": ["~/.ssh/k"], "certificatefile": ["~/.ssh/other-cert.pub"]}, None),
            ({"port": "ssh"}, "not a port: 22 is used"),
        ],
    )
    def test_what_is_not_done_is_said(
        self, tmp_path: Path, settings: dict[str, object], said: str | None
    ) -> None:
        hop = route_to(tmp_path, HostPlan("a"), lookup_of(a={"hostname": "a", **settings})).target
        assert len(hop.not_done) == (said is not None)
        assert said is None or said in hop.not_done[0]

    def test_a_bastion_behind_bastions(self, tmp_path: Path) -> None:
        names = lookup_of(
            gate={"hostname": "gate", "proxyjump": "outer,inner"},
            outer={"hostname": "outer", "proxyjump": "gate"},
            a={"hostname": "a", "proxyjump": "gate"},
            odd={"hostname": "odd", "proxycommand": "nc"},
        )
        hops = route_to(tmp_path, HostPlan("a"), names).hops
        assert [hop.address for hop in hops] == ["outer", "inner", "gate", "a"], "and no way in a circle"
        hops = route_to(tmp_path, HostPlan("b", proxy_jump="odd,x@gate"), names).hops
        assert [(hop.address, hop.user) for hop in hops[1:-1]] == [("gate", "x")], (
            "as written, it is the whole way"
        )
        assert (hops[0].proxy_command, hops[0].not_done) == ("nc", ())

    def test_the_agent_and_variables_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PLACE", "/run/x")

        def agent(said: str) -> str | None:
            names = lookup_of(a={"hostname": "a", "identityagent": said, "identityfile": ["${PLACE}/key"]})
            hop = route_to(tmp_path, HostPlan("a"), names).target
            assert hop.identity_files == (Path("/run/x/key"),)
            return hop.agent

        assert [agent(said) for said in ("~/a.sock", "$PLACE", "${PLACE}/a", "none", "SSH_AUTH_SOCK")] == [
            str(tmp_path / "a.sock"),
            "/run/x",
            "/run/x/a",
            "none",
            None,
        ]

    def test_a_wildcard_does_not_make_the_bastion_its_own_bastion(self, tmp_path: Path) -> None:
        names = lookup_of(
            gate={"hostname": "gate", "proxyjump": "gate"}, a={"hostname": "a", "proxyjump": "gate"}
        )
        assert route_to(tmp_path, HostPlan("gate"), names).bastions == ()
        assert len(route_to(tmp_path, HostPlan("a"), names).bastions) == 1

    @pytest.mark.parametrize(
        ("host", "why"),
        [
            (HostPlan("h", proxy_jump="a,,b"), "does not name a bastion"),
            (HostPlan("h", proxy_jump="a b:x:y"), "does not name a bastion"),
            (HostPlan("h", proxy_jump="-oProxyCommand=touch x"), "not an address"),
            (HostPlan("h", address="ml@a"), "not an address"),
            (HostPlan("h", address="-oProxyCommand=x"), "not an address"),
            (HostPlan("p", user="CORP\\ml"), "does not hand .* to a shell for that"),
            (HostPlan("p", user="-oX"), "does not hand '-oX' to a shell"),
            (HostPlan("odd"), "has %k: orch does not know that"),
        ],
    )
    def test_ways_that_are_not_gone(self, tmp_path: Path, host: HostPlan, why: str) -> None:
        names = lookup_of(
            p={"hostname": "p", "proxycommand": "nc %h %p %r"}, odd={"hostname": "p", "proxycommand": "x %k"}
        )
        with pytest.raises(HostUnfit, match=why) as refused:
            route_to(tmp_path, host, names)
        assert refused.value.hint

    def test_a_proxy_command_gives_way_to_the_spec(self, tmp_path: Path) -> None:
        names = lookup_of(p={"hostname": "p", "proxycommand": "nc %h %p"})
        assert route_to(tmp_path, HostPlan("p", proxy_jump="none"), names).bastions == ()
        assert len(route_to(tmp_path, HostPlan("p", proxy_jump="gate"), names).bastions) == 1
        assert route_to(tmp_path, HostPlan("p", proxy_jump="none"), names).target.proxy_command is None
        assert route_to(tmp_path, HostPlan("p", port=2222), names).target.proxy_command == "nc p 2222"
        names = lookup_of(p={"hostname": "fd00::1", "proxycommand": "x 100%% '%n' %h %r | y"})
        assert route_to(tmp_path, HostPlan("p", user="ml"), names).target.proxy_command == (
            "x 100% 'p' fd00::1 ml | y"
        )

    @pytest.mark.parametrize(
        ("settings", "spec", "way"),
        [
            ("ProxyJump gate", "", ["gate", "gpu-a"]),
            ("ProxyJump gate", "proxy_jump: none", ["gpu-a"]),
            ("ProxyJump gate", "proxy_jump: other", ["other", "gpu-a"]),
            ("ProxyCommand nc %h %p", "", ["gpu-a nc gpu-a 22"]),
            ("ProxyCommand nc %h %p", "proxy_jump: none", ["gpu-a"]),
            (
                "ProxyCommand nc %h %p\nHost gate\n  ProxyCommand tunnel %h",
                "proxy_jump: gate",
                ["gate tunnel gate", "gpu-a"],
            ),
        ],
    )
    @pytest.mark.parametrize("of_host", [True, False])
    def test_from_the_spec_to_the_way(
        self, tmp_path: Path, settings: str, spec: str, way: list[str], of_host: bool
    ) -> None:
        (tmp_path / "config").write_text(f"Host gpu-a\n  {settings}\n")
        (tmp_path / "train.py").write_text("")
        host = f"{{name: gpu-a, {spec}}}" if of_host and spec else "{name: gpu-a}"
        ssh_part = f"ssh: {{{spec}}}\n" if not of_host and spec else ""
        (tmp_path / "cluster.yaml").write_text(
            f"version: 1\nname: t\nhosts: [{host}]\n{ssh_part}run: {{strategy: single, script: train.py}}\n"
        )
        (planned,) = load_plan(tmp_path / "cluster.yaml")[0].hosts
        ssh = SshTransport(tmp_path / "known", home=tmp_path, config_files=(tmp_path / "config",))
        hops = ssh.route(planned).hops
        assert [f"{hop.address} {hop.proxy_command or ''}".strip() for hop in hops] == way
