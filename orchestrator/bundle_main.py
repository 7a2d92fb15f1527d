"""The bundle's entry: `python <bundle> run|shim|checkpoints|probe …`. The agent is not started this way."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Hands over to the module of that word. Imports nothing else: it runs before the user's script."""
    word, rest = (argv[0], argv[1:]) if argv else ("", [])
    if word == "run":
        from orchestrator.runtime.main import main as run

        return run(rest) or 0
    if word == "shim":
        from orchestrator.daemon.shim.main import main as shim

        return shim(rest) or 0
    if word == "checkpoints":
        from orchestrator.adapters.checkpoints import checkpoints_main

        return checkpoints_main(rest)
    if word == "probe":
        from orchestrator.daemon.agent.probe import main as probe

        return probe(rest) or 0
    sys.stderr.write("usage: run SCRIPT [ARG…] | shim DIR | checkpoints verify|seed … | probe\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
