"""A new order is its signature, who sends it, and who carries it out: then it goes from the head to a host and back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent

SIGNATURES = '''

class AskAge(OfTask):
    """Say for how long the shim of the task has run."""


class Age(TypedDict):
    """How long a shim has run."""

    seconds: Count


class Greet(OfRun):
    """Greet somebody."""

    whom: str


class Greeted(TypedDict):
    """A greeting."""

    words: Annotated[str, Length(20)]


AGE = Verb("age", AskAge, Age)
GREET = Verb("greet", Greet, Greeted, Fence.ANYBODY)
'''
OF_THE_AGENT = """
    def _on_greet(self, order: tasks.Greet, _blob: bytes, _reply: Reply) -> tasks.Greeted:
        return {"words": f"hello, {order['whom']}"}

    def _on_lease("""
OF_THE_SHIM = """
    def _on_age(self, link: AgentLink, order: Order) -> None:
        self._check_fence(order)
        self._reply(link, order.get("id"), {"ok": {"seconds": 7}})

    def _on_stacks("""
SENDER = """
import json, sys
from pathlib import Path
from orchestrator.head.links.conversation import LinkDown
from orchestrator.head.links.lease import leased
from orchestrator.head.links.link import Watch
from orchestrator.head.code import bundle
from orchestrator.head.reach.local import LocalTransport
from orchestrator.protocol.orders.tasks import AGE, GREET
from tests.contract.agent_harness import RUN, client_in
from tests.protocol_page import page

with client_in(Path(sys.argv[1])) as agent:
    agent.ok("watch", heartbeat_s=0.1)
    agent.start(agent.push(train="import time; time.sleep(60)"))
    agent.until_phase("ready")
    seen = {"agent": agent.ok("greet", whom="you"), "shim": agent.ok("age", generation=1, task="worker:0")}
    seen["old"] = agent.error("age", generation=1, task="worker:0", epoch=0)
    with leased(agent.host, LocalTransport(), bundle.load, RUN, Watch(1, 0.5, 30.0)) as link:
        seen["head"] = link.ask(GREET({"run": RUN, "epoch": 1, "whom": "head"})).ok
        try:
            link.ask(GREET({"run": RUN, "epoch": 1, "whom": "a name that is too long"}))
        except LinkDown as e:
            seen["lie"] = str(e)
print(json.dumps({**seen, "page": "### greet" in page() and "### age" in page()}))
"""


def test_a_new_order_of_an_agent_and_of_a_shim_is_three_places(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("orchestrator", "tests"):
        shutil.copytree(PACKAGE.parent / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    signatures = tree / "orchestrator/protocol/orders/tasks.py"
    signatures.write_text(signatures.read_text() + SIGNATURES)
    for file, before, made in (
        ("host/agent/handlers.py", "\n    def _on_lease(", OF_THE_AGENT),
        ("host/shim/loop.py", "\n    def _on_stacks(", OF_THE_SHIM),
    ):
        path = tree / "orchestrator" / file
        assert path.read_text().count(before) == 1
        path.write_text(path.read_text().replace(before, made))
    told = subprocess.run(
        [sys.executable, "-c", SENDER, str(tmp_path)],
        cwd=tree,
        env={**os.environ, "ORCH_HOST_DIR": str(tmp_path / "host")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stderr
    seen = json.loads(told.stdout)
    assert seen["agent"] == {"words": "hello, you"}
    assert seen["shim"] == {"seconds": 7}
    assert seen["old"] == "superseded", "an order is fenced unless it says that anybody may give it"
    assert seen["head"] == {"words": "hello, head"}
    assert "`greet`" in seen["lie"], "what does not have the declared type ends the connection"
    assert seen["page"]
