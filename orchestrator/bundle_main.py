"""The bundle's entry point: `python <bundle> run|shim|keeper|relay|pod|…`. Agents are not started this way."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Run the module that the first word names. Nothing else is imported, since this runs before the user's script."""
    word, rest = (argv[0], argv[1:]) if argv else ("", [])
    if word == "run":
        from orchestrator.task.main import main as run

        return run(rest) or 0
    if word == "shim":
        from orchestrator.host.shim.main import main as shim

        return shim(rest) or 0
    if word == "keeper":
        from orchestrator.host.keeper.main import main as keeper

        return keeper(rest)
    if word == "relay":
        from orchestrator.host.keeper.relay import main as relay

        return relay(rest)
    if word == "dial":
        from orchestrator.host.keeper.dial import main as dial

        return dial(rest)
    if word == "checkpoints":
        from orchestrator.checkpoints import checkpoints_main

        return checkpoints_main(rest)
    if word == "probe":
        from orchestrator.host.agent.probe import main as probe

        return probe(rest) or 0
    if word == "environment":
        from orchestrator.host.agent.environments import main as environment

        return environment(rest)
    if word == "pod":
        from orchestrator.host.pod.main import main as pod

        return pod(rest) or 0
    sys.stderr.write(
        "usage: run SCRIPT [ARG…] | shim DIR | keeper ALLOCATION | relay … | dial SOCKET"
        " | checkpoints … | probe | environment | pod\n"
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
